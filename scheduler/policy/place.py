"""Step 5, place: leases on what is ready, and who waits for what is on its way.

Sources: the autoscaler's tick (queue order, pack), Arvados (one pass, backfill, ready before in flight).
"""

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import chain, compress, repeat

from scheduler.model.decisions import Assign, Placement
from scheduler.model.reservations import Instance, Reservation, is_on_hold
from scheduler.policy.claims import assign_claimed
from scheduler.policy.draft import Draft, Queue
from scheduler.policy.elastic import Elastic
from scheduler.policy.filling import Shortage, fill
from scheduler.policy.guard import Guard
from scheduler.policy.limits import DETAILS, Limits
from scheduler.policy.misfit import Misfits
from scheduler.policy.needs import Demand, Need
from scheduler.policy.order import sort_queue
from scheduler.policy.places import Place
from scheduler.policy.quota import place_by_quota, split_by_queue
from scheduler.policy.refusals import lacks_quota
from scheduler.policy.ttl import Terms
from scheduler.policy.turns import NEXT_TURN

Leases = tuple[Placement, ...]
UNPLACED, COVERED, LEASED = range(3)
"""What becomes of one who waits: of many it is kept in a byte each."""
IS_UNPLACED, IS_LEASED = (bytes(fate == each for each in range(256)) for fate in (UNPLACED, LEASED))
"""Tables from these to whether it is that one."""
BEHIND = "one before it in the queue waits, and backfill is off"


def place(draft: Draft, queue: Queue, limits: Limits) -> Queue:
    """Serve each reservation in queue order; gives back those for whom nothing is ready or on its way.

    First room on ready slots (at once a lease), else room that is ready or on its way for all its instances,
    which it keeps (`booting`). One that finds neither is passed over and later ones are still tried, but not on
    slots that the starvation guard keeps for it. Without `backfill` the first that gets no lease ends the
    placing: the room that those behind it would have taken is kept for them all the same, but for a gang before
    them, which uses what is ready together with what is launched for it.
    """
    if not (queue.ids or draft.returning or draft.view.stretching or draft.rules.has_quota):
        return queue
    everybody = Misfits(draft, limits).set_aside(queue)
    by_quota, waiters = split_by_queue(draft, everybody)
    demanding = place_by_quota(draft, by_quota)
    waiters = assign_claimed(draft, waiters)
    draft.open_rooms()
    elastic = Elastic(draft, everybody)
    guard = Guard(draft, limits, queue.oldest)
    search = _Search(draft, waiters, elastic, guard.few)
    unplaced = _serve(draft, waiters, search, guard)
    elastic.finish()
    return _add_late_ones(draft, search, unplaced, demanding)


def _serve(draft: Draft, waiters: Queue, search: "_Search", guard: Guard) -> Queue:
    """One after the other; gives back those for whom nothing is ready or on its way."""
    decide, hopeless, runs, ids = draft.decisions.append, search.hopeless, search.runs, waiters.ids
    fates = bytearray(len(waiters.ids))
    blocked: dict[str, bool] = {}
    for at, demand in enumerate(waiters.demands):
        if demand in hopeless:
            continue
        if (leases := next(runs[demand], None)) is not None:
            decide(Assign(reservation=ids[at], leases=leases))
            fates[at] = LEASED
            continue
        reservation = waiters.reservations[at]
        if (len(demand.needs) > 1 or blocked) and (fate := _pass_over(draft, reservation, demand, blocked)) is not None:
            fates[at] = fate
            continue
        places = search.find_ready(demand)
        if not (blocked and demand.queue in blocked):
            places = search.stretch(reservation, demand, places)
            if places is not None:
                decide(_assign(reservation, demand, places))
                fates[at] = LEASED
                draft.turns.charge_leases(len(places))
                continue
        if places is None and guard.keeps_any and guard.keeps_out(demand):
            draft.wait(reservation.id, "behind_queue", DETAILS["behind_queue"])
        is_covered = places is not None or search.cover(reservation, demand)
        fates[at] = COVERED if is_covered else UNPLACED
        if not demand.settings.backfill:
            _block(draft, reservation, demand, blocked, is_gang=not is_covered and len(demand.needs) > 1)
            continue
        guard.protect(reservation, demand, is_covered=is_covered)
        search.note_hopeless(demand, guard)
        if len(hopeless) == search.different:
            break
    draft.terms.update(_list_terms(draft, waiters, fates.translate(IS_LEASED)))
    return waiters.filter(fates.translate(IS_UNPLACED))


