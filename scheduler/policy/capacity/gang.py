"""Gang placement: a search in slot indexes finds a slot for each instance of a reservation, or takes none."""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from scheduler.policy.capacity.candidate_queue import RemainingCapacity
from scheduler.policy.capacity.requests import Demand, InstanceRequest, RequestClass
from scheduler.policy.capacity.slot_index import SlotIndex
from scheduler.policy.capacity.slot_info import SlotInfo

MANY: Final = 100
"""A gang with at least this number of instances is compared with the sum of the free capacity before slots are
searched, because most large gangs do not fit.
"""
Extend = Callable[[InstanceRequest], SlotInfo | None]
_Find = Callable[[Sequence[SlotIndex], InstanceRequest, Collection[str]], tuple[SlotIndex, SlotInfo | None]]
_Taken = list[tuple[SlotIndex, SlotInfo, RemainingCapacity, int]]
"""What a search has taken so far, one entry for each slot taken from, in order: (index, slot, the slot's remaining
capacity before, number of instances placed on it).
"""


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
    extend: Extend | None = None,
    shortage: Shortage | None = None,
    accept: Callable[[Collection[SlotInfo]], bool] | None = None,
) -> list[SlotInfo] | None:
    """Return a slot for each instance of a demand, and take the capacity. Return None, and take nothing, if not all
    instances fit.

    The indexes are searched in the given order. `extend` is called for an instance that fits in no index. It may add a
    slot to the last index, for example by a launch, and return it. When every slot is ready, a later tick may place the
    instances on these slots in another way. So `extend` is called again until all instances fit in that way too.
    `shortage`: what is known not to fit in these indexes. `accept`: a function that decides whether a gang may take the
    slots that were found; None: it may.
    """
    if len(demand.needs) == 1:  # speed: almost all demands have one instance, and nothing has to be undone
        need = demand.needs[0]
        holder, slot_info = _find_in(slot_index, need, demand.declined)
        if slot_info is None and extend is not None:
            slot_info = extend(need)
        if slot_info is None:
            return None
        holder.take(slot_info, need)
        slot_info.wanted = True
        return [slot_info]
    taken = _take(demand, slot_index, extend, shortage)
    if taken is None:
        return None
    if accept is not None and not accept({slot_info for _, slot_info, _, _ in taken}):
        _undo(taken)
        return None
    for _, slot_info, _, _ in taken:
        slot_info.wanted = True
    return [slot_info for _, slot_info, _, count in taken for _ in range(count)]


def has_room(
    demand: Demand, slot_index: Sequence[SlotIndex], shortage: Shortage | None = None, extend: Extend | None = None
) -> bool:
    """Return whether all instances of a demand would get slots in the indexes. No capacity is taken.

    `shortage`: what is known not to fit in these indexes. `extend`: may add a slot to the last index for an instance
    that fits in no index, as for `fill`; the added slots stay there.
    """
    taken = _take(demand, slot_index, extend, shortage)
    _undo(taken or [])
    return taken is not None


def has_room_for_some(demand: Demand, slot_index: Sequence[SlotIndex]) -> bool:
    """Return whether at least one instance of a demand fits on a slot while its other instances are not placed."""
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
    """Make sure that all instances still fit when every slot is ready: then the slots of all indexes are ranked
    together, and each instance takes the best one. So a small instance may take a slot that a larger one has in
    `taken`, and the larger one needs another slot.

    If the instances fit in this search without another slot, return `taken`. Else search again, let `extend` add slots,
    and repeat the test with the new result. Return None, and take nothing, if the instances do not fit.
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
            # A search that packs finds the same slot again until it is full: no other slot has more leases.
            remaining = slot_info.remaining
            count = holder.take_often(slot_info, need, 1 if need.spreads else left)
            taken.append((holder, slot_info, remaining, count))
            left -= count  # noqa: PLW2901  it counts down what is left of this run
    return taken


def _could_hold(demand: Demand, slot_index: Sequence[SlotIndex], shortage: Shortage | None) -> bool:
    """Return False if it is certain that the instances of a demand do not fit; True if only a search can decide.

    For each run of equal requests (an entry of `demand.runs`) the function adds up how many instances fit on all slots,
    as if the other runs were not placed. It takes no capacity. If the demand has only one run and too few instances
    fit, their number is recorded in `shortage`.
    """
    for need, count in demand.runs:
        most = sum(each.count_fits(need, count) for each in slot_index)
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
    """Return (index, slot) of the best slot for an instance in all indexes together. The slot is None if the instance
    fits on none.
    """
    found = [(each, slot_info) for each in slot_index if (slot_info := each.find(need, declined)) is not None]

    def rank(best: tuple[SlotIndex, SlotInfo]) -> tuple[object, int, int]:
        slot_info = best[1]
        return need.rank_labels(slot_info.labels), slot_info.load if need.spreads else -slot_info.load, slot_info.order

    return min(found, key=rank, default=(slot_index[-1], None))
