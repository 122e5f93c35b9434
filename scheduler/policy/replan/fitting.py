"""Tests whether a demand fits on one of the slots that changed, without a test for each pair of a demand and a slot."""

from collections.abc import Iterable

from scheduler.policy.capacity.candidate_queue import RemainingCapacity, SlotClass
from scheduler.policy.capacity.requests import Amounts, Demand
from scheduler.policy.capacity.slot_info import SlotInfo


class FittingClasses:
    """Finds whether an instance fits on one of the slots with which the object was made. Slots with the same pool and
    labels are one slot class. The classes with enough capacity are found once for all demands with equal amounts.
    """

    def __init__(self, slot_infos: Iterable[SlotInfo]) -> None:
        self._alike: dict[str, dict[tuple[SlotClass, RemainingCapacity], None]] = {}
        """Pool -> the different pairs (slot class, remaining capacity) of those slots of `slot_infos` that are in this
        pool. A slot class is the slots with the same pool and labels.
        """
        # Speed: most slots share class and remaining capacity with others.
        for slot_class, remaining in dict.fromkeys([(each.slot_class, each.remaining) for each in slot_infos]):
            self._alike.setdefault(slot_class.pool, {})[slot_class, remaining] = None
        self._known: dict[tuple[str, Amounts], dict[SlotClass, None]] = {}

    def have_place(self, demand: Demand) -> bool:
        """Return whether one of the slots with which this object was made can take the instance of a demand. The demand
        must have a single instance.
        """
        [need] = demand.needs
        return any(
            need.rank_labels(slot_class.labels) is not None
            for pool, step in need.steps.items()
            for slot_class in self._find(pool, step)
        )

    def _find(self, pool: str, step: Amounts) -> dict[SlotClass, None]:
        found = self._known.get((pool, step))
        if found is None:
            alike = self._alike.get(pool, ())
            found = {slot_class: None for slot_class, remaining in alike if remaining.after[step] is not None}
            self._known[pool, step] = found
        return found
