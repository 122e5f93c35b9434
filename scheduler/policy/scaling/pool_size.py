"""How many machines each pool keeps.

There are four parts: the minimum (`min_slots`), the warm pool (`target_warm_slots`), the stopped tier
(`stopped_slots`), and scale-in. Slots that scale-in would drain fill the stopped tier first.

Beside each step stands the function that finds the time until which the step decides nothing (`..._due`).

Sources: the autoscaler, a project that Leasehold follows; EC2 Auto Scaling (the stopped tier).
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from math import inf
from typing import Final

from scheduler.model.decisions import Drain, Stop, Terminate
from scheduler.model.pools import Pool
from scheduler.model.slots import Slot
from scheduler.model.transitions import IN_FLIGHT, UNPAID
from scheduler.policy.capacity.slot_info import SlotInfo, find_life
from scheduler.policy.cycle.state import CycleState, Headroom, ToStop, find_moment_after
from scheduler.policy.scaling.launch_limits import LaunchLimits
from scheduler.policy.scaling.offerings import has_to_go, is_in_tier, list_choices, list_eligible

_NOT_READY: Final = IN_FLIGHT | {"stopped"}


class PoolSlots:
    """The slots of one pool, counted for the steps that decide how many of them the pool keeps. Each count is made when
    it is first read. `spared`: ids of idle slots that must not end. `to_stop`: how many slots are to be stopped later.

    A kept cycle (`policy/replan`) brings the counts up to date instead of counting again, see `note`.
    """

    def __init__(
        self, pool: Pool, slot_infos: Sequence[SlotInfo], spared: Collection[str] = (), to_stop: int = 0
    ) -> None:
        self.pool, self.slot_infos = pool, slot_infos
        self._spared, self._to_stop = spared, to_stop

    @cached_property
    def serving(self) -> int:
        """The number of slots that are ready or in flight and not cordoned. `min_slots` is compared with it."""
        return sum(each.is_serving for each in self.slot_infos)

    @cached_property
    def idle(self) -> dict[int, SlotInfo]:
        """Position in slot order -> idle slot."""
        return {each.order: each for each in self.slot_infos if each.is_idle}

    @cached_property
    def coming(self) -> list[SlotInfo]:
        """The slots in flight that no reservation waits for, without cordoned ones."""
        # Speed: most slots are ready, and a state is read faster than a property.
        return [each for each in self.slot_infos if each.state in IN_FLIGHT and each.is_serving and not each.wanted]

    @cached_property
    def stopped(self) -> list[SlotInfo]:
        """The machines of the stopped tier. `stopped_slots` is compared with their number."""
        return [each for each in self.slot_infos if each.state == "stopped" and not each.slot.cordoned]

    @cached_property
    def _has_unneeded(self) -> bool:
        return any(is_unneeded(each) for each in self.slot_infos if each.state in _NOT_READY)

    @property
    def has_unneeded(self) -> bool:
        """Whether a slot may end so that a withheld launch can run, see `is_unneeded`."""
        return bool(self.idle) or self._has_unneeded

    @property
    def reserve(self) -> int:
        """The number of idle slots, and of slots in flight that no reservation waits for. `target_warm_slots` is
        compared with it.
        """
        return len(self.idle) + len(self.coming)

    @property
    def spare(self) -> int:
        """How many slots scale-in may take: those beyond `min_slots`, `target_warm_slots` and the slots to stop."""
        pool = self.pool
        return min(self.serving - pool.min_slots, self.reserve - pool.target_warm_slots) - self._to_stop

    @property
    def lacks(self) -> bool:
        """Whether slots are missing to reach `min_slots` or `target_warm_slots`."""
        least, target = self.pool.min_slots, self.pool.target_warm_slots
        return (least > 0 and self.serving < least) or (target > 0 and self.reserve < target)

    def list_endable(self) -> list[SlotInfo]:
        """Return the slots that may end because they are idle: the one that may end first, then in slot order."""
        found = [each for each in self.idle.values() if each.slot.id not in self._spared]
        # The end decides, as in `scale_in_due`: a step that looks at other slots than its `due` would wait in vain.
        return sorted(found, key=lambda each: (find_idle_end(each.idle_since, self.pool), each.idle_since, each.order))

    @cached_property
    def idle_end(self) -> float:
        """When the first idle slot may end (`find_idle_end`); infinity: none may."""
        endable = (each for each in self.idle.values() if each.slot.id not in self._spared)
        return min((find_idle_end(each.idle_since, self.pool) for each in endable), default=inf)

    @cached_property
    def first_end(self) -> float:
        """When the first machine is too old for the rules of the pool; infinity: none will be. Minus infinity: a
        machine has drifted.
        """
        ends = [inf]
        for each in self.slot_infos:
            if each.state == "ready" or each.state == each.slot.state == "stopped":
                has_drifted, end = find_life(each, self.pool)
                ends.append(-inf if has_drifted else end)
        return min(ends)

    def count(self) -> None:
        """Make all counts now."""
        _ = self.serving, self.coming, self.idle_end, self._has_unneeded

    def note(self, slot_info: SlotInfo, *, has_new_life: bool = False) -> None:
        """Bring the counts up to date after a change of a slot that took leases before and takes leases now.
        `has_new_life`: its machine may become too old at another time than before.
        """
        idle, counts = self.idle, vars(self)
        if has_new_life:
            counts.pop("first_end", None)
        if slot_info.is_idle:
            idle[slot_info.order] = slot_info
        elif idle.pop(slot_info.order, None) is None:
            return
        counts.pop("idle_end", None)


def count_slots(cycle: CycleState, spared: Collection[str] = (), to_stop: ToStop | None = None) -> dict[str, PoolSlots]:
    """Return the slots of each elastic pool as this cycle has left them so far. `spared`, `to_stop`: as in
    `PoolSlots`.
    """
    later = to_stop or {}
    pools = ((name, pool) for name, pool in cycle.rules.pools.items() if pool.is_elastic)
    return {name: PoolSlots(pool, cycle.pools[name], spared, later.get(name, 0)) for name, pool in pools}


def is_unneeded(slot_info: SlotInfo) -> bool:
    """Return whether a slot may end so that a withheld launch can run: the slot is idle, in flight or stopped, no
    reservation waits for it, it is not cordoned, and its pool is not a static pool.

    A slot that this cycle launches or starts may not end. Such a slot is in flight, but its row is still `empty`,
    `error` or `stopped`.
    """
    if slot_info.wanted:
        return False
    slot = slot_info.slot
    is_coming = slot_info.is_coming and slot.state not in UNPAID and not slot.cordoned
    is_stopped = slot_info.state == slot.state == "stopped" and not slot.cordoned
    return slot_info.pool.is_elastic and (slot_info.is_idle or is_coming or is_stopped)


def fill_warm_pools_due(pools: Mapping[str, PoolSlots], limits: LaunchLimits) -> float:
    """Return minus infinity if a pool lacks slots and may launch or start one, else infinity."""
    return -inf if any(each.lacks and limits.bounds.may_grow(name) for name, each in pools.items()) else inf


def fill_warm_pools(cycle: CycleState, headroom: Headroom, limits: LaunchLimits) -> None:
    """Launch the slots that each pool needs to reach `min_slots`, then the slots that it needs to reach
    `target_warm_slots`, within the limits. If the pool has a stopped slot that can be started, and its offering is one
    that this launch could choose, the stopped slot is started instead.

    The minimum of every pool goes before the warm slots of any pool, because a limit over all pools may allow only some
    of these slots. In a pool where `max_slots` withholds launches for reservations, this function launches and starts
    nothing: a warm slot there would be the first to end for headroom. The same is true for the warm slots of a pool
    where EC2's quota or a budget withholds such launches. Room is left for the launches of a gang that wait for another
    pool.
    """
    pools = count_slots(cycle)
    if cycle.timers.rests_until(fill_warm_pools_due(pools, limits)):
        return
    open_pools = {name: each for name, each in pools.items() if not headroom.beyond.get(name)}
    for name, each in open_pools.items():
        if each.pool.min_slots:
            _launch(limits, name, "minimum", each.pool.min_slots - each.serving, headroom)
    for name, each in count_slots(cycle).items():  # again, because the minimum may have launched some
        if name in open_pools and each.pool.target_warm_slots and name not in headroom.closed:
            _launch(limits, name, "warm", each.pool.target_warm_slots - each.reserve, headroom)


def _launch(limits: LaunchLimits, name: str, reason: str, lacking: int, headroom: Headroom) -> None:
    """Launch up to `lacking` slots in a pool, each with the first offering that can be launched, or start stopped
    slots. Stop when no offering can be launched any more, or when the room is left that reservations need.
    """
    for _ in range(lacking):
        choices = limits.offerings.list_next(name)
        started = limits.find_start([name])
        if started is not None and any(choice.key == started[2].key for choice in choices):
            limits.start(*started, reason)
            continue
        free = next((choice for choice in choices if limits.find_code(name, choice) is None), None)
        if free is None or not _has_spare_room(limits, name, headroom):
            return
        limits.launch(name, free, reason)


def _has_spare_room(limits: LaunchLimits, name: str, headroom: Headroom) -> bool:
    """Return whether the pool may launch more slots than reservations are expected to need."""
    expected = headroom.expected.get(name, 0)
    return not expected or limits.bounds.count_left(name) > expected


def keep_tiers_due(pools: Mapping[str, PoolSlots]) -> float:
    """Return minus infinity if a stopped tier has more or fewer machines than `stopped_slots`, else infinity."""
    return -inf if any(each.pool.stopped_slots not in {0, len(each.stopped)} for each in pools.values()) else inf


def keep_tiers(cycle: CycleState, headroom: Headroom, limits: LaunchLimits) -> ToStop:
    """Bring the stopped tier of each pool to `stopped_slots` machines. If it has more, terminate the rest. If it has
    fewer, stop idle slots that the pool does not need, and launch the machines that are then still missing.

    Slots that the pool needs for `min_slots` and `target_warm_slots` are not stopped. A pool where `max_slots`, EC2's
    quota or a budget withholds launches for reservations launches no machine for its tier, and room is left for the
    launches of a gang that wait for another pool. Return a table: pool -> how many slots in flight or idle are to be
    stopped later.
    """
    to_stop: dict[str, int] = {}
    pools = count_slots(cycle, _list_spared(cycle, headroom, limits))
    if cycle.timers.rests_until(keep_tiers_due(pools)):
        return to_stop
    for name, each in pools.items():
        lacking = each.pool.stopped_slots - len(each.stopped)
        if not each.pool.stopped_slots:
            continue
        if lacking < 0:
            surplus = [slot_info for slot_info in each.stopped if is_in_tier(slot_info)]
            surplus.sort(key=lambda slot_info: (not has_to_go(slot_info, cycle.now), -slot_info.price, slot_info.order))
            for slot_info in surplus[:-lacking]:
                cycle.move_slot(slot_info, Terminate(slot=slot_info.slot.id, reason="surplus"))
            continue
        lacking -= _stop_surplus(cycle, each, lacking)
        if lacking:
            may_launch = name not in headroom.closed and not headroom.beyond.get(name)
            stoppable = _launch_for_tier(cycle, limits, name, lacking, headroom if may_launch else None)
            to_stop[name] = min(lacking, stoppable)
    return to_stop


def _list_spared(cycle: CycleState, headroom: Headroom, limits: LaunchLimits) -> Collection[str]:
    """Return the ids of the idle slots that must not end.

    An idle slot stays during a back-off for its own quota, and during the trial after it, if a reservation needs it
    together with launches that are withheld. If it ended, fewer slots would be active, the back-off would end early,
    and the same machine would be launched again, which is no more than the quota allowed before.
    """
    found = (cycle.slot_infos[name] for name in headroom.spared)
    return {
        each.slot.id
        for each in found
        if each.is_idle and limits.refusals.is_at_quota(each.slot.pool, each.slot.offering, each.slot.market or "")
    }


def _stop_surplus(cycle: CycleState, there: PoolSlots, lacking: int) -> int:
    """Stop up to `lacking` idle slots that the pool does not need, longest idle first. Return the number of stopped
    slots.

    A slot that was launched for the tier is stopped as soon as it is ready; other slots are stopped when they were idle
    for longer than `idle_scale_down`.
    """
    stopped, most = 0, min(lacking, there.spare)
    for slot_info in [each for each in there.list_endable() if may_be_stopped(cycle, each)]:
        slot = slot_info.slot
        if stopped >= most:
            break
        if is_new_in_tier(slot):
            cycle.move_slot(slot_info, Stop(slot=slot.id, reason="booted"))
        elif not cycle.timers.rests_until(find_idle_end(slot_info.idle_since, there.pool)):
            cycle.move_slot(slot_info, Stop(slot=slot.id, reason="idle"))
        else:
            continue
        stopped += 1
    return stopped


def is_new_in_tier(slot: Slot) -> bool:
    """Return whether the slot's machine was launched for the stopped tier, and has had no lease."""
    return slot.launch_reason == "stopped" and not slot.uses


