"""A copy of the view for readers: it records which rows changed, and keeps ended reservations for a while."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from scheduler.model.reservations import Reservation, is_over
from scheduler.model.view import KINDS, Change, Gone, Kind, View

MOST_ENDED: Final = 20_000
"""The most ended reservations that are kept. If there are more, the reservation that was added first is forgotten."""


MOST_TAG_KEYS: Final = 1000
"""Keys beyond this number are not kept: tags may have any keys, and pages list them in a menu."""


class FollowedView(View):
    """A view that one thread writes and other threads read while they hold the lock `guard`.

    `changed`: kind of row -> ids of the rows that changed since the last call of `take_changed`. `ended`: the
    reservations that have ended within the last `kept_seconds`, by id, oldest first. `tag_keys`: the keys of the tags
    of all reservations that the view has had.
    """

    def __init__(self, kept_seconds: float) -> None:
        self._kept_seconds, self._newest = kept_seconds, 0.0
        self.guard = threading.RLock()
        self.changed: dict[Kind, set[str]] = {}
        self.ended: dict[str, Reservation] = {}
        self.tag_keys: set[str] = set()
        super().__init__()

    def apply_all(self, changes: Sequence[Change]) -> None:
        """Apply changes, as View does, and record the ids of the changed rows."""
        for change in changes:
            self.apply(change)

    def apply(self, change: Change) -> None:
        """Apply a change, as View does, and record the id of the changed row."""
        with self.guard:
            kind = change.kind if isinstance(change, Gone) else KINDS[type(change)]
            touched = self._find_slots(change)
            super().apply(change)
            self.changed.setdefault(kind, set()).add(change.id)
            if kind == "reservations":
                if isinstance(change, Reservation) and len(self.tag_keys) < MOST_TAG_KEYS:
                    self.tag_keys.update(change.request.tags)
                self._keep_ended(change)
                # The boxes of slots show their leases.
                self.changed.setdefault("slots", set()).update(touched, self._find_slots(change))

    def take_changed(self) -> dict[Kind, frozenset[str]]:
        """Return the ids of the rows that changed since the last call, by kind. A slot counts as changed if its row or
        a lease on it changed.
        """
        with self.guard:
            found, self.changed = self.changed, {}
        return {kind: frozenset(ids) for kind, ids in found.items() if ids}

    @contextmanager
    def reading(self) -> Iterator["FollowedView"]:
        """Take the lock of the view and yield the view, which then does not change within the block."""
        with self.guard:
            yield self

    def _find_slots(self, change: Change) -> set[str]:
        known = self.reservations.get(change.id) if isinstance(change, Reservation | Gone) else None
        return {lease.slot for lease in known.leases} if known is not None else set()

    def _keep_ended(self, change: Change) -> None:
        if not isinstance(change, Reservation):
            self.ended.pop(change.id, None)
            return
        if change.id in self.reservations or not is_over(change):
            self.ended.pop(change.id, None)
            return
        known = self.ended.get(change.id)
        if known is None or (known.version, known.marked_at) <= (change.version, change.marked_at):
            self.ended.pop(change.id, None)
            self.ended[change.id] = change
        # Redis removes an ended reservation without a delta. The newest row shows how late it is.
        self._newest = max(self._newest, change.marked_at)
        while self.ended and self._is_old(next(iter(self.ended.values()))):
            del self.ended[next(iter(self.ended))]

    def _is_old(self, reservation: Reservation) -> bool:
        return reservation.marked_at < self._newest - self._kept_seconds or len(self.ended) > MOST_ENDED
