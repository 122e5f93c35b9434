"""The starvation guard: who has waited for too long is not overtaken on the slots that could serve it.

Without it a big reservation waits for ever while small ones keep every slot half full. Orchard's backfill, bounded.
"""

from scheduler.policy.draft import Draft
from scheduler.policy.limits import Limits, first_code, has_cordoned_room
from scheduler.policy.places import Place
from scheduler.policy.rooms import Demand, could_hold, fill, undo


class Guard:
    """Takes the slots that could serve a protected reservation out of the ready rooms, for all behind it."""

    def __init__(self, draft: Draft, limits: Limits) -> None:
        self._draft, self._limits = draft, limits

    def protect(self, demand: Demand) -> None:
        """Protect it if it has been pending for longer than `starvation_guard` (0 = off), unless what it waits for
        is not a slot: it is held by `capacity`, or only cordoned slots have room.
        """
        limit = demand.settings.starvation_guard
        if not limit or self._draft.now - demand.reservation.created_at <= limit or self._waits_otherwise(demand):
            return
        for place in list(self._draft.ready.list_places()):
            if _could_serve(demand, place):
                self._draft.ready.remove(place)
                self._draft.kept.add(place)

    def keeps_out(self, demand: Demand) -> bool:
        """Whether it would have got a lease but for the slots that are kept for others."""
        if self._draft.kept.is_empty:
            return False
        rooms = [self._draft.ready, self._draft.kept]
        places = fill(demand, rooms)
        if places is None:
            return False
        undo(demand, rooms, places)
        return True

    def _waits_otherwise(self, demand: Demand) -> bool:
        components = [instance.component for instance in demand.instances]
        codes = [first_code(code for *_, code in self._limits.list_choices(demand, each)) for each in components]
        if "capacity" in codes:
            return True
        return not any(codes) and all(has_cordoned_room(self._draft, demand, each) for each in components)


def _could_serve(demand: Demand, place: Place) -> bool:
    """Whether the slot, if it were empty, could hold one of its instances."""
    return place.slot.pool in demand.pools and any(
        could_hold(demand, instance.component, place.pool, place.capacity, place.labels)
        for instance in demand.instances
    )
