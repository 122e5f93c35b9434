"""Two collections of a view's rows, slots and expiring reservations, which keep their order while rows are added and
removed, so that no tick sorts them.
"""

from heapq import heapify, heappop, heappush
from typing import Final

from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot, slot_order

MOST_STALE: Final = 1000
"""If an `ExpiryQueue` has more stale entries than this number, and more stale entries than valid ones, all stale
entries are dropped.
"""


class OrderedSlots:
    """The slots of one pool by id, sorted by number (`linux-2` before `linux-10`).

    The order is kept up to date when a row changes, so that no tick sorts all slots. A new slot usually has the highest
    number and is appended without sorting.
    """

    def __init__(self) -> None:
        self._slots: dict[str, Slot] = {}
        self._last: tuple[str, int, str] | None = None
        """The highest sort key of any slot that was added. Its slot may have been removed since."""
        self._is_sorted = True

    def __bool__(self) -> bool:
        return bool(self._slots)

    def put(self, slot: Slot) -> None:
        """Add a slot, or replace the row of a slot with the same id."""
        if slot.id not in self._slots:
            order = slot_order(slot.id)
            if self._last is None or self._last < order:
                self._last = order
            else:
                self._is_sorted = False
        self._slots[slot.id] = slot

    def remove(self, slot: Slot) -> None:
        """Remove a slot. Raises KeyError if the pool does not have it."""
        del self._slots[slot.id]

    def list(self) -> list[Slot]:
        """Return all slots of the pool, sorted by number."""
        if not self._is_sorted:
            self._slots = dict(sorted(self._slots.items(), key=lambda each: slot_order(each[0])))
            self._is_sorted = True
        return list(self._slots.values())


class ExpiryQueue:
    """The reservations with an `expires_at`, in a heap, so that no tick examines those whose time has not come.

    A renewed reservation leaves a stale entry behind, which is dropped when it reaches the top of the heap.
    """

    def __init__(self, most_stale: int = MOST_STALE) -> None:
        self._most_stale = most_stale
        self._rows: dict[str, Reservation] = {}
        self._heap: list[tuple[float, str]] = []

    def add(self, reservation: Reservation) -> None:
        """Add a reservation, if it expires."""
        if reservation.expires_at is not None:
            self._rows[reservation.id] = reservation
            heappush(self._heap, (reservation.expires_at, reservation.id))

    def remove(self, reservation: Reservation) -> None:
        """Remove a reservation: it has left the view or has a new row."""
        self._rows.pop(reservation.id, None)
        if len(self._heap) > 2 * len(self._rows) + self._most_stale:
            self._heap = [(row.expires_at, name) for name, row in self._rows.items() if row.expires_at is not None]
            heapify(self._heap)

    def find_due(self, now: float) -> tuple[list[Reservation], float | None]:
        """Return two things: (1) the reservations with `expires_at` <= `now`; (2) the first `expires_at` after `now`
        (None: there is none).

        The reservations found stay in the queue.
        """
        due: dict[str, Reservation] = {}
        while self._heap and (self._heap[0][0] <= now or self._is_stale(self._heap[0])):
            entry = heappop(self._heap)
            if not self._is_stale(entry):
                due[entry[1]] = self._rows[entry[1]]
        following = self._heap[0][0] if self._heap else None
        for row in due.values():
            self.add(row)
        return list(due.values()), following

    def _is_stale(self, entry: tuple[float, str]) -> bool:
        row = self._rows.get(entry[1])
        return row is None or row.expires_at != entry[0]
