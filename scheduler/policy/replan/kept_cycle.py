"""A cycle whose state is kept and goes on in later ticks, which examine only changed slots, new demands and the queue.

After a plan, no waiting reservation fits on a slot, and nothing can be launched for it. This remains true for slots
that do not change, whatever happens to other slots. So a later tick searches only the changed slots for the waiting
reservations. It searches all slots only for demands (kinds of requests) that did not wait before. The result is that of
a full cycle, which plans from the beginning. If the results could differ, the kept cycle raises `_LeftWayError`, and a
full cycle follows.
"""

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain, compress
from math import inf
from operator import itemgetter
from typing import Any, Final

from scheduler.model.decisions import Assign, Cores, Placement, Plan
from scheduler.model.reservations import Reservation, is_on_hold
from scheduler.model.rules import Rules, Terms
from scheduler.model.transitions import IN_FLIGHT
from scheduler.model.view import View
from scheduler.model.waits import MOST_NAMES, Reason, WaitBlock, Waits
from scheduler.policy.capacity.requests import Amounts, Demand
from scheduler.policy.capacity.slot_index import RemainingCapacity, SlotClass
from scheduler.policy.capacity.slot_info import SlotInfo, find_life, renew_slot
from scheduler.policy.cycle.queue import Queue
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.lifecycle.timers import wake
from scheduler.policy.placement.cpu_bursting import share
from scheduler.policy.placement.place import place
from scheduler.policy.plan_cache import PlanCache, list_touched
from scheduler.policy.queueing.feasibility import ON_HOLD, Feasibility
from scheduler.policy.queueing.order import find_lasting_rank, order
from scheduler.policy.queueing.starvation_guard import find_first_protection, find_next_protection
from scheduler.policy.quota.step import LastingRanks, SteadyPlan, charge, place_all_by_quota
from scheduler.policy.scaling.launch import Refusal, refuse_one
from scheduler.policy.scaling.launch_limits import LaunchLimits
from scheduler.policy.scaling.pool_size import PoolSlots, count_slots
from scheduler.policy.steps import STEPS

# The waiting reservations of the last plan in queue order, in blocks. Later plans use unchanged blocks again.
#
# A block (WaitBlock) is an immutable list of reservations with the reason why each of them waits. A section keeps the
# same reservations in lists that can be changed, and makes the block from them.


Key = tuple[Any, float, int, str]
"""The position of a reservation in the queue: (its rank, its time of creation, its sequence number, its id). The
smallest is first.
"""
FEWEST_NAMES: Final = MOST_NAMES // 4
"""A block with fewer reservations than this is joined with the next block, if the next block is small too."""
MOST_STALE: Final = 1000
"""A heap removes the keys of reservations that have left the queue when it contains more keys than twice the number of
waiting reservations plus this number.
"""


