"""Headroom for withheld launches: how many launches only `max_slots` or EC2's quota withholds, and which unneeded slots
end so that a later cycle can make these launches.

The launches are found by imagining: this module decides them as if `max_slots` and EC2's quota were higher, on slots
that do not exist, and only counts them.

Source: Arvados' "at quota". Arvados stops at the first reservation over quota and shuts down all idle machines.
Leasehold ends only unneeded slots, and only as many as launches are withheld.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Final

from scheduler.model.decisions import Drain, Terminate
from scheduler.model.pools import Pool
from scheduler.model.quota_classes import is_limited_by, quota_subject
from scheduler.model.slots import Slot
from scheduler.model.waiting_codes import LACKING_SLOT
from scheduler.policy.capacity.gang import Shareable, fill
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_index import SlotIndex
from scheduler.policy.capacity.slot_info import SlotInfo, make_slot_info
from scheduler.policy.cycle.state import CycleState, Headroom, Shortfall
from scheduler.policy.scaling.budgets import Payer
from scheduler.policy.scaling.launch_limits import LaunchLimits
from scheduler.policy.scaling.offerings import Choice, could_serve
from scheduler.policy.scaling.pool_size import PoolSlots, count_slots, is_unneeded

_MOST: Final = 1 << 32
"""A number that is greater than the number of slots of any pool."""
_LACKS_SLOT: Final = frozenset({None, "behind_queue", *LACKING_SLOT})
"""Waiting codes (None: no code) of launches that could be made if the pool had more slots.

