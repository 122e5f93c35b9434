"""One step of the placing by quota: assign idle slots (slots that can take one more lease) to the first reservations in
order.

In slot order, each slot takes the first reservation whose required labels the slot has (in the step for preferences,
also all preferred labels), and then the next one, until the slot is full. No idle slot is kept for a better
reservation. A reservation with several instances is tried on the slot where its first instance would be placed. Its
other instances take the first slots in slot order on which they fit and that no limit of the account refuses. The
reservation is placed if all instances fit. If not, this slot takes the next reservation in order, and the reservation
that was not placed is tried again on the slots after this slot. Slots that a preemption frees are matched in the same
way. Source: qscheduler.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import cached_property, partial

from scheduler.model.resources import Resources, has_labels, shape_of, subtract, total
from scheduler.policy.capacity.fits import find_obstacle
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.quota.account_limits import TrialLeases
from scheduler.policy.quota.group_table import Candidates
from scheduler.policy.quota.pending_groups import PendingGroup, PendingIndex, Requirements
from scheduler.policy.quota.run import QuotaRun, describe_claim, serves_quota, sort_slots


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
        matching = _Matching(quota_run, candidates, level, lambda: quota_run.idle, preferring=False)
        _match(quota_run, in_service, matching, lambda group, slot_infos: quota_run.assign(group, slot_infos, level))
    else:
        later = _LaterSlots(quota_run, in_service, givers)
        matching = _Matching(quota_run, candidates, level, lambda: later.idle, preferring=False)
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
        others = (self._copy(each) for each in self._run.idle if each.order not in orders)
        return sort_slots((*self.freed, *others))

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
    place: Callable[[PendingGroup, list[SlotInfo]], object],
) -> None:
    """Let each of these slots take the first group in order that can be placed there, until the slot is full. `place`:
    places the first unplaced reservation of a group on slots.
    """
    for slot_info in slot_infos:
        while slot_info.has_place and (met := quota_run.requirements_index.list_met(slot_info, slot_info.free)):
            found = matching.find(met, slot_info)
            if found is None:
                break
            place(*found)


class _Matching:
    def __init__(
        self,
        quota_run: QuotaRun,
        candidates: Candidates,
        level: int,
        list_idle: Callable[[], Sequence[SlotInfo]],
        *,
        preferring: bool,
    ) -> None:
        """`list_idle`: returns the slots for the instances of gangs after the first one, in slot order."""
        self._run, self._level, self._list_idle, self._preferring = quota_run, level, list_idle, preferring
        self._pending: PendingIndex[list[SlotInfo]] = PendingIndex(
            partial(candidates.list_meeting, preferring=preferring), self._is_out
        )
        self._able: dict[tuple[object, object], _AbleSlots] = {}
        """(request class, preferred labels) -> the idle slots that can take such a request. Requests that differ only
        in preferred labels have the same class. With `preferring` False the second element is () for all requests.
        """
        self._hopeless: set[PendingGroup] = set()
        """Groups of reservations with several instances, of which the instances after the first one do not fit on the
        idle slots.
        """

    def find(self, met: tuple[Requirements, ...], slot_info: SlotInfo) -> tuple[PendingGroup, list[SlotInfo]] | None:
        """Return two things: (1) the first group in order that can be placed with its first instance on this slot; (2)
        a slot for each of its instances. Return None if there is no such group. `met`: the requirements that the slot
        meets.
        """
        return self._pending.find(met, lambda group: self._find_slots(group, slot_info))

    def _is_out(self, group: PendingGroup) -> bool:
        is_paid = self._level in range(5)
        return group in self._hopeless or (is_paid and self._run.limits.is_fanned_out(group))

    def _find_slots(self, group: PendingGroup, slot_info: SlotInfo) -> list[SlotInfo] | None:
        """Return a slot for each instance of the group's next reservation, with this slot for the first instance.
        Return None if the reservation cannot be placed so.

        There are three reasons: this slot was declined, an instance fits on no slot, or a limit of the account refuses
        a slot.
        """
        if slot_info.slot.id in group.demand.declined or self._run.limits.refuses(group.account, [slot_info]):
            return None
        return self._find_all(group, slot_info) if len(group.demand.needs) > 1 else [slot_info]

    def _find_all(self, group: PendingGroup, slot_info: SlotInfo) -> list[SlotInfo] | None:
        needs, limits = group.demand.needs, self._run.limits
        scratch = _Scratch(self._list_able, group.demand, limits.try_leases(group.account))
        scratch.take(slot_info, needs[0])
        rest = scratch.take_all(needs[1:])
        if rest is not None:
            return [slot_info, *rest]
        # A limit for a label is ignored here: with another first slot, the others may have other labels.
        if _Scratch(self._list_able, group.demand, None).take_all(needs[1:]) is None:
            self._hopeless.add(group)
        return None

    def _list_able(self, need: InstanceRequest) -> "_AbleSlots":
        """Return the idle slots that can take an instance. Requests that fit on the same slots share one `_AbleSlots`
        object.
        """
        mark = (need.likeness, shape_of(need.prefers) if self._preferring else ())
        able = self._able.get(mark)
        if able is None:
            able = self._able[mark] = _AbleSlots(self._list_idle(), need, preferring=self._preferring)
        return able


class _AbleSlots:
    """The idle slots that can take one instance of a request, in slot order.

    In this step slots only lose capacity. So a slot that once could not take an instance is never examined again, and a
    search passes over many such slots in few steps.
    """

    def __init__(self, idle: Sequence[SlotInfo], need: InstanceRequest, *, preferring: bool) -> None:
        self._idle, self._need, self._preferring = idle, need, preferring
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
            if self._is_able(slot_info):
                return position, slot_info
            self._next[position] = position + 1
        return None

    def _skip(self, position: int) -> int:
        following = self._next
        while following[position] != position:
            following[position] = position = following[following[position]]
        return position

    def _is_able(self, slot_info: SlotInfo) -> bool:
        need, pool = self._need, slot_info.slot.pool
        if pool not in need.given or need.rank_labels(slot_info.labels) is None:
            return False
        if self._preferring and not has_labels(slot_info.labels, need.prefers):
            return False
        return _has_room(slot_info, need.given[pool], slot_info.free, 0)


def _has_room(slot_info: SlotInfo, amounts: Resources, free: Resources | None, taken: int) -> bool:
    """Return whether a slot can take one more lease with these amounts. `taken`: the number of leases that a trial
    (`_Scratch`) has placed on the slot; 0 without a trial. `free`: the free amounts after these leases.
    """
    leases = slot_info.pool.lease_limit - slot_info.load - taken
    return find_obstacle(amounts, free, leases, slot_info.uses_left - taken) is None


class _Scratch:
    """A trial for one reservation: it places the instances on idle slots in a copy of their capacity, and decides
    nothing.
    """

    def __init__(
        self, list_able: Callable[[InstanceRequest], _AbleSlots], demand: Demand, trial: TrialLeases | None
    ) -> None:
        """Start without instances. `list_able`: returns the idle slots that can take an instance. `trial`: tests the
        instances against the account's limits for labels; None: the account has no such limits.
        """
        self._list_able, self._declined, self._trial = list_able, demand.declined, trial
        self._taken: dict[SlotInfo, tuple[int, Resources | None]] = {}
        """Slot -> (the number of instances that the trial placed there, the free amounts that are left after them)."""
        self._positions: dict[InstanceRequest, int] = {}
        """Request -> the position of the slot that was found for it last. Slots before that position cannot take the
        request in this trial.
        """

    def take_all(self, needs: Iterable[InstanceRequest]) -> list[SlotInfo] | None:
        """Place an instance of each request on the first slot in slot order on which it fits, and return the slots.
        Return None if a request fits on no slot.
        """
        slot_infos = []
        for need in needs:
            slot_info = self._find(need)
            if slot_info is None:
                return None
            self.take(slot_info, need)
            slot_infos.append(slot_info)
        return slot_infos

    def _find(self, need: InstanceRequest) -> SlotInfo | None:
        able, position = self._list_able(need), self._positions.get(need, 0)
        while (found := able.find(position)) is not None:
            position, slot_info = found
            count, free = self._taken.get(slot_info, (0, slot_info.free))
            is_open = slot_info.slot.id not in self._declined and (self._trial is None or self._trial.allows(slot_info))
            if is_open and _has_room(slot_info, need.given[slot_info.slot.pool], free, count):
                self._positions[need] = position
                return slot_info
            position += 1
        return None

    def take(self, slot_info: SlotInfo, need: InstanceRequest) -> None:
        """Subtract one instance from the trial's copy of a slot's free capacity, and count its lease."""
        count, free = self._taken.get(slot_info, (0, slot_info.free))
        after = None if free is None else subtract(free, need.given[slot_info.slot.pool])
        self._taken[slot_info] = count + 1, after
        if self._trial is not None:
            self._trial.take(slot_info)
