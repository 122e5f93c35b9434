"""The slots that can take leases under quota. They are kept between cycles, and a cycle examines only slots that
changed.
"""

from collections.abc import Iterable
from operator import attrgetter

from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.plan_cache import list_touched


class IdleSlots:
    """The ids of slots that could take one more lease when a cycle began, whatever their resources."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._revision: int | None = None

    def list(self, cycle: CycleState) -> list[SlotInfo]:
        """Return the slots that can take one more lease in this cycle, whatever their resources, in slot order."""
        cached, view = cycle.cache.slots, cycle.view
        touched = view.slots if self._revision is None else list_touched(view, self._revision)
        for name in touched:
            known = cached.get(name)
            if known is not None and serves_quota(cycle, known.slot_info) and known.slot_info.has_place:
                self._names.add(name)
            else:
                self._names.discard(name)
        self._revision = view.revision
        # Other slots are as they were before the cycle, or have become silent: those take no lease.
        restless = {each.slot.id for each in cycle.list_restless()}
        found = (cycle.slot_infos[name] for name in self._names | restless if name in cycle.slot_infos)
        return sort_slots(each for each in found if each.has_place and serves_quota(cycle, each))


def serves_quota(cycle: CycleState, slot_info: SlotInfo) -> bool:
    """Return whether a slot is in service, in a pool whose queue is `quota`."""
    return slot_info.takes_leases and cycle.rules.settings_of(slot_info.slot.pool, None).queue == "quota"


def sort_slots(slot_infos: Iterable[SlotInfo]) -> list[SlotInfo]:
    """Return slots in slot order."""
    return sorted(slot_infos, key=attrgetter("order"))
