"""A cycle whose state is kept and goes on in later ticks, which examine only changed slots, new demands and the queue.

After a plan, no waiting reservation fits on a slot, and nothing can be launched for it. This remains true for slots
that do not change, whatever happens to other slots. So a later tick searches only the changed slots for the waiting
reservations. It searches all slots only for demands (kinds of requests) that did not wait before. The result is that of
a full cycle, which plans from the beginning. If the results could differ, the kept cycle raises `_LeftWayError`, and a
full cycle follows.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace
from itertools import chain
from math import inf
from operator import itemgetter
from typing import Final

from scheduler.model.decisions import Assign, Placement, Plan
from scheduler.model.reservations import Reservation, is_on_hold
from scheduler.model.rules import Terms
from scheduler.model.waiting_codes import LACKING_SLOT
from scheduler.model.waits import Reason, WaitBlock, Waits
from scheduler.policy.capacity.requests import Demand
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.cycle.step_values import Healed, Scaled
from scheduler.policy.lifecycle.heal import heal
from scheduler.policy.lifecycle.timers import expire, wake
from scheduler.policy.placement.cpu_bursting import share
from scheduler.policy.queueing.feasibility import ON_HOLD, Feasibility
from scheduler.policy.queueing.order import find_lasting_rank
from scheduler.policy.queueing.starvation_guard import has_waited_too_long
from scheduler.policy.quota.steady import SteadyPlan
from scheduler.policy.quota.step import charge, place_all_by_quota
from scheduler.policy.replan.by_quota import PlacementByQuota
from scheduler.policy.replan.changed_slots import renew_all
from scheduler.policy.replan.fitting import FittingClasses
from scheduler.policy.replan.idle_slots import IdleSlots
from scheduler.policy.replan.kept_queue import KeptQueue, Key, KeyHeap
from scheduler.policy.replan.lives import Lives
from scheduler.policy.replan.ordinary import has_ordinary_rows, is_ordinary
from scheduler.policy.replan.refusal import Refusal
from scheduler.policy.scaling.launch import choose_code_for_one
from scheduler.policy.scaling.launch_limits import LaunchLimits

CHANGES_A_SLOT: Final = 4
MOST_CHANGES: Final = 1000
"""After more changes than MOST_CHANGES plus CHANGES_A_SLOT for each slot, the slot index is made again, because it
stores each change in memory.
"""
MOST_CHANGED_SHARE: Final = 4
FEW_CHANGED: Final = 250
"""If more slots have changed than FEW_CHANGED plus 1 / MOST_CHANGED_SHARE of all slots, a full cycle is planned,
because it takes less time then.
"""


class _LeftWayError(Exception):
    """Raised when only a full cycle can plan this tick. The kept cycle is dropped then."""


def keep_cycle(
    cycle: CycleState, limits: LaunchLimits, outcome: Plan, revision: int, known: tuple[WaitBlock, ...]
) -> "KeptCycle | None":
    """Return a kept cycle made of a finished one, with which a later tick goes on; None if no later tick can.

    `revision`: the view's revision when the cycle was planned. `known`: the blocks of waiting reservations of an
    earlier plan; unchanged blocks are used again.
    """
    if cycle.view.revision != revision or not is_ordinary(cycle, outcome):
        return None
    try:
        return KeptCycle(cycle, limits, outcome, known)
    except _LeftWayError:
        return None


class KeptCycle:
    """A cycle after its plan, with the state from which the next tick goes on."""

    def __init__(self, cycle: CycleState, limits: LaunchLimits, outcome: Plan, known: tuple[WaitBlock, ...]) -> None:
        self._cycle, self._limits, self.rules = cycle, limits, cycle.rules
        self._by_quota = PlacementByQuota(cycle) if self.rules.has_quota else None
        self._rank = self._find_rank()
        settings = (self.rules.scheduler, *self.rules.scheduler.system.values())
        self._guard = min((each.starvation_guard for each in settings if each.starvation_guard), default=0.0)
        self._feasibility = Feasibility(cycle, limits)
        self._refusals: dict[Demand, Refusal] = {}
        self._keys: dict[str, Key] = {}
        """Reservation id -> its position in the queue, for each waiting reservation."""
        self._lines: dict[Demand, KeyHeap] = {}
        """Demand -> its waiting reservations, except those on hold. Demands without such reservations are missing."""
        self._spent: dict[str, None] = {}
        """Ids of the slots on which the last plan assigned leases. The next tick reads these slots again, because the
        commit may have skipped decisions.
        """
        self._fresh: set[Demand] = set()
        """Demands that no reservation had at the last plan. All slots are searched for them."""
        self._given: list[str] = []
        """Ids of the reservations to which the last plan assigned leases."""
        self._gone: list[Key] = []
        """Positions of reservations that have left the queue in this tick, and are not removed from `_queue` yet."""
        self._queue = self._open_queue(outcome.waiting, known)
        if self._has_protected():
            raise _LeftWayError
        self._open_indexes()
        self._idle, self._lives = IdleSlots(cycle, limits), Lives(cycle, limits)
        self._note_plan(outcome)
        cycle.begin(cycle.now)  # searches of the cycle are over, so their results are not needed any more

    def _find_rank(self) -> Callable[[Reservation], float | tuple[float, float]]:
        rank = find_lasting_rank(self._cycle) if self._by_quota is None else self._by_quota.find_rank(self._cycle)
        if rank is None:
            raise _LeftWayError
        return rank

    def _open_queue(self, waits: Waits, known: tuple[WaitBlock, ...]) -> KeptQueue:
        view, names = self._cycle.view, waits.names
        rows, shapes = list(map(view.reservations.__getitem__, names)), list(map(view.shapes.__getitem__, names))
        ranks = map(self._rank, rows) if self._by_quota is None else map(self._by_quota.find_rank_of, rows, shapes)
        ages, numbers = [each.created_at for each in rows], [each.sequence for each in rows]
        keys: list[Key] = list(zip(ranks, ages, numbers, names, strict=True))
        if keys != sorted(keys):
            raise _LeftWayError
        self._keys.update(zip(names, keys, strict=True))
        demands: list[Demand | None] = list(map(self._cycle.demands.__getitem__, shapes))
        if view.special:  # speed: almost all reservations have the demand of their shape
            for at, row in enumerate(rows):
                if row.id in view.special:
                    demands[at] = self._find_special_demand(row)
        added = defaultdict[Demand | None, list[Key]](list)
        for key, demand in zip(keys, demands, strict=True):
            added[demand].append(key)
        self._push_all(added)
        self._fresh.clear()  # the last cycle has searched all slots for them
        expected = {demand: self._find_reason(demand) for demand in set(demands)}
        if list(map(expected.__getitem__, demands)) != list(waits.reasons):
            raise _LeftWayError
        return KeptQueue(keys, waits.cut(known))

    def _find_special_demand(self, reservation: Reservation) -> Demand | None:
        if reservation.declined or reservation.leases:
            raise _LeftWayError
        demand = self._cycle.demand_of(reservation)
        _check_plain(demand)
        return None if is_on_hold(reservation) else demand

    def _find_refusal(self, demand: Demand) -> Refusal:
        """Return why reservations with this demand wait while they fit on no slot.

        The answer stays valid, because the slots on which it depends do not change.
        """
        known = self._refusals.get(demand)
        if known is None:
            known = self._refusals[demand] = self._look_up(demand)
        return known

    def _look_up(self, demand: Demand) -> Refusal:
        misfit = self._feasibility.find(demand)
        if misfit is not None:
            return Refusal(misfit, is_withheld=False, is_misfit=True)
        held = self._limits.find_launch(demand, demand.needs[0])
        if not isinstance(held, str) or self._limits.find_start(demand.pools, demand.needs[0], demand.payer):
            raise _LeftWayError
        code = choose_code_for_one(demand, held, self._limits)
        reason = (code, self._limits.describe(code, demand.pools))
        return Refusal(reason, is_withheld=held in LACKING_SLOT, is_misfit=False)

    def _note_plan(self, outcome: Plan) -> None:
        view, cycle = self._cycle.view, self._cycle
        self._given, self._spent = [], {}
        for decision in outcome.decisions:  # speed: each decision is read once
            if type(decision) is Assign:
                self._given.append(decision.reservation)
                for placement in decision.leases:
                    self._spent[placement.slot] = None
        self._position, self._revision = view.waiters.follow(), view.revision
        self._since, self._until = cycle.now, inf if outcome.wake_at is None else outcome.wake_at

    def _has_protected(self) -> bool:
        """Return whether a waiting reservation is protected by the starvation guard, because it has waited too long.
        Set `next_protection` to the time from which on the oldest reservation is protected (infinity: never).
        """
        self.next_protection = inf
        pending = self._cycle.view.by_phase["pending"]
        oldest = self._cycle.view.waiters.find_oldest(
            lambda each: pending.get(each.id) is each and not is_on_hold(each)
        )
        if oldest is not None and self._guard:
            self.next_protection = oldest.created_at + self._guard
            return has_waited_too_long(oldest.created_at, self._guard, self._cycle.now)
        return False

    def tidy(self) -> None:
        """Make the slot index again if its outdated entries take much memory after many changes; else do nothing."""
        if self._cycle.ready.changes > MOST_CHANGES + CHANGES_A_SLOT * len(self._cycle.slot_infos):
            self._cycle.close_indexes()
            self._open_indexes()

    def _open_indexes(self) -> None:
        """Make the slot indexes, and the candidate queues for the requests of the waiting demands."""
        self._cycle.open_indexes()
        for demand in self._lines if self._by_quota is None else ():  # `quota` has an index of its own
            if not self._find_refusal(demand).is_misfit:
                self._cycle.ready.find(demand.needs[0])

    def close(self) -> None:
        """Drop references between objects, so that they are freed without the garbage collector."""
        self._cycle.close_indexes()

    def go_on(self, now: float) -> Plan | None:
        """Return the plan of a later tick at `now`; None if only a full cycle can find it. After None this kept cycle
        cannot be used any more.
        """
        view = self._cycle.view
        if not (self._since <= now < self._until and has_ordinary_rows(view, self.rules)):
            return None
        self._cycle.begin(now)
        try:
            return self._plan()
        except _LeftWayError:
            return None

    def _plan(self) -> Plan:
        cycle = self._cycle
        if self._by_quota is not None:
            charge(Healed(cycle))
            self._rank = self._find_rank()
        changed = renew_all(cycle, self._list_changed(), self._idle, self._lives)
        if changed is None:
            raise _LeftWayError
        came = self._follow_queue()
        _, failed_boots = heal(expire(cycle))
        if cycle.decisions or cycle.returning or failed_boots or any(each.stuck for each in changed):
            raise _LeftWayError
        if self._has_protected():
            raise _LeftWayError
        if self._by_quota is None:
            self._place(changed, came)
        else:
            self._place_by_quota(came)
        self._fresh.clear()
        self._lines = {demand: line for demand, line in self._lines.items() if line.first is not None}
        self._queue.remove_all(self._gone)
        self._gone.clear()
        added = sorted(came.values(), key=itemgetter(0))
        reasons = {demand: self._find_reason(demand) for demand in {demand for _, demand in added}}
        self._queue.insert_all([key for key, _ in added], [reasons[demand] for _, demand in added])
        self._check_slots()
        shared = share(Scaled(cycle))
        wake_at = wake(shared, self._limits.next_end)
        outcome = Plan(tuple(cycle.decisions), Waits.of_blocks(self._queue.cut()), wake_at, cycle.charged)
        self._note_plan(outcome)
        return cycle.cache.recall(SteadyPlan).keep(cycle, outcome, self.next_protection)

    def _list_changed(self) -> Collection[str]:
        """Return the ids of the slots that changed since the last plan or on which that plan assigned leases. Raise
        `_LeftWayError` if there are too many.
        """
        names = self._spent.copy()
        for name, revision in reversed(self._cycle.view.touched.items()):
            if revision <= self._revision:
                break
            names[name] = None
        if len(names) > FEW_CHANGED + len(self._cycle.slot_infos) // MOST_CHANGED_SHARE:
            raise _LeftWayError
        return names

    def _follow_queue(self) -> dict[str, tuple[Key, Demand | None]]:
        """Read the view's changes of the queue since the last plan. Return a table of the reservations that are new in
        the queue: reservation id -> (position, demand; None: on hold).
        """
        view = self._cycle.view
        changes = view.waiters.changes_since(self._position)
        if changes is None:
            raise _LeftWayError
        pending, shapes, special = view.by_phase["pending"], view.shapes, view.special
        # Speed: of the reservations that waited, the log has the departure, so that new ones need no look-up.
        left = dict.fromkeys([row.id for row, _, has_come in changes if not has_come])
        keys, rank, by_quota, demands = self._keys, self._rank, self._by_quota, self._cycle.demands
        known = {name: key for name in left if (key := keys.pop(name, None)) is not None}
        unwritten = [(pending[name], shapes[name], True) for name in self._given if name not in left]
        came, added = dict[str, tuple[Key, Demand | None]](), defaultdict[Demand | None, list[Key]](list)
        for row, shape, has_come in chain(unwritten, changes):  # speed: each new row is read once
            if not has_come or ((name := row.id) in left and pending.get(name) is not row):
                continue
            position = rank(row) if by_quota is None else by_quota.find_rank_of(row, shape)
            key = keys[name] = (position, row.created_at, row.sequence, name)
            demand = self._find_special_demand(row) if special and name in special else demands[shape]
            came[name] = key, demand
            added[demand].append(key)
        self._push_all(added)
        for name in known.keys() & came.keys():
            key, demand = came[name]
            if self._queue.renew(known[name], key, self._find_reason(demand)):
                del known[name], came[name]
        self._gone += known.values()
        return came

    def _find_reason(self, demand: Demand | None) -> Reason:
        return ON_HOLD if demand is None else self._find_refusal(demand).reason

    def _push_all(self, added: Mapping[Demand | None, list[Key]]) -> None:
        """Add reservations, by their keys in the queue, to the heaps of their demands. None (on hold) has no heap."""
        for demand, keys in added.items():
            if demand is not None:
                _check_plain(demand)
                if demand not in self._lines:
                    self._lines[demand] = KeyHeap(self._keys)
                    self._fresh.add(demand)
                self._lines[demand].push_all(keys)

    def _place(self, changed: Iterable[SlotInfo], came: dict[str, tuple[Key, Demand | None]]) -> None:
        """Assign leases in queue order. On the changed slots all demands are tried, and on the other slots only demands
        that did not wait before. `came`: the reservations that are new in the queue.
        """
        names, gone = self._keys, self._gone.append
        decide, timed = self._cycle.decisions.append, self._cycle.view.timed
        # Speed: the fields of a key stand in the entry of the heap, where they are compared faster than in the key.
        lines = [
            (*key, demand, self._lines[demand], self._take_each(demand)) for demand, key in self._list_open(changed)
        ]
        heapify(lines)
        placed, terms = set[Demand](), set[tuple[float | None, Demand]]()
        while lines:
            _, _, _, name, demand, line, run = lines[0]
            leases = next(run, None)
            if leases is None:
                heappop(lines)
                continue
            decide(Assign(reservation=name, leases=leases))
            if timed and name in timed:
                terms.add((timed[name].request.ttl, demand))
            else:
                placed.add(demand)
            key = names.pop(name)
            if came.pop(name, None) is None:
                gone(key)
            if (following := line.find_next(key)) is None:
                heappop(lines)
            else:
                heapreplace(lines, (*following, demand, line, run))
        terms.update((None, demand) for demand in placed)
        self._cycle.timers.lease_terms.update(Terms(ttl, each.shape.pool, each.shape.system) for ttl, each in terms)

    def _take_each(self, demand: Demand) -> Iterator[tuple[Placement, ...]]:
        """Yield the leases of the reservations of a demand, one after the other, until the demand fits nowhere."""
        [need], note = demand.needs, self._idle.note
        name, given = need.component.name, need.given  # the only instance has the name of its component

        def give(slot_info: SlotInfo) -> tuple[Placement, ...]:
            slot = slot_info.slot
            if not slot_info.leases:  # speed: most slots had leases, so that they were not idle
                slot_info.wanted = True
                note(slot_info)
            return (Placement(name, slot.id, slot.epoch, given[slot.pool]),)

        return self._cycle.ready.take_each(need, give)

    def _place_by_quota(self, came: dict[str, tuple[Key, Demand | None]]) -> None:
        """Place reservations by quota. Raise `_LeftWayError` if running work moves to another level or is preempted."""
        misfits = {demand.shape for demand in self._lines if self._feasibility.find(demand) is not None}
        place_all_by_quota(self._cycle, misfits)
        for decision in self._cycle.decisions:
            if not isinstance(decision, Assign):
                raise _LeftWayError
            name = decision.reservation
            key = self._keys.pop(name)
            if came.pop(name, None) is None:
                self._gone.append(key)
            for placement in decision.leases:
                self._idle.note(self._cycle.slot_infos[placement.slot])

    def _list_open(self, changed: Iterable[SlotInfo]) -> Iterator[tuple[Demand, Key]]:
        """Yield the demands that could fit on a slot, each with the position of its first reservation."""
        fitting = FittingClasses(changed)
        for demand, line in self._lines.items():
            if (first := line.first) is None or ((known := self._refusals.get(demand)) and known.is_misfit):
                continue
            if demand in self._fresh or fitting.have_place(demand):
                yield demand, first

    def _check_slots(self) -> None:
        """Raise `_LeftWayError` if a full cycle would launch, drain or terminate a slot. Else schedule a cycle for the
        times when idle slots are drained and old machines replaced.
        """
        withheld = {name for demand in self._lines if self._find_refusal(demand).is_withheld for name in demand.pools}
        if not self._idle.stay(withheld) or not self._lives.stay():
            raise _LeftWayError


def _check_plain(demand: Demand) -> None:
    """Raise `_LeftWayError` unless the free capacity alone decides where a demand fits. There are four exceptions: a
    gang, elastic components, a queue without backfill, and a demand that only one reservation has, for example because
    its holder declined slots.
    """
    if len(demand.needs) != 1 or demand.elastic or not demand.is_shared or not demand.settings.backfill:
        raise _LeftWayError
