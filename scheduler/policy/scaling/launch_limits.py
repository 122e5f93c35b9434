"""The reasons that prevent launches: `max_slots`, budgets, EC2's refusals, failed boots.

Sources: the autoscaler, a project that Leasehold follows (how slots are counted); Arvados (launch back-offs).
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import inf
from types import MappingProxyType
from typing import Final

from scheduler.model.decisions import Launch, Start
from scheduler.model.launch_backoff import Hold, Kind, hold_id
from scheduler.model.quota_classes import is_limited_by, quota_subject
from scheduler.model.rules import list_unfound
from scheduler.model.slots import Market
from scheduler.model.waiting_codes import ENTRIES, HOLDING_RESERVE, OF_A_MARKET, NoCode, WaitingCode, first_code
from scheduler.policy.capacity.gang import has_room
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_index import SlotIndex
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState, FailedBoots
from scheduler.policy.scaling.budgets import BudgetLimits
from scheduler.policy.scaling.offerings import (
    Choice,
    PoolLaunches,
    could_serve,
    describe_turn,
    find_end,
    find_own_choice,
    find_rest,
    find_turn,
    list_configured,
    list_eligible,
    list_fallback,
    list_resized,
)

# How many more slots each pool may have: every `max_slots` that limits it.
#
# A pool is limited by its own `max_slots`, by that of its system and by that over all pools. Source: the autoscaler
# (how slots are counted).


class SlotBounds:
    """The numbers of slots that the pools may have in one cycle. `pools`: their launches so far, which count.

    `goes_on`: a function that returns whether something that ends at a time (seconds since the epoch) lasts, and
    schedules a cycle for its end.
    """

    def __init__(self, cycle: CycleState, pools: Mapping[str, PoolLaunches], goes_on: Callable[[float], bool]) -> None:
        self._rules, self._pools, self._goes_on = cycle.rules, pools, goes_on
        self._strangers = {hold.pool: hold for hold in cycle.view.holds.values() if hold.kind == "strangers"}
        self._bounds = {name: tuple(self._list(name)) for name in self._rules.pools}

    def _list(self, name: str) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield each `max_slots` that limits a pool, as (its value, the pools whose slots count towards it)."""
        rules = self._rules
        pool, own = rules.pools[name], rules.scheduler.system.get(rules.pools[name].system)
        yield pool.max_slots or 0, (name,)
        if rules.scheduler.max_slots:
            yield rules.scheduler.max_slots, tuple({**rules.pools, **self._strangers})
        if own is not None and own.max_slots:
            yield own.max_slots, rules.pools_of_system[pool.system]

    def find_least(self, name: str) -> int:
        """Return the lowest `max_slots` that limits this pool: its own, its system's or the one over all pools."""
        return min(most for most, _ in self._bounds[name])

    def count_left(self, name: str) -> int:
        """Return how many more launches this pool may have: the lesser of two numbers, how many more active slots each
        `max_slots` allows, and how many empty slots the pool has. Other limits are not tested.
        """
        left = min(most - self._count(pools) for most, pools in self._bounds[name])
        return max(0, min(left, len(self._pools[name].empty)))

    def may_grow(self, name: str) -> bool:
        """Return whether a pool has a slot that `max_slots` allows to launch, or a stopped slot that may be started."""
        has_tier = self._rules.pools[name].stopped_slots > 0
        return self.count_left(name) > 0 or (has_tier and bool(self._pools[name].startable))

    def is_full(self, name: str) -> bool:
        """Return whether no slot of a pool may be launched."""
        if not self._pools[name].empty:
            return True
        for most, pools in self._bounds[name]:  # noqa: SIM110  called for each launch, and a generator takes twice as long
            if self._count(pools) >= most:
                return True
        return False

    def count_strangers(self) -> int:
        """Return how many machines with the tags of any pool belonged to no slot at the last comparison with EC2."""
        return sum(map(self._count_strangers, self._strangers))

    def _count(self, pools: Sequence[str]) -> int:
        """Return the number of active slots of these pools plus the number of their machines that belong to no slot."""
        if len(pools) == 1 and not self._strangers:
            return self._pools[pools[0]].active
        known = (self._pools[name].active for name in pools if name in self._pools)
        return sum(known) + sum(map(self._count_strangers, pools))

    def _count_strangers(self, name: str) -> int:
        hold = self._strangers.get(name)
        return hold.active if hold is not None and self._goes_on(hold.until) else 0


