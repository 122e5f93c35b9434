"""The cascade: it grants and reclaims elastic instances of one queue, for its leased reservations in rank order.

Under the settings `elastic: rigid` and `malleable` it only grants. Under `flexible` and `yielding` it also reclaims,
for groups of earlier rank and for essential instances of pending reservations. Source: the flexible heuristic of Pace,
Venzano, Carra and Michiardi (arXiv 1611.09528), the base of Zoe. The heuristic lifts all elastic instances and places
them again. The cascade lifts only instances whose capacity is needed, the last in rank first. The result has the same
instances, and none moves without need.
"""

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import chain
from operator import attrgetter
from typing import Final, Generic, TypeVar

from scheduler.model.reservations import Reservation
from scheduler.model.resources import Resources, subtract, total
from scheduler.model.rules import SchedulerKeys
from scheduler.policy.capacity.fits import Usage, find_obstacle, is_overfull, measure
from scheduler.policy.capacity.gang import OpenSlot, Runs, Shareable, Space, place
from scheduler.policy.capacity.requests import Demand, InstanceRequest, RequestClass
from scheduler.policy.capacity.slot_index import RemainingCapacity, SlotClass, SlotIndex
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.cycle.work_budget import GRANT_STEPS, find_payer
from scheduler.policy.elastic.instances import (
    RECLAIMS,
    ElasticGroup,
    ElasticInstance,
    GrantLimits,
    MissingInstances,
    Rank,
    list_groups,
)

# The assignment of elastic instances to slots in the scratch copy of a cycle: a search moves instances, and can undo
# its moves.
#
# Source: Zoe, where an undo restores the list of the moves but not the slots.


# Slots sorted by a key, for searches that need the slot with the least key. Before a search only changed slots are
# examined again.


Key = TypeVar("Key", tuple[int, int, int, int], int)


class RatedSlots(Generic[Key]):
    """The slots that a rule accepts, sorted by the key that the rule gives them, least key first.

    `history` is the list of changed slots. A caller must append a slot to `history` in two cases: (1) its key may have
    become less; (2) the rule may accept it now. A caller need not append a slot on which a lease is placed, or that is
    removed from its `SlotIndex`. The key then only becomes greater, and a search notices this when it reaches the slot.
    """

    def __init__(self, rate: Callable[[SlotInfo], Key | None], history: Sequence[SlotInfo]) -> None:
        """Start without slots. `rate` is the rule: it returns the key of a slot, or None if the slot is not accepted.
        `history`: the list of changed slots, to which the caller appends.
        """
        self._rate: Callable[[SlotInfo], Key | None] = rate
        self._history, self._read = history, len(history)
        self._slot_infos: dict[int, SlotInfo] = {}
        """Position in slot order -> slot, for the slots that were examined."""
        self._keys: dict[int, Key] = {}
        """Position in slot order -> the key that the rule returned last for the slot. Slots that the rule does not
        accept have no entry. `_heap` contains each of these keys.
        """
        self._states: dict[int, tuple[object, int, int, object]] = {}
        """Position in slot order -> the facts about the slot from which its key was last computed, to notice
        changes.
        """
        self._heap: list[tuple[Key, int]] = []
        """A heap of (key, position in slot order) of accepted slots. An entry is outdated once its slot has another
        key.
        """

    def add(self, slot_info: SlotInfo) -> None:
        """Examine a slot and add it if the rule accepts it. Do nothing if the slot was examined before."""
        if slot_info.order not in self._slot_infos:
            self._update(slot_info)

    def find_first(self, declined: Collection[str] = ()) -> tuple[Key, SlotInfo] | None:
        """Return the least key and its slot; None if no slot is accepted. Slots whose ids are in `declined` are
        ignored.
        """
        self._catch_up()
        passed: list[tuple[Key, int]] = []
        found = None
        while self._heap and found is None:
            key, order = entry = self._heap[0]
            slot_info = self._slot_infos[order]
            if self._keys.get(order) != key or (not self._is_as_examined(slot_info) and self._update(slot_info) != key):
                heappop(self._heap)
            elif slot_info.slot.id in declined:
                passed.append(heappop(self._heap))
            else:
                found = key, slot_info
        for entry in passed:
            heappush(self._heap, entry)
        return found

    def starts_before(self, key: Key) -> bool:
        """Return False if it is certain that no examined slot has a key less than this one; else True."""
        return bool(self._heap) and self._heap[0][0] < key

    def _catch_up(self) -> None:
        if self._read != len(self._history):
            for slot_info in dict.fromkeys(self._history[self._read :]):
                self._update(slot_info)
            self._read = len(self._history)

    def _update(self, slot_info: SlotInfo) -> Key | None:
        order, key = slot_info.order, self._rate(slot_info)
        self._slot_infos[order] = slot_info
        self._states[order] = (slot_info.free, slot_info.given, slot_info.lifted, slot_info.slot_class)
        if key is None:
            self._keys.pop(order, None)
        elif self._keys.get(order) != key:
            self._keys[order] = key
            heappush(self._heap, (key, order))
        return key

    def _is_as_examined(self, slot_info: SlotInfo) -> bool:
        """Return whether a slot has not changed since its key was computed: its free amounts, leases and index are the
        same.
        """
        free, given, lifted, slot_class = self._states[slot_info.order]
        is_as_loaded = slot_info.given == given and slot_info.lifted == lifted
        return is_as_loaded and slot_info.free is free and slot_info.slot_class is slot_class


MORE: Final = 1e-9
"""Two amounts that differ by less than this are equal: sums of fractions are not exact."""


def weigh_use(slot_info: SlotInfo, amounts: Resources, have: Mapping[str, Resources]) -> float:
    """Return by how much a lease with these amounts raises the utilisation of the slot's pool. Under `flexible` a
    reclaim is made only if the sum of utilisations grows.

    The result is the sum over resources of (amount leased / amount that the pool has), or 1 if the slot counts leases
    only. `have`: pool -> the sum of the resources of its slots in service. Source: Zoe's flexible heuristic.
    """
    if slot_info.capacity is None:
        return 1.0
    all_of_it = have[slot_info.slot.pool]
    return sum(amount / all_of_it[name] for name, amount in amounts.items() if all_of_it.get(name))


@dataclass(slots=True)
class _Entry:
    """The state before one move of an instance: what an undo of this move restores.

    Amounts are stored, because subtracting and adding fractions is not exact.
    """

    elastic_instance: ElasticInstance | None
    stood: SlotInfo | None
    use: float
    slot_infos: tuple[tuple[SlotInfo, int, int, Resources | None], ...]
    """Each slot that the move changes, as it was before the move: (slot, its `given`, its `lifted`, its `free`)."""
    stamp: int
    """The value of `Assignment.stamp` before this move (`stamp` changes whenever a slot gets capacity back)."""
    leaving: Usage | None = None
    """The capacity that revoking leases will free on the slot (`Assignment._leaving`), as it was before a part of it
    was promised to an instance (`Assignment.expect`). None: the entry records another move than such a promise.
    """


