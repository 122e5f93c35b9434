"""How many machines each pool keeps: the minimum and the warm reserve, headroom for withheld launches, the stopped tier
(`stopped_slots` machines that booted once, were stopped, and are started for demand), and scale-in.

Sources: the autoscaler's tick; for headroom Arvados' "at quota". Arvados stops at the first reservation over quota and
shuts down all idle machines. Leasehold ends only unneeded slots, and only as many as launches are withheld. For the
stopped tier: EC2 Auto Scaling (warm pools of stopped instances); surplus of scale-in fills it first.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Final

from scheduler.model.decisions import Drain, Stop, Terminate
from scheduler.model.pools import Pool
from scheduler.model.slots import Slot
from scheduler.model.transitions import UNPAID
from scheduler.policy.capacity.gang import fill
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_index import SlotIndex
from scheduler.policy.capacity.slot_info import SlotInfo, find_life, make_slot_info
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.cycle.step_values import (
    Headroom,
    Healed,
    Replaced,
    ScaledIn,
    Shortfall,
    Tiered,
    ToStop,
    Warm,
    WithHeadroom,
)
from scheduler.policy.scaling.launch_limits import LaunchLimits
from scheduler.policy.scaling.offerings import could_serve, has_to_go, is_in_tier, list_choices, list_eligible


def fill_warm_pools(cycle: Healed, headroom: Headroom, limits: LaunchLimits) -> Warm:
    """Launch the slots that the pools lack of `min_slots`, then those that they lack of `target_warm_slots`, within the
    limits. A stopped slot is started instead if its offering could be launched here.

    The minimum of every pool goes before the reserve of any pool, because a limit over all pools may allow only some of
    these slots. A pool with withheld launches for reservations gets none: its warm slot would be the first to end for
    headroom.
    """
    pools = [(name, pool) for name, pool in cycle.rules.pools.items() if pool.is_elastic]
    open_pools = [(name, pool) for name, pool in pools if not headroom.launches.get(name)]
    for name, pool in open_pools:
        if pool.min_slots:
            _launch(limits, name, "minimum", pool.min_slots - count_serving(cycle.pools[name]))
    for name, pool in open_pools:
        if pool.target_warm_slots:
            _launch(limits, name, "warm", pool.target_warm_slots - count_reserve(cycle.pools[name]))
    return Warm(cycle)


def count_serving(slot_infos: Sequence[SlotInfo]) -> int:
    """Count the slots that are ready or in flight and not cordoned; `min_slots` is compared with this number."""
    return sum(slot_info.is_serving for slot_info in slot_infos)


def count_reserve(slot_infos: Sequence[SlotInfo]) -> int:
    """Count the idle ready slots and the slots in flight without a reservation that waits for them; cordoned ones do
    not count. `target_warm_slots` is compared with this number.
    """
    return sum(
        slot_info.is_idle or (slot_info.is_serving and slot_info.is_coming and not slot_info.wanted)
        for slot_info in slot_infos
    )


def _launch(limits: LaunchLimits, name: str, reason: str, lacking: int) -> None:
    """Launch `lacking` slots in a pool, each of the first offering that nothing holds back; stop if no offering is
    left.
    """
    for _ in range(lacking):
        choices = limits.list_next(name)
        started = limits.find_start([name])
        if started is not None and any(choice.key == started[2].key for choice in choices):
            limits.start(*started, reason)
            continue
        free = next((choice for choice in choices if limits.find_code(name, choice) is None), None)
        if free is None:
            return
        limits.launch(name, free, reason)


def keep_tiers(cycle: Warm, headroom: Headroom, limits: LaunchLimits) -> tuple[Tiered, ToStop]:
    """Terminate stopped slots that a pool has beyond `stopped_slots`. If it lacks some, stop surplus slots, and launch
    the machines that are still missing. Return, by pool, how many slots in flight or idle are to be stopped later.

    A stop takes nothing from `min_slots` and `target_warm_slots`. A pool with withheld launches for reservations gets
    no machine for its tier.
    """
    to_stop: dict[str, int] = {}
    for name, pool in cycle.rules.pools.items():
        if not pool.stopped_slots:
            continue
        slot_infos = cycle.pools[name]
        present = [each for each in slot_infos if each.state == "stopped" and not each.slot.cordoned]
        lacking = pool.stopped_slots - len(present)
        if lacking < 0:
            _end_surplus(cycle, [each for each in present if is_in_tier(each)], -lacking)
            continue
        lacking -= _stop_surplus(cycle, slot_infos, pool, lacking)
        if lacking:
            stoppable = _launch_for_tier(cycle, limits, name, lacking, may_launch=not headroom.launches.get(name))
            to_stop[name] = min(lacking, stoppable)
    return Tiered(cycle), to_stop


def _end_surplus(cycle: CycleState, present: Sequence[SlotInfo], count: int) -> None:
    """Terminate this number of stopped slots: drifted and old ones first, then the dearest, then in slot order."""
    ranked = sorted(present, key=lambda each: (not has_to_go(each, cycle.now), -each.price, each.order))
    for slot_info in ranked[:count]:
        cycle.move_slot(slot_info, Terminate(slot=slot_info.slot.id, reason="surplus"))


def _stop_surplus(cycle: CycleState, slot_infos: Sequence[SlotInfo], pool: Pool, lacking: int) -> int:
    """Stop at most `lacking` ready slots that the pool does not need, longest idle first. Return their number.

    A slot that was launched for the tier is stopped as soon as it is ready, others when they were idle for longer than
    `idle_scale_down`.
    """
    stopped, most = 0, min(lacking, count_spare(slot_infos, pool))
    idle = [each for each in slot_infos if each.is_idle and may_be_stopped(cycle, each)]
    for slot_info in sorted(idle, key=lambda each: (each.idle_since, each.order)):
        slot = slot_info.slot
        if stopped >= most:
            break
        if slot.launch_reason == "stopped" and not slot.uses:
            cycle.move_slot(slot_info, Stop(slot=slot.id, reason="booted"))
        elif cycle.is_past(slot_info.idle_since, pool.idle_scale_down):
            cycle.move_slot(slot_info, Stop(slot=slot.id, reason="idle"))
        else:
            cycle.timers.add_after(slot_info.idle_since, pool.idle_scale_down)
            continue
        stopped += 1
    return stopped


def count_spare(slot_infos: Sequence[SlotInfo], pool: Pool) -> int:
    """Return how many slots scale-in may take from a pool: those beyond `min_slots` and `target_warm_slots`."""
    return min(count_serving(slot_infos) - pool.min_slots, count_reserve(slot_infos) - pool.target_warm_slots)


def may_be_stopped(cycle: CycleState, slot_info: SlotInfo) -> bool:
    """Return whether the slot's machine may be stopped once it is idle: an on-demand one that need not be replaced. If
    it may, schedule a cycle for the time when it will be too old.
    """
    if slot_info.market != "on-demand":
        return False
    if slot_info.state != slot_info.slot.state or not slot_info.pool.replacement.is_on:
        return True
    has_drifted, end = find_life(slot_info, slot_info.pool)
    if has_drifted or cycle.is_due(end):
        return False
    cycle.timers.add(end)
    return True


def _launch_for_tier(cycle: CycleState, limits: LaunchLimits, name: str, lacking: int, *, may_launch: bool) -> int:
    """Launch machines for the tier until as many slots in flight or idle are to spare, and may be stopped later, as the
    tier lacks. Each is of the cheapest on-demand offering that nothing holds back. Return how many slots in flight or
    idle may be stopped later.
    """
    slot_infos, pool = cycle.pools[name], cycle.rules.pools[name]
    reserve = [each for each in slot_infos if each.is_idle or (each.is_serving and each.is_coming and not each.wanted)]
    stoppable = sum(may_be_stopped(cycle, each) for each in reserve)
    spare = count_spare(slot_infos, pool)
    choices = list_eligible([each for each in list_choices(pool) if each.market == "on-demand"], pool)
    while may_launch and lacking > max(0, min(stoppable, spare)):
        free = next((choice for choice in choices if limits.find_code(name, choice) is None), None)
        if free is None:
            break
        limits.launch(name, free, "stopped")
        stoppable, spare = stoppable + 1, spare + 1
    return stoppable


def scale_in(cycle: Tiered, to_stop: ToStop) -> ScaledIn:
    """Drain ready slots that had no lease for longer than (not exactly) `idle_scale_down` seconds.

    A pool keeps `min_slots` slots in service, `target_warm_slots` in reserve, and those that are to be stopped later
    (`to_stop`). The slot that was idle longest goes first; of equal ones the first in slot order.
    """
    for name, slot_infos in cycle.pools.items():
        pool = cycle.rules.pools[name]
        idle = [slot_info for slot_info in slot_infos if slot_info.is_idle] if pool.is_elastic else []
        if not idle:
            continue
        idle.sort(key=lambda slot_info: (slot_info.idle_since, slot_info.order))
        spare = min(count_serving(slot_infos) - pool.min_slots, count_reserve(slot_infos) - pool.target_warm_slots)
        for slot_info in idle[: max(0, spare - to_stop.get(name, 0))]:
            if cycle.is_past(slot_info.idle_since, pool.idle_scale_down):
                cycle.move_slot(slot_info, Drain(slot=slot_info.slot.id, reason="idle"))
            else:
                cycle.timers.add_after(slot_info.idle_since, pool.idle_scale_down)
    return ScaledIn(cycle)


_MOST: Final = 1 << 32
"""A number of slots above that of any pool."""
_LACKS_SLOT: Final = frozenset({None, "behind_queue", "at_max_slots", "at_quota"})
"""Waiting codes of a demand that would be launched if there were more slots. `behind_queue` also stands for protected
gangs that come later in the queue; `_ImaginedLaunches.awaited` contains those that come before the demand.
"""


def find_headroom(cycle: Healed, shortfall: Shortfall, limits: LaunchLimits) -> Headroom:
    """Count, by pool, the launches that would be made if slots were left. Several small reservations may share a
    launch.

    Call it before the warm pools are filled, because a pool with withheld launches gets no warm slot.
    """
    if not shortfall.demands or not any(_could_matter(slot_infos, limits) for slot_infos in cycle.pools.values()):
        return Headroom({}, frozenset(), {})
    wanted = {slot_info.slot.id for slot_info in cycle.slot_infos.values() if slot_info.wanted}
    launches, beyond = _imagine_launches(cycle, shortfall, limits)
    spared = set()
    for slot_info in cycle.slot_infos.values():
        if slot_info.wanted and slot_info.slot.id not in wanted:
            slot_info.wanted = False
            spared.add(slot_info.slot.id)
    return Headroom(launches, spared, beyond)


def make_headroom(cycle: Replaced, headroom: Headroom) -> WithHeadroom:
    """End one unneeded slot of a pool for each launch that is withheld there.

    A slot is unneeded if it is elastic, not cordoned, and has neither a lease nor a reservation that waits for it.
    Stopped slots end first, unless the launch is withheld for EC2's quota, which they do not use. Then slots in flight
    end, then the slot that was idle longest, then slot order. `idle_scale_down`, `min_slots` and `target_warm_slots`
    protect no slot. Slots that drain or terminate already count.
    """
    for name, slot_infos in cycle.pools.items():
        if not (count := headroom.launches.get(name, 0)):
            continue
        under_way = sum(slot_info.state in {"draining", "terminating"} for slot_info in slot_infos)
        unneeded = [each for each in slot_infos if _is_unneeded(each) and each.slot.id not in headroom.spared]
        unneeded.sort(key=lambda each: (not each.is_coming, 0.0 if each.is_coming else each.idle_since, each.order))
        stopped = [each for each in unneeded if each.state == "stopped"][: headroom.beyond.get(name, 0)]
        unneeded = stopped + [each for each in unneeded if each.state != "stopped"]
        for slot_info in unneeded[: max(0, count - under_way)]:
            if slot_info.is_coming or slot_info.state == "stopped":
                cycle.move_slot(slot_info, Terminate(slot=slot_info.slot.id, reason="at_quota"))
            else:
                cycle.move_slot(slot_info, Drain(slot=slot_info.slot.id, reason="at_quota"))
    return WithHeadroom(cycle)


def _is_unneeded(slot_info: SlotInfo) -> bool:
    """Return whether a slot may end so that a withheld launch can run.

    A slot that this cycle launches or starts may not; its row is still inactive or stopped.
    """
    if slot_info.wanted:
        return False
    slot = slot_info.slot
    is_coming = slot_info.is_coming and slot.state not in UNPAID and not slot.cordoned
    is_stopped = slot_info.state == slot.state == "stopped" and not slot.cordoned
    return slot_info.pool.is_elastic and (slot_info.is_idle or is_coming or is_stopped)


def _could_matter(slot_infos: list[SlotInfo], limits: LaunchLimits) -> bool:
    """Return whether it is worth counting the withheld launches of a pool: it has an unneeded slot, or it may launch a
    warm slot that would be the next one to end.
    """
    if not slot_infos or not slot_infos[0].pool.is_elastic:
        return False
    pool = slot_infos[0].pool
    keeps = pool.min_slots > 0 or pool.target_warm_slots > 0
    return any(map(_is_unneeded, slot_infos)) or (keeps and limits.count_left(slot_infos[0].slot.pool) > 0)


def _imagine_launches(
    cycle: CycleState, shortfall: Shortfall, limits: LaunchLimits
) -> tuple[dict[str, int], dict[str, int]]:
    """Return, by pool, the launches that the withheld demands would cause, and those of them beyond `max_slots`.

    A demand whose imagined launches failed once is not tried again. A launch that could serve a protected gang before
    the demand is not imagined: the starvation guard would prevent it, too.
    """
    most_launches = {
        name: _count_useful_launches(slot_infos, limits) for name, slot_infos in cycle.pools.items() if slot_infos
    }
    orders = {name: index * _MOST for index, name in enumerate(cycle.pools, 1)}
    trial = _ImaginedLaunches(limits, cycle.rules.pools, orders, most_launches)
    there = [cycle.ready, *shortfall.kept.values(), cycle.coming, cycle.launched, trial.slot_index]
    most = {name: len(slot_infos) * _could_matter(slot_infos, limits) for name, slot_infos in cycle.pools.items()}
    done: set[Demand] = set()
    for index, demand in enumerate(shortfall.demands):
        trial.awaited += shortfall.awaited.get(index, ())
        if demand in done:
            continue
        if all(trial.by_quota[name] + trial.by_limit[name] >= most[name] for name in demand.pools):
            done.add(demand)
            continue
        trial.begin(demand)
        if fill(demand, there, trial.launch, accept=trial.could_be_made) is None:
            trial.undo()
            done.add(demand)
    return trial.count()


def _count_useful_launches(slot_infos: list[SlotInfo], limits: LaunchLimits) -> int:
    """Return how many launches the pool could make if all its unneeded slots ended. More headroom would be useless."""
    goes = sum(_is_unneeded(slot_info) or slot_info.state in {"draining", "terminating"} for slot_info in slot_infos)
    name = slot_infos[0].slot.pool
    return min(limits.find_bound(name), limits.count_left(name) + goes)


@dataclass
class _ImaginedLaunches:
    """The launches that would be made without `max_slots` and EC2's quota."""

    limits: LaunchLimits
    pools: Mapping[str, Pool]
    orders: dict[str, int]
    """By pool: the slot order of its first imagined slot. Pools are in configured order, behind all slots."""
    most_launches: dict[str, int]
    """By pool: how many launches the pool could make if all its unneeded slots ended."""
    slot_index: SlotIndex = field(default_factory=lambda: SlotIndex([]))
    by_quota: Counter[str] = field(default_factory=Counter)
    by_limit: Counter[str] = field(default_factory=Counter)
    awaited: list[InstanceRequest] = field(default_factory=list)
    """Requests of the protected gangs before the present demand, see `Shortfall.awaited`."""
    demand: Demand | None = None
    made: list[tuple[SlotInfo, Counter[str]]] = field(default_factory=list)
    made_in: Counter[str] = field(default_factory=Counter)
    """By pool: the imagined launches of the present demand."""
    markets: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By pool and market: the imagined slots."""
    numbers: Iterator[int] = field(default_factory=count)
    """Numbers of the imagined slots. An undone launch keeps its number, so that no two slots have the same order."""

    def begin(self, demand: Demand) -> None:
        """Start the computation for this demand: which launches would it cause?"""
        self.demand, self.made, self.made_in = demand, [], Counter()

    def launch(self, need: InstanceRequest) -> SlotInfo | None:
        """Return the slot that would be launched for one instance, in the first pool that lacks nothing but a free
        slot.
        """
        assert self.demand is not None, "begin() goes before"  # noqa: S101
        for name, choice, code in self.limits.list_choices(self.demand, need):
            if code not in _LACKS_SLOT or not self.limits.lacks_only_slot(name, choice, self.demand.payer):
                continue
            if self.made_in[name] >= self.most_launches.get(name, 0) or could_serve(name, choice, self.awaited):
                continue
            counter = self.by_quota if self.limits.is_at_quota(name, choice.market) else self.by_limit
            number = next(self.numbers)
            slot = Slot(id=f"{name}+{number}", pool=name, state="launching")
            slot_info = make_slot_info(slot, self.pools[name], self.orders[name] + number)
            slot_info.capacity = slot_info.free = choice.capacity
            slot_info.labels, slot_info.idle_since = choice.labels, inf
            counter[name] += 1
            slot_info.market = choice.market
            self._count_market(slot_info, 1)
            self.made.append((slot_info, counter))
            self.made_in[name] += 1
            self.slot_index.add(slot_info)
            return slot_info
        return None

    def could_be_made(self, slot_infos: Collection[SlotInfo]) -> bool:
        """Return whether the imagined launches of the present demand could be made if the unneeded slots ended.

        The slots in `slot_infos` cannot end, because instances of the demand would be on them.
        """
        imagined = {slot_info for slot_info, _ in self.made}
        stay = Counter(each.slot.pool for each in slot_infos if each not in imagined and _is_unneeded(each))
        return all(count + stay[name] <= self.most_launches[name] for name, count in self.made_in.items())

    def undo(self) -> None:
        """Undo the imagined launches of the present demand, because they do not serve all of its instances."""
        for slot_info, counter in self.made:
            counter[slot_info.slot.pool] -= 1
            self._count_market(slot_info, -1)
            self.slot_index.remove(slot_info)

    def _count_market(self, slot_info: SlotInfo, count: int) -> None:
        self.markets[slot_info.slot.pool, slot_info.market] += count
        self.limits.imagine(slot_info.slot.pool, slot_info.market, count)

    def count(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return, by pool, the launches that EC2's quota withholds plus those beyond `max_slots`, and the latter
        alone. From now on the imagined slots do not count for the market of the next launch.
        """
        for (name, market), number in self.markets.items():
            self.limits.imagine(name, market, -number)
        names = {**self.by_quota, **self.by_limit}
        beyond = {name: max(0, self.by_limit[name] - self.limits.count_left(name)) for name in names}
        return {name: self.by_quota[name] + beyond[name] for name in names}, beyond
