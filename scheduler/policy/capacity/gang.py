"""Filling: a place for each instance of a reservation in rooms, all of them or none."""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from scheduler.policy.capacity.candidate_queue import RemainingCapacity
from scheduler.policy.capacity.requests import Demand, InstanceRequest, RequestClass
from scheduler.policy.capacity.slot_index import SlotIndex
from scheduler.policy.capacity.slot_info import SlotInfo

MANY: Final = 100
"""From so many instances on it is worth while to add up room before places are taken."""
Extend = Callable[[InstanceRequest], SlotInfo | None]
_Find = Callable[[Sequence[SlotIndex], InstanceRequest, Collection[str]], tuple[SlotIndex, SlotInfo | None]]
_Taken = list[tuple[SlotIndex, SlotInfo, RemainingCapacity, int]]
"""In which rooms a place was taken, what it had before, and how often."""


class Shortage:
    """How many instances had room at most, where nobody gives any back: more of their like never find any.

    So most gangs that do not fit are known without being tried.
    """

    def __init__(self) -> None:
        self._most: dict[RequestClass, int] = {}

    def clear(self) -> None:
        """Somebody gave room back."""
        self._most.clear()

    def holds_for(self, demand: Demand) -> bool:
        """Whether it is known that not all its instances have room."""
        most = self._most
        return any(likeness in most and count > most[likeness] for likeness, count in demand.alike)

    def note(self, demand: Demand, found: int) -> None:
        """So many of its instances, from the first one on, had room, and the next one had none."""
        likeness, _ = demand.alike[0]
        if not demand.declined and (len(demand.alike) == 1 or demand.needs[found] is demand.needs[0]):
            self._most[likeness] = min(found, self._most.get(likeness, found))


def fill(
    demand: Demand, slot_index: Sequence[SlotIndex], extend: Extend | None = None, shortage: Shortage | None = None
) -> list[SlotInfo] | None:
    """A place for each of its instances, its room spent; or None, and nothing is spent: all of them or none.

    Rooms are tried in the order given; where none has room, `extend` may add a place to the last of them, and more
    until all its instances will find room once everything is ready. `shortage`: what is known of exactly these rooms.
    """
    if len(demand.needs) == 1:
        return _fill_one(demand, slot_index, extend)
    taken = _take(demand, slot_index, extend, shortage)
    if taken is None:
        return None
    for _, slot_info, _, _ in taken:
        slot_info.wanted = True
    return [slot_info for _, slot_info, _, count in taken for _ in range(count)]


def _fill_one(demand: Demand, slot_index: Sequence[SlotIndex], extend: Extend | None) -> list[SlotInfo] | None:
    """The same for a single instance, as almost all are: there is nothing to undo."""
    need, declined = demand.needs[0], demand.declined
    for holder in slot_index:
        slot_info = holder.find(need, declined)
        if slot_info is not None:
            break
    else:
        slot_info = extend(need) if extend is not None else None
        if slot_info is None:
            return None
    holder.take(slot_info, need)
    slot_info.wanted = True
    return [slot_info]


def has_room(
    demand: Demand, slot_index: Sequence[SlotIndex], shortage: Shortage | None = None, extend: Extend | None = None
) -> bool:
    """Whether `fill` would find a place for each of its instances; nothing is spent, but what `extend` adds stays."""
    taken = _take(demand, slot_index, extend, shortage)
    if taken is None:
        return False
    _undo(taken)
    return True


def has_room_for_some(demand: Demand, slot_index: Sequence[SlotIndex]) -> bool:
    """Whether one of its instances, if it were alone, would find a place."""
    return any(_find_in(slot_index, need, demand.declined)[1] is not None for need in dict.fromkeys(demand.needs))


def _take(
    demand: Demand, slot_index: Sequence[SlotIndex], extend: Extend | None, shortage: Shortage | None
) -> _Taken | None:
    before = len(slot_index[-1])
    taken = _take_all(demand, slot_index, extend, shortage)
    if taken is not None and len(slot_index[-1]) > before and len(demand.alike) > 1:
        taken = _take_together(demand, slot_index, extend, taken)
    return taken


def _take_together(
    demand: Demand, slot_index: Sequence[SlotIndex], extend: Extend | None, taken: _Taken
) -> _Taken | None:
    """These places, or others with more that `extend` adds, where all its instances find room when the rooms are one,
    as soon as everything in them is ready: each takes the best place then, and may take it from another. None, with
    nothing spent, where that cannot be.
    """
    for _ in demand.needs:
        spent = [slot_info.remaining for _, slot_info, _, _ in taken]
        _undo(taken)
        together = _take_all(demand, slot_index, None, None, _find_best_in)
        if together is not None:
            _undo(together)
            for (holder, slot_info, _, count), remaining in zip(taken, spent, strict=True):
                holder.put_back(slot_info, remaining, -count)
            return taken
        more = _take_all(demand, slot_index, extend, None, _find_best_in)
        if more is None:
            return None
        taken = more
    _undo(taken)
    return None


def _take_all(
    demand: Demand,
    slot_index: Sequence[SlotIndex],
    extend: Extend | None,
    shortage: Shortage | None,
    find: _Find | None = None,
) -> _Taken | None:
    if shortage is not None and shortage.holds_for(demand):
        return None
    taken: _Taken = []
    if extend is None and len(demand.needs) >= MANY and not _could_hold(demand, slot_index, shortage):
        return None
    for need, left in demand.runs:
        while left:
            holder, slot_info = (find or _find_in)(slot_index, need, demand.declined)
            if slot_info is None and extend is not None:
                slot_info = extend(need)
            if slot_info is None:
                _undo(taken)
                if shortage is not None:
                    shortage.note(demand, sum(count for *_, count in taken))
                return None
            # Who has taken a place finds it again until it is full, unless they spread.
            remaining = slot_info.remaining
            count = holder.take_often(slot_info, need, 1 if need.spreads else left)
            taken.append((holder, slot_info, remaining, count))
            left -= count  # noqa: PLW2901  it counts down what is left of this run
    return taken


def _could_hold(demand: Demand, slot_index: Sequence[SlotIndex], shortage: Shortage | None) -> bool:
    """Whether the instances of each run would have room if they were alone: a sum over the places, with nothing taken.
    Most large gangs that do not fit are known by it.
    """
    for need, count in demand.runs:
        most = sum(each.count_room(need, count) for each in slot_index)
        if most < count:
            if shortage is not None and len(demand.runs) == 1:
                shortage.note(demand, most)
            return False
    return True


def _undo(taken: _Taken) -> None:
    for holder, slot_info, remaining, count in reversed(taken):
        holder.put_back(slot_info, remaining, count)


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
    """The best of all of them, whichever comes first."""
    found = [(each, slot_info) for each in slot_index if (slot_info := each.find(need, declined)) is not None]
    return min(found, key=lambda each: _rank_place(need, each[1]), default=(slot_index[-1], None))


def _rank_place(need: InstanceRequest, slot_info: SlotInfo) -> tuple[object, int, int]:
    """How good it is for that need: less is better."""
    return need.rank_labels(slot_info.labels), slot_info.load if need.spreads else -slot_info.load, slot_info.order