class Assignment:
    """Changes which instances are on which slots, in the scratch copy of a cycle: it lifts elastic instances off their
    slots, puts them on slots, and places essential instances. It can undo each of these moves.
    """

    def __init__(self, cycle: CycleState) -> None:
        self._slot_index = cycle.ready
        self._journal: list[_Entry] = []
        self._changed: dict[int, SlotInfo] = {}
        """Position in slot order -> a changed slot whose change the slot index has not read yet. One update of the
        index then reads the slots of many moves.
        """
        self.use = 0.0
        """The sum of the utilisations of the pools, counted from 0 at the start: only differences matter
        (`weigh_use`).
        """
        self._leaving: dict[SlotInfo, Usage] = {}
        """Slot -> the capacity that becomes free when its revoking leases end, without the parts that are claimed or
        are promised to elastic instances already. In slot order.
        """
        by_pool: dict[str, list[Resources]] = {}
        for slot_info in self._slot_index.list_slot_infos():
            by_pool.setdefault(slot_info.slot.pool, []).append(slot_info.capacity or {})
        self._slot_infos = cycle.slot_infos
        self.missing = MissingInstances()
        self.standing: dict[int, dict[ElasticInstance, None]] = {}
        """Position in slot order -> the elastic instances on the slot. The table is empty for a queue that reclaims
        nothing.
        """
        self.history: list[SlotInfo] = []
        """The changed slots, with one entry for each change. There are three kinds of change: (1) the slot got capacity
        back; (2) the slot got an elastic instance; (3) an instance was promised the capacity that revoking leases on
        the slot will free (`expect`). `RatedSlots` reads the new entries before a search, and sorts these slots again.
        """
        self.stamp = 0
        """A number that changes whenever a slot gets capacity back. While it is the same, capacity was only taken."""
        self._last_stamp = 0
        self._expected: dict[RequestClass, RatedSlots[int]] = {}
        """Request class -> the slots on which an instance fits once the revoking leases there have ended, in slot
        order.
        """
        self._totals: dict[str, Resources] = {name: total(amounts) for name, amounts in by_pool.items()}

    def find(self, need: InstanceRequest, declined: Collection[str] = ()) -> SlotInfo | None:
        """Return the best slot for one instance; None if the instance fits on no slot. `declined`: ids of slots to
        ignore.
        """
        self.update_index()
        return self._slot_index.find(need, declined)

    @property
    def is_awaiting(self) -> bool:
        """Whether there are revoking leases whose capacity a missing elastic instance could use after they end."""
        return bool(self._leaving)

    def enter(self, groups: Iterable[ElasticGroup]) -> None:
        """Record the elastic instances of these groups that are on slots, and the groups with missing instances. Call
        it before any search for these groups.
        """
        for group in groups:
            for each in group.elastic_instances:
                if each.slot_info is not None:
                    self.standing.setdefault(each.slot_info.order, {})[each] = None
            self.missing.note(group)

    def could_place(self, need: InstanceRequest) -> bool:
        """Return False if it is certain that an instance fits on no slot, now or after revoking leases have ended; else
        True.
        """
        return bool(self._leaving) or self.find(need) is not None

    def find_again(
        self, need: InstanceRequest, last: SlotInfo | None, declined: Collection[str] = ()
    ) -> SlotInfo | None:
        """Return the best slot for an instance; None if it fits on no slot. `last`: the slot that an equal instance got
        just before.

        `declined`: ids of slots to ignore. Speed: if the request does not spread (`spreads`), the slot with the most
        leases is the best one. So `last` stays the best slot until it is full, and is returned without a search.
        """
        is_packing = last is not None and not need.spreads and last.has_place and last.slot.id not in declined
        if last is not None and is_packing and need.could_hold(last.slot.pool, last.free, last.labels):
            return last
        return self.find(need, declined)

    def has(self, slot_info: SlotInfo) -> bool:
        """Return whether instances can be placed on a slot in this cycle. The result becomes False when the starvation
        guard keeps the slot for a reservation.
        """
        return self._slot_index.has(slot_info)

    def could_serve(self, need: InstanceRequest, slot_info: SlotInfo, declined: Collection[str] = ()) -> bool:
        """Return whether a request would fit on the slot if the slot were empty, and instances can be placed on the
        slot in this cycle.

        False for the slots with the ids `declined`.
        """
        pool = slot_info.slot.pool
        if slot_info.slot.id in declined or pool not in need.given or not self._slot_index.has(slot_info):
            return False
        return need.could_hold(pool, slot_info.capacity, slot_info.labels)

    def update_index(self) -> None:
        """Let the slot index read the changed slots, so that all searches find them as they are now."""
        for slot_info in self._changed.values():
            self._slot_index.regroup(slot_info)
        self._changed.clear()

    def fits_home(self, elastic_instance: ElasticInstance) -> bool:
        """Return whether an elastic instance, which was lifted off the slot of its lease, still fits on that slot."""
        home, lease = elastic_instance.home, elastic_instance.lease
        if home is None or lease is None or not self._slot_index.has(home):
            return False
        # Its use of the machine was counted when it was granted.
        return find_obstacle(lease.resources, home.free, home.pool.lease_limit - home.load) is None

    def move(self, elastic_instance: ElasticInstance, slot_info: SlotInfo | None) -> None:
        """Move an elastic instance to the slot `slot_info` in the scratch copy of the cycle; None: off its present
        slot, and to no other.
        """
        self._note(elastic_instance, slot_info)
        if elastic_instance.slot_info is not None:
            self._remove(
                elastic_instance.slot_info,
                elastic_instance.amounts_on(elastic_instance.slot_info),
                is_new=elastic_instance.slot_info is not elastic_instance.home,
            )
        if slot_info is not None:
            self._put(slot_info, elastic_instance.amounts_on(slot_info), is_new=slot_info is not elastic_instance.home)
        self._stand(elastic_instance, slot_info)

    def _stand(self, elastic_instance: ElasticInstance, slot_info: SlotInfo | None) -> None:
        if elastic_instance.slot_info is not None:
            self.standing.get(elastic_instance.slot_info.order, {}).pop(elastic_instance, None)
        elastic_instance.stand(slot_info)
        if slot_info is None:
            self.missing.note(elastic_instance.group)
        else:
            self.standing.setdefault(slot_info.order, {})[elastic_instance] = None
            self.history.append(slot_info)

    def take(self, slot_info: SlotInfo, need: InstanceRequest) -> None:
        """Place an essential instance on a slot: subtract its amounts from the slot's free capacity."""
        self._note(None, slot_info)
        self._put(slot_info, need.given[slot_info.slot.pool], is_new=True)

    def note_leaving(self, reservations: Iterable[Reservation]) -> None:
        """Record the capacity that becomes free when the revoking leases of these reservations end, so that elastic
        instances can wait for it.
        """
        slots = {lease.slot for each in reservations for lease in each.leases if lease.state == "revoking"}
        slot_infos = (self._slot_infos[name] for name in slots if name in self._slot_infos)
        for slot_info in sorted(filter(self._slot_index.has, slot_infos), key=attrgetter("order")):
            whole, leases = slot_info.capacity or {}, slot_info.leases.values()
            now, later, used = (measure(leases, moment) for moment in ("now", "later", "always"))
            # Leases may exceed their slot, so what they use is not what becomes free.
            amounts = subtract(subtract(whole, later.amounts), subtract(whole, used.amounts))
            self._leaving[slot_info] = Usage(max(0, now.count - later.count), dict(amounts))

    def expect(self, elastic_instance: ElasticInstance) -> bool:
        """Return whether a missing instance fits on a slot once revoking leases there have ended. If so, promise the
        instance the capacity of these leases.

        What the instance needs beyond these leases is taken from the free capacity of the slot.
        """
        need = elastic_instance.need
        if not self._leaving or (slot_info := self._find_leaving(need)) is None:
            return False
        amounts, free, leaving = need.given[slot_info.slot.pool], slot_info.free, self._leaving[slot_info]
        before = (slot_info, slot_info.given, slot_info.lifted, free)
        self._journal.append(_Entry(elastic_instance, None, self.use, (before,), self.stamp, leaving))
        slot_info.given += not leaving.count
        slot_info.free = free and subtract(free, subtract(amounts, leaving.amounts))
        self._leaving[slot_info] = Usage(max(0, leaving.count - 1), dict(subtract(leaving.amounts, amounts)))
        self._changed[slot_info.order] = slot_info
        self.history.append(slot_info)
        elastic_instance.expects = True
        return True

    def _find_leaving(self, need: InstanceRequest) -> SlotInfo | None:
        """Return the first slot in slot order on which a request fits once the revoking leases there have ended; None
        if there is none.
        """
        expected = self._expected.get(need.likeness)
        if expected is None:

            def rate(slot_info: SlotInfo) -> int | None:
                return slot_info.order if self._could_await(need, slot_info) else None

            expected = self._expected[need.likeness] = RatedSlots(rate, self.history)
            for slot_info in self._leaving:
                expected.add(slot_info)
        found = expected.find_first()
        return None if found is None else found[1]

    def _could_await(self, need: InstanceRequest, slot_info: SlotInfo) -> bool:
        """Return whether a request fits on a slot once the revoking leases there have ended."""
        leaving, free = self._leaving.get(slot_info), slot_info.free
        if leaving is None or not self.could_serve(need, slot_info):
            return False
        whole = free and {name: amount + leaving.amounts.get(name, 0) for name, amount in free.items()}
        leases = slot_info.pool.lease_limit - slot_info.load + leaving.count
        return find_obstacle(need.given[slot_info.slot.pool], whole, leases, slot_info.uses_left) is None

    def _note(self, elastic_instance: ElasticInstance | None, to: SlotInfo | None) -> None:
        stood = None if elastic_instance is None else elastic_instance.slot_info
        slot_infos = tuple((each, each.given, each.lifted, each.free) for each in (stood, to) if each is not None)
        self._journal.append(_Entry(elastic_instance, stood, self.use, slot_infos, self.stamp))

    @property
    def mark(self) -> int:
        """The number of moves so far. If it is passed to `undo` later, the present state is restored."""
        return len(self._journal)

    def undo(self, mark: int) -> None:
        """Undo the latest moves, until their number is `mark` again."""
        while len(self._journal) > mark:
            entry = self._journal.pop()
            for slot_info, given, lifted, free in entry.slot_infos:
                slot_info.given, slot_info.lifted, slot_info.free = given, lifted, free
                self._changed[slot_info.order] = slot_info
                self.history.append(slot_info)
            if entry.elastic_instance is not None:
                self._stand(entry.elastic_instance, entry.stood)
                if entry.leaving is not None:
                    entry.elastic_instance.expects = False
                    self._leaving[entry.slot_infos[0][0]] = entry.leaving
            self.use, self.stamp = entry.use, entry.stamp

    def lift_overfull(self) -> None:
        """Lift all elastic instances off each slot whose leases exceed its capacity, without those that are revoking.

        Instances that still fit are put back when the cascade serves their groups in rank order.
        """
        for lifted in [list(found) for found in self.standing.values()]:
            slot_info = lifted[0].slot_info
            if (
                slot_info is None
                or not _may_exceed(slot_info)
                or not (_is_overfull(slot_info) or _lacks_a_name(slot_info, lifted))
            ):
                continue
            # The revoking leases end without a further decision, so they do not count for the instances that return.
            # What other instances get here waits for their end: a lease is revoked on this slot (`ElasticDecisions`).
            self._leaving.pop(slot_info, None)
            leases = slot_info.leases
            slot_info.overlap = len(leases) - measure(leases.values(), "later").count
            slot_info.lifted += len(lifted)
            if slot_info.capacity is not None:  # `free` is never below 0, so it is worked out again without them
                keys = {(each.holder.id, each.instance.name) for each in lifted}
                kept = [lease for key, lease in leases.items() if key not in keys]
                slot_info.free = subtract(slot_info.capacity, measure(kept, "later").amounts)
            self._note_return(slot_info)
            for each in lifted:
                self.use -= weigh_use(slot_info, each.amounts_on(slot_info), self._totals)
                self._stand(each, None)

    def _put(self, slot_info: SlotInfo, amounts: Resources, *, is_new: bool) -> None:
        if is_new:
            slot_info.given += 1
        else:
            slot_info.lifted -= 1
        slot_info.free = None if slot_info.free is None else subtract(slot_info.free, amounts)
        self.use += weigh_use(slot_info, amounts, self._totals)
        self._changed[slot_info.order] = slot_info

    def _remove(self, slot_info: SlotInfo, amounts: Resources, *, is_new: bool) -> None:
        if is_new:
            slot_info.given -= 1
        else:
            slot_info.lifted += 1
        free = slot_info.free
        slot_info.free = None if free is None else {name: free[name] + amounts.get(name, 0) for name in free}
        self.use -= weigh_use(slot_info, amounts, self._totals)
        self._note_return(slot_info)

    def _note_return(self, slot_info: SlotInfo) -> None:
        """Record that a slot got capacity back."""
        self._changed[slot_info.order] = slot_info
        self.history.append(slot_info)
        self._last_stamp += 1
        self.stamp = self._last_stamp


