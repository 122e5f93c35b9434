"""The slots of one pool in their fixed order. The order is maintained with every row, so that no tick sorts
all slots.
"""

from scheduler.model.slots import Slot, slot_order


class OrderedSlots:
    """The slots of one pool by id, in their fixed order.

    New slots mostly belong at the end. Such a slot is appended without sorting.
    """

    def __init__(self) -> None:
        self._slots: dict[str, Slot] = {}
        self._last: tuple[str, int, str] | None = None
        """Sort key of the last slot. That slot may have been removed since."""
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
        """Remove a slot from the ordered list."""
        del self._slots[slot.id]

    def list(self) -> list[Slot]:
        """Return all slots of the list in slot order."""
        if not self._is_sorted:
            self._slots = dict(sorted(self._slots.items(), key=lambda each: slot_order(each[0])))
            self._is_sorted = True
        return list(self._slots.values())
