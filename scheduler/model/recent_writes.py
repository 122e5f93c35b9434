"""Remembers which rows written lately a view has applied. Rows with the same time of writing (`marked_at`) are one
group.

The scheduler uses the groups to find changes that never reached the view. It asks the database for the rows written
lately, grouped by `marked_at` too. One comparison shows whether the view has applied all rows of a group. Only the rows
of the remaining groups are read one by one.
"""

from collections.abc import Iterable, Sequence
from typing import Final

KEPT_SECONDS: Final = 60.0
"""Rows that were written up to this number of seconds before the newest write are kept; rows of twice this age are not.
While ticks are on time, a search for lost changes does not go back further. If it does, the rows of earlier writes are
read one by one.
"""

Key = int | str
"""The key of a row among the rows of its kind: the `sequence` of a reservation, the id of any other row."""


class RecentWrites:
    """The rows that a view has applied lately: kind of row -> time of writing -> key -> version. Ended reservations,
    which the view drops, are included.
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[float, dict[Key, int]]] = {}
        self._oldest = self._newest = float("-inf")

    def note(self, kind: str, key: Key, version: int, mark: float) -> None:
        """Record that the view has applied this version of a row of this kind. `mark`: the row's time of writing,
        `marked_at`.
        """
        try:
            self._groups[kind][mark][key] = version
        except KeyError:
            if mark >= self._oldest:
                self._groups.setdefault(kind, {})[mark] = {key: version}
                self._forget_old(mark)

    def note_all(self, kind: str, keys: Sequence[Key], versions: Sequence[int], marks: Sequence[float]) -> None:
        """Record many applied rows of one kind, as `note` records one. The sequences are parallel: the key, the version
        and the time mark of each row.
        """
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
        """Forget a row that was deleted from the view. `mark`: the row's time of writing, `marked_at`."""
        self._groups.get(kind, {}).get(mark, {}).pop(key, None)

    def has_all(self, kind: str, mark: float, keys: Iterable[Key], versions: int) -> bool:
        """Return whether the view has applied the rows with these keys, written at `mark`, whose versions have the sum
        `versions`.

        Because no version in the view is newer than the version in the database, equal sums mean that all versions are
        equal.
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