`behind_queue` is among them: a launch gets this code if its slot could serve any protected gang, even one that comes
later in the queue than the demand. A later gang does not prevent the launch. Whether an earlier gang prevents it is
tested with `_ImaginedLaunches.awaited`.
"""


def find_headroom(cycle: CycleState, shortfall: Shortfall, limits: LaunchLimits) -> Headroom:
    """Count, by pool, the launches that would be made if `max_slots` and EC2's quota allowed them. Several small
    reservations may share a launch. Also find the existing slots that these reservations would use together with the
    launched ones: `make_headroom` must not end such a slot to make place for the launches.

    Call this function before the warm pools are filled, because a pool with withheld launches gets no warm slot.
    """
    if not shortfall.demands or not any(_could_matter(slot_infos, limits) for slot_infos in cycle.pools.values()):
        return Headroom({}, frozenset(), {}, shortfall.closed, {}, {})
    wanted = {slot_info.slot.id for slot_info in cycle.slot_infos.values() if slot_info.wanted}
    by_quota, expected, beyond = _imagine_launches(cycle, shortfall, limits)
    spared = set()
    for slot_info in cycle.slot_infos.values():
        if slot_info.wanted and slot_info.slot.id not in wanted:
            slot_info.wanted = False
            spared.add(slot_info.slot.id)
    launches = {name: by_quota[name].total() + count for name, count in beyond.items()}
    return Headroom(launches, spared, beyond, shortfall.closed, by_quota, expected)


def make_headroom_due(pools: Mapping[str, PoolSlots], withheld: Iterable[str]) -> float:
    """Return minus infinity if a pool has a slot that ends for a withheld launch, else infinity. `withheld`: the pools
    with withheld launches.
    """
    return -inf if any(name in pools and pools[name].has_unneeded for name in withheld) else inf


def make_headroom(cycle: CycleState, headroom: Headroom) -> None:
    """End one unneeded slot of a pool for each launch that is withheld there.

    A slot is unneeded if its pool is not a static pool, the slot is not cordoned, and the slot has neither a lease nor
    a reservation that waits for it. The slots in `headroom.spared` do not end although they are unneeded.

    Stopped slots end first, but not for EC2's quota, because they do not use it. Then slots in flight end, then the
    slots that were idle longest; of equal ones the first in slot order. `idle_scale_down`, `min_slots` and
    `target_warm_slots` protect no slot. Slots that drain or terminate already count as ended.

    For a launch that a quota withholds, only a slot ends that uses this quota: one of the same class and market, or one
    without an offering.
    """
    withheld = [name for name in cycle.rules.pools if headroom.launches.get(name)]
    if cycle.timers.rests_until(make_headroom_due(count_slots(cycle), withheld)):
        return
    for name in withheld:
        lacking = _Lacking(cycle.rules.pools[name], Counter(headroom.by_quota[name]), headroom.beyond[name])
        staying = [each for each in cycle.pools[name] if each.slot.id in headroom.spared]
        for slot_info in _choose_ending(cycle.pools[name], lacking, staying):
            decide = Terminate if slot_info.is_coming or slot_info.state == "stopped" else Drain
            cycle.move_slot(slot_info, decide(slot=slot_info.slot.id, reason="at_quota"))


def _choose_ending(
    slot_infos: Sequence[SlotInfo], lacking: "_Lacking", staying: Collection[SlotInfo]
) -> list[SlotInfo]:
    """Return the slots of a pool that end for the launches in `lacking`. `staying`: slots that must not end."""
    for slot_info in filter(_is_leaving, slot_infos):
        lacking.take(slot_info)
    unneeded = [each for each in slot_infos if is_unneeded(each) and each not in staying]
    unneeded.sort(key=lambda each: (not each.is_coming, 0.0 if each.is_coming else each.idle_since, each.order))
    unneeded.sort(key=lambda each: each.state != "stopped")
    return list(filter(lacking.take, unneeded))


def _is_leaving(slot_info: SlotInfo) -> bool:
    return slot_info.state in {"draining", "terminating"}


@dataclass
class _Lacking:
    """The withheld launches of a pool for which no slot ends yet. `by_quota`: the subject of the quota's back-off ->
    the launches that it withholds; `beyond`: the launches that `max_slots` withholds.
    """

    pool: Pool
    by_quota: Counter[str]
    beyond: int

    def take(self, slot_info: SlotInfo) -> bool:
        """Count the end of this slot for one launch. Return whether there is a launch that the end of the slot
        helps.
        """
        slot = slot_info.slot
        own = quota_subject(self.pool, slot.offering, slot.market or "")
        if slot_info.state != "stopped":
            limits = (limit for limit in +self.by_quota if not own or is_limited_by(own, limit))
            if (limit := next(limits, None)) is not None:
                self.by_quota[limit] -= 1
                return True
        self.beyond -= 1
        return self.beyond >= 0


def _could_matter(slot_infos: list[SlotInfo], limits: LaunchLimits) -> bool:
    """Return whether the withheld launches of a pool have to be counted, for one of two reasons: the pool has an
    unneeded slot, or it may still launch one for its minimum, its reserve or its stopped tier, which would be an
    unneeded slot in the next cycle.
    """
    if not slot_infos or not slot_infos[0].pool.is_elastic:
        return False
    pool = slot_infos[0].pool
    keeps = pool.min_slots > 0 or pool.target_warm_slots > 0 or pool.stopped_slots > 0
    return any(map(is_unneeded, slot_infos)) or (keeps and limits.bounds.count_left(slot_infos[0].slot.pool) > 0)


def _imagine_launches(
    cycle: CycleState, shortfall: Shortfall, limits: LaunchLimits
) -> tuple[dict[str, Counter[str]], dict[str, int], dict[str, int]]:
    """Return three tables about the launches that are withheld from the demands in `shortfall`: (1) pool -> subject of
    the quota's back-off that withholds them -> their number; (2) pool -> the number of the others; (3) pool -> how many
    of these the `max_slots` of the pool withholds.

    The launches are imagined for one demand after the other. If they do not serve all instances of a demand, they are
    undone, and equal demands are not tried again. The same happens if a budget would not allow them even after the
    slots that end for them have ended: no slot ends for a launch that a budget then withholds. No launch is imagined
    whose slot could serve a protected gang that comes before the demand in the queue, because the starvation guard
    would prevent such a launch.

    No slot ends for a launch that the trial of a quota delays. But the slots that a gang would use beside such launches
    are reserved, see `_ImaginedLaunches.reserve_beside_trial`.
    """
    most_launches = {
        name: _count_useful_launches(slot_infos, limits) for name, slot_infos in cycle.pools.items() if slot_infos
    }
    orders = {name: index * _MOST for index, name in enumerate(cycle.pools, 1)}
    trial = _ImaginedLaunches(limits, cycle.rules.pools, cycle.pools, orders, most_launches)
    there = [cycle.ready, *shortfall.kept.values(), cycle.coming, cycle.launched]
    most = {name: len(slot_infos) * _could_matter(slot_infos, limits) for name, slot_infos in cycle.pools.items()}
    done: set[Demand] = set()
    for index, demand in enumerate(shortfall.demands):
        trial.awaited += shortfall.awaited.get(index, ())
        if demand in done:
            continue
        if all(trial.by_quota[name].total() + trial.by_limit[name].total() >= most[name] for name in demand.pools):
            done.add(demand)
            continue
        trial.begin(demand)
        found = fill(demand, [*there, trial.slot_index], trial, accept=trial.could_be_made)
        if found is None and not trial.reserve_beside_trial(demand, there):
            done.add(demand)
    return trial.count()


def _count_useful_launches(slot_infos: list[SlotInfo], limits: LaunchLimits) -> int:
    """Return how many launches the pool could make if all its unneeded slots ended. Counting more withheld launches
    would be useless.
    """
    goes = sum(is_unneeded(slot_info) or _is_leaving(slot_info) for slot_info in slot_infos)
    name = slot_infos[0].slot.pool
    return min(limits.bounds.find_least(name), limits.bounds.count_left(name) + goes)


@dataclass
class _ImaginedLaunches:
    """The launches that would be made without `max_slots` and EC2's quota. They are only counted, by pool. `by_quota`:
    subject of the quota's back-off that prevents them -> their number; `by_limit`: all other launches, under "".
    """

    limits: LaunchLimits
    pools: Mapping[str, Pool]
    slot_infos: Mapping[str, Sequence[SlotInfo]]
    """Pool -> its slots."""
    orders: dict[str, int]
    """Pool -> the position in slot order of its first imagined slot. All imagined slots come behind the existing slots,
    by pool in configured order.
    """
    most_launches: dict[str, int]
    """Pool -> how many launches the pool could make if all its unneeded slots ended."""
    slot_index: SlotIndex = field(default_factory=lambda: SlotIndex([]))
    by_quota: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    by_limit: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    awaited: list[InstanceRequest] = field(default_factory=list)
    """Requests of the protected gangs that come before the present demand in the queue, see `Shortfall.awaited`."""
    demand: Demand = field(init=False)
    made: list[tuple[SlotInfo, Counter[str], str]] = field(default_factory=list)
    """The imagined slots of the present demand, each with the counter and the key under which it is counted."""
    costs: dict[Payer, float] = field(default_factory=lambda: defaultdict(float))
    """(pool, account) -> the sum of the prices per hour of the imagined launches, in dollars."""
    made_in: Counter[str] = field(default_factory=Counter)
    """Pool -> the number of imagined launches of the present demand there."""
    markets: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(pool, market) -> number of imagined slots."""
    numbers: Iterator[int] = field(default_factory=count)
    """Yields the numbers of the imagined slots. The number of an undone launch is not used again, so that no two slots
    have the same position.
    """
    is_beside_trial: bool = False
    """Whether launches that the trial of a quota delays may be imagined, too."""
    trials: SlotIndex = field(init=False)
    """The slots that this cycle launches or starts for gangs as trials."""

    def __post_init__(self) -> None:
        self.trials = SlotIndex(self.limits.trials)

    def begin(self, demand: Demand) -> None:
        """Make `demand` the present demand, without imagined launches. The calls of `extend` add launches to it, and
        `undo` removes them.
        """
        self.demand, self.made, self.made_in = demand, [], Counter()

    def extend(self, need: InstanceRequest) -> SlotInfo | None:
        """Imagine a launch for one instance, in the first pool where nothing but `max_slots` or EC2's quota may prevent
        it. Return the imagined slot; None if there is no such pool.
        """
        for name, choice in self._list_possible(need):
            quota = self.limits.refusals.find_quota(name, choice.key, choice.market)
            counter, limit = (self.by_limit[name], "") if quota is None else (self.by_quota[name], quota.subject)
            counter[limit] += 1
            self.costs[name, self.demand.payer] += choice.price
            if len(self.demand.needs) == 1 and not self._are_affordable(()):
                counter[limit] -= 1
                self.costs[name, self.demand.payer] -= choice.price
                continue
            number = next(self.numbers)
            slot = Slot(id=f"{name}+{number}", pool=name, state="launching")
            slot_info = make_slot_info(slot, self.pools[name], self.orders[name] + number)
            slot_info.capacity = slot_info.free = choice.capacity
            slot_info.labels, slot_info.idle_since = choice.labels, inf
            slot_info.market, slot_info.price = choice.market, choice.price
            self._count_market(slot_info, 1)
            self.made.append((slot_info, counter, limit))
            self.made_in[name] += 1
            self.slot_index.add(slot_info)
            return slot_info
        return None

    def could_extend(self, need: InstanceRequest) -> bool:
        """Return whether a launch can be imagined for an instance, now or after others."""
        is_possible = next(self._list_possible(need), None) is not None
        return is_possible or self.limits.offerings.may_change_turn(self.demand, need)

    def may_hold(self, need: InstanceRequest) -> bool:
        """Return whether a launch that can be imagined, for whatever instance, could hold this one."""
        return self.limits.offerings.have_fitting(self.demand, need)

    def list_shareable(self, need: InstanceRequest) -> Iterable[Shareable]:
        """Return the offerings that could hold an instance, and that some pool of the demand may launch."""
        for name, choice, _ in self.limits.list_choices(self.demand, need):
            yield name, choice.capacity, 0

    def _list_possible(self, need: InstanceRequest) -> Iterator[tuple[str, Choice]]:
        for name, choice, code in self.limits.list_choices(self.demand, need):
            if code not in _LACKS_SLOT or not self.limits.lacks_only_slot(name, choice, self.demand.payer):
                continue
            if not self.is_beside_trial and self.limits.refusals.is_probing(name, choice.key, choice.market):
                continue
            if self.made_in[name] < self.most_launches.get(name, 0) and not could_serve(name, choice, self.awaited):
                yield name, choice

    def reserve_beside_trial(self, demand: Demand, there: Sequence[SlotIndex]) -> bool:
        """Reserve the slots that a gang would use together with launches that the trial of a quota delays. Return
        whether there are such launches, and all instances would have slots. The launches are not counted.

        `there`: indexes of the slots that exist.
        """
        if len(demand.needs) == 1 or not self._meets_trial(demand):
            return False
        self.begin(demand)
        self.is_beside_trial = True
        found = fill(demand, [*there, self.trials, self.slot_index], self, accept=self.could_be_made)
        self.undo()
        self.is_beside_trial = False
        return found is not None

    def _meets_trial(self, demand: Demand) -> bool:
        choices = (each for need in dict.fromkeys(demand.needs) for each in self.limits.list_choices(demand, need))
        return any(self.limits.refusals.is_probing(name, choice.key, choice.market) for name, choice, _ in choices)

    def could_be_made(self, slot_infos: Collection[SlotInfo]) -> bool:
        """Return whether a later cycle could make all imagined launches of the present demand if the unneeded slots
        end first, within the budgets.

        `slot_infos`: the slots, imagined and existing, that the instances of the demand would use. An existing one
        cannot end to make place for a launch, even if no reservation has needed it before.
        """
        imagined = {slot_info for slot_info, _, _ in self.made}
        stay = Counter(each.slot.pool for each in slot_infos if each not in imagined and is_unneeded(each))
        has_slots = all(count + stay[name] <= self.most_launches[name] for name, count in self.made_in.items())
        return has_slots and self._are_affordable(slot_infos)

    def _are_affordable(self, used: Collection[SlotInfo]) -> bool:
        """Return whether the budgets allow all imagined launches once the slots that end for them have ended. `used`:
        the slots that the instances of the present demand would use, which do not end.
        """

        def list_ending() -> list[SlotInfo]:
            ending: list[SlotInfo] = []
            for name, beyond in self._count_beyond().items():
                lacking, there = _Lacking(self.pools[name], self.by_quota[name].copy(), beyond), self.slot_infos[name]
                ending += [*filter(_is_leaving, there), *_choose_ending(there, lacking, used)]
            return ending

        return self.limits.budgets.allow_all(self.costs, list_ending)

    def _count_beyond(self) -> dict[str, int]:
        """Return a table: pool -> how many imagined launches `max_slots` withholds."""
        names = {**self.by_quota, **self.by_limit}
        return {name: max(0, self.by_limit[name].total() - self.limits.bounds.count_left(name)) for name in names}

    def undo(self, keep: int = 0) -> None:
        """Undo the imagined launches of the present demand, except the first `keep` ones."""
        for slot_info, counter, limit in self.made[keep:]:
            counter[limit] -= 1
            self.made_in -= Counter([slot_info.slot.pool])  # a pool without launches is no key
            self.costs[slot_info.slot.pool, self.demand.payer] -= slot_info.price
            self._count_market(slot_info, -1)
            self.slot_index.remove(slot_info)
        del self.made[keep:]

    def _count_market(self, slot_info: SlotInfo, count: int) -> None:
        self.markets[slot_info.slot.pool, slot_info.market] += count
        self.limits.offerings.imagine(slot_info.slot.pool, slot_info.market, count)

    def count(self) -> tuple[dict[str, Counter[str]], dict[str, int], dict[str, int]]:
        """End the imagining and return three tables: (1) pool -> subject of the quota's back-off -> how many imagined
        launches it withholds; (2) pool -> the number of the others; (3) pool -> how many of these the `max_slots` of
        the pool withholds.

        This call also takes the imagined slots out of the pools' mixes in `limits`. So they no longer have a part in
        the turn of the market for real launches.
        """
        for (name, market), number in self.markets.items():
            self.limits.offerings.imagine(name, market, -number)
        beyond = self._count_beyond()
        expected = {name: self.by_limit[name].total() for name in beyond}
        return {name: self.by_quota[name] for name in beyond}, expected, beyond
