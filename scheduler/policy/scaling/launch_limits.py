"""The reasons that prevent launches: `max_slots`, budgets, EC2's refusals, failed boots.

Sources: the autoscaler, a project that Leasehold follows (how slots are counted); Arvados (launch back-offs).
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Final

from scheduler.model.decisions import Launch, Start
from scheduler.model.launch_backoff import hold_id
from scheduler.model.rules import list_unfound
from scheduler.model.waiting_codes import ENTRIES, HOLDING_RESERVE, OF_A_MARKET, NoCode, WaitingCode, first_code
from scheduler.policy.capacity.gang import has_room
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_index import SlotIndex
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.cycle.step_values import FailedBoots
from scheduler.policy.scaling.budgets import BudgetLimits
from scheduler.policy.scaling.eligible import EligibleOfferings
from scheduler.policy.scaling.launch_refusals import LaunchRefusals
from scheduler.policy.scaling.max_slots import SlotBounds
from scheduler.policy.scaling.offerings import (
    Choice,
    PoolLaunches,
    could_serve,
    find_own_choice,
    list_resized,
)

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
        if self.refusals.find_quota(name, choice) is not None or self.refusals.is_probing(name, choice):
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

    def find_launch(self, demand: Demand, need: InstanceRequest) -> tuple[str, Choice] | WaitingCode | NoCode:
        """Return (pool, choice) of the best launch for an instance that is possible now. If none is possible, return
        the waiting code to report; "" if there is no offering to choose for the instance.
        """
        codes: list[WaitingCode] = []
        for each in self.offerings.list_for(demand, need):
            code = self._find_code_behind(*each, demand.payer)
            if code is None:
                return each
            codes.append(code)
        return first_code(codes)

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
        choice; None: it is launched). If there is none, return the waiting code as `find_launch` does.
        """
        started = self.find_start(demand.pools, need, demand.payer)
        if started is not None:
            name, slot_info, choice = started
            return name, choice, slot_info
        found = self.find_launch(demand, need)
        return found if isinstance(found, str) else (*found, None)

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
        if self.refusals.find_quota(name, choice) is not None or self.refusals.is_probing(name, choice):
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
