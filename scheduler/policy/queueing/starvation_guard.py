"""The starvation guard: it keeps the slots that could serve a reservation that has waited for too long.

Without the guard a large reservation waits forever while small ones keep each slot half full. The guard is a limit to
Orchard's backfill.
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, MutableMapping, MutableSet, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final

from scheduler.model.decisions import PlanStart
from scheduler.model.reservations import Lease, Reservation, Shape, is_on_hold
from scheduler.model.resources import Resources, add, subtract, subtract_all, total
from scheduler.model.rules import Rules
from scheduler.model.run_times import Estimates
from scheduler.model.view import View
from scheduler.model.waiting_codes import first_code
from scheduler.policy.capacity.fits import find_obstacle
from scheduler.policy.capacity.gang import Shortage, fill, has_room, has_room_for_some
from scheduler.policy.capacity.requests import Demand, InstanceRequest, RequestClass
from scheduler.policy.capacity.slot_index import SlotIndex
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.scaling.launch import TrialLaunch
from scheduler.policy.scaling.launch_limits import LaunchLimits

# The planned start of a protected reservation: when the slots that it needs are expected to be free.
#
# The time of this start is the shadow time of EASY backfill: later work may use the planned slots if it is expected to
# end before, or if it leaves room for the reservation. The expected end of a lease is a quantile of the run times of
# its class, given how long it has run (`model/run_times.py`). Source: EASY (Lifka 1995; Mu'alem and Feitelson 2001).


QUANTILE: Final = 0.95
"""The share of the cases in which work is expected to end by its expected end."""
LEAST_DELAY: Final = 600.0
MOST_DELAY: Final = 0.25
"""A start is late when its first planned time is over by more than LEAST_DELAY seconds, and by more than this share of
the reservation's wait.
"""


def is_late(reservation: Reservation, now: float) -> bool:
    """Return whether the reservation should have started long ago, by the first start that was planned for it."""
    planned = reservation.planned_start
    return planned is not None and now - planned > max(LEAST_DELAY, MOST_DELAY * (now - reservation.created_at))


class ExpectedEnds:
    """When the leases of a view are expected to end, and how long pending reservations are expected to run."""

    def __init__(self, view: View, now: float) -> None:
        self._view, self._now = view, now
        self._estimates = Estimates(view.run_times)
        self._ends: dict[str, float] = {}

    @property
    def are_known(self) -> bool:
        """Whether there are run times at all."""
        return bool(self._view.run_times)

    def find_end(self, name: str, lease: Lease) -> float:
        """Return when a lease of the reservation `name` is expected to end; infinity: it is not known."""
        if lease.state == "claimed":
            return inf
        if lease.revoke_by is not None:
            return lease.revoke_by
        if name not in self._ends:
            self._ends[name] = self._find_end(self._view.reservations.get(name))
        return self._ends[name]

    def _find_end(self, row: Reservation | None) -> float:
        if row is None or row.leased_at is None:
            return inf
        if row.revoke_by is not None:
            return row.revoke_by
        elapsed, end = self._now - row.leased_at, -inf
        while end <= self._now:  # the sum may be rounded down
            found = self._find_run_time(row, elapsed)
            if found is None:
                return inf
            elapsed, end = found, row.leased_at + found
        return end

    def find_end_of_new(self, reservation: Reservation) -> float:
        """Return when a pending reservation is expected to end if it starts now; infinity: it is not known."""
        seconds = self._find_run_time(reservation, 0.0)
        return inf if seconds is None else self._now + seconds

    def _find_run_time(self, row: Reservation, elapsed: float) -> float | None:
        found = self._estimates.find_run_time(row.request, row.principal, elapsed, QUANTILE)
        most = self._view.find_max_runtime(row)
        return most if most is not None and elapsed < most < (inf if found is None else found) else found


@dataclass
class PlannedStart:
    """When a reservation is expected to start, and on which slots."""

    time: float
    slots: "list[PlannedSlot]"


@dataclass
class PlannedSlot:
    """A slot on which instances of a reservation are planned."""

    slot_info: SlotInfo
    spare: Resources | None
    """What the instances leave free at the planned time; None: the slot counts leases only."""
    load: int
    """The number of leases that are there at the planned time, with the instances."""
    count: int
    """The number of planned instances."""


def plan_start(demand: Demand, slot_infos: Sequence[SlotInfo], ends: ExpectedEnds, now: float) -> PlannedStart | None:
    """Return the earliest start of a demand on these slots; None: it is not known.

    The instances are planned in the order of writing, each on the slot that is expected to be free for it first. If all
    are alike, they are then moved to those slots that are free last, but not later than the start: so slots that are
    free before stay with other work.
    """
    by_order = {each.order: each for each in slot_infos}
    planned: dict[int, list[Resources]] = {}
    time = now
    for need, count in demand.runs:
        openings = sorted(_list_all(need, count, slot_infos, ends, now, planned))
        if len(openings) < count:
            return None
        time = max(time, openings[count - 1][0])
        if len(demand.runs) == 1:
            openings = [each for each in reversed(openings) if each[0] <= time]
        for _, order in openings[:count]:
            planned.setdefault(order, []).append(need.given[by_order[order].slot.pool])
    return PlannedStart(time, [_plan_slot(by_order[order], given, ends, time) for order, given in planned.items()])


def _list_all(
    need: InstanceRequest,
    most: int,
    slot_infos: Iterable[SlotInfo],
    ends: ExpectedEnds,
    now: float,
    planned: dict[int, list[Resources]],
) -> Iterator[tuple[float, int]]:
    for slot_info in slot_infos:
        amounts = need.given.get(slot_info.slot.pool)
        if amounts is not None and need.could_hold(slot_info.slot.pool, slot_info.capacity, slot_info.labels):
            for time in _list_openings(slot_info, amounts, most, ends, now, planned.get(slot_info.order, [])):
                yield time, slot_info.order


def _list_openings(
    slot_info: SlotInfo, amounts: Resources, most: int, ends: ExpectedEnds, now: float, planned: Sequence[Resources]
) -> Iterator[float]:
    """Yield the times from which on one, two, ... instances with these amounts fit on a slot, at most `most`.
    `planned`: the amounts of other instances that are planned there.
    """
    free, places, uses = _find_free(slot_info), slot_info.pool.lease_limit - slot_info.load, slot_info.uses_left
    leases = sorted(
        ((ends.find_end(name, lease), lease.resources) for (name, _), lease in slot_info.leases.items()),
        key=lambda each: each[0],
    )
    asked, count = add(total(planned), amounts), 1
    for time, given_back in ((now, None), *leases):
        if time == inf:
            return
        if given_back is not None:
            places += 1
            free = None if free is None else add(free, given_back)
        while find_obstacle(asked, free, places, uses, len(planned) + count) is None:
            yield max(time, now)
            if count == most:
                return
            count += 1
            asked = add(asked, amounts)


def _find_free(slot_info: SlotInfo) -> Resources | None:
    """Return what is free on a slot. An amount is below 0 if the leases use more than the slot has."""
    free, capacity = slot_info.free, slot_info.capacity
    if free is None or capacity is None:
        return None
    used = total(lease.resources for lease in slot_info.leases.values())
    return {name: amount + min(0.0, capacity.get(name, 0) - used.get(name, 0)) for name, amount in free.items()}


def _plan_slot(slot_info: SlotInfo, given: Sequence[Resources], ends: ExpectedEnds, time: float) -> PlannedSlot:
    ended = [lease for (name, _), lease in slot_info.leases.items() if ends.find_end(name, lease) <= time]
    free = _find_free(slot_info)
    for lease in ended:
        free = None if free is None else add(free, lease.resources)
    spare = None if free is None else subtract_all(free, given)
    return PlannedSlot(slot_info, spare, slot_info.load - len(ended) + len(given), len(given))


# Lending: later work may use the slots that are kept for planned starts.
#
# Work may start on a planned slot if it is expected to end before the planned start, or if it leaves room for the
# reservation that is planned there. Work whose end is not known gets only the second. Source: EASY backfill.


class Lender:
    """The planned slots of a cycle, and what is left of them."""

    def __init__(self, cycle: CycleState) -> None:
        self._cycle = cycle
        self._starts: list[tuple[float, SlotIndex]] = []
        """(planned start, the slots that are kept for it)."""
        self._planned: dict[str, tuple[PlannedSlot, SlotIndex]] = {}
        """Id of a planned slot -> what is planned there, and the index that contains the slot."""
        self._beside: SlotIndex | None = None
        """Copies of the planned slots, with what work of any length may use of them."""
        self._copies: dict[str, SlotInfo] = {}
        self.refused: set[Demand] = set()
        """Demands that would not fit if the planned slots were not kept."""
        self.unlent: dict[Demand, float] = {}
        """Demand -> the earliest expected end with which it found no room."""

    def may_lend(self, demand: Demand) -> bool:
        """Return whether the demand would fit now if the planned slots were not kept."""
        if not self._starts or demand in self.refused:
            return False
        if demand in self.unlent or has_room(demand, (self._cycle.ready, *(index for _, index in self._starts))):
            return True
        self.refused.add(demand)
        return False

    def add(self, start: float, planned: list[PlannedSlot], index: SlotIndex) -> None:
        """Lend the slots of one planned start. `index` contains them."""
        self._starts.append((start, index))
        self.unlent.clear()
        self.refused.clear()
        for each in planned:
            slot_info = each.slot_info
            self._planned[slot_info.slot.id] = each, index
            if slot_info.pool.max_uses:
                slot_info.redeemed += each.count  # uses of the machine that are left for the planned instances
                index.regroup(slot_info)
            if slot_info.pool.lease_limit > each.load:
                if self._beside is None:
                    self._beside = self._cycle.make_index()
                twin = self._copies[slot_info.slot.id] = copy(slot_info)
                twin.opened = twin.slot_class = twin.remaining = None
                _limit(twin, each)
                self._beside.add(twin)

    def lend(self, demand: Demand, end: float) -> list[SlotInfo] | None:
        """Return slots for a demand that fits on no other ready slots, and take the capacity; None: there are none.
        `end`: when work that starts now is expected to end; infinity: it is not known.
        """
        refused = self.unlent.get(demand)
        if refused is not None and end >= refused:
            return None
        slot_infos = fill(demand, (self._cycle.ready, self._beside)) if self._beside is not None else None
        if slot_infos is not None:
            return self._take_beside(demand, slot_infos)
        lent = [index for start, index in self._starts if end <= start]
        slot_infos = fill(demand, (self._cycle.ready, *lent)) if lent else None
        if slot_infos is None:
            self.unlent[demand] = end
            return None
        for slot_info in slot_infos:
            self._renew_twin(slot_info)
        return slot_infos

    def _take_beside(self, demand: Demand, slot_infos: list[SlotInfo]) -> list[SlotInfo]:
        """Take the capacity that was found on copies from the planned slots. Return these in place of the copies."""
        found = []
        for need, slot_info in zip(demand.needs, slot_infos, strict=True):
            name = slot_info.slot.id
            if self._copies.get(name) is not slot_info:
                found.append(slot_info)
                continue
            amounts, (planned, index) = need.given[slot_info.slot.pool], self._planned[name]
            planned.load += 1
            planned.spare = None if planned.spare is None else subtract(planned.spare, amounts)
            real = planned.slot_info
            real.given += 1
            real.free = None if real.free is None else subtract(real.free, amounts)
            real.wanted = True
            index.regroup(real)
            found.append(real)
        for slot_info in found:
            self._renew_twin(slot_info)
        return found

    def _renew_twin(self, slot_info: SlotInfo) -> None:
        twin = self._copies.get(slot_info.slot.id)
        if twin is not None and self._beside is not None:
            _limit(twin, self._planned[slot_info.slot.id][0])
            self._beside.regroup(twin)


def _limit(twin: SlotInfo, planned: PlannedSlot) -> None:
    """Set what a copy has free: what is free now and at the planned start."""
    real, spare = planned.slot_info, planned.spare or {}
    twin.free = None if real.free is None else {name: min(each, spare.get(name, 0)) for name, each in real.free.items()}
    twin.given += max(real.load, planned.load) - twin.load
    twin.redeemed = real.redeemed + real.given - twin.given


_Kind = tuple[Shape, tuple[str, ...], tuple[str, ...]]
"""A key that is equal for reservations that the same slots and launches could serve.