class _Section:
    """A part of the queue: reservations in queue order, from which `make_block` makes one WaitBlock. A change of the
    section makes its block invalid, and the next call of `make_block` makes a new block.

    Speed: a reservation that leaves stays in the lists `keys`, `names` and `reasons`, and is only marked in `stays`. So
    the new block and the old one share the lists of names and reasons, until a reservation is added to the section.
    """

    __slots__ = ("ages", "block", "count", "keys", "names", "reasons", "stays")

    def __init__(
        self, keys: list[Key], names: Sequence[str], reasons: Sequence[Reason], block: WaitBlock | None = None
    ) -> None:
        self.keys, self.names, self.reasons, self.block = keys, names, reasons, block
        self.count, self.stays = len(keys), bytearray(b"\1" * len(keys))
        """`count`: the number of reservations. `stays`: one byte for each entry of the lists; 0 if its reservation has
        left.
        """
        self.ages: array[float] | None = None
        """The times of creation in `keys`, for a fast search. None: `find` has to search in `keys`, because the keys
        have different ranks, and so their times need not ascend; or because the lists were changed by `_insert` or
        `_join`.

        Speed: the times lie together in memory, while each key lies in another place.
        """
        self.note_ages()

    def make_block(self) -> WaitBlock:
        """Return the block of this section. The same block is returned until the section changes."""
        if self.block is None:
            if not isinstance(self.names, tuple):
                self.names, self.reasons = tuple(self.names), tuple(self.reasons)
            stays = bytes(self.stays) if self.count < len(self.keys) else None
            self.block = WaitBlock(self.names, self.reasons, stays)
        return self.block

    def find(self, key: Key, begin: int = 0) -> int:
        """Return the index of a reservation in the section's lists. `key`: its position in the queue. It must be in the
        section, at the index `begin` or later.
        """
        keys, ages = self.keys, self.ages
        place = begin if ages is None else bisect_left(ages, key[1], begin)
        if keys[place] is not key:
            place = bisect_left(keys, key, place)
            assert keys[place] == key and self.stays[place], "only reservations of the queue are looked up"  # noqa: S101, PT018
        return place

    def open(self) -> tuple[list[Key], list[str], list[Reason]]:
        """Return the lists `keys`, `names` and `reasons`, without the reservations that have left. The caller may add
        or remove entries, the same ones in all three lists, and then calls `note_change`.
        """
        if self.count < len(self.keys):
            self.keys = list(compress(self.keys, self.stays))
        if self.count < len(self.names) or not (isinstance(self.names, list) and isinstance(self.reasons, list)):
            self.names = list(compress(self.names, self.stays))
            self.reasons = list(compress(self.reasons, self.stays))
        return self.keys, self.names, self.reasons

    def note_change(self) -> None:
        """Record that the lists have changed: the section's block and its `ages` are not valid any more."""
        self.count, self.stays, self.block = len(self.keys), bytearray(b"\1" * len(self.keys)), None
        self.ages = None

    def note_ages(self) -> None:
        """Set `ages` to the times of creation in `keys`. Set it to None if the keys do not all have the same rank, or
        if there are no keys.
        """
        keys = self.keys
        is_level = bool(keys) and keys[0][0] == keys[-1][0]
        self.ages = array("d", [key[1] for key in keys]) if is_level else None


class KeptQueue:
    """The waiting reservations in queue order, each with the reason why it waits."""

    def __init__(self, keys: Sequence[Key], blocks: Iterable[WaitBlock]) -> None:
        """Start with the reservations of these blocks. `keys`: the positions of all these reservations, smallest
        first.
        """
        self._sections: list[_Section] = []
        start = 0
        for block in blocks:
            end = start + len(block)
            self._sections.append(_Section(list(keys[start:end]), block.names, block.reasons, block))
            start = end
        self._lasts = [each.keys[-1] for each in self._sections]
        """The last key of each section. A key belongs to the first section whose last key is not less than the key.
        The reservation of a last key may have left the queue.
        """

    def cut(self) -> list[WaitBlock]:
        """Return the blocks of the queue. A block that has not changed since the last call is the same object."""
        return [each.block or each.make_block() for each in self._sections]

    def insert_all(self, keys: Sequence[Key], reasons: Sequence[Reason]) -> None:
        """Add reservations at their positions. `keys`: the positions, smallest first; `reasons`: why each of these
        reservations waits.
        """
        at = bisect_left(keys, self._lasts[-1]) if self._lasts else 0
        for key, reason in zip(keys[:at], reasons, strict=False):
            self._insert(key, reason)
        while at < len(keys):  # speed: most new reservations are the last ones
            if not self._sections or self._sections[-1].count >= MOST_NAMES:
                self._sections.append(_Section([], [], []))
                self._lasts.append(keys[at])
            section = self._sections[-1]
            known_keys, names, known_reasons = section.open()
            end = at + MOST_NAMES - len(known_keys)
            known_keys += keys[at:end]
            names += [key[3] for key in keys[at:end]]
            known_reasons += reasons[at:end]
            section.note_change()
            section.note_ages()
            self._lasts[-1], at = known_keys[-1], end

    def _insert(self, key: Key, reason: Reason) -> None:
        """Add one reservation at the position `key`. The caller makes sure that the last key of the queue is not less
        than `key`, so that a section for `key` exists.
        """
        at = bisect_left(self._lasts, key)
        section = self._sections[at]
        keys, names, reasons = section.open()
        place = bisect_left(keys, key)
        keys.insert(place, key)
        names.insert(place, key[3])
        reasons.insert(place, reason)
        section.note_change()
        if section.count > MOST_NAMES:
            self._split(at)

    def renew(self, known: Key, key: Key, reason: Reason) -> bool:
        """Replace the key `known` of a reservation by the equal object `key`, and return True. Return False, and change
        nothing, if the keys differ or the reservation has another reason than `reason`.
        """
        if known != key:
            return False
        section = self._sections[bisect_left(self._lasts, key)]
        place = section.find(key)
        if section.reasons[place] != reason:
            return False
        section.keys[place] = key
        return True

    def remove_all(self, keys: list[Key]) -> None:
        """Remove the reservations with these positions from the queue. The list `keys` is sorted by this call."""
        keys.sort()  # speed: a section is looked up once for all of its keys
        lasts, changed = self._lasts, list[int]()
        at, place, section = -1, 0, None
        for key in keys:
            if section is None or lasts[at] < key:
                at += 1  # speed: often it is the next section
                if lasts[at] < key:
                    at = bisect_left(lasts, key, at)
                section = self._sections[at]
                section.block = None
                changed.append(at)
                place = 0
            place = section.find(key, place)
            section.stays[place] = 0
            section.count -= 1
        for at in reversed(changed):
            count = self._sections[at].count
            if not count:
                del self._sections[at], self._lasts[at]
            elif count < FEWEST_NAMES and at + 1 < len(self._sections):
                self._join(at)

    def _split(self, at: int) -> None:
        section, middle = self._sections[at], MOST_NAMES // 2
        keys, names, reasons = section.open()
        parts = [_Section(keys[part], names[part], reasons[part]) for part in (slice(middle), slice(middle, None))]
        self._sections[at : at + 1] = parts
        self._lasts[at : at + 1] = [each.keys[-1] for each in parts]

    def _join(self, at: int) -> None:
        section, following = self._sections[at : at + 2]
        if following.count < MOST_NAMES // 2:
            keys, names, reasons = section.open()
            more_keys, more_names, more_reasons = following.open()
            keys += more_keys
            names += more_names
            reasons += more_reasons
            section.note_change()
            del self._sections[at + 1], self._lasts[at]


