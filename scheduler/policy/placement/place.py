"""Step 5, place: leases on what is ready, and who waits for what is on its way.

Sources: the autoscaler's tick (queue order, pack), Arvados (one pass, backfill, ready before in flight).
"""

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import chain, compress, repeat

from scheduler.model.decisions import Assign, Placement
from scheduler.model.reservations import Instance, Lease, Reservation, is_on_hold
from scheduler.policy.capacity.gang import Shortage, fill
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.queue import Queue
from scheduler.policy.cycle.state import CycleState, name_placements
from scheduler.policy.cycle.step_values import Charged, Protected, Unplaced
from scheduler.policy.cycle.ttl import Terms
from scheduler.policy.cycle.work_budget import NEXT_TURN
from scheduler.policy.elastic.step import ElasticStep
from scheduler.policy.queueing.claims import assign_claims
from scheduler.policy.queueing.feasibility import Feasibility
from scheduler.policy.queueing.order import sort_queue
from scheduler.policy.queueing.starvation_guard import StarvationGuard
from scheduler.policy.quota.block_reasons import lacks_quota
from scheduler.policy.quota.step import place_by_quota, split_by_queue
from scheduler.policy.scaling.launch_limits import DETAILS, LaunchLimits

Leases = tuple[Placement, ...]
UNPLACED, COVERED, LEASED = range(3)
"""What becomes of one who waits: of many it is kept in a byte each."""
IS_UNPLACED, IS_LEASED = (bytes(fate == each for each in range(256)) for fate in (UNPLACED, LEASED))
"""Tables from these to whether it is that one."""
BEHIND = "one before it in the queue waits, and backfill is off"


def place(cycle: Charged, queue: Queue, limits: LaunchLimits) -> Unplaced:
    """Serve each reservation in queue order; return those for which no slot is ready or in flight.

    First room on ready slots (at once a lease), else room that is ready or on its way for all its instances,
    which it keeps (`booting`). One that finds neither is passed over and later ones are still tried, but not on
    slots that the starvation guard keeps for it. Without `backfill` the first that gets no lease ends the
    placing: the room that those behind it would have taken is kept for them all the same, but for a gang before
    them, which uses what is ready together with what is launched for it.
    """
    if not (queue.ids or cycle.returning or cycle.view.stretching or cycle.rules.has_quota):
        return Unplaced(queue, (), Protected((), {}), ())
    everybody = Feasibility(cycle, limits).set_aside(queue)
    by_quota, waiters = split_by_queue(cycle, everybody)
    demanding = place_by_quota(cycle, by_quota)
    waiters = _assign_claims(cycle, waiters)
    cycle.open_indexes()
    elastic = ElasticStep(cycle, everybody)
    guard = StarvationGuard(cycle, limits, queue.oldest)
    search = _Search(cycle, waiters, elastic, guard.few)
    unplaced = _serve(cycle, waiters, search, guard)
    shortages = elastic.finish()
    left = _add_late_ones(cycle, search, unplaced, demanding)
    return Unplaced(left, search.deferred, guard.list_protected(), shortages)


def _assign_claims(cycle: CycleState, waiters: Queue) -> Queue:
    """Assign claims on slots that elastic instances give back, in queue order; return the reservations without one."""
    if not cycle.list_claimants():
        return waiters

    def hold(reservation: Reservation, leases: tuple[Lease, ...]) -> None:
        for lease in leases:
            slot_info = cycle.slot_infos[lease.slot]
            slot_info.leases = {**slot_info.leases, (reservation.id, lease.component): lease}
            slot_info.redeemed += 1
            slot_info.wanted = True
            slot_info.count_free()
        cycle.assign(reservation, name_placements(leases))

    claimants = [each for each in waiters.reservations if each.leases]
    assign_claims(cycle, claimants, hold, "elastic instances of others", is_exclusive=False)
    return waiters.filter([not each.leases for each in waiters.reservations])


