"""A copy of the view for readers: it records which rows changed, and keeps ended reservations for a while.

A full garbage collection looks at every object and stops all threads meanwhile. With 100,000 reservations that takes
more than 0.1 s. The rows form no cycles, so reference counts free them, and the rows are kept away from the collector.
"""

import gc
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
        for change in changes:
            self.apply(change)

    def apply(self, change: Change) -> None:
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
        if not isinstance(change, Reservation) or change.id in self.reservations or not is_over(change):
            self.ended.pop(change.id, None)
            return
        known = self.ended.get(change.id)
        if known is None or (known.version, known.marked_at) <= (change.version, change.marked_at):
            self.ended.pop(change.id, None)
            self.ended[change.id] = change
        # Redis removes an ended reservation without a delta. The newest row shows how late it is.
        self._newest = max(self._newest, change.marked_at)
        while self.ended and (
            next(iter(self.ended.values())).marked_at < self._newest - self._kept_seconds
            or len(self.ended) > MOST_ENDED
        ):
            del self.ended[next(iter(self.ended))]


CHANGES: Final = 5000
"""Number of rows that may change before all rows are exempted from collections again. Until then, a full collection
looks at the rows that are new since the last exemption. With fewer than CHANGES new rows it takes some milliseconds.
"""


class GarbageKeeper:
    """Exempts the rows that exist at present from all later collections of garbage (`gc.freeze`). Only one thread may
    use it.
    """

    def __init__(self) -> None:
        self._changes = 0

    def note(self, changes: int, *, is_new: bool) -> None:
        """Record that `changes` rows have changed. `is_new`: all rows of the view were read.

        Exempt all present rows from later garbage collections in two cases: (1) `is_new` is True; (2) at least CHANGES
        rows have changed since the last exemption.
        """
        self._changes += changes
        if is_new or self._changes >= CHANGES:
            self._changes = 0
            # Cycles of garbage would never be freed afterwards.
            gc.collect()
            gc.freeze()


@dataclass(frozen=True)
class ReservationMatch:
    """Conditions on a reservation; a reservation must meet all. `fields`: field of the request (account, pool, system)
    -> its value. `slot`: a slot on which it has a lease. `id_start`: the beginning of its id. `tags`, `labels`: pairs
    that its request must contain. A condition that is None or empty is met by every reservation.
    """

    fields: Mapping[str, str] = field(default_factory=dict)
    slot: str | None = None
    id_start: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def matches(self, row: Reservation) -> bool:
        request = row.request
        return (
            (self.id_start is None or row.id.startswith(self.id_start))
            and all(getattr(request, name) == value for name, value in self.fields.items())
            and (self.slot is None or any(lease.slot == self.slot for lease in row.leases))
            and self.tags.items() <= request.tags.items()
            and self.labels.items() <= request.labels.items()
        )

    @property
    def is_empty(self) -> bool:
        """Whether there is no condition, so that every reservation matches."""
        return self == ReservationMatch()