class KeyHeap:
    """The keys of the waiting reservations of one demand, smallest first. The key of a reservation that has left the
    queue is removed when it becomes the first one.

    Speed: almost every new key is the largest one. It is appended to a sorted list, which is read from its beginning,
    so that few keys go through a heap.
    """

    __slots__ = ("_begin", "_early", "_keys", "_present")

    def __init__(self, present: dict[str, Key]) -> None:
        """Start without keys. `present`: reservation id -> its key, for all reservations in the queue. A key that is
        not in this table any more is outdated.
        """
        self._keys: list[Key] = []
        """Keys, smallest first. The keys before the index `_begin` are removed."""
        self._begin = 0
        self._early: list[Key] = []
        """A heap of the keys that were less than the last one of `_keys` when they were added, and so could not be
        appended to `_keys`.
        """
        self._present = present

    def push_all(self, keys: list[Key]) -> None:
        """Add these keys. The list `keys` is sorted by this call."""
        keys.sort()
        at = bisect_left(keys, self._keys[-1]) if self._keys else 0
        for key in keys[:at]:
            heappush(self._early, key)
        self._keys += keys[at:]
        if len(self._keys) + len(self._early) > 2 * len(self._present) + MOST_STALE:
            self._keys = sorted(each for each in self._keys + self._early if self._present.get(each[3]) is each)
            self._begin, self._early = 0, []

    @property
    def first(self) -> Key | None:
        """The smallest key of a reservation that is in the queue; None if no such key was added."""
        keys, begin = self._keys, self._begin
        if begin < len(keys) and not self._early and self._present.get((key := keys[begin])[3]) is key:
            return key  # speed: almost always the first key is that of a reservation that waits
        return self._find_first(keys, self._early, self._present, begin)

    def find_next(self, first: Key) -> Key | None:
        """Return the key that follows `first`; None if there is none. `first` was the smallest key until its
        reservation left the queue.
        """
        keys, begin = self._keys, self._begin
        if begin < len(keys) and keys[begin] is first:
            begin = self._begin = begin + 1  # speed: it is not looked up once more
        if begin < len(keys) and not self._early and self._present.get((key := keys[begin])[3]) is key:
            return key
        return self._find_first(keys, self._early, self._present, begin)

    def _find_first(self, keys: list[Key], early: list[Key], present: dict[str, Key], begin: int) -> Key | None:
        while begin < len(keys) and present.get(keys[begin][3]) is not keys[begin]:
            begin += 1
        if begin > MOST_STALE:
            del keys[:begin]
            begin = 0
        self._begin = begin
        while early and present.get(early[0][3]) is not early[0]:
            heappop(early)
        if early and (begin == len(keys) or early[0] < keys[begin]):
            return early[0]
        return keys[begin] if begin < len(keys) else None


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
_ORDINARY: Final = frozenset({Assign, Cores})
"""Kinds of decisions after which a cycle may be kept: they change only leases on ready slots."""