def _pass_over(draft: Draft, reservation: Reservation, demand: Demand, blocked: dict[str, bool]) -> int | None:
    """What becomes of one for which nothing is tried now: it stands behind a gang in a queue without backfill, or its
    turn comes in a later tick (without backfill, reservations behind it wait for that). None: it is tried.
    """
    if blocked and blocked.get(demand.queue):
        draft.deferred.add(reservation.id)
        draft.wait(reservation.id, "behind_queue", BEHIND)
        return UNPLACED
    if len(demand.needs) == 1 or draft.turns.may_try(reservation, draft.count_steps()):
        return None
    draft.wait(reservation.id, "behind_queue", NEXT_TURN)
    if not demand.settings.backfill:
        _block(draft, reservation, demand, blocked, is_gang=True)
    return COVERED


def _list_terms(draft: Draft, waiters: Queue, is_leased: Sequence[object]) -> set[Terms]:
    """For how long those may hold on; one for all that are alike in it."""
    demands = compress(waiters.demands, is_leased)
    if not draft.view.timed:
        return {Terms(None, each.shape.pool, each.shape.system) for each in set(demands)}
    requests = (each.request for each in compress(waiters.reservations, is_leased))
    return {Terms(each.ttl, each.pool, each.system) for each in requests}


def _add_late_ones(draft: Draft, search: "_Search", unplaced: Queue, demanding: Queue) -> Queue:
    """Those for whom nothing is ready or on its way, with whom quota gave no place and those who were interrupted."""
    late, returning = _cover_demanding(draft, demanding, search), _cover_returning(draft, search)
    if returning or (late.ids and unplaced.ids):
        return sort_queue(draft, unplaced.reservations + late.reservations + returning)
    return late if late.ids else unplaced


def _block(draft: Draft, reservation: Reservation, demand: Demand, blocked: dict[str, bool], *, is_gang: bool) -> None:
    """Those behind it get no lease, nor does it if there is one before it; behind a gang they keep no room either."""
    if demand.queue in blocked:
        draft.wait(reservation.id, "behind_queue", BEHIND)
    blocked[demand.queue] = is_gang


class _Search:
    """Room for one demand after the other. It only shrinks here, unless elastic instances give some back: what failed
    for one fails for all that are alike.
    """

    def __init__(self, draft: Draft, waiters: Queue, elastic: Elastic, few_kept: Shortage) -> None:
        self._draft, self._elastic, self.different = draft, elastic, len(waiters.different)
        self.runs = _open_runs(draft, waiters, elastic.pools)
        """The leases of one after the other of those who ask for one instance."""
        self._without_room: set[Demand] = set()
        self._without_cover: set[Demand] = set()
        """Those that are known to find nothing."""
        self.hopeless: set[Demand] = set()
        """Of these, those for whom nothing else is to be done either: the many that wait are asked of no function."""
        self._few_ready, self._few = Shortage(), Shortage()
        """Of places that are ready, and of all that are ready or on their way."""
        self._known = (self._without_room, self._without_cover, self.hopeless, self._few_ready, self._few, few_kept)

    def stretch(self, reservation: Reservation, demand: Demand, places: list[Place] | None) -> list[Place] | None:
        """These places, or others that elastic instances give back; there may be more room than before then."""
        if self._elastic.is_active:
            places = self._elastic.serve(reservation, demand, places)
            for known in self._known if places is not None else ():
                known.clear()
        return places

    def find_ready(self, demand: Demand) -> list[Place] | None:
        """Ready places for all its instances, their room spent."""
        if demand in self._without_room:
            return None
        ready = self._draft.ready
        if len(demand.needs) > 1:
            places = fill(demand, (ready,), shortage=self._few_ready)
            if places is not None:
                return places
        elif (place := ready.find(demand.needs[0], demand.declined)) is not None:
            ready.take(place, demand.needs[0])
            place.wanted = True
            return [place]
        self._without_room.add(demand)
        return None

    def cover(self, reservation: Reservation, demand: Demand) -> bool:
        """Set all its instances against room that is ready or on its way, if all of them have some."""
        if demand in self._without_cover:
            return False
        places = fill(demand, (self._draft.ready, self._draft.coming), shortage=self._few)
        if places is None:
            self._without_cover.add(demand)
            return False
        wait_for(self._draft, reservation.id, places)
        if self._elastic.is_active:
            self._elastic.spend(demand, places)
        return True

    def note_hopeless(self, demand: Demand, guard: Guard) -> None:
        """While the guard keeps slots nobody is: each is told whether it would have had one of them."""
        if guard.keeps_any:
            self.hopeless.clear()
        elif demand in self._without_cover and guard.is_done_with(demand):
            self.hopeless.add(demand)


