"""One step of the placing by quota: assign idle slots (slots that can take one more lease) to the first reservations in
order.

In slot order, each slot takes the first reservation whose required labels the slot has (in the step for preferences,
also all preferred labels), and then the next one, until the slot is full. No idle slot is kept for a better
reservation. A reservation with several instances is tried on the slot where its first instance would be placed. Its
other instances take the first slots in slot order on which they fit and that no limit of the account refuses. The
reservation is placed if all instances fit. If not, this slot takes the next reservation in order, and the reservation
that was not placed is tried again on the slots after this slot. If its instances differ, and it could be placed so on
none of these slots either, the other ways to place a gang are tried at once (`capacity/gang.py`). Slots that a
preemption frees are matched in the same way. Source: qscheduler.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from copy import copy
from functools import cached_property, partial
from operator import attrgetter

from scheduler.model.resources import Labels, Resources, has_labels, shape_of, subtract, total
from scheduler.policy.capacity.fits import find_obstacle
from scheduler.policy.capacity.gang import OpenSlot, Runs, Shareable, place, place_as_written
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_index import RemainingCapacities, make_capacity_mark
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.quota.group_table import Candidates, PendingGroup, PendingIndex, Requirements
from scheduler.policy.quota.run import QuotaRun, QuotaSpace, describe_claim, serves_quota, sort_slots

_ORDER = attrgetter("order")


def match_idle(quota_run: QuotaRun, candidates: Candidates, level: int, *, preferring: bool) -> None:
    """Assign idle slots to pending groups, with leases of the quota level `level`.

    `preferring`: a group only gets slots with all labels that it prefers. If False, preferred labels do not matter.
    """
    if not candidates.payers or not quota_run.idle:
        return
    matching = _Matching(quota_run, candidates, level, lambda: quota_run.idle, preferring=preferring)
    _match(quota_run, quota_run.idle, matching, lambda group, slot_infos: quota_run.assign(group, slot_infos, level))
    quota_run.drop_full()


def offer(
    quota_run: QuotaRun, candidates: Candidates, level: int, freed: Iterable[SlotInfo], givers: str | None
) -> None:
    """Match slots on which preempted leases end to pending groups, as idle slots are matched. Preferred labels do not
    matter.

    `givers` None: the leases have ended, and the slots are assigned. Else the leases are revoking, and the slots are
    claimed; `givers` are the ids of the preempted reservations.
    """
    in_service = sort_slots(each for each in freed if serves_quota(quota_run.cycle, each))
    if givers is None:
        matching = _Matching(quota_run, candidates, level, lambda: quota_run.idle, in_service, preferring=False)
        _match(quota_run, in_service, matching, lambda group, slot_infos: quota_run.assign(group, slot_infos, level))
    else:
        later = _LaterSlots(quota_run, in_service, givers)
        matching = _Matching(quota_run, candidates, level, lambda: later.idle, later.freed, preferring=False)
        _match(quota_run, later.freed, matching, lambda group, slot_infos: later.claim(group, slot_infos, level))
    quota_run.drop_full()


class _LaterSlots:
    """Copies of slots as they will be when the revoking leases on them have ended. Reservations are matched to the
    copies, and claim the slots.
    """

    def __init__(self, quota_run: QuotaRun, freed: Iterable[SlotInfo], givers: str) -> None:
        self._run, self._givers = quota_run, givers
        self.freed = [self._copy(each) for each in freed]

    @cached_property
    def idle(self) -> list[SlotInfo]:
        """The freed slots and all idle slots, in slot order. Speed: they are copied only if a gang is tried."""
        orders = {each.order for each in self.freed}
        return sort_slots((*self.freed, *(self._copy(each) for each in self._run.idle if each.order not in orders)))

    def _copy(self, slot_info: SlotInfo) -> SlotInfo:
        later = copy(slot_info)
        later.leases = {key: lease for key, lease in slot_info.leases.items() if lease.state != "revoking"}
        later.count_free()
        if later.free is not None and slot_info in self._run.given:
            later.free = subtract(later.free, total(self._run.given[slot_info]))
        return later

    def claim(self, group: PendingGroup, slot_infos: Sequence[SlotInfo], level: int) -> None:
        """Let the first unplaced reservation of a group claim the slots of these copies, one for each instance."""
        for slot_info, need in zip(slot_infos, group.demand.needs, strict=True):
            slot_info.given += 1
            if slot_info.free is not None:
                slot_info.free = subtract(slot_info.free, need.given[slot_info.slot.pool])
        claimed = [self._run.cycle.slot_infos[each.slot.id] for each in slot_infos]
        self._run.claim(group, claimed, level, describe_claim(self._givers, claimed))


def _match(
    quota_run: QuotaRun,
    slot_infos: Iterable[SlotInfo],
    matching: "_Matching",
    give: Callable[[PendingGroup, list[SlotInfo]], object],
) -> None:
    """Let each of these slots take the first group in order that can be placed there, until the slot is full. `give`:
    places the first unplaced reservation of a group on slots.
    """
    for slot_info in slot_infos:
        while slot_info.has_place and (met := quota_run.requirements_index.list_met(slot_info, slot_info.free)):
            found = matching.find(met, slot_info)
            if found is None:
                break
            give(*found)


class _Matching:
    def __init__(
        self,
        quota_run: QuotaRun,
        candidates: Candidates,
        level: int,
        list_idle: Callable[[], Sequence[SlotInfo]],
        offered: Collection[SlotInfo] | None = None,
        *,
        preferring: bool,
    ) -> None:
        """`list_idle`: returns the slots for the instances of gangs after the first one, in slot order. `offered`:
        those of them that are offered to the first instance; None: all.
        """
        self.quota_run, self._level, self.list_idle, self._preferring = quota_run, level, list_idle, preferring
        self._offered, self.limits = offered, quota_run.limits
        self._pending: PendingIndex[list[SlotInfo]] = PendingIndex(
            partial(candidates.list_meeting, preferring=preferring), self._is_out
        )
        self._able: dict[tuple[object, object], _AbleSlots] = {}
        """(request class, preferred labels) -> the idle slots that can take such a request. Requests that differ only
        in preferred labels have the same class. With `preferring` False the second element is () for all requests.
        """
        self._hopeless: set[PendingGroup] = set()
        """Groups of reservations with several instances that do not fit on the idle slots."""
        self._later: dict[PendingGroup, int] = {}
        """Group -> the position in slot order of a later slot on which its first instance may be placed. On no slot
        before it can the instances be placed as they are written.
        """
        self.capacities = RemainingCapacities()
        self._equal: list[tuple[str, Resources | None, Labels, int]] | None = None
        """The idle slots by (pool, resources, labels, number of slots); None: not counted yet."""

    def find(self, met: tuple[Requirements, ...], slot_info: SlotInfo) -> tuple[PendingGroup, list[SlotInfo]] | None:
        """Return two things: (1) the first group in order that can be placed with its first instance on this slot; (2)
        a slot for each of its instances. Return None if there is no such group. `met`: the requirements that the slot
        meets.
        """
        return self._pending.find(met, lambda group: self._find_slots(group, slot_info))

    def _is_out(self, group: PendingGroup) -> bool:
        is_paid = self._level in range(5)
        return group in self._hopeless or (is_paid and self.quota_run.limits.is_fanned_out(group))

    def _find_slots(self, group: PendingGroup, slot_info: SlotInfo) -> list[SlotInfo] | None:
        """Return a slot for each instance of the group's next reservation, with this slot for the first instance.
        Return None if the reservation cannot be placed so.

        There are three reasons: this slot was declined, an instance fits on no slot, or a limit of the account refuses
        a slot.
        """
        if slot_info.slot.id in group.demand.declined or self.quota_run.limits.refuses(group.account, [slot_info]):
            return None
        return self._find_all(group, slot_info) if len(group.demand.needs) > 1 else [slot_info]

    def _find_all(self, group: PendingGroup, slot_info: SlotInfo) -> list[SlotInfo] | None:
        if self._later.get(group, 0) > slot_info.order:
            return None
        found = place_as_written(group.demand, _IdleSpace(self, group, slot_info))
        if found is not None:
            return found
        if len(group.demand.alike) == 1:
            # A limit for a label is ignored here: with another first slot, the others may have other labels.
            rest = _IdleSpace(self, group, None, has_limits=False)
            if any(rest.take_next(need) is None for need in group.demand.needs[1:]):
                self._hopeless.add(group)
            return None
        # In this step slots only lose capacity. So it need not be tried again before the next slot that would do now.
        firsts = self._walk(group, slot_info)
        later = next((each for each in firsts if place_as_written(group.demand, _IdleSpace(self, group, each))), None)
        if later is not None:
            self._later[group] = later.order
            return None
        found = place(group.demand, _IdleSpace(self, group, None))
        if found is None:
            self._hopeless.add(group)
        return found

    def _walk(self, group: PendingGroup, slot_info: SlotInfo) -> Iterator[SlotInfo]:
        """Yield the slots that are offered after this one, and on which the first instance fits."""
        able = self.list_able(group.demand.needs[0])
        position = bisect_right(self.list_idle(), slot_info.order, key=_ORDER)
        while (found := able.find(position)) is not None:
            position = found[0] + 1
            if self._offered is not None and found[1] not in self._offered:
                continue
            if found[1].slot.id not in group.demand.declined and not self.limits.refuses(group.account, [found[1]]):
                yield found[1]

    def meets(self, need: InstanceRequest, slot_info: SlotInfo) -> bool:
        """Return whether a slot has the labels for an instance, in a pool that serves it."""
        if slot_info.slot.pool not in need.given or need.rank_labels(slot_info.labels) is None:
            return False
        return not self._preferring or has_labels(slot_info.labels, need.prefers)

    def list_shareable(self, need: InstanceRequest, declined: Sequence[str]) -> Iterator[Shareable]:
        """Yield the idle slots, as if empty, that could hold an instance. See `Space.list_shareable`."""
        equal = self._count_equal(declined) if declined else self._equal
        if equal is None:
            equal = self._equal = self._count_equal(())
        for pool, capacity, labels, count in equal:
            is_able = pool in need.given and need.could_hold(pool, capacity, labels)
            if is_able and not (self._preferring and not has_labels(labels, need.prefers)):
                yield pool, capacity, count

    def _count_equal(self, declined: Sequence[str]) -> list[tuple[str, Resources | None, Labels, int]]:
        counts, found = Counter[object](), dict[object, tuple[str, Resources | None, Labels]]()
        for each in self.list_idle():
            if each.slot.id not in declined:
                held = None if each.capacity is None else tuple(each.capacity.items())
                key = each.slot.pool, held, tuple(each.labels.items())
                counts[key] += 1
                found[key] = each.slot.pool, each.capacity, each.labels
        return [(*each, counts[key]) for key, each in found.items()]

    def list_able(self, need: InstanceRequest) -> "_AbleSlots":
        """Return the idle slots that can take an instance. Requests that fit on the same slots share one `_AbleSlots`
        object.
        """
        mark = (need.likeness, shape_of(need.prefers) if self._preferring else ())
        able = self._able.get(mark)
        if able is None:
            able = self._able[mark] = _AbleSlots(self.list_idle(), need, self.meets)
        return able


class _AbleSlots:
    """The idle slots that can take one instance of a request, in slot order.

    In this step slots only lose capacity. So a slot that once could not take an instance is never examined again, and a
    search passes over many such slots in few steps.
    """

    def __init__(
        self, idle: Sequence[SlotInfo], need: InstanceRequest, meets: Callable[[InstanceRequest, SlotInfo], bool]
    ) -> None:
        self._idle, self._need, self._meets = idle, need, meets
        self._next = list(range(len(idle) + 1))
        """For each position p in `_idle`: the position q from which a search goes on. While the slot at p may be able
        to take an instance, q is p. Later q is greater than p, and no slot from p up to q - 1 can take an instance.
        """

    def find(self, position: int) -> tuple[int, SlotInfo] | None:
        """Return (position, slot) of the first slot from `position` on that can take an instance; None if there is
        none.
        """
        while (position := self._skip(position)) < len(self._idle):
            slot_info = self._idle[position]
            need, free = self._need, slot_info.free
            if self._meets(need, slot_info) and _has_room(slot_info, need.given[slot_info.slot.pool], free, 0):
                return position, slot_info
            self._next[position] = position + 1
        return None

    def _skip(self, position: int) -> int:
        following = self._next
        while following[position] != position:
            following[position] = position = following[following[position]]
        return position


def _has_room(slot_info: SlotInfo, amounts: Resources, free: Resources | None, taken: int) -> bool:
    """Return whether a slot can take one more lease with these amounts. `taken`: the number of leases that a trial
    (`_Scratch`) has placed on the slot; 0 without a trial. `free`: the free amounts after these leases.
    """
    leases = slot_info.pool.lease_limit - slot_info.load - taken
    return find_obstacle(amounts, free, leases, slot_info.uses_left - taken) is None


class _IdleSpace(QuotaSpace):
    """The idle slots as a space for one reservation (`Space` in `capacity/gang.py`). Instances take the first slot in
    slot order on which they fit, in a copy of the slots' capacity; nothing is decided.
    """

    def __init__(
        self, matching: "_Matching", group: PendingGroup, first: SlotInfo | None, *, has_limits: bool = True
    ) -> None:
        """Start without instances. `first`: the slot that the first instance takes; None: the first that fits.
        `has_limits`: whether the account's limits for labels are tested.
        """
        self.quota_run, self.group = matching.quota_run, group
        self._matching, self._first = matching, first
        self._declined, self._has_limits = group.demand.declined, has_limits
        self.undo()

    def undo(self) -> None:
        self._taken: dict[SlotInfo, tuple[int, Resources | None]] = {}
        """Slot -> (the number of instances that the trial placed there, the free amounts that are left after them)."""
        self._positions: dict[InstanceRequest, int] = {}
        """Request -> the position of the slot that was found for it last. Slots before that position cannot take the
        request in this trial.
        """
        self._trial = self._matching.limits.try_leases(self.group.account) if self._has_limits else None

    def find(self, need: InstanceRequest) -> SlotInfo | None:
        if self._first is not None and not self._taken:
            return self._first
        able, position = self._matching.list_able(need), self._positions.get(need, 0)
        while (found := able.find(position)) is not None:
            position, slot_info = found
            count, free = self._taken.get(slot_info, (0, slot_info.free))
            is_open = slot_info.slot.id not in self._declined and (self._trial is None or self._trial.allows(slot_info))
            if is_open and _has_room(slot_info, need.given[slot_info.slot.pool], free, count):
                self._positions[need] = position
                return slot_info
            position += 1
        return None

    def take(self, slot_info: SlotInfo, need: InstanceRequest, most: int) -> int:  # noqa: ARG002  one at a time
        count, free = self._taken.get(slot_info, (0, slot_info.free))
        after = None if free is None else subtract(free, need.given[slot_info.slot.pool])
        self._taken[slot_info] = count + 1, after
        if self._trial is not None:
            self._trial.take(slot_info)
        return 1

    def take_next(self, need: InstanceRequest) -> SlotInfo | None:
        """Place one more instance, and return its slot. Return None if it fits on none."""
        slot_info = self.find(need)
        if slot_info is not None:
            self.take(slot_info, need, 1)
        return slot_info

    def could_hold(self, demand: Demand) -> bool:
        return all(self._matching.list_able(need).find(0) is not None for need in dict.fromkeys(demand.needs))

    def list_shareable(self, need: InstanceRequest) -> Iterable[Shareable]:
        return self._matching.list_shareable(need, self._declined)

    def widen(self, runs: Runs) -> None:
        """Do nothing: idle slots do not grow."""

    def list_open(self, needs: Collection[InstanceRequest]) -> Iterator[OpenSlot]:  # noqa: ARG002  all idle slots
        for slot_info in self._matching.list_idle():
            if slot_info.slot.id not in self._declined:
                remaining = self._matching.capacities.find(make_capacity_mark(slot_info), slot_info.free)
                yield (slot_info.slot.pool, shape_of(slot_info.labels)), slot_info, remaining

    def rank(self, need: InstanceRequest, kind: Hashable, slot_info: SlotInfo, load: int) -> tuple[int, ...] | None:  # noqa: ARG002  in slot order
        return () if self._matching.meets(need, slot_info) else None