class _LeftWayError(Exception):
    """Raised when only a full cycle can plan this tick. The kept cycle is dropped then."""


def plan_again(view: View, rules: Rules, now: float, cache: PlanCache) -> Plan | None:
    """Return the plan at `now`, made from what earlier plans of this view kept in `cache`. None: only a full cycle can
    make it.
    """
    known = cache.find_plan(view, rules, now)
    if known is None and rules.has_quota:
        known = cache.recall(SteadyPlan).find(view, rules, now, cache)
    return cache.go_on(rules, now) if known is None else known


def keep(cycle: CycleState, limits: LaunchLimits, queue: Queue, wake_at: float | None) -> Plan:
    """Return the plan of a cycle whose steps are done, and keep in its cache what later ticks use again.

    A plan without decisions is valid until the next deadline, or until the starvation guard begins to protect a further
    reservation. After another plan the cycle itself is kept, if a later tick can go on with it.
    """
    view, rules, cache = cycle.view, cycle.rules, cycle.cache
    outcome = cycle.finish(queue, wake_at)
    cache.offer(view, partial(_keep_cycle, cycle, limits, outcome, view.revision))
    return _keep_plan(cycle, outcome, inf if outcome.decisions else find_next_protection(view, rules, cycle.now))


def _keep_plan(cycle: CycleState, outcome: Plan, next_protection: float) -> Plan:
    if cycle.rules.has_quota:
        return cycle.cache.recall(SteadyPlan).keep(cycle, outcome, next_protection)
    return cycle.cache.keep(cycle.rules, cycle.now, outcome, next_protection)


def _keep_cycle(
    cycle: CycleState, limits: LaunchLimits, outcome: Plan, revision: int, known: tuple[WaitBlock, ...]
) -> "KeptCycle | None":
    """Return a kept cycle made of a finished one, with which a later tick goes on; None if no later tick can.

    `revision`: the view's revision when the cycle was planned. `known`: the blocks of waiting reservations of an
    earlier plan; unchanged blocks are used again.
    """
    is_ordinary = (
        cycle.view.revision == revision
        and _ORDINARY.issuperset(map(type, outcome.decisions))
        and _has_ordinary_rows(cycle.view, cycle.rules)
        and not any(each.state in IN_FLIGHT or each.state != each.slot.state for each in cycle.list_restless())
    )
    try:
        return KeptCycle(cycle, limits, outcome, known) if is_ordinary else None
    except _LeftWayError:
        return None


def _has_ordinary_rows(view: View, rules: Rules) -> bool:
    """Return whether all reservations with equal requests have the same launches, at any time, and leases begin only by
    an assignment.
    """
    return not (view.holds or view.stretching or view.by_phase["revoking"] or not rules.has_plain_budgets)