def _open_runs(draft: Draft, waiters: Queue, stretched: Container[str]) -> dict[Demand, Iterator[Leases]]:
    """For each demand with one instance what one after the other gets, until room ends.

    Nothing for those who declined slots, nor for those whom another's wait may stop, nor where elastic instances stand:
    these may give room back.
    """
    uses = Counter(name for demand in waiters.different for name in demand.pools)

    def open_run(demand: Demand) -> Iterator[Leases]:
        is_simple = len(demand.needs) == 1 and demand.is_shared and demand.settings.backfill
        if not is_simple or any(name in stretched for name in demand.pools):
            return iter(())
        return _take_run(draft, demand, waiters) if _is_alone(demand, uses) else _take_each(draft, demand)

    return {demand: open_run(demand) for demand in waiters.different}


def _is_alone(demand: Demand, uses: Mapping[str, int]) -> bool:
    """Whether it has its pools for itself in this tick, so that nothing that others get changes what it finds: it is
    served in one go. Not one that spreads, for which each lease changes which slot is best.
    """
    return not demand.needs[0].spreads and all(uses[name] == 1 for name in demand.pools)


def _take_run(draft: Draft, demand: Demand, waiters: Queue) -> Iterator[Leases]:
    [instance], [need] = demand.shape.essential, demand.needs
    runs = draft.ready.take_run(need, waiters.demands.count(demand))
    return chain.from_iterable(repeat((_place_instance(instance, need, place),), given) for place, given in runs)


def _take_each(draft: Draft, demand: Demand) -> Iterator[Leases]:
    [instance], [need] = demand.shape.essential, demand.needs
    name, given = instance.name, need.given

    def give(place: Place) -> Leases:
        place.wanted, slot = True, place.slot
        return (Placement(name, slot.id, slot.epoch, given[slot.pool]),)

    return draft.ready.take_each(need, give)


def _cover_demanding(draft: Draft, demanding: Queue, search: "_Search") -> Queue:
    """Those whom quota gave no place: who finds no room that is on its way either."""
    if not demanding.ids or not (draft.preempted or any(place.is_coming for place in draft.all_places())):
        return demanding
    return demanding.filter([not search.cover(*each) for each in demanding])


def _cover_returning(draft: Draft, search: _Search) -> list[Reservation]:
    """Those who were interrupted and still hold on: what would replace their slots is kept for them, in queue order."""
    returning = sort_queue(
        draft, [each for each in draft.returning.values() if not is_on_hold(each) and not lacks_quota(draft, each)]
    )
    return [each for each, demand in returning if demand.pools and not search.cover(each, demand)]


def wait_for(draft: Draft, name: str, places: Sequence[Place]) -> None:
    """It waits for those of its places that are not ready yet. Where all are, it was preempted just now; or those who
    came after it have taken what it would have found first, and left what is enough for it.
    """
    awaited = [f"{each.slot.id} ({each.state})" for each in places if each.state != "ready"]
    if awaited:
        draft.wait(name, "booting", f"waits for {', '.join(dict.fromkeys(awaited))}")
    elif any(each.id == name for each in draft.preempted):
        draft.wait(name, "no_capacity", "was preempted in this tick; the next one places it")
    else:
        draft.wait(name, "no_capacity", "found room only once others were placed; the next tick places it")


def _assign(reservation: Reservation, demand: Demand, places: Sequence[Place]) -> Assign:
    instances, needs = demand.shape.essential, demand.needs
    if len(places) == 1:
        return Assign(reservation=reservation.id, leases=(_place_instance(instances[0], needs[0], places[0]),))
    return Assign(reservation=reservation.id, leases=tuple(map(_place_instance, instances, needs, places)))


def _place_instance(instance: Instance, need: Need, place: Place) -> Placement:
    slot = place.slot
    return Placement(instance.name, slot.id, slot.epoch, need.given[slot.pool])