def _lacks_a_name(slot_info: SlotInfo, elastic_instances: Iterable[ElasticInstance]) -> bool:
    """Return whether these instances use a resource that the slot does not have any more, because its host registered
    again without it.

    A resource that a slot does not name counts as 0. Source: Orchard.
    """
    capacity = slot_info.capacity
    if capacity is None:
        return False
    unknown = (
        used
        for elastic_instance in elastic_instances
        if not (used := elastic_instance.amounts_on(slot_info)).keys() <= capacity.keys()
    )
    return any(amount > 0 and name not in capacity for used in unknown for name, amount in used.items())


def _may_exceed(slot_info: SlotInfo) -> bool:
    """Return False if it is certain that the leases on a slot do not exceed the slot. Return True if the caller has to
    test the slot with `_is_overfull` and `_lacks_a_name`. Leases exceed a slot in two cases: (1) their number or their
    sum is greater than the slot allows; (2) they use a resource that the slot does not name.

    The result is kept (`CachedSlot.may_exceed`) until the slot or one of its leases changes.
    """
    opened, capacity = slot_info.opened, slot_info.capacity
    is_changed = opened is None or slot_info.given or slot_info.lifted
    if opened is None or is_changed or slot_info.leases is not opened.slot_info.leases:
        return True
    if opened.may_exceed is None:
        uses = [lease.resources for lease in slot_info.leases.values()]
        is_named = capacity is None or all(used.keys() <= capacity.keys() for used in uses)
        opened.may_exceed = not is_named or _is_overfull(slot_info)
    return opened.may_exceed