class KeptCycle:
    """A cycle after its plan, with the state from which the next tick goes on."""

    def __init__(self, cycle: CycleState, limits: LaunchLimits, outcome: Plan, known: tuple[WaitBlock, ...]) -> None:
        self.cycle, self.limits, self.rules = cycle, limits, cycle.rules
        self._by_quota = LastingRanks(cycle) if self.rules.has_quota else None
        self._rank = self._find_rank()
        self._feasibility = Feasibility(cycle, limits)
        self._refusals: dict[Demand, Refusal | None] = {}
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
        self._changed: list[SlotInfo] = []
        self._came: dict[str, tuple[Key, Demand | None]] = {}
        """The reservations that are new in the queue: reservation id -> (position, demand; None: on hold)."""
        self._queue = self._open_queue(outcome.waiting, known)
        self._check_protection()
        self._open_indexes()
        self.pools: Mapping[str, PoolSlots] = count_slots(cycle)
        for each in self.pools.values():
            each.count()  # speed: here no plan waits for it
        self.refusals: Collection[Refusal | None] = ()
        self._note_plan(outcome)
        cycle.begin(cycle.now)  # searches of the cycle are over, so their results are not needed any more

    def _find_rank(self) -> Callable[[Reservation], float | tuple[float, float]]:
        rank = find_lasting_rank(self.cycle) if self._by_quota is None else self._by_quota.find_rank(self.cycle)
        if rank is None:
            raise _LeftWayError
        return rank

    def _open_queue(self, waits: Waits, known: tuple[WaitBlock, ...]) -> KeptQueue:
        view, names = self.cycle.view, waits.names
        rows, shapes = list(map(view.reservations.__getitem__, names)), list(map(view.shapes.__getitem__, names))
        ranks = map(self._rank, rows) if self._by_quota is None else map(self._by_quota.find_rank_of, rows, shapes)
        ages, numbers = [each.created_at for each in rows], [each.sequence for each in rows]
        keys: list[Key] = list(zip(ranks, ages, numbers, names, strict=True))
        if keys != sorted(keys):
            raise _LeftWayError
        self._keys.update(zip(names, keys, strict=True))
        demands: list[Demand | None] = list(map(self.cycle.demands.__getitem__, shapes))
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
        demand = self.cycle.demand_of(reservation)
        _check_plain(demand)
        return None if is_on_hold(reservation) else demand

    def _find_refusal(self, demand: Demand) -> Refusal | None:
        """Return why reservations with this demand wait while they fit on no slot. None: they get a machine.

        The answer stays valid, because the slots on which it depends do not change.
        """
        if demand not in self._refusals:
            misfit = self._feasibility.find(demand)
            self._refusals[demand] = refuse_one(demand, self.limits) if misfit is None else Refusal(demand, "", misfit)
        return self._refusals[demand]

    def _note_plan(self, outcome: Plan) -> None:
        view, cycle = self.cycle.view, self.cycle
        self._given, self._spent = [], {}
        for decision in outcome.decisions:  # speed: each decision is read once
            if type(decision) is Assign:
                self._given.append(decision.reservation)
                for placement in decision.leases:
                    self._spent[placement.slot] = None
        self._position, self._revision = view.waiters.follow(), view.revision
        self._since, self._until = cycle.now, inf if outcome.wake_at is None else outcome.wake_at

    def _check_protection(self) -> None:
        """Raise `_LeftWayError` if the starvation guard protects a waiting reservation. Set `next_protection` to the
        time from which on it protects one.
        """
        self.next_protection = find_first_protection(self.cycle.view, self.rules)
        if self.cycle.now > self.next_protection:
            raise _LeftWayError

    def tidy(self) -> None:
        """Make the slot index again if its outdated entries take much memory after many changes; else do nothing."""
        if self.cycle.ready.changes > MOST_CHANGES + CHANGES_A_SLOT * len(self.cycle.slot_infos):
            self.cycle.close_indexes()
            self._open_indexes()

    def _open_indexes(self) -> None:
        """Make the slot indexes, and the candidate queues for the requests of the waiting demands."""
        self.cycle.open_indexes()
        for demand in self._lines if self._by_quota is None else ():  # `quota` has an index of its own
            if self._feasibility.find(demand) is None:
                self.cycle.ready.find(demand.needs[0])

    def close(self) -> None:
        """Drop references between objects, so that they are freed without the garbage collector."""
        self.cycle.close_indexes()

    def go_on(self, now: float) -> Plan | None:
        """Return the plan of a later tick at `now`; None if only a full cycle can find it. After None this kept cycle
        cannot be used any more.
        """
        if not (self._since <= now < self._until and _has_ordinary_rows(self.cycle.view, self.rules)):
            return None
        self.cycle.begin(now)
        try:
            return self._plan()
        except _LeftWayError:
            return None

    def _plan(self) -> Plan:
        cycle, by_itself = self.cycle, {charge: self._charge, order: self._follow_queue, place: self._place_all}
        by_itself[share] = partial(share, cycle)
        self._renew_slots()
        for step in STEPS:
            if step.due is None:
                by_itself[step.run]()
            elif not cycle.timers.rests_until(step.due(self)):
                raise _LeftWayError
        outcome = Plan(
            tuple(cycle.decisions),
            Waits.of_blocks(self._queue.cut()),
            wake(cycle, self.limits.next_end),
            cycle.charged,
        )
        self._note_plan(outcome)
        return _keep_plan(cycle, outcome, self.next_protection)

    def _charge(self) -> None:
        if self._by_quota is not None:
            charge(self.cycle)
            self._rank = self._find_rank()

    def _renew_slots(self) -> None:
        """Set the scratch copies of the changed slots to their present rows and leases.

        Raise `_LeftWayError` if one of these slots (1) was added or deleted; (2) has another pool, or other amounts,
        labels or another market than before; (3) has a lease that was granted on an earlier machine of the slot; (4)
        took no leases before or takes none now; or (5) may change its state by a rule of the lifecycle, such as a
        timeout.
        """
        cycle, slots, self._changed = self.cycle, self.cycle.view.slots, []
        names = self._spent | dict.fromkeys(list_touched(cycle.view, self._revision))
        if len(names) > FEW_CHANGED + len(cycle.slot_infos) // MOST_CHANGED_SHARE:
            raise _LeftWayError
        for name in names:
            slot, slot_info = slots.get(name), cycle.slot_infos.get(name)
            if slot is None or slot_info is None:
                raise _LeftWayError
            pool, life, takes_leases = slot_info.pool, None, slot_info.takes_leases
            is_new_row = slot is not slot_info.slot
            if not takes_leases or (is_new_row and slot.pool != slot_info.slot.pool):
                raise _LeftWayError
            if is_new_row and pool.is_elastic and pool.replacement.is_on:
                life = find_life(slot_info, pool)
            opened = renew_slot(slot_info, cycle.view, slot)
            if is_new_row:
                takes_leases = slot_info.takes_leases
            if opened is None or not (opened.is_at_rest and opened.is_sound and takes_leases):
                raise _LeftWayError
            if slot_info.slot_class is None:  # under `quota` the index leaves full slots out
                cycle.ready.add(slot_info)
            else:
                cycle.ready.regroup(slot_info)
            if (there := self.pools.get(slot.pool)) is not None:
                there.note(slot_info, has_new_life=life is not None and find_life(slot_info, pool) != life)
            self._changed.append(slot_info)

    def _follow_queue(self) -> None:
        """Read the view's changes of the queue since the last plan."""
        view = self.cycle.view
        changes = view.waiters.changes_since(self._position)
        if changes is None:
            raise _LeftWayError
        pending, shapes, special = view.by_phase["pending"], view.shapes, view.special
        # Speed: of the reservations that waited, the log has the departure, so that new ones need no look-up.
        left = dict.fromkeys([row.id for row, _, has_come in changes if not has_come])
        keys, rank, by_quota, demands = self._keys, self._rank, self._by_quota, self.cycle.demands
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
        self._came = came
        self._check_protection()

    def _find_reason(self, demand: Demand | None) -> Reason:
        if demand is None:
            return ON_HOLD
        refusal = self._find_refusal(demand)
        if refusal is None:
            raise _LeftWayError
        return refusal.reason

    def _push_all(self, added: Mapping[Demand | None, list[Key]]) -> None:
        """Add reservations, by their keys in the queue, to the heaps of their demands. None (on hold) has no heap."""
        for demand, keys in added.items():
            if demand is not None:
                _check_plain(demand)
                if demand not in self._lines:
                    self._lines[demand] = KeyHeap(self._keys)
                    self._fresh.add(demand)
                self._lines[demand].push_all(keys)

    def _place_all(self) -> None:
        """Place the waiting reservations, and bring `_queue` up to date."""
        if self._by_quota is None:
            self._place()
        else:
            self._place_by_quota()
        self._fresh.clear()
        self._lines = {demand: line for demand, line in self._lines.items() if line.first is not None}
        self._queue.remove_all(self._gone)
        self._gone.clear()
        added = sorted(self._came.values(), key=itemgetter(0))
        reasons = {demand: self._find_reason(demand) for demand in {demand for _, demand in added}}
        self._queue.insert_all([key for key, _ in added], [reasons[demand] for _, demand in added])
        self.refusals = list(map(self._find_refusal, self._lines))

    def _place(self) -> None:
        """Assign leases in queue order. On the changed slots all demands are tried, and on the other slots only demands
        that did not wait before.
        """
        names, gone, came = self._keys, self._gone.append, self._came
        decide, timed = self.cycle.decisions.append, self.cycle.view.timed
        # Speed: the fields of a key stand in the entry of the heap, where they are compared faster than in the key.
        lines = [(*key, demand, self._lines[demand], self._take_each(demand)) for demand, key in self._list_open()]
        heapify(lines)
        placed, terms = set[Demand](), set[tuple[float | None, float | None, Demand]]()
        while lines:
            _, _, _, name, demand, line, run = lines[0]
            leases = next(run, None)
            if leases is None:
                heappop(lines)
                continue
            decide(Assign(reservation=name, leases=leases))
            if timed and name in timed:
                row = timed[name]
                terms.add((row.request.ttl, self.cycle.view.find_max_runtime(row), demand))
            else:
                placed.add(demand)
            key = names.pop(name)
            if came.pop(name, None) is None:
                gone(key)
            if (following := line.find_next(key)) is None:
                heappop(lines)
            else:
                heapreplace(lines, (*following, demand, line, run))
        terms.update((None, None, demand) for demand in placed)
        self.cycle.timers.lease_terms.update(
            Terms(ttl, each.shape.pool, each.shape.system, limit) for ttl, limit, each in terms
        )

    def _take_each(self, demand: Demand) -> Iterator[tuple[Placement, ...]]:
        """Yield the leases of the reservations of a demand, one after the other, until the demand fits nowhere."""
        [need], pools = demand.needs, self.pools
        name, given = need.component.name, need.given  # the only instance has the name of its component

        def give(slot_info: SlotInfo) -> tuple[Placement, ...]:
            slot = slot_info.slot
            if not slot_info.leases:  # speed: most slots had leases, so that they were not idle
                slot_info.wanted = True
                if slot.pool in pools:
                    pools[slot.pool].note(slot_info)
            return (Placement(name, slot.id, slot.epoch, given[slot.pool]),)

        return self.cycle.ready.take_each(need, give)

    def _place_by_quota(self) -> None:
        """Place reservations by quota. Raise `_LeftWayError` if running work moves to another level or is preempted."""
        misfits = {demand.shape for demand in self._lines if self._feasibility.find(demand) is not None}
        place_all_by_quota(self.cycle, misfits)
        for decision in self.cycle.decisions:
            if not isinstance(decision, Assign):
                raise _LeftWayError
            name = decision.reservation
            key = self._keys.pop(name)
            if self._came.pop(name, None) is None:
                self._gone.append(key)
            for placement in decision.leases:
                slot_info = self.cycle.slot_infos[placement.slot]
                if (there := self.pools.get(slot_info.slot.pool)) is not None:
                    there.note(slot_info)

    def _list_open(self) -> Iterator[tuple[Demand, Key]]:
        """Yield the demands that could fit on a slot, each with the position of its first reservation."""
        fitting = FittingClasses(self._changed)
        for demand, line in self._lines.items():
            if (first := line.first) is None or self._feasibility.find(demand) is not None:
                continue
            if demand in self._fresh or fitting.have_place(demand):
                yield demand, first


def _check_plain(demand: Demand) -> None:
    """Raise `_LeftWayError` unless the free capacity alone decides where a demand fits. There are four exceptions: a
    gang, elastic components, a queue without backfill, and a demand that only one reservation has, for example because
    its holder declined slots.
    """
    if len(demand.needs) != 1 or demand.elastic or not demand.is_shared or not demand.settings.backfill:
        raise _LeftWayError


class FittingClasses:
    """Which slot classes among `slot_infos` still fit a demand. The classes with enough capacity are found once for all
    demands with equal amounts.
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
        """Return whether one of the slots can take the instance of a demand that has a single one."""
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
