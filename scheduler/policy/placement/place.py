"""Placing: assign leases on ready slots, and keep capacity in flight for the reservations that wait for it.

Sources: the autoscaler's tick (queue order, pack), Arvados (one pass, backfill, ready before in flight).
"""

from collections import Counter
from collections.abc import Collection, Container, Iterator, Sequence
from itertools import chain, compress, repeat
from operator import attrgetter

from scheduler.model.decisions import Assign, Placement
from scheduler.model.reservations import Lease, Reservation, is_on_hold
from scheduler.model.rules import Terms
from scheduler.model.waiting_codes import ENTRIES
from scheduler.policy.capacity.gang import Shortage, fill
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.queue import Queue
from scheduler.policy.cycle.state import CycleState, Protected, Unplaced
from scheduler.policy.cycle.work_budget import NEXT_TURN
from scheduler.policy.elastic.step import ElasticStep
from scheduler.policy.queueing.claims import assign_claims
from scheduler.policy.queueing.feasibility import set_aside
from scheduler.policy.queueing.order import insert, sort_queue
from scheduler.policy.queueing.starvation_guard import StarvationGuard
from scheduler.policy.quota.step import lacks_quota, place_by_quota
from scheduler.policy.scaling.launch_limits import LaunchLimits

Leases = tuple[Placement, ...]
_NAME = attrgetter("name")
UNPLACED, COVERED, LEASED = range(3)
"""The result of placing one reservation. UNPLACED: it fits on no slot that is ready or in flight. COVERED: it needs no
launch, in most cases because capacity is kept for it. LEASED: it got its leases. A result is stored in one byte,
because there may be a million reservations.
"""
IS_UNPLACED, IS_LEASED = (bytes(fate == each for each in range(256)) for fate in (UNPLACED, LEASED))
"""Two tables for `bytes.translate`. Each turns the results of many reservations into 1 or 0: whether a reservation is
unplaced (`IS_UNPLACED`), or leased (`IS_LEASED`).
"""
GUARDED = ENTRIES["behind_queue"].sentence
BEHIND = "an earlier reservation in the queue waits, and backfill is off"


def place(cycle: CycleState, queue: Queue, limits: LaunchLimits) -> Unplaced:
    """Place the pending reservations in queue order. Return the reservations that fit on no slot that is ready or in
    flight.

    A reservation is leased if all its instances fit on ready slots. If not, capacity on slots that are ready or in
    flight is kept for all of them, and the reservation waits with the code `booting`. If that does not suffice either,
    the reservation is passed over. Later reservations are then tried, except on slots that the starvation guard keeps.

    In a queue without `backfill`, no reservation behind the first one without a lease is leased in this cycle. Capacity
    on slots that are ready or in flight is still kept for these reservations, so that nothing is launched for them
    without need. Behind a gang that does not fit, no such capacity is kept: the gang is to use the ready slots together
    with slots that are launched for it.
    """
    if not (queue.ids or cycle.returning or cycle.view.stretching or cycle.rules.has_quota):
        return Unplaced(queue, (), Protected((), {}), ())
    waiting = set_aside(cycle, limits, queue)
    waiters, demanding, grant_limits = place_by_quota(cycle, waiting)
    waiters = _assign_claims(cycle, waiters)
    cycle.open_indexes()
    elastic = ElasticStep(cycle, waiting, grant_limits)
    guard = StarvationGuard(cycle, limits, queue.oldest)
    search = _Search(cycle, waiters, elastic, guard)
    unplaced = _serve(cycle, waiters, search, guard)
    shortages = elastic.finish()
    left = _add_late_ones(cycle, search, unplaced, demanding)
    return Unplaced(left, search.deferred, Protected(guard.gangs, guard.kept), shortages, search.uncovered)


def _assign_claims(cycle: CycleState, waiters: Queue) -> Queue:
    """Assign slots that reservations in `waiters` claim and that elastic instances have given back, in queue order.
    Return the queue without the reservations that have claims, whether these were leased or still wait for their slots.
    """
    if not cycle.list_claimants():
        return waiters

    def hold(reservation: Reservation, leases: tuple[Lease, ...]) -> None:
        for lease in leases:
            slot_info = cycle.slot_infos[lease.slot]
            slot_info.leases = {**slot_info.leases, (reservation.id, lease.component): lease}
            slot_info.redeemed += 1
            slot_info.wanted = True
            slot_info.count_free()
        cycle.assign(reservation, leases)

    claimants = [each for each in waiters.reservations if each.leases]
    assign_claims(cycle, claimants, hold, "elastic instances of other reservations", is_exclusive=False)
    return waiters.filter([not each.leases for each in waiters.reservations])