def _serve(cycle: CycleState, waiters: Queue, search: "_Search", guard: StarvationGuard) -> Queue:
    """One after the other; gives back those for whom nothing is ready or on its way."""
    decide, hopeless, runs, ids = cycle.decisions.append, search.hopeless, search.runs, waiters.ids
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
        if (len(demand.needs) > 1 or blocked) and (
            fate := _pass_over(cycle, reservation, demand, blocked, search.deferred)
        ) is not None:
            fates[at] = fate
            continue
        slot_infos = search.find_ready(demand)
        if not (blocked and demand.queue in blocked):
            slot_infos = search.stretch(reservation, demand, slot_infos)
            if slot_infos is not None:
                decide(_assign(reservation, demand, slot_infos))
                fates[at] = LEASED
                cycle.turns.charge_leases(len(slot_infos))
                continue
        if slot_infos is None and guard.keeps_any and guard.keeps_out(demand):
            cycle.wait(reservation.id, "behind_queue", DETAILS["behind_queue"])
        is_covered = slot_infos is not None or search.cover(reservation, demand)
        fates[at] = COVERED if is_covered else UNPLACED
        if not demand.settings.backfill:
            _block(cycle, reservation, demand, blocked, is_gang=not is_covered and len(demand.needs) > 1)
            continue
        guard.protect(reservation, demand, is_covered=is_covered)
        search.note_hopeless(demand, guard)
        if len(hopeless) == search.different:
            break
    cycle.timers.lease_terms.update(_list_terms(cycle, waiters, fates.translate(IS_LEASED)))
    return waiters.filter(fates.translate(IS_UNPLACED))


def _pass_over(
    cycle: CycleState, reservation: Reservation, demand: Demand, blocked: dict[str, bool], deferred: set[str]
) -> int | None:
    """What becomes of one for which nothing is tried now: it stands behind a gang in a queue without backfill, or its
    turn comes in a later tick (without backfill, reservations behind it wait for that). None: it is tried.
    """
    if blocked and blocked.get(demand.queue):
        deferred.add(reservation.id)
        cycle.wait(reservation.id, "behind_queue", BEHIND)
        return UNPLACED
    if len(demand.needs) == 1 or cycle.turns.may_try(reservation, cycle.count_steps()):
        return None
    cycle.wait(reservation.id, "behind_queue", NEXT_TURN)
    if not demand.settings.backfill:
        _block(cycle, reservation, demand, blocked, is_gang=True)
    return COVERED


def _list_terms(cycle: CycleState, waiters: Queue, is_leased: Sequence[object]) -> set[Terms]:
    """For how long those may hold on; one for all that are alike in it."""
    demands = compress(waiters.demands, is_leased)
    if not cycle.view.timed:
        return {Terms(None, each.shape.pool, each.shape.system) for each in set(demands)}
    requests = (each.request for each in compress(waiters.reservations, is_leased))
    return {Terms(each.ttl, each.pool, each.system) for each in requests}


def _add_late_ones(cycle: CycleState, search: "_Search", unplaced: Queue, demanding: Queue) -> Queue:
    """Those for whom nothing is ready or on its way, with whom quota gave no place and those who were interrupted."""
    late, returning = _cover_demanding(cycle, demanding, search), _cover_returning(cycle, search)
    if returning or (late.ids and unplaced.ids):
        return sort_queue(cycle, unplaced.reservations + late.reservations + returning)
    return late if late.ids else unplaced


def _block(
    cycle: CycleState, reservation: Reservation, demand: Demand, blocked: dict[str, bool], *, is_gang: bool
) -> None:
    """Those behind it get no lease, nor does it if there is one before it; behind a gang they keep no room either."""
    if demand.queue in blocked:
        cycle.wait(reservation.id, "behind_queue", BEHIND)
    blocked[demand.queue] = is_gang


class _Search:
    """Room for one demand after the other. It only shrinks here, unless elastic instances give some back: what failed
    for one fails for all that are alike.
    """

    def __init__(self, cycle: CycleState, waiters: Queue, elastic: ElasticStep, few_kept: Shortage) -> None:
        self._cycle, self._elastic, self.different = cycle, elastic, len(waiters.different)
        self.runs = _open_runs(cycle, waiters, elastic.pools)
        """The leases of one after the other of those who ask for one instance."""
        self.deferred: set[str] = set()
        """See `Unplaced.deferred`."""
        self._without_room: set[Demand] = set()
        self._without_cover: set[Demand] = set()
        """Those that are known to find nothing."""
        self.hopeless: set[Demand] = set()
        """Of these, those for whom nothing else is to be done either: the many that wait are asked of no function."""
        self._few_ready, self._few = Shortage(), Shortage()
        """Of places that are ready, and of all that are ready or on their way."""
        self._known = (self._without_room, self._without_cover, self.hopeless, self._few_ready, self._few, few_kept)

    def stretch(
        self, reservation: Reservation, demand: Demand, slot_infos: list[SlotInfo] | None
    ) -> list[SlotInfo] | None:
        """These places, or others that elastic instances give back; there may be more room than before then."""
        if self._elastic.is_active:
            slot_infos = self._elastic.serve(reservation, demand, slot_infos)
            for known in self._known if slot_infos is not None else ():
                known.clear()
        return slot_infos

    def find_ready(self, demand: Demand) -> list[SlotInfo] | None:
        """Ready places for all its instances, their room spent."""
        if demand in self._without_room:
            return None
        ready = self._cycle.ready
        if len(demand.needs) > 1:
            slot_infos = fill(demand, (ready,), shortage=self._few_ready)
            if slot_infos is not None:
                return slot_infos
        elif (slot_info := ready.find(demand.needs[0], demand.declined)) is not None:
            ready.take(slot_info, demand.needs[0])
            slot_info.wanted = True
            return [slot_info]
        self._without_room.add(demand)
        return None

    def cover(self, reservation: Reservation, demand: Demand) -> bool:
        """Set all its instances against room that is ready or on its way, if all of them have some."""
        if demand in self._without_cover:
            return False
        slot_infos = fill(demand, (self._cycle.ready, self._cycle.coming), shortage=self._few)
        if slot_infos is None:
            self._without_cover.add(demand)
            return False
        self._cycle.wait_for(reservation.id, slot_infos)
        if self._elastic.is_active:
            self._elastic.spend(demand, slot_infos)
        return True

    def note_hopeless(self, demand: Demand, guard: StarvationGuard) -> None:
        """While the guard keeps slots nobody is: each is told whether it would have had one of them."""
        if guard.keeps_any:
            self.hopeless.clear()
        elif demand in self._without_cover and guard.is_done_with(demand):
            self.hopeless.add(demand)