def may_be_stopped(cycle: CycleState, slot_info: SlotInfo) -> bool:
    """Return whether the slot's machine may be stopped once it is idle: it is on-demand, and it need not be replaced.
    If it may, schedule a cycle for the time when it will be too old.
    """
    if slot_info.market != "on-demand":
        return False
    if slot_info.state != slot_info.slot.state or not slot_info.pool.replacement.is_on:
        return True
    has_drifted, end = find_life(slot_info, slot_info.pool)
    return not has_drifted and cycle.timers.rests_until(end)


def _launch_for_tier(
    cycle: CycleState, limits: LaunchLimits, name: str, lacking: int, headroom: Headroom | None
) -> int:
    """Launch machines for the stopped tier, each with the cheapest on-demand offering that can be launched. Return how
    many slots of the pool, in flight or idle, may be stopped later.

    `lacking`: how many machines the tier lacks. The launches end when at least this number of slots may be stopped
    later and are beyond `min_slots` and `target_warm_slots`. `headroom` None: launch nothing.
    """
    there = PoolSlots(cycle.rules.pools[name], cycle.pools[name])
    stoppable = sum(may_be_stopped(cycle, each) for each in (*there.idle.values(), *there.coming))
    spare = there.spare
    choices = list_eligible([each for each in list_choices(there.pool) if each.market == "on-demand"], there.pool)
    while headroom is not None and lacking > max(0, min(stoppable, spare)):
        free = next((choice for choice in choices if limits.find_code(name, choice) is None), None)
        if free is None or not _has_spare_room(limits, name, headroom):
            break
        limits.launch(name, free, "stopped")
        stoppable, spare = stoppable + 1, spare + 1
    return stoppable


