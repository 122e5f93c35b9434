"""The slots of one pool, sorted by number. The order is kept up to date when a row changes, so that a tick need not
sort all slots.
"""

from scheduler.model.slots import Slot, slot_order


class OrderedSlots:
    """The slots of one pool by id, sorted by number (`linux-2` before `linux-10`).

    A new slot usually has the highest number and is appended without sorting.
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