def _is_overfull(slot_info: SlotInfo) -> bool:
    """Return whether the leases on a slot exceed it once its revoking leases have ended."""
    load, limit = slot_info.load, slot_info.pool.lease_limit
    if load <= limit and all(amount > 0 for amount in (slot_info.free or {}).values()):
        return False  # speed: most slots have something left of each resource
    later = measure(slot_info.leases.values(), "later")
    later.count += slot_info.given - slot_info.lifted
    return is_overfull(later, limit, slot_info.capacity)


# Relaxed capacity: what ready slots would have left without the elastic instances that may be reclaimed. (The names
# with `headroom` here mean the relaxed capacity of single slots, and not slots that end for withheld launches.)
#
# Under load most pending reservations would not fit even then. Comparing sums shows this without moving an instance.


ROUNDING: Final = 1e-6
"""A tolerance, as a fraction of one instance: capacity for at least 1 - ROUNDING instances counts as capacity for one.
Sums of fractions are not exact, and a demand that fits must not be refused.
"""
_Headroom = tuple[float, tuple[tuple[str, float], ...] | None]
"""The relaxed capacity of one slot: (number of further leases, amounts by resource). Amounts None: the slot counts
leases only.

The numbers may be too high; a search applies the exact rule, `find_obstacle`, afterwards.
"""


def _count_fits(headroom: _Headroom, amounts: Resources, most: int) -> int:
    """Return how many instances with these amounts would fit into the relaxed capacity of a slot, at most `most`."""
    leases, free = headroom
    fit = min(leases, most)
    if free is not None:
        left = dict(free)
        for name, amount in amounts.items():
            if amount > 0:
                fit = min(fit, left.get(name, 0) / amount + ROUNDING)
    return int(fit)


@dataclass(slots=True, eq=False)
class _ClassHeadroom:
    """The relaxed capacity of the slots of one pool with equal labels: what each would have left without its elastic
    instances that may be reclaimed. `counts`: relaxed capacity -> the number of slots that have it.
    """

    slot_class: SlotClass
    counts: Counter[_Headroom] = field(default_factory=Counter)

    def move(self, before: _Headroom | None, after: _Headroom | None) -> None:
        """Record that the relaxed capacity of one slot (what it would have left after all possible reclaims) changed
        from `before` to `after`. `before` None: the slot is new. `after` None: the slot is not counted any more.
        """
        if before is not None and before[0] > 0:
            self.counts[before] -= 1
            if not self.counts[before]:
                del self.counts[before]
        if after is not None and after[0] > 0:
            self.counts[after] += 1

    def could_serve(self, need: InstanceRequest) -> bool:
        """Return whether the pool and the labels of these slots meet a request. Amounts are not tested."""
        pool = self.slot_class.pool
        return pool in need.given and need.could_hold(pool, None, self.slot_class.labels)

    def count_fits(self, need: InstanceRequest, most: int) -> int:
        """Return how many instances of a request would fit on these slots, up to `most`."""
        if not self.could_serve(need):
            return 0
        found = 0
        for headroom, count in self.counts.items():
            found += count * _count_fits(headroom, need.given[self.slot_class.pool], most)
            if found >= most:
                return most
        return found


class RelaxedCapacity:
    """The relaxed capacity of all slots of some indexes: what each slot would have left if all its elastic instances
    that may be reclaimed were gone. Instances that are placed are subtracted; no capacity is ever added.

    Slots that are alike in pool, labels and relaxed capacity are counted together, so that a search examines few
    entries.
    """

    def __init__(self, slot_indexes: Collection[SlotIndex], elastic_instances: Iterable[ElasticInstance]) -> None:
        self._slot_indexes, self.size = slot_indexes, sum(map(len, slot_indexes))
        self._refused: list[tuple[InstanceRequest, int]] = []
        """Requests that are known not to fit, as (request, number of instances of it)."""
        self._classes: dict[SlotClass, _ClassHeadroom] = {}
        self._of: dict[int, tuple[SlotInfo, _ClassHeadroom, _Headroom]] = {}
        """Position in slot order -> (slot, the object that counts the slots of its pool and labels, its relaxed
        capacity). Relaxed capacity: what the slot would have left after all possible reclaims.
        """
        standing: dict[int, list[ElasticInstance]] = {}
        for each in elastic_instances:
            if each.slot_info is not None:
                standing.setdefault(each.slot_info.order, []).append(each)
        alike: dict[RemainingCapacity, _Headroom] = {}
        for slot_info in chain.from_iterable(each.list_slot_infos() for each in slot_indexes):
            slot_class: SlotClass = slot_info.slot_class
            known = self._classes.get(slot_class) or self._classes.setdefault(slot_class, _ClassHeadroom(slot_class))
            if (elastic := standing.get(slot_info.order)) is not None:
                headroom = _find_headroom(slot_info, elastic)
            elif slot_info.remaining in alike:
                headroom = alike[slot_info.remaining]
            else:
                headroom = alike[slot_info.remaining] = _find_headroom(slot_info, ())
            known.move(None, headroom)
            self._of[slot_info.order] = slot_info, known, headroom

    def could_hold(self, demand: Demand) -> bool:
        """Return whether the instances of each component would fit if no other component were placed. If they would
        not, no reclaim helps.
        """
        return all(self._could_hold(need, count, demand.declined) for need, count in Counter(demand.needs).items())

    def _could_hold(self, need: InstanceRequest, count: int, declined: Sequence[str]) -> bool:
        if any(count >= refused and need.asks_as_much_as(other) for other, refused in self._refused):
            return False
        found = self.count_fits(need, count, declined)
        if found < count and not declined:
            self._refused.append((need, count))
        return found >= count

    def could_hold_with(self, other: "RelaxedCapacity", demand: Demand) -> bool:
        """Return whether the instances of each component would fit on the slots of this object and of `other` together,
        if no other component were placed.
        """
        return all(
            self.count_fits(need, count, demand.declined) + other.count_fits(need, count, demand.declined) >= count
            for need, count in Counter(demand.needs).items()
        )

    def count_fits(self, need: InstanceRequest, most: int, declined: Sequence[str]) -> int:
        """Return how many instances of a request, up to `most`, would fit on the slots whose ids are not in
        `declined`.
        """
        self._forget_removed()
        found = 0
        if not declined:
            for each in self._classes.values():
                found += each.count_fits(need, most - found)
                if found >= most:
                    break
            return found
        for slot_info, known, headroom in self._of.values():
            if headroom[0] > 0 and slot_info.slot.id not in declined and known.could_serve(need):
                found += _count_fits(headroom, need.given[slot_info.slot.pool], most - found)
                if found >= most:
                    break
        return found

    def _forget_removed(self) -> None:
        """Remove the slots that left the indexes, because the starvation guard keeps them for reservations."""
        if self.size == sum(map(len, self._slot_indexes)):
            return
        self.size = sum(map(len, self._slot_indexes))
        for order, (slot_info, known, headroom) in list(self._of.items()):
            if not any(each.has(slot_info) for each in self._slot_indexes):
                known.move(headroom, None)
                del self._of[order]

    def take(self, needs: Sequence[InstanceRequest], slot_infos: Sequence[SlotInfo]) -> None:
        """Subtract requests from the relaxed capacity of slots (what they would have left after all possible reclaims).
        The request `needs[i]` was placed on the slot `slot_infos[i]`, or capacity is kept for it there.
        """
        for need, slot_info in zip(needs, slot_infos, strict=True):
            if (present := self._of.get(slot_info.order)) is None:
                continue
            _, known, before = present
            leases, free = before
            left = None if free is None else tuple(subtract(dict(free), need.given[slot_info.slot.pool]).items())
            after = (leases - 1, left)
            known.move(before, after)
            self._of[slot_info.order] = slot_info, known, after