def find_idle_end(idle_since: float, pool: Pool) -> float:
    """Return the first time at which an idle slot may end: it was idle for more than `idle_scale_down` seconds then."""
    return find_moment_after(idle_since, pool.idle_scale_down)


def scale_in_due(pools: Mapping[str, PoolSlots]) -> float:
    """Return when the first slot that its pool need not keep was idle for too long; infinity: there is no such slot."""
    return min((each.idle_end for each in pools.values() if each.idle and each.spare > 0), default=inf)


def scale_in(cycle: CycleState, headroom: Headroom, limits: LaunchLimits, to_stop: ToStop) -> None:
    """Drain ready slots that had no lease for more than `idle_scale_down` seconds.

    A pool keeps `min_slots` slots in service, `target_warm_slots` in reserve, and those that are to be stopped later
    (`to_stop`). The slot that was idle longest goes first; of equal ones the first in slot order.
    """
    pools = count_slots(cycle, _list_spared(cycle, headroom, limits), to_stop)
    if cycle.timers.rests_until(scale_in_due(pools)):
        return
    for each in pools.values():
        for slot_info in each.list_endable()[: max(0, each.spare)] if each.idle else ():
            if not cycle.timers.rests_until(find_idle_end(slot_info.idle_since, each.pool)):
                cycle.move_slot(slot_info, Drain(slot=slot_info.slot.id, reason="idle"))
