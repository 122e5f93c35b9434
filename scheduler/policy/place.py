"""Step 5, place: leases on what is ready, and who waits for what is on its way.

Sources: the autoscaler's tick (queue order, pack), Arvados (one pass, backfill, ready before in flight).
"""

from collections.abc import Sequence

from scheduler.model.decisions import Assign, Placement
from scheduler.model.reservations import Component, Reservation
from scheduler.policy.draft import Draft
from scheduler.policy.guard import Guard
from scheduler.policy.limits import Limits
from scheduler.policy.offerings import list_fitting
from scheduler.policy.places import Place
from scheduler.policy.rooms import Demand, could_hold, fill, given_to


def place(draft: Draft, queue: Sequence[Reservation], limits: Limits) -> list[Demand]:
    """Serve each reservation in queue order; gives back those for whom nothing is ready or on its way.

    First room on ready slots (at once a lease), else room that is ready or on its way for all its instances,
    which it keeps (`booting`). One that finds neither is passed over and later ones are still tried, but not on
    slots that the starvation guard keeps for it. Without `backfill` the first that gets no lease ends the
    placing: the room that those behind it would have taken is kept for them all the same.
    """
    draft.open_rooms()
    guard = Guard(draft, limits)
    unplaced: list[Demand] = []
    blocked: set[str] = set()
    for reservation in queue:
        demand = _open_demand(draft, reservation)
        if demand is None:
            continue
        places = _find_ready(draft, demand)
        if places is not None and demand.queue not in blocked:
            _assign(draft, demand, places)
            continue
        if places is None and guard.keeps_out(demand):
            draft.wait(reservation, "behind_queue", "one before it has waited for so long that it is not overtaken")
        if places is None and not _cover(draft, demand):
            unplaced.append(demand)
        if demand.queue in blocked:
            draft.wait(reservation, "behind_queue", "one before it in the queue waits, and backfill is off")
        guard.protect(demand)
        if not demand.settings.backfill:
            blocked.add(demand.queue)
    return unplaced + _cover_returning(draft)


def _find_ready(draft: Draft, demand: Demand) -> list[Place] | None:
    """Ready places for all its instances. Room only shrinks here: what failed for a shape fails for its like."""
    if demand.is_plain and demand.shape in draft.found_no_room:
        return None
    places = fill(demand, [draft.ready])
    if places is None and demand.is_plain:
        draft.found_no_room.add(demand.shape)
    return places


def _cover(draft: Draft, demand: Demand) -> bool:
    """Set all its instances against room that is ready or on its way, if all of them have some."""
    if demand.is_plain and demand.shape in draft.found_no_cover:
        return False
    places = fill(demand, [draft.ready, draft.coming])
    if places is not None:
        wait_for(draft, demand, places)
    elif demand.is_plain:
        draft.found_no_cover.add(demand.shape)
    return places is not None


def _cover_returning(draft: Draft) -> list[Demand]:
    """Those who were interrupted and still hold on: what would replace their slots is kept for them."""
    demands = [draft.demand_of(each) for each in draft.returning.values() if not is_on_hold(each)]
    return [each for each in demands if each.pools and not _cover(draft, each)]


def wait_for(draft: Draft, demand: Demand, places: Sequence[Place]) -> None:
    """It waits for those of its places that are not ready yet."""
    awaited = {each.slot.id: each.state for each in places if each.state != "ready"}
    names = ", ".join(f"{name} ({state})" for name, state in awaited.items())
    draft.wait(demand.reservation, "booting", f"waits for {names}")


def _open_demand(draft: Draft, reservation: Reservation) -> Demand | None:
    """What it needs, or None with the reason why nothing is even tried for it."""
    demand = draft.demand_of(reservation)
    if is_on_hold(reservation):
        draft.wait(reservation, "on_hold", "on hold until it is resumed, or its priority is above 0")
    elif not demand.pools:
        draft.wait(reservation, "no_pool", f"no pool serves {_asked_of(demand)}")
    elif (misfit := _find_misfit(draft, demand)) is not None:
        detail = f"no slot or offering of {_asked_of(demand)} could hold {misfit}, even empty"
        draft.wait(reservation, "never_fits", detail)
    else:
        return demand
    return None


def is_on_hold(reservation: Reservation) -> bool:
    """Whether nothing is to be done for it while it waits."""
    return reservation.suspended or reservation.priority == 0


def _asked_of(demand: Demand) -> str:
    return demand.shape.pool or demand.shape.system or "nothing"


def _find_misfit(draft: Draft, demand: Demand) -> str | None:
    """The first component that no slot (even empty) and no offering could hold; None when all have a chance."""
    if demand.shape not in draft.misfits:
        draft.misfits[demand.shape] = _work_out_misfit(draft, demand)
    return draft.misfits[demand.shape]


def _work_out_misfit(draft: Draft, demand: Demand) -> str | None:
    for component in demand.shape.components:
        if component.kind == "elastic":
            continue
        if not any(_could_ever_hold(draft, name, demand, component) for name in demand.pools):
            return component.name
    return None


def _could_ever_hold(draft: Draft, name: str, demand: Demand, component: Component) -> bool:
    pool = draft.rules.pools[name]
    if pool.is_elastic and list_fitting(pool, demand, component):
        return True
    return any(
        place.is_active and could_hold(demand, component, pool, place.capacity, place.labels)
        for place in draft.pools[name]
    )


def _assign(draft: Draft, demand: Demand, places: Sequence[Place]) -> None:
    leases = tuple(
        Placement(
            component=instance.name,
            slot=place.slot.id,
            epoch=place.slot.epoch,
            resources=dict(given_to(instance.component, place.pool)),
        )
        for instance, place in zip(demand.instances, places, strict=True)
    )
    draft.decide(Assign(reservation=demand.reservation.id, leases=leases))