def _find_headroom(slot_info: SlotInfo, standing: Sequence[ElasticInstance]) -> _Headroom:
    """Return the relaxed capacity of a slot: what it would have left without the elastic instances `standing`, which
    are on it.
    """
    leases = min(slot_info.pool.lease_limit - slot_info.load, slot_info.uses_left) + len(standing)
    if slot_info.free is None:
        return leases, None
    free: Mapping[str, float] = slot_info.free
    for each in standing:
        amounts = each.amounts_on(slot_info)
        free = {name: amount + amounts.get(name, 0) for name, amount in free.items()}
    return leases, tuple(free.items())


# The search for victims: the elastic instances that have to be lifted off a slot so that one more instance of a request
# fits there.
#
# A search takes the elastic instances in the order of lifts: instances of the last group in rank come first (see
# `_find_turn`). It adds the capacity of each instance to its slot, until the request fits on a slot. Only the instances
# of that slot are lifted. Requests of one `RequestClass` fit on the same slots. So each class has one sorted list of
# the slots on which a lift helps. A search examines only slots that changed and instances that no earlier search has
# reached.


_Turn = tuple[int, int, int, int]
"""The position of an elastic instance in the order of lifts. The instance with the smallest position is lifted
first.
"""
_START: Final[_Turn] = (-(1 << 62), 0, 0, 0)
"""A position in the order of lifts before the positions of all elastic instances."""


def _find_turn(elastic_instance: ElasticInstance) -> _Turn:
    """Return the position of an instance in the order of lifts. Instances of the group that is last in rank come first;
    within a group, instances that were granted in this cycle come first, then the highest index.
    """
    position, component = elastic_instance.group.rank
    return -position, -component, -elastic_instance.is_granted, -elastic_instance.index


class _Candidates:
    """The slots on which one more instance of a request fits after some elastic instances there were lifted. They are
    in the order of lifts (see `_find_turn`). All requests of one `RequestClass` use the same object.
    """

    def __init__(self, need: InstanceRequest, groups: Sequence[ElasticGroup], assignment: Assignment) -> None:
        """Start without slots. `groups`: all groups in rank order; the list may change between searches."""
        self._need, self._groups, self._assignment = need, groups, assignment
        self._serves: dict[int, bool] = {}
        """Position in slot order -> whether the request fits on the slot if it is empty."""
        self._slots = RatedSlots(self._find_key, assignment.history)
        self._reached = _START
        """How far searches have walked through the elastic instances in the order of lifts. Each slot with an instance
        before this position was examined, or is in `Assignment.history` and is examined before the next search.
        """

    def find(self, bound: Rank, declined: Collection[str]) -> Sequence[ElasticInstance]:
        """Return the instances to lift, all on one slot, so that one more instance of the request fits there; () if no
        lift helps. They belong to groups from the rank `bound` on, and the id of their slot is not in `declined`.
        """
        if declined:
            self._walk(bound, to_the_end=True)
        while True:
            found = self._slots.find_first(declined)
            if (found is not None and found[0] < self._reached) or not self._walk(bound):
                break
        return () if found is None or (-found[0][0], -found[0][1]) < bound else self._list_victims(found[1])

    def _walk(self, bound: Rank, *, to_the_end: bool = False) -> bool:
        """Go on from `_reached` in the order of lifts, and examine the slots of the instances. Stop with True if a slot
        may have been found. Stop with False if no group from the rank `bound` on is left.

        `to_the_end`: do not stop at a slot, and examine the slots of all these groups. The result is then always False.
        """
        position, component, *_ = self._reached
        at = bisect_left(self._groups, (-position, -component), key=_rank)
        while at and (group := self._groups[at - 1]).rank >= bound:
            at -= 1
            self._reached = (-group.rank[0], -group.rank[1], 1, 0)
            if group.need.given.keys() & self._need.given.keys():
                for elastic_instance in group.elastic_instances:
                    if elastic_instance.slot_info is not None:
                        self._slots.add(elastic_instance.slot_info)
            if not to_the_end and self._slots.starts_before(self._reached):
                return True
        return False

    def _find_key(self, slot_info: SlotInfo) -> _Turn | None:
        victims = self._list_victims(slot_info)
        return _find_turn(victims[-1]) if victims else None

    def _list_victims(self, slot_info: SlotInfo) -> Sequence[ElasticInstance]:
        """Return the elastic instances of a slot that have to be lifted so that the request fits, in the order of
        lifts. Return () if the request does not fit even after all of them were lifted.
        """
        standing = self._assignment.standing.get(slot_info.order)
        if not standing or not self._could_serve(slot_info):
            return ()
        amounts, free, victims = self._need.given[slot_info.slot.pool], slot_info.free, []
        leases, uses = slot_info.pool.lease_limit - slot_info.load, slot_info.uses_left
        for each in sorted(standing, key=_find_turn):
            victims.append(each)
            leases += 1
            uses += each.is_granted
            if free is not None:
                given = each.amounts_on(slot_info)
                free = {name: amount + given.get(name, 0) for name, amount in free.items()}
            if find_obstacle(amounts, free, leases, uses) is None:
                return victims
        return ()

    def _could_serve(self, slot_info: SlotInfo) -> bool:
        """Return whether the request would fit on the slot if the slot were empty, and the starvation guard does not
        keep the slot.
        """
        known = self._serves.get(slot_info.order)
        if known is None or not self._assignment.has(slot_info):
            known = self._serves[slot_info.order] = self._assignment.could_serve(self._need, slot_info)
        return known


