"""Backtracking: the last way to place the instances of a gang. Each instance in turn tries slots until the instances
after it fit too.

Equal slots are tried once, because a search that fails with one of them fails with the others. So is a state of all
slots in which the instances that are left did not fit.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor
from operator import attrgetter, itemgetter
from typing import Final, Protocol

from scheduler.policy.capacity.candidate_queue import RemainingCapacity
from scheduler.policy.capacity.requests import Amounts, InstanceRequest
from scheduler.policy.capacity.slot_info import SlotInfo

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


class OpenSpace(Protocol):
    """The slots that a search tries. See `Space` in `capacity/gang.py`."""

    def list_open(self, needs: Collection[InstanceRequest]) -> Iterable[OpenSlot]: ...  # noqa: D102  see `Space`

    def rank(self, need: InstanceRequest, kind: Hashable, slot_info: SlotInfo, load: int) -> tuple[int, ...] | None: ...  # noqa: D102  see `Space`

    def find_limits(self, placed: Iterable[SlotInfo]) -> Callable[[SlotInfo], bool] | None: ...  # noqa: D102  see `Space`


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

    def __init__(self, space: OpenSpace, needs: Sequence[InstanceRequest]) -> None:
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
    names = set[str]().union(*given)
    return {name: min(each.get(name, 0) for each in given) for name in names}


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
