"""Gang placement: a search finds a slot for each instance of a reservation, or takes none.

`place` is the only search for the instances of a gang. It works on a `Space`: the slots, and how a search chooses among
them. The spaces are slot indexes (this module), idle slots under `quota` (`quota/match_idle.py`), slots on which
elastic instances are reclaimed (`quota/reclaim.py`, `elastic/cascade.py`), and slots on which work is preempted.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor
from operator import attrgetter, itemgetter
from typing import Final, Protocol

from scheduler.model.resources import Resources
from scheduler.policy.capacity.requests import Amounts, Demand, InstanceRequest, RequestClass
from scheduler.policy.capacity.slot_index import RemainingCapacity, SlotIndex
from scheduler.policy.capacity.slot_info import SlotInfo

# Backtracking: the last way to place the instances of a gang. Each instance in turn tries slots until the instances
# after it fit too.
#
# Equal slots are tried once, because a search that fails with one of them fails with the others. So is a state of all
# slots in which the instances that are left did not fit.


MOST_STEPS: Final = 2_000
"""The greatest number of steps of one search. A step places one instance on one slot."""
_BITS: Final = 16
"""Bits of each number in the key of a state. No number of slots exceeds MOST_STEPS there."""
ROUNDING: Final = 1e-6
"""A tolerance of comparisons that only show that a search is useless: sums of fractions are not exact."""
OpenSlot = tuple[Hashable, SlotInfo, RemainingCapacity]
"""A slot that may take instances: (kind, slot, what it has left). Slots of one kind that have equal capacity left are
equal for every request, except that the first in slot order is better.
"""


@dataclass(slots=True, eq=False)
class _EqualSlots:
    """Slots of one kind with equal capacity left, with and without instances of the search."""

    kind: Hashable
    remaining: RemainingCapacity
    number: int
    """What one slot adds to the key of a state: the key is the number of slots of each object, in fields of `_BITS`
    bits.
    """
    sample: SlotInfo
    """One of the slots that has been among them."""
    slot_infos: list[SlotInfo] = field(default_factory=list)
    """The slots in slot order."""
    after: dict[Amounts, "_EqualSlots"] = field(default_factory=dict)
    """Amounts of one instance -> the object for a slot that has taken it."""


_Ranks = dict[_EqualSlots, tuple[int, ...] | None]
"""Equal slots -> their rank for one request; None: an instance does not fit there."""
_Candidate = tuple[tuple[int, ...], _EqualSlots]


class Backtracking:
    """One search for slots of all instances of a gang. It takes no capacity: the caller places the instances on the
    slots that `run` returns.
    """

    def __init__(self, space: "Space", needs: Sequence[InstanceRequest]) -> None:
        """Read the slots. `needs`: the requests of all instances."""
        self._space = space
        self._ranks: dict[InstanceRequest, _Ranks] = {need: {} for need in needs}
        self._equal: dict[tuple[Hashable, RemainingCapacity], _EqualSlots] = {}
        for kind, slot_info, remaining in space.list_open(self._ranks):
            self._find_equal(kind, remaining, slot_info).slot_infos.append(slot_info)
        for each in self._equal.values():
            each.slot_infos.sort(key=_ORDER)
        self._moves: list[tuple[SlotInfo, _EqualSlots, _EqualSlots]] = []
        """The steps that were not undone: (slot, its equal slots before, its equal slots after)."""
        self.steps = 0
        """The steps that the search has taken."""
        self.is_hopeless = self._is_too_small(needs)
        """Whether it is certain that the instances do not fit in any way."""

    def _find_equal(self, kind: Hashable, remaining: RemainingCapacity, slot_info: SlotInfo) -> _EqualSlots:
        known = self._equal.get((kind, remaining))
        if known is None:
            known = _EqualSlots(kind, remaining, 1 << (len(self._equal) * _BITS), slot_info)
            self._equal[kind, remaining] = known
        return known

    def _rank(self, need: InstanceRequest, equal: _EqualSlots) -> tuple[int, ...] | None:
        slot_info, remaining = equal.sample, equal.remaining
        step = need.steps.get(slot_info.slot.pool)
        if step is None or remaining.after[step] is None:
            return None
        return self._space.rank(need, equal.kind, slot_info, remaining.load)

    def _list_able(self, need: InstanceRequest) -> list[_Candidate]:
        """Return the equal slots on which an instance fits, with the rank of the first of them, in no order."""
        ranks, found = self._ranks[need], []
        for each in self._equal.values():
            if each.slot_infos:
                if each not in ranks:
                    ranks[each] = self._rank(need, each)
                rank = ranks[each]
                if rank is not None:
                    found.append(((*rank, each.slot_infos[0].order), each))
        return found

    def _is_too_small(self, needs: Sequence[InstanceRequest]) -> bool:
        """Return whether an instance fits nowhere, or all instances together need more of a resource, or more places
        for instances, than the slots have that could take any of them.
        """
        able: dict[_EqualSlots, None] = {}
        for need in self._ranks:
            if not (found := self._list_able(need)):
                return True
            able.update((each, None) for _, each in found)
        least = _find_least(self._ranks)
        if sum(len(each.slot_infos) * _count_places(each, least, len(needs)) for each in able) < len(needs):
            return True
        if any(each.remaining.free is None for each in able):
            return False
        free, asked = dict[str, float](), dict[str, float]()
        for each in able:
            for name, amount in (each.remaining.free or {}).items():
                free[name] = free.get(name, 0) + amount * len(each.slot_infos)
        for need, count in Counter(needs).items():
            for name, amount in _find_least([need]).items():
                asked[name] = asked.get(name, 0) + amount * count
        return any(amount > free.get(name, 0) + ROUNDING * (1 + amount) for name, amount in asked.items())

    def run(self, needs: Sequence[InstanceRequest]) -> list[SlotInfo] | None:
        """Return a slot for each instance. `needs`: the requests in the order in which the instances try slots. Return
        None if the instances fit in no way, or if `MOST_STEPS` did not suffice to find one.
        """
        if self.is_hopeless:
            return None
        key, failed, moves = 0, set[tuple[int, int]](), self._moves
        ways = [self._list_candidates(needs[0])]
        while ways:
            equal = next(ways[-1], None)
            if equal is None:
                ways.pop()
                failed.add((len(ways), key))
                if moves:
                    key -= self._undo()
                continue
            if self.steps == MOST_STEPS:
                return None
            self.steps += 1
            key += self._move(equal, needs[len(moves)])
            if len(moves) == len(needs):
                return [slot_info for slot_info, _, _ in moves]
            if (len(moves), key) in failed:
                key -= self._undo()
            else:
                ways.append(self._list_candidates(needs[len(moves)]))
        return None

    def _list_candidates(self, need: InstanceRequest) -> Iterator[_EqualSlots]:
        """Return the slots for one instance, best first, equal ones together."""
        found = self._list_able(need)
        if len(found) > 1:
            found.sort(key=_RANK)
        allows = self._space.find_limits(slot_info for slot_info, _, _ in self._moves)
        return iter([each for _, each in found if allows is None or allows(each.sample)])

    def _move(self, equal: _EqualSlots, need: InstanceRequest) -> int:
        """Place an instance on the first of these slots. Return the change of the key of the state."""
        slot_info = equal.slot_infos.pop(0)
        step = need.steps[slot_info.slot.pool]
        after = equal.after.get(step)
        if after is None:
            remaining = equal.remaining.after[step]
            assert remaining is not None, "the instance fits"  # noqa: S101
            after = equal.after[step] = self._find_equal(equal.kind, remaining, slot_info)
        insort(after.slot_infos, slot_info, key=_ORDER)
        self._moves.append((slot_info, equal, after))
        return after.number - equal.number

    def _undo(self) -> int:
        """Undo the last step. Return the change of the key of the state that it had made."""
        slot_info, equal, after = self._moves.pop()
        del after.slot_infos[bisect_left(after.slot_infos, slot_info.order, key=_ORDER)]
        insort(equal.slot_infos, slot_info, key=_ORDER)
        return after.number - equal.number


def _find_least(needs: Iterable[InstanceRequest]) -> dict[str, float]:
    """Return the least amount of each resource that any of these requests gets in any pool."""
    given = [amounts for need in needs for amounts in need.given.values()]
    return {name: min(each.get(name, 0) for each in given) for name in set[str]().union(*given)}


def _count_places(equal: _EqualSlots, least: Mapping[str, float], most: int) -> float:
    """Return at least how many instances one of these slots could take, up to `most`."""
    remaining, free = equal.remaining, equal.remaining.free
    places = min(most, remaining.most - remaining.load, remaining.uses_left)
    if free is not None:
        for name, amount in least.items():
            if amount > 0:
                places = min(places, floor(free.get(name, 0) / amount + ROUNDING))
    return places


_ORDER: Final = attrgetter("order")
_RANK: Final = itemgetter(0)


MANY: Final = 100
"""A gang with at least this number of instances is compared with the sum of the free capacity before slots are
searched, because most large gangs do not fit.
"""
MOST_REQUESTS: Final = 8
"""A gang with more different requests than this is not placed by backtracking."""
Runs = Sequence[tuple[InstanceRequest, int]]
"""Requests in the order in which a search places them, as (request, how many equal instances follow each other)."""
Found = list[list[SlotInfo]]
"""A slot for each instance, in one list for each entry of `Runs`."""
Shareable = tuple[str, Resources | None, int]
"""Equal slots, as (pool, resources; None: the slots count leases only, number of slots)."""


class Space(Protocol):
    """The slots on which `place` places the instances of one demand, and the way in which a search chooses among them.

    A space begins without instances. Some spaces can add capacity for an instance that fits nowhere: by a launch, or by
    the end of leases.
    """

    def find(self, need: InstanceRequest) -> SlotInfo | None:
        """Return the best slot for one more instance. If it fits on none, add capacity for it if that is possible.
        Return None if the instance fits nowhere.
        """

    def take(self, slot_info: SlotInfo, need: InstanceRequest, most: int) -> int:
        """Place equal instances on a slot, at least one and at most `most`. Return their number. A search that would
        find the same slot for each of them may place them at once.
        """

    def take_all(self, runs: Runs) -> Found | None:
        """Place each instance in turn on the slot that is best for it. Return None if one fits nowhere; those before
        it stay placed.
        """
        return take_each(self, runs)

    def undo(self) -> None:
        """Take all instances back, and all capacity that was added."""

    def settle(self, runs: Runs, found: Found) -> Found | None:  # noqa: ARG002  instances stay where they are
        """Return slots for all instances after each of them was placed: `found`, or others that the space prefers.
        Return None, after `undo`, if the instances cannot stay.
        """
        return found

    def could_hold(self, demand: Demand) -> bool:  # noqa: ARG002  only a search finds it
        """Return False if it is certain that not all instances fit, in whatever order they are placed."""
        return True

    def list_shareable(self, need: InstanceRequest) -> Iterable[Shareable]:
        """Return the slots, as if empty, that could hold an instance and were not declined. What could be launched for
        the instance is added, with 0 slots.
        """

    def widen(self, runs: Runs) -> None:
        """Add the capacity that `list_open` is to include. `runs`: the instances in order of their shares."""

    def list_open(self, needs: Collection[InstanceRequest]) -> Iterable[OpenSlot]:
        """Return the slots that may take an instance of one of these requests, with what they have left."""

    def rank(self, need: InstanceRequest, kind: Hashable, slot_info: SlotInfo, load: int) -> tuple[int, ...] | None:
        """Return the rank of a slot for an instance; the smallest is best, and of equal ones the first in slot order.
        None: the slot does not serve the request. `kind`: that of the `OpenSlot`; `load`: the number of its leases.

        Here: by the first part of `kind`, then by labels, then by load.
        """
        labels = need.rank_labels(slot_info.labels)
        if labels is None:
            return None
        return (kind[0], *labels, load if need.spreads else -load)  # type: ignore[index]  # see `list_open`

    def find_limits(self, placed: Iterable[SlotInfo]) -> Callable[[SlotInfo], bool] | None:  # noqa: ARG002  it has none
        """Return a function that tests whether limits permit one more instance on a slot, if instances are on the slots
        `placed`. None: there are no limits.
        """
        return None

    def may_backtrack(self) -> bool:
        """Return whether the work budget of the payer permits backtracking for the demand in this cycle."""
        return True  # the gang is tried, so it may take all steps

    def charge(self, steps: int) -> None:
        """Count steps of backtracking for the work budget of the payer."""


def place_as_written(demand: Demand, space: Space) -> list[SlotInfo] | None:
    """Place the instances of a demand as `place` does, but only in the order in which they are written."""
    found = _take_in_turn(space, demand.runs)
    return None if found is None else _flatten(found, range(len(found)))


def place(demand: Demand, space: Space) -> list[SlotInfo] | None:
    """Return a slot for each instance of a demand, in the order of `demand.needs`, and place them in the space. Return
    None, and place nothing, if no way is found.

    Up to three ways are tried. Each instance takes the slot that is best for it at its turn:

    (1) The instances take turns in the order in which they are written. (2) If that fails and the instances differ,
    those with the largest share come first: the largest fraction that a request is of the greatest capacity of a slot
    that could serve it, over the resources. Of equal shares, instances that fewer slots could hold come first, then
    instances that are written first. (3) If that fails and there are at most `MOST_REQUESTS` different requests, each
    instance, in the same order, tries slots until the others fit too (`Backtracking`).

    So it does not depend on the order in which parts or slots are written whether a gang fits, as long as the steps of
    (3) suffice.
    """
    slot_infos = place_as_written(demand, space)
    if slot_infos is not None or len(demand.alike) == 1 or not space.could_hold(demand):
        return slot_infos
    needs = dict.fromkeys(need for need, _ in demand.runs)
    ranks = {need: _find_share(need, space.list_shareable(need)) for need in needs}
    order = sorted(range(len(demand.runs)), key=lambda index: (*ranks[demand.runs[index][0]], index))
    runs = [demand.runs[index] for index in order]
    found = _take_in_turn(space, runs) if order != sorted(order) else None
    may_backtrack = len(demand.alike) <= MOST_REQUESTS and len(demand.needs) <= MOST_STEPS
    if found is None and may_backtrack and space.may_backtrack():
        found = _backtrack(space, runs)
    return None if found is None else _flatten(found, order)


def _flatten(found: Found, order: Sequence[int]) -> list[SlotInfo]:
    """Return the slots of all instances in order of writing. `found[i]`: those of the run at `order[i]`."""
    if len(found) == 1:
        return found[0]
    by_run = dict(zip(order, found, strict=True))
    return [slot_info for index in range(len(by_run)) for slot_info in by_run[index]]


def _take_in_turn(space: Space, runs: Runs) -> Found | None:
    found = space.take_all(runs)
    if found is None:
        space.undo()
        return None
    return space.settle(runs, found)


def take_each(space: Space, runs: Runs) -> Found | None:
    """Place instances as `Space.take_all` does, by `Space.find` and `Space.take`."""
    found: Found = []
    for need, left in runs:
        slot_infos: list[SlotInfo] = []
        while left:
            slot_info = space.find(need)
            if slot_info is None:
                return None
            count = space.take(slot_info, need, left)
            slot_infos += [slot_info] * count
            left -= count  # noqa: PLW2901  it counts down what is left of this run
        found.append(slot_infos)
    return found


def _find_share(need: InstanceRequest, slots: Iterable[Shareable]) -> tuple[float, int]:
    """Return (largest share, negative; number of slots that could hold an instance)."""
    asked, greatest, count = dict[str, float](), dict[str, float](), 0
    for pool, capacity, number in slots:
        count += number
        for name, amount in need.given[pool].items():
            if amount > 0 and capacity is not None:
                asked[name] = max(asked.get(name, 0), amount)
                greatest[name] = max(greatest.get(name, 0), capacity.get(name, 0))
    return -max((amount / greatest[name] for name, amount in asked.items() if greatest[name]), default=0.0), count


def _backtrack(space: Space, runs: Runs) -> Found | None:
    needs = [need for need, count in runs for _ in range(count)]
    space.widen(runs)
    search = Backtracking(space, needs)
    slot_infos = search.run(needs)
    space.charge(search.steps)
    if slot_infos is None:
        space.undo()
        return None
    for need, slot_info in zip(needs, slot_infos, strict=True):
        space.take(slot_info, need, 1)
    left = iter(slot_infos)
    return space.settle(runs, [[next(left) for _ in range(count)] for _, count in runs])


class Extender(Protocol):
    """Adds slots to the last index of a search, for instances that fit in no index."""

    def extend(self, need: InstanceRequest) -> SlotInfo | None:
        """Add a slot for an instance to the last index, for example by a launch. Return None if that is impossible."""

    def could_extend(self, need: InstanceRequest) -> bool:
        """Return whether `extend` may add a slot for the instance, at once or after slots for other instances."""

    def may_hold(self, need: InstanceRequest) -> bool:
        """Return False if no slot that `extend` adds, for whatever instance, could hold this one."""

    def list_shareable(self, need: InstanceRequest) -> Iterable[Shareable]:
        """Return what a slot for the instance could be, as `Space.list_shareable` does, with 0 slots."""

    def undo(self, keep: int = 0) -> None:
        """Remove the slots that were added, except the first `keep` ones."""


class Shortage(dict[RequestClass, int]):
    """A table (request class -> the largest number of its instances that fitted when a search in certain slot indexes
    failed).

    While these slots get no capacity back, a gang with more instances of that class cannot fit. So most gangs that do
    not fit need no search. Callers clear the table when slots get capacity back.
    """

    def holds_for(self, demand: Demand) -> bool:
        """Return whether earlier searches have shown that the instances of a demand do not all fit."""
        return any(likeness in self and count > self[likeness] for likeness, count in demand.alike)

    def note(self, demand: Demand, found: int) -> None:
        """Record that only the first `found` instances of a demand fit, so no gang with more instances of this request
        class fits.

        Record nothing if this is not true for other gangs: the holder of the reservation declined slots, or the
        instance that did not fit differs from the first instance.
        """
        likeness, _ = demand.alike[0]
        if not demand.declined and (len(demand.alike) == 1 or demand.needs[found] is demand.needs[0]):
            self[likeness] = min(found, self.get(likeness, found))


def fill(
    demand: Demand,
    slot_index: Sequence[SlotIndex],
    extender: Extender | None = None,
    shortage: Shortage | None = None,
    accept: Callable[[Collection[SlotInfo]], bool] | None = None,
    *,
    is_known: bool = False,
) -> list[SlotInfo] | None:
    """Return a slot for each instance of a demand, and take the capacity. Return None, and take nothing, if not all
    instances fit.

    The indexes are searched in the given order. `extender` may add slots to the last index for instances that fit in no
    index. If the instances differ, it is asked only after `place` found no way without it. When every slot is ready, a
    later tick may place the instances on these slots in another way. So slots are added until all instances fit in that
    way too. `shortage`: what is known not to fit in these indexes. `accept`: a function that decides whether a gang may
    take the slots that were found; None: it may. `is_known`: the instances are known not to fit without the extender.
    """
    if len(demand.needs) == 1:  # speed: almost all demands have one instance, and nothing has to be undone
        need = demand.needs[0]
        holder, slot_info = _find_in(slot_index, need, demand.declined)
        if slot_info is None and extender is not None:
            slot_info = extender.extend(need)
        if slot_info is None:
            return None
        holder.take(slot_info, need)
        slot_info.wanted = True
        return [slot_info]
    slot_infos = _place(demand, slot_index, extender, shortage, accept, is_known=is_known)[0]
    for slot_info in slot_infos or ():
        slot_info.wanted = True
    return slot_infos


def has_room(
    demand: Demand, slot_index: Sequence[SlotIndex], shortage: Shortage | None = None, extender: Extender | None = None
) -> bool:
    """Return whether all instances of a demand would get slots in the indexes. No capacity is taken.

    `shortage`: what is known not to fit in these indexes. `extender`: may add slots to the last index, as for `fill`;
    the added slots stay there.
    """
    slot_infos, space = _place(demand, slot_index, extender, shortage)
    if slot_infos is not None:
        space.give_back()
    return slot_infos is not None


def has_room_for_some(demand: Demand, slot_index: Sequence[SlotIndex]) -> bool:
    """Return whether at least one instance of a demand fits on a slot while its other instances are not placed."""
    return len(list_without_room(demand, slot_index)) < len(dict.fromkeys(demand.needs))


def list_without_room(demand: Demand, slot_index: Sequence[SlotIndex]) -> list[InstanceRequest]:
    """Return the different requests of a demand of which an instance fits on no slot, even if no other is placed."""
    return [need for need in dict.fromkeys(demand.needs) if _find_in(slot_index, need, demand.declined)[1] is None]


def _place(
    demand: Demand,
    slot_index: Sequence[SlotIndex],
    extender: Extender | None,
    shortage: Shortage | None,
    accept: Callable[[Collection[SlotInfo]], bool] | None = None,
    *,
    is_known: bool = False,
) -> "tuple[list[SlotInfo] | None, _IndexSpace]":
    space = _IndexSpace(demand, slot_index, shortage=shortage, accept=accept)
    if shortage is not None and shortage.holds_for(demand):
        return None, space
    if extender is None and len(demand.needs) >= MANY and not space.could_hold(demand):
        return None, space
    # No slot is added while those that exist suffice. Equal instances need no second search: their order is all one.
    is_open = extender is None or (len(demand.alike) > 1 and not is_known)
    slot_infos = place(demand, space) if is_open else None
    if slot_infos is None and extender is not None:
        space = _IndexSpace(demand, slot_index, extender, accept=accept)
        slot_infos = place(demand, space)
    return slot_infos, space


class _IndexSpace(Space):
    """Slot indexes as a space. They are searched in the given order, or together: then each instance takes the best
    slot of all indexes.
    """

    def __init__(
        self,
        demand: Demand,
        slot_index: Sequence[SlotIndex],
        extender: Extender | None = None,
        *,
        is_together: bool = False,
        shortage: Shortage | None = None,
        accept: Callable[[Collection[SlotInfo]], bool] | None = None,
    ) -> None:
        self._demand, self._indexes, self._extender, self._accept = demand, slot_index, extender, accept
        self._is_together, self._find_in = is_together, _find_best_in if is_together else _find_in
        self._shortage, self._is_in_order = shortage, True
        self._holder = slot_index[-1]
        self._holders: dict[SlotInfo, SlotIndex] | None = None
        """Slot -> its index, for slots that `list_open` returned."""
        self.taken: list[tuple[SlotIndex, SlotInfo, RemainingCapacity, int]] = []
        """What was taken so far, one entry for each slot taken from, in order: (index, slot, the slot's remaining
        capacity before, number of instances placed on it).
        """
        self.added: list[SlotInfo] = []
        """The slots that the extender has added."""

    def find(self, need: InstanceRequest) -> SlotInfo | None:
        self._holder, slot_info = self._find_in(self._indexes, need, self._demand.declined)
        return slot_info or self._extend(need)

    def _extend(self, need: InstanceRequest) -> SlotInfo | None:
        slot_info = None if self._extender is None else self._extender.extend(need)
        if slot_info is not None:
            self.added.append(slot_info)
        elif self._shortage is not None and self._is_in_order:
            self._shortage.note(self._demand, sum(count for *_, count in self.taken))
        return slot_info

    def take(self, slot_info: SlotInfo, need: InstanceRequest, most: int) -> int:
        holder = self._holder if self._holders is None else self._holders[slot_info]
        remaining = slot_info.remaining
        count = holder.take_often(slot_info, need, 1 if need.spreads else most)
        self.taken.append((holder, slot_info, remaining, count))
        return count

    def take_all(self, runs: Runs) -> Found | None:
        # Speed: `take_each` calls two functions more for each slot.
        indexes, declined, find, taken, found = self._indexes, self._demand.declined, self._find_in, self.taken, []
        for need, left in runs:
            slot_infos: list[SlotInfo] = []
            while left:
                holder, slot_info = find(indexes, need, declined)
                if slot_info is None and (slot_info := self._extend(need)) is None:
                    return None
                # A search that packs finds the same slot again until it is full: no other slot has more leases.
                remaining = slot_info.remaining
                count = holder.take_often(slot_info, need, 1 if need.spreads else left)
                taken.append((holder, slot_info, remaining, count))
                if count == 1:
                    slot_infos.append(slot_info)
                else:
                    slot_infos += [slot_info] * count
                left -= count  # noqa: PLW2901  it counts down what is left of this run
            found.append(slot_infos)
        return found

    def give_back(self) -> None:
        """Take the instances back. Slots that were added stay."""
        for holder, slot_info, remaining, count in reversed(self.taken):
            holder.put_back(slot_info, remaining, count)
        self.taken = []

    def undo(self) -> None:
        self.give_back()
        self._holders, self._is_in_order = None, False  # only the first search is in order of writing
        self._find_in = _find_best_in if self._is_together else _find_in
        if self._extender is not None:
            self._extender.undo()
            self.added.clear()

    def settle(self, runs: Runs, found: Found) -> Found | None:
        if self._holders is not None and self._extender is not None:
            used = {slot_info for _, slot_info, _, _ in self.taken}
            while self.added and self.added[-1] not in used:
                self.added.pop()
            self._extender.undo(keep=len(self.added))
        elif self.added and len(self._demand.alike) > 1:
            later = self._settle_together(runs, found)
            if later is None:
                self.undo()
                return None
            found = later
        if self._accept is not None and not self._accept({slot_info for _, slot_info, _, _ in self.taken}):
            self.undo()
            return None
        return found

    def _settle_together(self, runs: Runs, found: Found) -> Found | None:
        """Make sure that all instances still fit when every slot is ready: then the slots of all indexes are ranked
        together. So a small instance may take a slot that a larger one has in `found`, and the larger one needs another
        slot.

        If the instances fit in this way without another slot, return `found`. Else search again, let the extender add
        slots, and repeat the test with the new result. Return None if the instances do not fit.
        """
        for _ in self._demand.needs:
            taken, spent = self.taken, [slot_info.remaining for _, slot_info, _, _ in self.taken]
            self.give_back()
            together = _IndexSpace(self._demand, self._indexes, is_together=True)
            if place(self._demand, together) is not None:
                together.give_back()
                for (holder, slot_info, _, count), remaining in zip(taken, spent, strict=True):
                    holder.put_back(slot_info, remaining, -count)
                self.taken = taken
                return found
            self._find_in = _find_best_in
            more = self.take_all(runs)
            if more is None:
                return None
            found = more
        return None

    def could_hold(self, demand: Demand) -> bool:
        """Add up, for each class of equal requests, how many instances fit on all slots, as if the others were not
        placed. It takes no capacity.
        """
        if self._extender is not None and not any(map(self._extender.could_extend, dict.fromkeys(demand.needs))):
            return False  # the instances do not fit without further slots
        needs = {need.likeness: need for need, _ in demand.runs}
        for likeness, count in demand.alike:
            need = needs[likeness]
            # A slot that is added for one instance may have room for others.
            if self._extender is not None and self._extender.may_hold(need):
                continue
            most = sum(each.count_fits(need, count) for each in self._indexes)
            if most < count:
                if self._shortage is not None and not demand.declined:
                    self._shortage[likeness] = min(most, self._shortage.get(likeness, most))
                return False
        return True

    def list_shareable(self, need: InstanceRequest) -> Iterable[Shareable]:
        for each in self._indexes:
            yield from each.list_shareable(need, self._demand.declined)
        if self._extender is not None:
            yield from self._extender.list_shareable(need)

    def widen(self, runs: Runs) -> None:
        if self._extender is not None:
            self.take_all(runs)
            self.give_back()

    def list_open(self, needs: Collection[InstanceRequest]) -> Iterable[OpenSlot]:
        self._holders = {}
        for stage, each in enumerate(self._indexes):
            # Slots that are ranked together are of one kind, whatever their index.
            place_of_index = 0 if self._find_in is _find_best_in else stage
            for slot_info in each.list_slots_for(needs):
                if slot_info.slot.id not in self._demand.declined:
                    self._holders[slot_info] = each
                    yield (place_of_index, slot_info.slot_class), slot_info, slot_info.remaining

    def charge(self, steps: int) -> None:
        self._indexes[-1].steps += steps


def _find_in(
    slot_index: Sequence[SlotIndex], need: InstanceRequest, declined: Collection[str]
) -> tuple[SlotIndex, SlotInfo | None]:
    for each in slot_index:
        slot_info = each.find(need, declined)
        if slot_info is not None:
            return each, slot_info
    return slot_index[-1], None


def _find_best_in(
    slot_index: Sequence[SlotIndex], need: InstanceRequest, declined: Collection[str]
) -> tuple[SlotIndex, SlotInfo | None]:
    """Return (index, slot) of the best slot for an instance in all indexes together. The slot is None if the instance
    fits on none.
    """
    found = [(each, slot_info) for each in slot_index if (slot_info := each.find(need, declined)) is not None]

    def rank(best: tuple[SlotIndex, SlotInfo]) -> tuple[object, int, int]:
        slot_info = best[1]
        return need.rank_labels(slot_info.labels), slot_info.load if need.spreads else -slot_info.load, slot_info.order

    return min(found, key=rank, default=(slot_index[-1], None))