class VictimSearch:
    """Searches for the elastic instances to lift, for requests of all classes."""

    def __init__(self, groups: Sequence[ElasticGroup], assignment: Assignment) -> None:
        """Start before the first search. `groups`: all groups of elastic instances in rank order. Between two calls of
        `find`, the caller may add groups to this list and remove groups.
        """
        self._groups, self._assignment = groups, assignment
        self._candidates: dict[RequestClass, _Candidates] = {}

    def find(self, need: InstanceRequest, bound: Rank, declined: Collection[str] = ()) -> Sequence[ElasticInstance]:
        """Return the elastic instances to lift, all on one slot and in the order of lifts, so that one more instance of
        the request fits there.

        They belong to groups from the rank `bound` on. Return () if no lift helps. `declined`: ids of slots to ignore.
        """
        candidates = self._candidates.get(need.likeness)
        if candidates is None:
            candidates = self._candidates[need.likeness] = _Candidates(need, self._groups, self._assignment)
        return candidates.find(bound, declined)


_FIRST: Final[Rank] = (0, 0)
"""A rank that is not behind any other rank."""
_LAST: Final[Rank] = (1 << 62, 0)
"""A rank behind the ranks of all groups of elastic instances."""
_rank = attrgetter("rank")


class Cascade:
    """Grants and reclaims the elastic instances of one queue, in rank order, in the scratch copy of the cycle."""

    def __init__(
        self,
        cycle: CycleState,
        settings: SchedulerKeys,
        ranks: Mapping[str, int],
        linked: Mapping[str, str],
        limits: GrantLimits | None = None,
    ) -> None:
        """Start without elastic instances. `settings`: the settings of the queue that this object serves.

        `ranks`: reservation id -> position in the queue's order, leased reservations included. `linked`: pool -> the
        pool that stands for all pools linked with it (see `link_pools`). `limits`: finds, for an elastic instance, the
        slots that it must not get because of the limits of its account; None: no account has such limits.
        """
        self.settings, self._linked, self._limits = settings, linked, limits
        self._cycle, self._ranks = cycle, ranks
        self._assignment = Assignment(cycle)
        self.groups: list[ElasticGroup] = []
        self._relaxed: RelaxedCapacity | None = None
        self._kept: RelaxedCapacity | None = None
        """The capacity that the slots kept by the starvation guard would have without elastic instances. It is computed
        again when the guard keeps another slot; None: not computed yet.
        """
        self._kept_out: dict[Demand, bool] = {}
        """Demand -> whether it would fit on the slots that the starvation guard keeps, without the elastic instances
        there (see `_kept`).
        """
        self._victims = VictimSearch(self.groups, self._assignment)
        self._lifted: list[ElasticGroup] = []
        """Groups with instances that `_lift` took off their slots. `_serve` has still to find slots for them."""
        self._displaced: dict[ElasticGroup, None] = {}
        """All groups with instances that may go back to the slots of their leases."""
        self._without_slot: dict[RequestClass, tuple[Rank, int]] = {}
        """Request class -> (the first rank for which no slot was found, `Assignment.stamp` at that time).

        While `Assignment.stamp` is the same, no slot is found for this rank and later ones.
        """
        self._first_touched: Rank = _LAST
        """The rank of the first group with an instance that was lifted off its slot and is not back yet."""
        self._refused: dict[str, set[Demand]] = defaultdict(set)
        """Pool -> the demands for which no reclaim suffices. Linked pools have one entry, under the pool that stands
        for them (see `link_pools`). The entry is removed when a reservation gets slots in one of these pools.
        """
        self._has_grace = bool(settings.preemption_grace)
        """Whether an instance that is lifted keeps its slot for a grace period, and gets no other meanwhile."""

    @property
    def takes_back(self) -> bool:
        """Whether the queue's setting `elastic` allows that held instances are reclaimed (`flexible`, `yielding`)."""
        return self.settings.elastic in RECLAIMS

    def elastic_instances(self) -> Iterator[ElasticInstance]:
        """Return the `ElasticInstance` objects of this queue in rank order. Instances without a lease have an object
        only if a grant was tried for them (see `ElasticGroup.unopened`).
        """
        return (elastic_instance for group in self.groups for elastic_instance in group.elastic_instances)

    def serve_leased(self, reservations: Sequence[Reservation], claimants: Sequence[Reservation]) -> None:
        """Grant or reclaim elastic instances of the reservations that were leased before this cycle. Call it first.

        `claimants`: reservations that claimed slots before this cycle, if the setting `elastic` allows reclaims. Their
        elastic instances are served at their ranks, too.
        """
        for each in reservations:
            leases = [lease for lease in each.leases if (each.id, lease.component) not in self._cycle.vacated]
            self.groups += list_groups(self._cycle, each, self._cycle.demand_of(each), self._ranks[each.id], leases)
        for each in claimants:
            self.groups += list_groups(self._cycle, each, self._cycle.demand_of(each), self._ranks[each.id], ())
        self.groups.sort(key=_rank)
        if self.takes_back:
            self._assignment.enter(self.groups)
            self._assignment.note_leaving(reservations)
            self._assignment.lift_overfull()
            self._displaced = {group: None for group in self.groups if group.lifted}
            self._serve(_FIRST)
        else:
            self._fill(self.groups)

    def follow(self, reservation: Reservation, demand: Demand, slot_infos: Sequence[SlotInfo]) -> None:
        """Add the elastic instances of a reservation that was placed in this cycle, and grant them slots. If the
        setting `elastic` allows it, elastic instances of later rank are reclaimed for them.

        `slot_infos`: the slots of these elastic instances, if they were placed together with the essential ones.
        """
        self._refused.pop(self._linked[demand.pools[0]], None)
        if not demand.elastic:
            return
        groups = self._join(reservation, demand)
        if slot_infos:
            elastic_instances = [elastic_instance for group in groups for elastic_instance in group.open_all()]
            for elastic_instance, slot_info in zip(elastic_instances, slot_infos, strict=False):
                elastic_instance.stand(slot_info)
        if self.takes_back:
            self._serve(groups[0].rank)
        else:
            self._fill(groups)

    def make_room(self, reservation: Reservation, demand: Demand) -> list[SlotInfo] | None:
        """Reclaim elastic instances and return slots for all essential instances of a reservation; None if no reclaim
        suffices.

        Under `yielding`, essential instances have precedence over all elastic ones. Under `flexible`, instances are
        reclaimed in two cases: (1) the utilisation of the pools (`weigh_use`) is greater afterwards; (2) the setting
        `preemption` is on, and the reclaimed instances belong to reservations that rank behind this one.
        """
        if not self.takes_back or not demand.pools or demand in self._refused[self._linked[demand.pools[0]]]:
            return None
        if self._relaxed is None:
            self._relaxed = RelaxedCapacity([self._cycle.ready], self.elastic_instances())
        if self._relaxed.could_hold(demand):
            self._displaced = {group: None for group in self._displaced if group.lifted}
            for first, must_grow in self._list_ways(reservation):
                slot_infos = self._try(reservation, demand, first, must_grow=must_grow)
                if slot_infos is not None:
                    self._refused.pop(self._linked[demand.pools[0]], None)
                    self.spend(demand, slot_infos)
                    for slot_info in slot_infos:
                        slot_info.wanted = True
                    return slot_infos
        self._refused[self._linked[demand.pools[0]]].add(demand)
        return None

    def is_kept_out(self, demand: Demand, kept: Collection[SlotIndex]) -> bool:
        """Return whether a reclaim could serve a demand if the starvation guard did not keep the slots in `kept`. Call
        it only if a reclaim without these slots did not suffice.
        """
        if not self.takes_back or not demand.pools:
            return False
        if self._kept is None or self._kept.size != sum(map(len, kept)):
            self._kept, self._kept_out = RelaxedCapacity(kept, self.elastic_instances()), {}
        if len(demand.needs) == 1 or self._relaxed is None:
            if demand not in self._kept_out:
                self._kept_out[demand] = self._kept.could_hold(demand)
            return self._kept_out[demand]
        return not self._relaxed.could_hold(demand) and self._kept.could_hold_with(self._relaxed, demand)

    def spend(self, demand: Demand, slot_infos: Sequence[SlotInfo]) -> None:
        """Subtract the requests of a reservation from the relaxed capacity of these slots (what they would have left
        after all possible reclaims). Call it when the reservation was placed there or capacity is kept for it there.
        """
        if self._relaxed is not None:
            self._relaxed.take(demand.needs, slot_infos)

    def find_refused(self, group: ElasticGroup) -> Collection[str]:
        """Return the ids of the slots on which the limits of its account refuse a group one more instance; () if they
        refuse none.
        """
        if self._limits is not None:
            self._limits.update(group)
        return group.refused or ()

    def _list_ways(self, reservation: Reservation) -> Iterator[tuple[Rank, bool]]:
        """Yield the ways to reclaim that the settings permit, in the order in which they are tried. Each is a pair: (1)
        the smallest rank whose instances may be lifted; (2) whether the utilisation of the pools has to grow.
        """
        if self.settings.elastic == "yielding":
            yield _FIRST, False
            return
        yield _FIRST, True
        if self.settings.preemption:
            yield (self._ranks[reservation.id], 0), False

    def _try(
        self, reservation: Reservation, demand: Demand, first: Rank, *, must_grow: bool, is_forecast: bool = False
    ) -> list[SlotInfo] | None:
        if must_grow and self._has_grace:
            # The utilisation that counts is the one after the grace, when lifted instances may have other slots.
            self._has_grace = False
            would_grow = self._try(reservation, demand, first, must_grow=True, is_forecast=True) is not None
            self._has_grace = True
            return self._try(reservation, demand, first, must_grow=False) if would_grow else None
        assignment, mark, use = self._assignment, self._assignment.mark, self._assignment.use
        joined: list[ElasticGroup] = []
        slot_infos = place(demand, _LiftSpace(self, self._assignment, self._cycle.ready, demand, first))
        if slot_infos is not None:
            joined = self._join(reservation, demand)
            # Nothing changes for groups before the first one that an instance was lifted from.
            self._serve(min(self._first_touched, (self._ranks[reservation.id], 0)))
            if must_grow and assignment.use <= use + MORE:
                slot_infos = None
        if slot_infos is None or is_forecast:
            assignment.undo(mark)
            self._leave(joined)
            self._lifted.clear()
            assignment.update_index()
        return slot_infos

    def _join(self, reservation: Reservation, demand: Demand) -> list[ElasticGroup]:
        groups = list_groups(self._cycle, reservation, demand, self._ranks[reservation.id], ())
        for group in groups:
            insort(self.groups, group, key=_rank)
        self._assignment.enter(groups)
        return groups

    def _leave(self, groups: Sequence[ElasticGroup]) -> None:
        """Remove groups that `_join` added to `groups`. None of their instances is on a slot."""
        for group in groups:
            del self.groups[bisect_left(self.groups, group.rank, key=_rank)]
            self._assignment.missing.drop(group)

    def _fill(self, groups: Sequence[ElasticGroup]) -> None:
        """Grant the missing instances of these groups that fit. No instance is lifted for them."""
        for group in groups:
            if group.missing and not self._is_without_slot(group):
                self._serve_group(group)
        self._assignment.update_index()

    def _serve(self, start: Rank) -> None:
        """Serve the groups with missing instances in rank order, beginning at the rank `start`.

        If no slot is found for a group, none is found for later groups with the same `RequestClass` either. The free
        capacity, and the capacity that may be reclaimed from groups behind, only shrink. Instances that were lifted may
        return to their own slots.
        """
        missing, done = self._assignment.missing, set[RequestClass]()
        displaced = [group for group in self._displaced if group.lifted and group.rank >= start]
        left = [(group.rank, group) for group in [*missing.list_next(start), *displaced]]
        heapify(left)
        while left or self._lifted:
            self._add_lifted(left, done, start)
            rank, group = heappop(left)
            likeness = group.need.likeness
            if rank < start or (likeness in done and not group.lifted):
                continue
            start = _after(rank)
            if self._is_without_slot(group) or not self._serve_group(group):
                done.add(likeness)
            elif (following := missing.find_next(likeness, start)) is not None:
                heappush(left, (following.rank, following))
        self._assignment.update_index()

    def _add_lifted(self, left: list[tuple[Rank, ElasticGroup]], done: set[RequestClass], start: Rank) -> None:
        """Move the groups in `_lifted`, whose instances lost their slots, to `left`, the groups still to be served.

        An instance may wait for a slot with revoking leases, if their capacity and the free capacity suffice together.
        A lift adds free capacity. So if there are revoking leases, the request classes for which no slot was found
        (`done`) are tried again, from the rank `start` on.
        """
        if self._lifted and self._assignment.is_awaiting:
            found = (self._assignment.missing.find_next(likeness, start) for likeness in done)
            self._lifted += [group for group in found if group is not None]
            done.clear()
        for group in self._lifted:
            heappush(left, (group.rank, group))
        self._lifted.clear()

    def _is_without_slot(self, group: ElasticGroup) -> bool:
        """Return whether a group certainly gets no slot, because an earlier group of its `RequestClass` got none."""
        rank, stamp = self._without_slot.get(group.need.likeness, (_LAST, 0))
        return not group.lifted and rank <= group.rank and stamp == self._assignment.stamp

    def _serve_group(self, group: ElasticGroup) -> bool:
        """Put lifted instances of a group back on the slots of their leases, if they still fit there. Then find slots
        for its other missing instances, lowest index first.

        Return whether later groups whose requests have the same `RequestClass` may still find slots.
        """
        self.find_refused(group)
        if self._fill_group(group) or group.refused is not None:
            return True  # other groups of the class may get the slots that are refused to this one
        likeness, stamp = group.need.likeness, self._assignment.stamp
        rank, known = self._without_slot.get(likeness, (_LAST, stamp))
        self._without_slot[likeness] = (min(rank, group.rank) if known == stamp else group.rank, stamp)
        return False

    def _fill_group(self, group: ElasticGroup) -> bool:
        if not (group.lifted or self._assignment.could_place(group.need) or self._find_victims(group)):
            return False
        turns, payer = self._cycle.turns, find_payer(group.holder)
        for elastic_instance in [each for each in group.elastic_instances if each.is_missing] if group.lifted else ():
            if self._assignment.fits_home(elastic_instance):
                self._assignment.move(elastic_instance, elastic_instance.home)
        slot_info = None
        for elastic_instance in group.walk_missing():
            # With a grace a revoked instance keeps its slot until the deadline, so it gets no second one meanwhile.
            keeps_slot = elastic_instance.lease is not None and self._has_grace
            if elastic_instance.slot_info is not None or elastic_instance.expects or keeps_slot:
                continue
            declined = self.find_refused(group)
            slot_info = self._assignment.find_again(group.need, slot_info, declined)
            # Leases that were revoked earlier make room first: otherwise each cycle of their grace would revoke more.
            if slot_info is None and self._assignment.expect(elastic_instance):
                continue
            if slot_info is None and (victims := self._find_victims(group, declined)):
                slot_info = self._lift(victims, group.need, declined)
            if slot_info is None:
                return False
            if turns.is_spent(payer):
                return True
            self._assignment.move(elastic_instance, slot_info)
            turns.spend(payer, GRANT_STEPS)
        return True

    def _find_victims(self, group: ElasticGroup, declined: Collection[str] = ()) -> Sequence[ElasticInstance]:
        """Return the elastic instances to lift so that one more instance of this group fits on a slot; () if no lift
        helps. They belong to groups of later rank. `declined`: ids of slots to ignore.
        """
        return self._victims.find(group.need, _after(group.rank), declined) if self.takes_back else ()

    def find(self, need: InstanceRequest, first: Rank, declined: Collection[str]) -> SlotInfo | None:
        """Return a slot for one more instance; None if it fits on none. If no slot has free capacity, lift elastic
        instances of groups from the rank `first` on.
        """
        slot_info = self._assignment.find(need, declined)
        if slot_info is None and (victims := self._victims.find(need, first, declined)):
            slot_info = self._lift(victims, need, declined)
        return slot_info

    def lift_all(self, needs: Collection[InstanceRequest], first: Rank) -> None:
        """Lift all elastic instances of groups from the rank `first` on, on slots that could serve one of the requests
        `needs`. Those that need not go are put back when their groups are served.
        """
        for group in self.groups[bisect_left(self.groups, first, key=_rank) :]:
            for each in group.elastic_instances:
                home = each.slot_info
                if home is not None and any(self._assignment.could_serve(need, home) for need in needs):
                    self._note_lift(each)

    def begin_lifts(self) -> int:
        """Return a mark for `undo_lifts`, before instances are lifted for a reservation."""
        self._first_touched = _LAST
        return self._assignment.mark

    def undo_lifts(self, mark: int) -> None:
        """Undo the lifts and placements since `begin_lifts` returned `mark`."""
        self._assignment.undo(mark)
        self._lifted.clear()
        self._first_touched = _LAST
        self._assignment.update_index()

    def _lift(
        self, victims: Sequence[ElasticInstance], need: InstanceRequest, declined: Collection[str] = ()
    ) -> SlotInfo | None:
        """Lift the elastic instances `victims` off their slot. Return the slot on which an instance of the request then
        fits; None if it fits on none.
        """
        for elastic_instance in victims:
            self._note_lift(elastic_instance)
        return self._assignment.find(need, declined)

    def _note_lift(self, elastic_instance: ElasticInstance) -> None:
        self._assignment.move(elastic_instance, None)
        self._lifted.append(elastic_instance.group)
        self._displaced[elastic_instance.group] = None
        self._first_touched = min(self._first_touched, elastic_instance.group.rank)