def _serve(cycle: CycleState, waiters: Queue, search: "_Search", guard: StarvationGuard) -> Queue:
    """Place the reservations in queue order. Return the reservations that fit on no slot that is ready or in flight."""
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
                names = map(_NAME, demand.shape.essential)
                leases = tuple(map(_make_placement, names, demand.needs, slot_infos))
                decide(Assign(reservation=reservation.id, leases=leases))
                fates[at] = LEASED
                cycle.turns.charge_leases(len(slot_infos))
                continue
        if slot_infos is None and guard.keeps_any and (guard.keeps_out(demand) or search.is_kept_out(demand, guard)):
            cycle.wait(reservation.id, "behind_queue", GUARDED)
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
    """Return None if this cycle has to try to place a reservation. Otherwise record why it waits, and return its
    result (`UNPLACED` or `COVERED`).

    There are two reasons not to try a reservation. (1) It is behind a gang in a queue without backfill: `UNPLACED`, and
    its id is added to `deferred`. (2) It is a gang whose principal has spent its work budget: `COVERED`, so that
    nothing is launched for the gang. In case (2), if the queue has no backfill, the reservations behind the gang are
    not tried either. `blocked`: see `_block`.
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
    """Return the different terms of the reservations of `waiters` that were leased in this cycle, which determine how
    long a lease lasts. `is_leased`: one entry for each reservation of `waiters`, true if it was leased.
    """
    demands = compress(waiters.demands, is_leased)
    if not cycle.view.timed:
        return {Terms(None, each.shape.pool, each.shape.system) for each in set(demands)}
    find_limit = cycle.view.find_max_runtime
    leased = ((each.request, find_limit(each)) for each in compress(waiters.reservations, is_leased))
    return {Terms(each.ttl, each.pool, each.system, limit) for each, limit in leased}


def _add_late_ones(cycle: CycleState, search: "_Search", unplaced: Queue, demanding: Queue) -> Queue:
    """Return `unplaced` with two kinds of reservations added, each at its position in the queue: (1) the reservations
    in `demanding`, which `place_by_quota` did not place and which may cause a launch; (2) interrupted reservations in
    their grace period (`cycle.returning`). A reservation that fits on slots that are ready or in flight is not added:
    capacity is kept for it there.
    """
    late = demanding
    if (
        late.ids
        and (len(cycle.ready) or len(cycle.coming))
        and (cycle.preempted or any(each.is_coming for each in cycle.slot_infos.values()))
    ):
        late = late.filter([demand in search.uncovered or not search.cover(row, demand) for row, demand in late])
    returning = _cover_returning(cycle, search) if cycle.returning else []
    if returning or (late.ids and unplaced.ids):
        return insert(cycle, unplaced, late.reservations + returning)
    return late if late.ids else unplaced


def _block(
    cycle: CycleState, reservation: Reservation, demand: Demand, blocked: dict[str, bool], *, is_gang: bool
) -> None:
    """Record in `blocked` that reservations behind this one get no lease in this cycle, because backfill is off in
    their queue and this one got no lease.

    `blocked`: name of the queue -> `is_gang` of the last such reservation. `is_gang`: whether this one is a gang
    without capacity. If so, later reservations are not tried. If not, they get no lease, and capacity on slots that are
    ready or in flight is still kept for them.
    """
    if demand.queue in blocked:
        cycle.wait(reservation.id, "behind_queue", BEHIND)
    blocked[demand.queue] = is_gang


class _Search:
    """Searches the slots of a cycle for one demand after the other, and remembers which demands fit nowhere.

    Free capacity only shrinks during the placing, unless elastic instances are reclaimed. So if a demand did not fit
    once, later reservations with the same demand do not fit either.
    """

    def __init__(self, cycle: CycleState, waiters: Queue, elastic: ElasticStep, guard: StarvationGuard) -> None:
        self._cycle, self._elastic, self._guard = cycle, elastic, guard
        different = waiters.different
        self.different = len(different)
        self.runs = _open_runs(cycle, waiters.demands, different, elastic.pools)
        """Demand -> an iterator whose next step takes free capacity for one more reservation of this demand and yields
        the leases that the reservation gets. See `_open_runs`.
        """
        self.deferred: set[str] = set()
        """Ids of reservations behind a gang in a queue without backfill: they are placed only after slots were launched
        for the gang.
        """
        self._without_room: set[Demand] = set()
        self.uncovered: set[Demand] = set()
        """Demands that are known not to fit even if slots in flight are used together with ready slots.
        (`_without_room` has the demands that are known not to fit on ready slots alone.)
        """
        self.hopeless: set[Demand] = set()
        """Demands for which every search is known to fail. Speed: `_serve` skips their reservations, of which there may
        be many, without a function call.
        """
        self._few_ready, self._few = Shortage(), Shortage()
        """Two tables of request classes of which too few instances fitted: `_few_ready` for ready slots, `_few` for
        ready slots together with slots in flight.
        """
        self._known = (
            self._without_room,
            self.uncovered,
            self.hopeless,
            self._few_ready,
            self._few,
            guard.few,
            *guard.refusals,
        )

    def stretch(
        self, reservation: Reservation, demand: Demand, slot_infos: list[SlotInfo] | None
    ) -> list[SlotInfo] | None:
        """Return slots for a reservation: `slot_infos` if a search found slots, else slots that the starvation guard
        lends, else slots that elastic instances give back for it. Return None if there are none of these.

        A reclaim may free more capacity than the reservation needs, so demands that did not fit before are searched
        again afterwards.
        """
        if slot_infos is None:
            slot_infos = self._guard.lend(reservation, demand)
        if self._elastic.is_active:
            slot_infos = self._elastic.serve(reservation, demand, slot_infos)
            for known in self._known if slot_infos is not None else ():
                known.clear()
        return slot_infos

    def is_kept_out(self, demand: Demand, guard: StarvationGuard) -> bool:
        """Return whether reclaimed elastic instances could make capacity for a demand if the starvation guard kept no
        slots.
        """
        return self._elastic.is_active and self._elastic.is_kept_out(demand, guard.kept.values())

    def find_ready(self, demand: Demand) -> list[SlotInfo] | None:
        """Return a ready slot for each instance of a demand and take the capacity. Return None, and take nothing, if
        not all instances fit.
        """
        if demand in self._without_room:
            return None
        slot_infos = fill(demand, (self._cycle.ready,), shortage=self._few_ready)
        if slot_infos is None:
            self._without_room.add(demand)
        return slot_infos

    def cover(self, reservation: Reservation, demand: Demand) -> bool:
        """Return whether all instances of a demand fit on slots that are ready or in flight. If so, keep this capacity
        for the reservation, and record that it waits for these slots.

        Ready slots are used before slots in flight. Source: Arvados.
        """
        if demand in self.uncovered:
            return False
        is_known = demand in self._without_room and not len(self._cycle.coming)
        slot_infos = None if is_known else fill(demand, (self._cycle.ready, self._cycle.coming), shortage=self._few)
        if slot_infos is None:
            self.uncovered.add(demand)
            return False
        self._cycle.wait_for(reservation.id, slot_infos)
        if self._elastic.is_active:
            self._elastic.spend(demand, slot_infos)
        return True

    def note_hopeless(self, demand: Demand, guard: StarvationGuard) -> None:
        """Record that all later searches for a demand fail, if this is known (see `hopeless`). Nothing is recorded
        while the starvation guard keeps slots, because each waiting reservation then has to report whether it would fit
        on one of the kept slots.
        """
        if guard.keeps_any:
            self.hopeless.clear()
        elif demand in self.uncovered and guard.is_done_with(demand):
            self.hopeless.add(demand)


def _open_runs(
    cycle: CycleState, demands: list[Demand], different: Collection[Demand], stretched: Container[str]
) -> dict[Demand, Iterator[Leases]]:
    """Return a table (demand -> iterator). Each step of the iterator takes capacity for the next reservation of the
    demand and yields the leases of this reservation. The iterator ends when the demand fits on no ready slot.

    The iterator is empty from the start in four cases: (1) the demand has several instances; (2) it is not shared, for
    example because slots were declined; (3) its queue has no backfill; (4) one of its pools is in `stretched`. In these
    cases more than the free capacity decides, and `_serve` searches for each reservation.

    `demands`: the demand of each waiting reservation. `different`: each demand once. `stretched`: names of the pools
    that may have elastic instances.
    """
    uses = Counter(name for demand in different for name in demand.pools)

    def open_run(demand: Demand) -> Iterator[Leases]:
        is_simple = len(demand.needs) == 1 and demand.is_shared and demand.settings.backfill
        if not is_simple or any(name in stretched for name in demand.pools):
            return iter(())
        if demand.needs[0].spreads or any(uses[name] > 1 for name in demand.pools):
            return _take_each(cycle, demand)
        [need] = demand.needs
        runs = cycle.ready.take_run(need, demands.count(demand))
        name = need.component.name  # the only instance has the name of its component
        return chain.from_iterable(repeat((_make_placement(name, need, each),), given) for each, given in runs)

    return {demand: open_run(demand) for demand in different}


def _take_each(cycle: CycleState, demand: Demand) -> Iterator[Leases]:
    [need] = demand.needs
    name, given = need.component.name, need.given  # the only instance has the name of its component

    def give(slot_info: SlotInfo) -> Leases:
        slot_info.wanted, slot = True, slot_info.slot
        return (Placement(name, slot.id, slot.epoch, given[slot.pool]),)

    return cycle.ready.take_each(need, give)


def _cover_returning(cycle: CycleState, search: _Search) -> list[Reservation]:
    """Keep capacity for interrupted reservations that are in their grace period, in queue order.

    Return the reservations that fit on no slot that is ready or in flight. Reservations on hold, without a pool or
    without quota are left out.
    """
    returning = sort_queue(
        cycle, [each for each in cycle.returning.values() if not is_on_hold(each) and not lacks_quota(cycle, each)]
    )
    return [each for each, demand in returning if demand.pools and not search.cover(each, demand)]


def _make_placement(name: str, need: InstanceRequest, slot_info: SlotInfo) -> Placement:
    slot = slot_info.slot
    return Placement(name, slot.id, slot.epoch, need.given[slot.pool])
