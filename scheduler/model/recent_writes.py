"""Which rows of a view were written lately, in groups of rows with the same time mark.

A look for lost publishes asks the database for the recently written rows in the same groups. A group that the view has
as a whole costs one comparison, and only the rows of other groups are read one by one.
"""

from collections.abc import Iterable, Sequence
from typing import Final

KEPT_SECONDS: Final = 60.0
"""Rows whose time mark is older than the newest one by more than this (at most twice this) are forgotten. Longer than
a look goes back while ticks are on time; earlier rows are read one by one.
"""

Key = int | str
"""The key of a row among the rows of its kind: the `sequence` of a reservation, the id of any other row."""


class RecentWrites:
    """The keys and versions of the rows that a view has applied lately, by kind of row and time mark. Ended
    reservations, which the view drops, are included.
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[float, dict[Key, int]]] = {}
        self._oldest = self._newest = float("-inf")

    def note(self, kind: str, key: Key, version: int, mark: float) -> None:
        """Note that the view has applied this version of a row, written at `mark`."""
        try:
            self._groups[kind][mark][key] = version
        except KeyError:
            if mark >= self._oldest:
                self._groups.setdefault(kind, {})[mark] = {key: version}
                self._forget_old(mark)

    def note_all(self, kind: str, keys: Sequence[Key], versions: Sequence[int], marks: Sequence[float]) -> None:
        """Note many rows, as `note` does with one of them: their keys, their versions and their marks."""
        self._forget_old(max(marks))
        groups, oldest = self._groups.setdefault(kind, {}), self._oldest
        for mark, key, version in zip(marks, keys, versions, strict=True):
            if mark >= oldest:
                group = groups.get(mark)
                if group is None:
                    groups[mark] = {key: version}
                else:
                    group[key] = version

    def forget(self, kind: str, key: Key, mark: float) -> None:
        """Forget a row that was deleted from the view."""
        self._groups.get(kind, {}).get(mark, {}).pop(key, None)

    def has_all(self, kind: str, mark: float, keys: Iterable[Key], versions: int) -> bool:
        """Return whether the view has applied the rows with these keys, written at `mark`, whose versions have the sum
        `versions`.

        No version in the view is newer than that in the database, so that equal sums are sums of equal versions.
        """
        group = self._groups.get(kind, {}).get(mark)
        if group is None:
            return False
        try:
            return sum(map(group.__getitem__, keys)) == versions
        except KeyError:
            return False

    def _forget_old(self, mark: float) -> None:
        self._newest = max(self._newest, mark)
        if self._newest - self._oldest > 2 * KEPT_SECONDS:
            self._oldest = self._newest - KEPT_SECONDS
            for kind, groups in self._groups.items():
                self._groups[kind] = {at: group for at, group in groups.items() if at >= self._oldest}