class _LiftSpace(Space):
    """The ready slots as a space for the essential instances of one reservation (`Space` in `capacity/gang.py`):
    elastic instances of groups from the rank `first` on may be lifted for them.
    """

    def __init__(self, cascade: Cascade, assignment: Assignment, ready: SlotIndex, demand: Demand, first: Rank) -> None:
        # `could_hold` is always true, because the relaxed capacity was compared before.
        self._cascade, self._assignment, self._ready = cascade, assignment, ready
        self._declined, self._first = demand.declined, first
        self._mark = cascade.begin_lifts()

    def find(self, need: InstanceRequest) -> SlotInfo | None:
        return self._cascade.find(need, self._first, self._declined)

    def take(self, slot_info: SlotInfo, need: InstanceRequest, most: int) -> int:  # noqa: ARG002  one at a time
        self._assignment.take(slot_info, need)
        return 1

    def undo(self) -> None:
        self._cascade.undo_lifts(self._mark)

    def list_shareable(self, need: InstanceRequest) -> Iterator[Shareable]:
        return self._ready.list_shareable(need, self._declined)

    def widen(self, runs: Runs) -> None:
        self._cascade.lift_all(dict.fromkeys(need for need, _ in runs), self._first)

    def list_open(self, needs: Collection[InstanceRequest]) -> Iterator[OpenSlot]:
        self._assignment.update_index()
        for slot_info in self._ready.list_slots_for(needs):
            if slot_info.slot.id not in self._declined:
                # Slots from which nothing was lifted come first.
                yield (slot_info.lifted > 0, slot_info.slot_class), slot_info, slot_info.remaining

    def charge(self, steps: int) -> None:
        self._ready.steps += steps


def link_pools(demands: Iterable[Demand]) -> dict[str, str]:
    """Return a table (pool -> the pool that stands for it and all pools linked with it).

    Two pools are linked if one demand may use both, or if a chain of such pools connects them.
    """
    linked: dict[str, str] = {}
    for pools in {demand.pools for demand in demands}:
        known = {linked.setdefault(name, name) for name in pools}
        if len(known) > 1:
            first = min(known)
            linked.update({name: first for name, own in linked.items() if own in known})
    return linked


def _after(rank: Rank) -> Rank:
    """Return the first rank behind this one."""
    position, component = rank
    return position, component + 1