It is (shape, pools that may launch on-demand offerings at any price for the reservation, ids of declined slots).
"""


def has_waited_too_long(created_at: float, limit: float, now: float) -> bool:
    """Return whether a reservation, pending since `created_at`, has waited for more than `limit` seconds. `limit`: the
    setting `starvation_guard`; 0: off.
    """
    return limit > 0 and now > created_at + limit


def find_next_protection(view: View, rules: Rules, now: float) -> float:
    """Return the earliest time at which the starvation guard begins to protect a reservation that it does not protect
    yet (seconds since the epoch). Infinity: the guard is off, or no such reservation waits.
    """
    pending, _, _ = view.waiters.list()
    due = inf
    for limit in {each.starvation_guard for each in (rules.scheduler, *rules.scheduler.system.values())} - {0}:
        is_due = partial(has_waited_too_long, limit=limit, now=now)
        first = bisect_left(pending, x=True, key=lambda each, is_due=is_due: not is_due(each.created_at))  # type: ignore[misc]
        if first < len(pending):
            due = min(due, pending[first].created_at + limit)
    return due


def find_first_protection(view: View, rules: Rules) -> float:
    """Return when the oldest reservation that waits, and is not on hold, has waited for the shortest limit of the
    starvation guard (seconds since the epoch). Infinity: the guard is off, or no such reservation waits.
    """
    settings, pending = (rules.scheduler, *rules.scheduler.system.values()), view.by_phase["pending"]
    limit = min((each.starvation_guard for each in settings if each.starvation_guard), default=inf)
    oldest = view.waiters.find_oldest(lambda each: pending.get(each.id) is each and not is_on_hold(each))
    return inf if oldest is None else oldest.created_at + limit


MOST_SLOTS: Final = 256
"""On how many slots a start is planned at most, or on twice as many as it needs. The start may then be later than
necessary, so more work runs before it. The reservation itself may use every slot.
"""


class StarvationGuard:
    """Protects reservations that have waited too long: no reservation behind a protected one gets a slot that could
    serve the protected one. With `guard` `shadow` the protected one has a planned start, if it is known when slots are
    free for it. Then only the planned slots are kept, and lent to work that does not delay the start.

    Launches that could serve a protected gang are not made for reservations behind it either
    (`policy/scaling/launch.py`). `oldest`: when the oldest reservation in the queue was created (`created_at`).
    """

    def __init__(self, cycle: CycleState, limits: LaunchLimits, oldest: float) -> None:
        self._cycle, self._limits = cycle, limits
        self.gangs: set[str] = set()
        self.kept: dict[str, SlotIndex] = {}
        """Id of a reservation with a planned start, or of another protected gang -> the ready slots that the guard
        keeps for it. The key "" -> those that it keeps for all other protected reservations with a single instance.
        """
        self._ends = ExpectedEnds(cycle.view, cycle.now)
        self._lender = Lender(cycle)
        self._groups: list[_Group] | None = None
        self._kept_out: dict[Demand, bool] = {}
        """Demand for one instance -> whether the instance would fit on a slot that is kept for other reservations.

        An answer is valid until further slots are kept, or some of them are lent.
        """
        self._oldest = oldest
        self._looked_after: set[_Kind] = set()
        """Kinds of reservations for which `protect` has chosen the slots to keep already."""
        self._kept_for: set[RequestClass] = set()
        """Request classes for which all slots that could hold an instance are kept already."""
        self.few = Shortage()
        """Request class -> the largest number of its instances that fitted when a search on all ready slots, including
        the kept ones, failed. The table is cleared when slots get capacity back.
        """

    @property
    def refusals(self) -> tuple[MutableSet[Demand] | MutableMapping[Demand, float], ...]:
        """The demands to which nothing is lent. They are forgotten when slots get capacity back."""
        return self._lender.refused, self._lender.unlent

    @property
    def keeps_any(self) -> bool:
        """Whether the starvation guard keeps any slot."""
        return bool(self.kept)

    def protect(self, reservation: Reservation, demand: Demand, *, is_covered: bool) -> None:
        """Protect a reservation if it has been pending for longer than `starvation_guard` seconds (0: off); else do
        nothing.

        A reservation is not protected if it waits for something other than a slot: EC2 lacks capacity, or only cordoned
        slots could hold it. `is_covered`: capacity on slots that are ready or in flight is kept for the reservation
        already.
        """
        if not has_waited_too_long(reservation.created_at, demand.settings.starvation_guard, self._cycle.now):
            return
        kind = _kind_of(demand)
        plans_start = demand.settings.guard == "shadow" and self._ends.are_known
        if kind in self._looked_after and (is_covered or len(demand.needs) == 1) and not plans_start:
            return
        if is_covered or not self._waits_otherwise(demand):
            if len(demand.needs) > 1:
                self.gangs.add(reservation.id)
            if plans_start:
                if not is_covered:
                    self._plan_start(reservation, demand)
            elif kind not in self._looked_after:
                self._keep_slots(reservation, demand)
        self._looked_after.add(kind)

    def is_done_with(self, demand: Demand) -> bool:
        """Return whether further calls of `protect` and `keeps_out` for reservations with this demand would change
        nothing.
        """
        is_due = has_waited_too_long(self._oldest, demand.settings.starvation_guard, self._cycle.now)
        return not is_due or _kind_of(demand) in self._looked_after

    def _plan_start(self, reservation: Reservation, demand: Demand) -> None:
        """Plan the start of a reservation on the slots for which it is among the first `guard_depth` protected ones,
        and keep the planned slots. If the start is not known, or the reservation is late, keep all of these slots.
        """
        if self._groups is None:
            self._groups = _group_slots(self._cycle)
        depth, now, is_gang = demand.settings.guard_depth, self._cycle.now, len(demand.needs) > 1
        own = [each for each in self._groups if each.claims < depth and _could_hold(demand.needs, each.slot_infos[0])]
        if not own:
            return
        for group in own:
            group.claims += 1
        ready, coming = self._cycle.ready, self._cycle.coming
        slot_infos = [
            slot_info
            for group in own
            for slot_info in group.slot_infos
            if slot_info.slot.id not in demand.declined and (ready.has(slot_info) or coming.has(slot_info))
        ]
        some = slot_infos[: max(MOST_SLOTS, 2 * len(demand.needs))]
        start = None if is_late(reservation, now) else plan_start(demand, some, self._ends, now)
        if start is None or start.time <= now:
            self._keep(reservation.id if is_gang else "", slot_infos)
            return
        if reservation.planned_start is None:
            self._cycle.decide(PlanStart(reservation=reservation.id, at=start.time))
        self._cycle.timers.add(start.time)
        planned = [each for each in start.slots if ready.has(each.slot_info)]
        if planned:
            self._keep(reservation.id, [each.slot_info for each in planned])
            self._lender.add(start.time, planned, self.kept[reservation.id])

    def lend(self, reservation: Reservation, demand: Demand) -> list[SlotInfo] | None:
        """Return slots for a reservation that fits on no other ready slots, and take the capacity: room beside planned
        starts, else planned slots whose start comes after its expected end. None: there are neither.
        """
        if not self._lender.may_lend(demand):
            return None
        slot_infos = self._lender.lend(demand, self._ends.find_end_of_new(reservation))
        if slot_infos is not None:
            self._kept_out.clear()
        return slot_infos

    def _keep_slots(self, reservation: Reservation, demand: Demand) -> None:
        needs = [need for need in dict.fromkeys(demand.needs) if need.likeness not in self._kept_for]
        slot_infos = self._cycle.ready.list_slot_infos() if needs else ()
        kept = [
            slot_info
            for slot_info in slot_infos
            if slot_info.slot.id not in demand.declined and _could_hold(needs, slot_info)
        ]
        self._keep(reservation.id if len(demand.needs) > 1 else "", kept)
        if not demand.declined:
            self._kept_for.update(need.likeness for need in needs)

    def _keep(self, key: str, slot_infos: Iterable[SlotInfo]) -> None:
        for slot_info in slot_infos:
            if self._cycle.ready.has(slot_info):
                if key not in self.kept:
                    self.kept[key] = self._cycle.make_index()
                self._cycle.ready.remove(slot_info)
                self.kept[key].add(slot_info)
        self._kept_out.clear()

    def keeps_out(self, demand: Demand) -> bool:
        """Return whether a demand would fit if the guard did not keep slots for other reservations. Call this method
        only for a demand that does not fit on the ready slots that are not kept.
        """
        if len(demand.needs) > 1:
            return has_room(demand, (self._cycle.ready, *self.kept.values()), self.few)
        if demand not in self._kept_out:
            self._kept_out[demand] = has_room(demand, tuple(self.kept.values()))
        return self._kept_out[demand]

    def _waits_otherwise(self, demand: Demand) -> bool:
        needs = dict.fromkeys(demand.needs)
        may_start = any(self._limits.find_start(demand.pools, need, demand.payer) is not None for need in needs)
        # One kind of instance may take what another one lacks, and a machine that starts serves one of a gang.
        if len(demand.alike) > 1 or (may_start and len(demand.needs) > 1):
            there = [self._cycle.ready, self._cycle.coming]
            return TrialLaunch(self._cycle, self._limits, demand, there).foresee_code() in {"capacity", "cordoned"}
        if may_start:
            return False
        codes = [[code for *_, code in self._limits.list_choices(demand, need)] for need in needs]
        if any(first_code(held) == "capacity" for held in codes):
            return True
        if any(codes):
            code = first_code(codes[0])
            return code != "" and self._limits.choose_code(demand, code) == "cordoned"
        if not self._limits.has_cordoned_room(demand):
            return False
        return not has_room_for_some(demand, (self._cycle.ready, self._cycle.coming))


@dataclass
class _Group:
    """Equal slots that are ready or in flight, and how many reservations with a planned start could use them."""

    slot_infos: list[SlotInfo]
    claims: int = 0


def _group_slots(cycle: CycleState) -> list[_Group]:
    groups: dict[Hashable, _Group] = {}
    for index in (cycle.ready, cycle.coming):
        for slot_info in index.list_slot_infos():
            capacity = slot_info.capacity
            key = (slot_info.slot_class, None if capacity is None else tuple(capacity.items()))
            if key in groups:
                groups[key].slot_infos.append(slot_info)
            else:
                groups[key] = _Group([slot_info])
    return list(groups.values())


def _kind_of(demand: Demand) -> _Kind:
    return demand.shape, demand.impatient, demand.declined


def _could_hold(needs: Iterable[InstanceRequest], slot_info: SlotInfo) -> bool:
    """Return whether an instance of at least one of these requests would fit on the slot if the slot had no leases."""
    pool, capacity, labels = slot_info.slot.pool, slot_info.capacity, slot_info.labels
    return any(pool in need.given and need.could_hold(pool, capacity, labels) for need in needs)
