"""The assignment of elastic instances to slots in the scratch copy of a cycle: a search moves instances, and can undo
its moves.

Source: Zoe, where an undo restores the list of the moves but not the slots.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from operator import attrgetter
from typing import Final, Generic, TypeVar

from scheduler.model.reservations import Reservation
from scheduler.model.resources import Resources, subtract, total
from scheduler.policy.capacity.fits import Usage, find_obstacle, is_overfull, measure
from scheduler.policy.capacity.requests import InstanceRequest, RequestClass
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.elastic.instances import (
    ElasticGroup,
    ElasticInstance,
    MissingInstances,
)

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
