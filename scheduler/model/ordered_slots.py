"""The slots of one pool in their fixed order: kept up with every row, so that no tick sorts all of them."""

from scheduler.model.slots import Slot, slot_order


class OrderedSlots:
    """Slots by id, in their order.

    Slots mostly come in order: a slot that belongs at the end is appended without sorting.
    """

    def __init__(self) -> None:
        self._slots: dict[str, Slot] = {}
        self._last: tuple[str, int, str] | None = None
        """The order of the one that stands last, or did."""
        self._is_sorted = True

    def __bool__(self) -> bool:
        return bool(self._slots)

    def put(self, slot: Slot) -> None:
        """One more, or the new row of one that stands here."""
        if slot.id not in self._slots:
            order = slot_order(slot.id)
            if self._last is None or self._last < order:
                self._last = order
            else:
                self._is_sorted = False
        self._slots[slot.id] = slot

    def remove(self, slot: Slot) -> None:
        """It is here no longer."""
        del self._slots[slot.id]

    def list(self) -> list[Slot]:
        """All of them, in their order."""
        if not self._is_sorted:
            self._slots = dict(sorted(self._slots.items(), key=lambda each: slot_order(each[0])))
            self._is_sorted = True
        return list(self._slots.values())