def _open_runs(cycle: CycleState, waiters: Queue, stretched: Container[str]) -> dict[Demand, Iterator[Leases]]:
    """For each demand with one instance what one after the other gets, until room ends.

    Nothing for those who declined slots, nor for those whom another's wait may stop, nor where elastic instances stand:
    these may give room back.
    """
    uses = Counter(name for demand in waiters.different for name in demand.pools)

    def open_run(demand: Demand) -> Iterator[Leases]:
        is_simple = len(demand.needs) == 1 and demand.is_shared and demand.settings.backfill
        if not is_simple or any(name in stretched for name in demand.pools):
            return iter(())
        return _take_run(cycle, demand, waiters) if _is_alone(demand, uses) else _take_each(cycle, demand)

    return {demand: open_run(demand) for demand in waiters.different}


def _is_alone(demand: Demand, uses: Mapping[str, int]) -> bool:
    """Whether it has its pools for itself in this tick, so that nothing that others get changes what it finds: it is
    served in one go. Not one that spreads, for which each lease changes which slot is best.
    """
    return not demand.needs[0].spreads and all(uses[name] == 1 for name in demand.pools)


def _take_run(cycle: CycleState, demand: Demand, waiters: Queue) -> Iterator[Leases]:
    [instance], [need] = demand.shape.essential, demand.needs
    runs = cycle.ready.take_run(need, waiters.demands.count(demand))
    return chain.from_iterable(
        repeat((_place_instance(instance, need, slot_info),), given) for slot_info, given in runs
    )


def _take_each(cycle: CycleState, demand: Demand) -> Iterator[Leases]:
    [instance], [need] = demand.shape.essential, demand.needs
    name, given = instance.name, need.given

    def give(slot_info: SlotInfo) -> Leases:
        slot_info.wanted, slot = True, slot_info.slot
        return (Placement(name, slot.id, slot.epoch, given[slot.pool]),)

    return cycle.ready.take_each(need, give)


def _cover_demanding(cycle: CycleState, demanding: Queue, search: "_Search") -> Queue:
    """Those whom quota gave no place: who finds no room that is on its way either."""
    if not demanding.ids or not (cycle.preempted or any(slot_info.is_coming for slot_info in cycle.all_slots())):
        return demanding
    return demanding.filter([not search.cover(*each) for each in demanding])


def _cover_returning(cycle: CycleState, search: _Search) -> list[Reservation]:
    """Those who were interrupted and still hold on: what would replace their slots is kept for them, in queue order."""
    returning = sort_queue(
        cycle, [each for each in cycle.returning.values() if not is_on_hold(each) and not lacks_quota(cycle, each)]
    )
    return [each for each, demand in returning if demand.pools and not search.cover(each, demand)]


def _assign(reservation: Reservation, demand: Demand, slot_infos: Sequence[SlotInfo]) -> Assign:
    instances, needs = demand.shape.essential, demand.needs
    if len(slot_infos) == 1:
        return Assign(reservation=reservation.id, leases=(_place_instance(instances[0], needs[0], slot_infos[0]),))
    return Assign(reservation=reservation.id, leases=tuple(map(_place_instance, instances, needs, slot_infos)))


def _place_instance(instance: Instance, need: InstanceRequest, slot_info: SlotInfo) -> Placement:
    slot = slot_info.slot
    return Placement(instance.name, slot.id, slot.epoch, need.given[slot.pool])