# The launch back-offs of a cycle: which launches EC2's refusals prevent now.
#
# A back-off concerns what EC2 refused: an offering, a place, a quota class of a market, the pool, a market of the
# account, or every launch. The other launches go on. Sources: Arvados (back-offs, the trial after one for a quota);
# the EC2 user guide (quota classes).


class LaunchRefusals:
    """What EC2's refusals prevent in one cycle. `next_end`: the earliest end of a back-off that prevented a launch."""

    def __init__(self, cycle: CycleState, pools: Mapping[str, PoolLaunches]) -> None:
        self._cycle, self._pools, self._holds = cycle, pools, cycle.view.holds
        refused = {hold.pool for hold in self._holds.values() if hold.kind not in {"unhealthy", "strangers"}}
        self._refused = frozenset(pools if "*" in refused else refused)
        """The pools in which a back-off may prevent launches. Speed: the other pools are not searched."""
        self.next_end = inf
        self._launched: Counter[tuple[str, str]] = Counter()
        """(pool, quota subject) -> launches and starts that this cycle has decided."""

    def note_launch(self, name: str, key: str | None, market: str, count: int = 1) -> None:
        """Count a launch or start of this cycle, which may be the trial of a quota. `count` -1 takes it back."""
        if name in self._refused:
            self._launched[name, quota_subject(self._cycle.rules.pools[name], key, market)] += count

    def find_code(self, name: str, choice: Choice) -> WaitingCode | None:
        """Return the waiting code of the back-off that prevents a launch or start of this choice; None: there is none.
        Back-offs for quotas are not considered.
        """
        if name not in self._refused:
            return None
        if self._is_resting(name, choice, ("capacity",)):
            return "capacity"
        if self._lasts_for(choice, name, hold_id(name, "throttled")):
            return "throttled"
        permissions = ((name, choice.key or ""), (name, ""), ("*", choice.market), ("*", ""))
        if any(self._lasts_for(choice, name, hold_id(pool, "auth", subject)) for pool, subject in permissions):
            return "misconfigured"
        return "misconfigured" if self._is_resting(name, choice, ("capacity", "misconfigured")) else None

    def _is_resting(self, name: str, choice: Choice, kinds: tuple[Kind, ...]) -> bool:
        pool = self._cycle.rules.pools[name]
        rest = find_rest(name, pool, choice, self._holds, kinds, lambda hold: self._lasts_for(choice, name, hold.id))
        return rest is not None

    def _lasts_for(self, choice: Choice, name: str, identity: str) -> bool:
        hold = self._holds.get(identity)
        return hold is not None and self.goes_on(find_end(self._cycle.rules.pools[name], choice.market, hold))

    def goes_on(self, until: float) -> bool:
        """Return whether a launch back-off that ends at `until` still lasts. If so, schedule a cycle for its end."""
        if self._cycle.is_due(until):
            return False
        self.next_end = min(self.next_end, until)
        return True

    def describe(self, code: WaitingCode, pools: Collection[str]) -> str | None:
        """Return the cloud's words about the newest refusal in these pools that leads to this waiting code; None: it
        gave none.
        """
        kinds = {*(ENTRIES[code].backoffs or ())} - {"unhealthy"}  # a failed boot is no answer of the cloud
        found = [hold for hold in self._holds.values() if hold.kind in kinds and hold.pool in {"*", *pools}]
        newest = max(found, key=lambda hold: (hold.refused_at, hold.id), default=None)
        return None if newest is None else newest.words

    def is_at_quota(self, name: str, offering: str | None, market: str) -> bool:
        """Return whether a back-off for a quota that a machine needs goes on, or the trial after it does."""
        return self.find_quota(name, offering, market) is not None or self.is_probing(name, offering, market)

    def find_quota(self, name: str, offering: str | None, market: str) -> Hold | None:
        """Return the back-off for EC2's quota that prevents launches of an offering, the narrowest one; None: none
        does.
        """
        holds = self._list_quotas(name, offering, market)
        return next((hold for hold in holds if not self._is_quota_over(name, hold)), None)

    def is_probing(self, name: str, offering: str | None, market: str) -> bool:
        """Return whether the trial after a back-off for a quota that an offering needs is under way: a launch, or the
        start of a stopped slot, of the same quota.
        """
        over = [hold for hold in self._list_quotas(name, offering, market) if self._is_quota_over(name, hold)]
        if not over:
            return False
        under_way = {subject for (each, subject), count in self._launched.items() if each == name and count}
        for slot_info in self._cycle.pools[name]:
            slot = slot_info.slot
            is_asked = slot.state == "launching" or (slot.state == "booting" and slot.power == "start")
            if is_asked and slot_info.state == slot.state:
                under_way.add(quota_subject(slot_info.pool, slot.offering, slot.market or ""))
        return any(is_limited_by(subject, hold.subject) for subject in under_way for hold in over)

    def may_probe(self, name: str, choice: Choice) -> bool:
        """Return whether a back-off for a quota that this choice needs is over, and no launch or start has succeeded
        since. Then one of them may test whether EC2 still refuses machines.
        """
        quotas = list(self._list_quotas(name, choice.key, choice.market))
        return bool(quotas) and all(self._is_quota_over(name, hold) for hold in quotas)

    def _list_quotas(self, name: str, offering: str | None, market: str) -> Iterator[Hold]:
        if name in self._refused:
            subject = quota_subject(self._cycle.rules.pools[name], offering, market)
            for each in dict.fromkeys((subject, market, "")):
                if (hold := self._holds.get(hold_id(name, "quota", each))) is not None:
                    yield hold

    def _is_quota_over(self, name: str, hold: Hold) -> bool:
        there = self._pools[name]
        fewer = hold.active > 0 and there.active - there.launches < hold.active
        return fewer or not self.goes_on(hold.until)


# Which offerings a launch may choose at present, by the market that is next in each pool.


class EligibleOfferings:
    """The offerings that launches of one cycle may choose. What may prevent a launch is not tested (`LaunchLimits`).

    `pools`: the launches so far, which decide the market that is next.
    """

    def __init__(self, cycle: CycleState, pools: Mapping[str, PoolLaunches]) -> None:
        self._rules, self._holds, self._pools = cycle.rules, cycle.view.holds, pools
        self._known: dict[tuple[object, ...], list[tuple[str, Choice]]] = {}

    @cached_property
    def has_mix(self) -> bool:
        """Whether the rules of any pool divide its slots among the markets (spot and on-demand)."""
        return any(pool.market.has_mix for pool in self._rules.pools.values())

    def list_for(self, demand: Demand, need: InstanceRequest) -> list[tuple[str, Choice]]:
        """Return (pool, choice) of the offerings that a launch for one instance may choose, best first."""
        turns = tuple(map(self._find_turn, demand.pools)) if self.has_mix else ()
        wanted = (need, demand.impatient, turns)
        if wanted not in self._known:
            found = self._known[wanted] = []
            for name in demand.pools:
                fitting = self._pools[name].list_fitting(need) if self._rules.pools[name].is_elastic else []
                found += [(name, choice) for choice in self._list_launchable(name, fitting, demand, need)]
        return self._known[wanted]

    def _list_launchable(
        self, name: str, fitting: list[Choice], demand: Demand, need: InstanceRequest
    ) -> Iterator[Choice]:
        """Yield the choices in `fitting` that a launch for one instance may take, in the order in which they are tried.

        If no spot offering of the pool could hold the instance, on-demand ones serve it when it is spot's turn, too:
        there is no spot machine to wait for. The reverse does not hold, so that a pool never has fewer on-demand slots
        than its rules require.
        """
        pool, turn = self._rules.pools[name], self._find_turn(name)
        if turn == "spot" and not any(
            each.market == turn and need.could_hold(name, each.capacity, each.labels) for each in list_configured(pool)
        ):
            turn = None
        eligible = list_eligible(fitting, pool, turn)
        yield from eligible
        yield from list_fallback(
            name, pool, fitting, eligible, self._holds, turn, is_impatient=name in demand.impatient
        )

    def list_next(self, name: str) -> list[Choice]:
        """Return the choices for a launch that no reservation needs, for example of a warm slot, best first. Such a
        launch falls back to on-demand only in a pool that divides its slots among the markets.
        """
        pool, turn, choices = self._rules.pools[name], self._find_turn(name), self._pools[name].choices
        eligible = list_eligible(choices, pool, turn)
        if not pool.market.has_mix:
            return eligible
        return [*eligible, *list_fallback(name, pool, choices, eligible, self._holds, turn)]

    def _find_turn(self, name: str) -> Market | None:
        """Return the market that the next launch in a pool is to have; None if the price decides."""
        rules = self._rules.pools[name].market
        return find_turn(rules, self._pools[name].mix) if rules.has_mix else None

    def describe_turn(self, name: str) -> str | None:
        """Return a text about the market that the next launch of a pool is to have; None if the price decides."""
        text = describe_turn(self._rules.pools[name].market, self._pools[name].mix)
        return None if text is None else f"pool {name}: {text}"

    def imagine(self, name: str, market: str, count: int) -> None:
        """Add `count` slots of this market to the pool's mix, which decides the market of its next launch. A negative
        number takes slots out.
        """
        if self.has_mix:
            self._pools[name].mix.add(market, count)

    def have_fitting(self, demand: Demand, need: InstanceRequest) -> bool:
        """Return whether an offering of a pool of the demand could hold an instance, whether or not a launch for this
        instance may choose it.
        """
        return any(self._pools[name].list_fitting(need) for name in demand.pools)

    def may_change_turn(self, demand: Demand, need: InstanceRequest) -> bool:
        """Return whether launches for other instances may make a launch for this one possible, because it is then the
        turn of another market.
        """
        return self.has_mix and self.have_fitting(demand, need)


_NO_BOOTS: Final[FailedBoots] = MappingProxyType({})


class LaunchLimits:
    """The limits on the launches of one cycle, and the launches decided so far, which count towards the limits.

    `failed_boots`: pool -> slots whose boot failed in this cycle. They count against their pool before the commit.
    """

    def __init__(self, cycle: CycleState, failed_boots: FailedBoots = _NO_BOOTS) -> None:
        self._cycle, self._failed_boots = cycle, failed_boots
        self.launches = 0
        """How many launches and starts this cycle has decided so far."""
        self.closed: set[str] = set()
        """The pools in which launches for reservations are withheld, see `list_closed`."""
        self.pools = {name: PoolLaunches(cycle, name) for name in cycle.rules.pools}
        self.offerings = EligibleOfferings(cycle, self.pools)
        self.refusals = LaunchRefusals(cycle, self.pools)
        self.bounds = SlotBounds(cycle, self.pools, self.refusals.goes_on)
        self.trials: list[SlotInfo] = []
        """Slots that this cycle launches or starts for gangs as trials of a quota. No other reservation gets them."""
        self._reserved: list[InstanceRequest] = []
        """Requests of protected gangs, from `reserve`. No launch that could hold one is made for other reservations."""
        self._cordoned_room: dict[Demand, bool] = {}
        self.budgets = BudgetLimits(cycle)
        self._unfound = dict(list_unfound(cycle.rules))
        """Pool -> the source of its image, if the image was not found yet, so that nothing can be launched."""
        self._knows_refusals = bool(cycle.view.holds or failed_boots or self.budgets.limiting or self._unfound)
        """Whether anything except `max_slots` may prevent a launch."""

    @property
    def next_end(self) -> float:
        """The earliest end of a back-off or budget period that prevented a launch in this cycle; infinity: no launch
        was prevented by something that ends at a known time.
        """
        return self.refusals.next_end

    def find_code(self, name: str, choice: Choice, account: str = "") -> WaitingCode | None:
        """Return the waiting code of the reason that prevents a launch of this choice in the pool `name`; None if it
        can be launched now. `account`: the account whose reservation causes the launch; "": none.
        """
        if self.bounds.is_full(name):
            return "at_max_slots"
        if not self._knows_refusals:
            return None
        if self.refusals.is_at_quota(name, choice.key, choice.market):
            return "at_quota"
        return self._find_refusal(name, choice, account)

    def lacks_only_slot(self, name: str, choice: Choice, account: str = "") -> bool:
        """Return whether nothing but `max_slots` or EC2's quota can prevent a launch of this choice in the pool. The
        trial of a quota is not considered, see `LaunchRefusals.is_probing`.
        """
        return self._find_refusal(name, choice, account) is None

    def _find_refusal(self, name: str, choice: Choice, account: str) -> WaitingCode | None:
        if self.budgets.is_over(name, choice.price, account):
            self.refusals.goes_on(self.budgets.find_end(name, account))
            return "over_budget"
        if code := self.refusals.find_code(name, choice):
            return code
        return "misconfigured" if name in self._unfound or self._is_unhealthy(name) else None

    def describe(self, code: WaitingCode, pools: Sequence[str], account: str = "") -> str:
        """Return the sentence that explains a waiting code, with details of these pools and the budgets of this
        account.
        """
        if code == "misconfigured":
            for name in pools:
                if name in self._unfound:
                    return f"nothing is launched in {name} until its image is found: {self._unfound[name]}"
                if self._is_unhealthy(name):
                    return self._describe_boots(name)
        if code == "over_budget" and (names := self.budgets.list_tight(pools, account)):
            return f"{ENTRIES[code].sentence}: {', '.join(names)}"
        if code == "at_max_slots" and (count := self.bounds.count_strangers()):
            return f"{ENTRIES[code].sentence}; machines of ours that no slot knows: {count}"
        turns = (
            [self.offerings.describe_turn(name) for name in pools]
            if self.offerings.has_mix and code in OF_A_MARKET
            else []
        )
        return "; ".join([ENTRIES[code].sentence, *filter(None, [*turns, self.refusals.describe(code, pools)])])

    def list_choices(self, demand: Demand, need: InstanceRequest) -> Iterator[tuple[str, Choice, WaitingCode | None]]:
        """Yield the offerings that a launch for one instance may choose, best first: (pool, choice, waiting code of the
        reason that prevents the launch; None: it is possible).
        """
        for name, choice in self.offerings.list_for(demand, need):
            yield name, choice, self._find_code_behind(name, choice, demand.payer)

    def list_closed(self, demand: Demand, need: InstanceRequest) -> Collection[str]:
        """Return the pools in which the launch for an instance is withheld by `max_slots`, EC2's quota or a budget.

        Speed: pools without a warm reserve and without a stopped tier are left out.
        """
        codes: dict[str, list[WaitingCode | None]] = {}
        if self._kept:
            for name, _, code in self.list_choices(demand, need):
                codes.setdefault(name, []).append(code)
        return [name for name, found in codes.items() if name in self._kept and first_code(found) in HOLDING_RESERVE]

    @cached_property
    def _kept(self) -> frozenset[str]:
        """The pools that keep a warm reserve or a stopped tier."""
        pools = self._cycle.rules.pools.items()
        return frozenset(name for name, pool in pools if pool.target_warm_slots or pool.stopped_slots)

    @property
    def reserved(self) -> int:
        """The number of different requests that `reserve` has got."""
        return len(self._reserved)

    def reserve(self, demand: Demand) -> None:
        """Make no further launch in this cycle for other reservations if the new slot could serve an instance of this
        protected demand.

        The starvation guard would keep the new slot for the protected reservation anyway.
        """
        self._reserved += [need for need in dict.fromkeys(demand.needs) if need not in self._reserved]

    def _find_code_behind(self, name: str, choice: Choice, account: str) -> WaitingCode | None:
        code = self.find_code(name, choice, account)
        # Speed: this runs for each launch, and almost always nothing is reserved.
        return "behind_queue" if code is None and self._reserved and could_serve(name, choice, self._reserved) else code

    def find_machine(
        self, demand: Demand, need: InstanceRequest
    ) -> tuple[str, Choice, SlotInfo | None] | WaitingCode | NoCode:
        """Return the machine that an instance may get now: (pool, choice, the stopped slot that is started with this
        choice; None: it is launched). If none is possible, return the waiting code to report; "" if there is no
        offering to choose for the instance.
        """
        started = self.find_start(demand.pools, need, demand.payer)
        if started is not None:
            name, slot_info, choice = started
            return name, choice, slot_info
        codes: list[WaitingCode] = []
        for name, choice in self.offerings.list_for(demand, need):
            code = self._find_code_behind(name, choice, demand.payer)
            if code is None:
                return name, choice, None
            codes.append(code)
        return first_code(codes)

    def take(
        self, machine: tuple[str, Choice, SlotInfo | None], account: str | None, gang: str | None = None
    ) -> SlotInfo:
        """Decide the launch or start that `find_machine` returned, for a reservation. Return the slot."""
        name, choice, slot_info = machine
        if slot_info is None:
            return self.launch(name, choice, "demand", account, gang)
        self.start(name, slot_info, choice, "demand", account)
        return slot_info

    def launch(
        self, name: str, choice: Choice, reason: str, account: str | None = None, gang: str | None = None
    ) -> SlotInfo:
        """Decide a launch of this offering on the first empty slot of a pool. Return the slot, which is in flight now.
        `account`, `gang`: the account and the gang for which the machine is launched; None: there is none.
        """
        there = self.pools[name]
        slot_info = there.empty.pop()
        there.active += 1
        there.launches += 1
        slot = slot_info.slot.id
        launched = Launch(slot=slot, pool=name, offering=choice.key, reason=reason, account=account, gang=gang)  # type: ignore[arg-type]
        self.refusals.note_launch(name, choice.key, choice.market)
        self._decide(launched, name, slot_info, choice)
        return slot_info

    def _decide(self, decision: Launch | Start, name: str, slot_info: SlotInfo, choice: Choice) -> None:
        self.launches += 1
        self._cycle.decide(decision)
        self.budgets.add(name, choice.price, decision.account or "")
        self.offerings.imagine(
            name, choice.market, 1
        )  # before the state changes: the first call counts the slots as they are
        slot_info.state = "launching" if isinstance(decision, Launch) else "booting"
        slot_info.capacity = slot_info.free = choice.capacity
        slot_info.labels, slot_info.market, slot_info.price = choice.labels, choice.market, choice.price

    def find_start(
        self, pools: Iterable[str], need: InstanceRequest | None = None, account: str = ""
    ) -> tuple[str, SlotInfo, Choice] | None:
        """Return (pool, slot, choice) of a stopped slot that can be started for an instance; None if there is none.
        `choice`: the offering with which the slot is started. `need` None: the slot need not fit an instance.

        Pools are tried in the given order; in each pool the cheapest slot goes first. What prevents a launch of the
        slot's offering prevents its start too, except `max_slots`. While EC2 has no capacity for this offering, a pool
        with `resize_stopped` starts the slot with another offering.
        """
        for name in pools:
            for slot_info in self.pools[name].startable if self._cycle.rules.pools[name].stopped_slots else ():
                own = find_own_choice(slot_info)
                code = self._find_start_code(name, own, need, account)
                choices = list_resized(slot_info) if code == "capacity" else [own] if code is None else []
                for choice in choices:
                    if choice is own or self._find_start_code(name, choice, need, account) is None:
                        return name, slot_info, choice
        return None

    def _find_start_code(self, name: str, choice: Choice, need: InstanceRequest | None, account: str) -> str | None:
        if need is not None and not need.could_hold(name, choice.capacity, choice.labels):
            return "no_capacity"
        if need is not None and could_serve(name, choice, self._reserved):
            return "behind_queue"
        if self.refusals.is_at_quota(name, choice.key, choice.market):
            return "at_quota"
        return self._find_refusal(name, choice, account)

    def start(self, name: str, slot_info: SlotInfo, choice: Choice, reason: str, account: str | None = None) -> None:
        """Decide to start a stopped slot with an offering, as `find_start` returned both. The slot is in flight now."""
        there = self.pools[name]
        there.startable.remove(slot_info)
        there.starts += 1
        self.refusals.note_launch(name, choice.key, choice.market)
        started = Start(slot=slot_info.slot.id, pool=name, offering=choice.key, reason=reason, account=account)  # type: ignore[arg-type]
        self._decide(started, name, slot_info, choice)

    def count_launches(self, pools: Iterable[str]) -> int:
        """Return how many launches and starts this cycle has decided in these pools."""
        return sum(self.pools[name].launches + self.pools[name].starts for name in pools)

    def undo(self, name: str, slot_info: SlotInfo) -> None:
        """Undo the last launch or start of this cycle, which was on this slot. No other decision may have been made
        since then.
        """
        launched, there = self._cycle.decisions.pop(), self.pools[name]
        self.launches -= 1
        self.budgets.add(name, -slot_info.price, getattr(launched, "account", None) or "")
        self.offerings.imagine(name, slot_info.market, -1)
        self.refusals.note_launch(name, launched.offering, slot_info.market, -1)  # type: ignore[union-attr]
        if isinstance(launched, Start):
            there.starts -= 1
            own = find_own_choice(slot_info)
            slot_info.state, slot_info.labels, slot_info.price = "stopped", own.labels, own.price
            slot_info.capacity = slot_info.free = own.capacity
            vars(there).pop("startable", None)  # it is listed again when it is needed
            return
        there.active -= 1
        there.launches -= 1
        there.empty.append(slot_info)
        slot_info.state = "empty"

    def choose_code(self, demand: Demand, code: WaitingCode) -> WaitingCode:
        """Return the waiting code to report for a reservation that no launch serves: `code`, with one exception.

        It is `cordoned` instead of `at_max_slots` if cordoned slots have room for all its instances. Source: Arvados.
        """
        if code != "at_max_slots" or not self.has_cordoned_room(demand):
            return code
        if len(demand.needs) == 1:
            return "cordoned"
        slot_index = SlotIndex([slot_info for name in demand.pools for slot_info in self.pools[name].cordoned])
        found = has_room(demand, (slot_index,))
        slot_index.close()
        return "cordoned" if found else code

    def has_cordoned_room(self, demand: Demand) -> bool:
        """Return whether each instance of a demand, by itself, would fit on a cordoned slot."""
        if demand not in self._cordoned_room:
            there = [p for name in demand.pools for p in self.pools[name].cordoned if p.slot.id not in demand.declined]
            self._cordoned_room[demand] = all(
                any(p.has_place and need.could_hold(p.slot.pool, p.free, p.labels) for p in there)
                for need in dict.fromkeys(demand.needs)
            )
        return self._cordoned_room[demand]

    def _is_unhealthy(self, name: str) -> bool:
        """Return whether launches in a pool are paused because `unhealthy_after` boots in a row failed. The pause lasts
        for `error_cooldown`; after that one machine at a time is launched until a boot succeeds.
        """
        pool, hold = self._cycle.rules.pools[name], self._cycle.view.holds.get(hold_id(name, "unhealthy"))
        failed_now = self._failed_boots.get(name, ())
        streak = (hold.streak if hold else 0) + len(failed_now)
        if not pool.unhealthy_after or streak < pool.unhealthy_after:
            return False
        until = self._cycle.now + pool.error_cooldown if failed_now or hold is None else hold.until
        return self.refusals.goes_on(until) or any(slot_info.is_coming for slot_info in self._cycle.pools[name])

    def _describe_boots(self, name: str) -> str:
        hold, failed_now = self._cycle.view.holds.get(hold_id(name, "unhealthy")), self._failed_boots.get(name)
        count = (hold.streak if hold else 0) + len(failed_now or ())
        last = f"{failed_now[-1]} timed out" if failed_now else hold.subject if hold else ""
        return f"{count} boots in a row failed (the last one: {last}); launches of {name} rest, then one is tried alone"
