"""What the budgets in dollars do in one cycle: which launches they prevent, and which machines they drain."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

from scheduler.model.budgets import NOTHING_SPENT, Budget, find_allowed, find_next_period
from scheduler.model.decisions import Drain, Terminate
from scheduler.model.rules import Rules
from scheduler.model.transitions import UNPAID
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState

TINY: Final = 1e-6
"""Dollars by which sums of prices may differ from a limit without exceeding it, because floats are rounded."""
Payer = tuple[str, str]
"""(pool, account) of a launch; the account is "" if the launch is for none."""
_LEAVING: Final = UNPAID | {"draining", "terminating"}


@dataclass(slots=True)
class _Account:
    """One budget in this cycle, in dollars per hour. `allowed`: the highest sum of prices that the budget's machines
    may have at present. `rate`: the sum of the prices of its active machines.
    """

    name: str
    budget: Budget
    allowed: float
    rate: float


class BudgetLimits:
    """The budgets that limit the launches of one cycle. A launch counts as soon as this cycle has decided it."""

    def __init__(self, cycle: CycleState) -> None:
        self._cycle = cycle
        limiting = {name: each for name, each in cycle.rules.budgets.items() if each.is_limit}
        self.limiting = [
            _Account(name, each, find_allowed(each, cycle.rules.spending.get(name, NOTHING_SPENT)), 0.0)
            for name, each in limiting.items()
        ]
        """The budgets that can prevent launches, each with its state in this cycle. These are all budgets whose action
        is not `warn` (`Budget.is_limit`).
        """
        for each in self.limiting:
            each.rate = sum_prices(each.budget, active(cycle))

    def is_over(self, pool: str, price: float, account: str) -> bool:
        """Return whether a budget does not allow the launch of a machine with this price (dollars per hour) in `pool`
        for `account`. The result is False for a machine without a known price.
        """
        return any(_exceeds(each, price) for each in self.limiting if each.budget.covers(pool, account))

    def allow_all(self, costs: Mapping[Payer, float], list_ending: Callable[[], Collection[SlotInfo]]) -> bool:
        """Return whether no budget is exceeded when machines run in addition to those of this cycle, and other machines
        have ended. `costs`: (pool, account) -> the sum of the prices of the additional machines, in dollars per hour;
        `list_ending`: a function that returns the slots whose machines have ended.
        """
        for each in self.limiting:
            added = sum(cost for payer, cost in costs.items() if each.budget.covers(*payer))
            if added <= TINY or not _exceeds(each, added):
                continue
            freed = sum_prices(each.budget, filter(is_paid, list_ending()))
            if each.rate + added - freed > each.allowed + TINY:
                return False
        return True

    def find_end(self, pool: str, account: str) -> float:
        """Return when the first new day or month begins for a budget that counts launches of this pool for this
        account. Return infinity if no such budget has a limit for a day or a month.
        """
        spending, now = self._cycle.rules.spending, self._cycle.now
        covering = (each for each in self.limiting if each.budget.covers(pool, account))
        return min(
            find_next_period(each.budget, now, spending.get(each.name, NOTHING_SPENT).time_zero) for each in covering
        )

    def add(self, pool: str, price: float, account: str) -> None:
        """Count a launch of a machine with this price in each budget that counts launches of this pool for this
        account. A negative price takes such a launch out again.
        """
        for each in self.limiting:
            if each.budget.covers(pool, account):
                each.rate += price

    def list_tight(self, pools: Iterable[str], account: str) -> list[str]:
        """Return the names of the budgets that may not allow a launch in one of these pools for this account."""
        rules = self._cycle.rules
        dearest = {name: max((each.price for each in rules.pools[name].offerings), default=0.0) for name in pools}
        return [
            each.name
            for each in self.limiting
            if any(_exceeds(each, price) for name, price in dearest.items() if each.budget.covers(name, account))
        ]

    def describe(self, pools: Iterable[str], account: str) -> list[str]:
        """Return a text for each budget that counts launches of these pools for this account: the dollars per hour that
        the budget allows at present, and the dollars per hour of its running machines.
        """
        names = list(pools)
        return [
            f"budget {each.name} allows {each.allowed:.2f} dollars an hour at present, {each.rate:.2f} run"
            for each in self.limiting
            if any(each.budget.covers(name, account) for name in names)
        ]


def _exceeds(each: _Account, price: float) -> bool:
    return price > 0 and each.rate + price > each.allowed + TINY


def active(cycle: CycleState) -> list[SlotInfo]:
    """Return the slots of a cycle that have a machine which is paid by the hour, or get one by a launch or start that
    this cycle has decided. Slots whose stopped machine this cycle terminates are left out.
    """
    return list(filter(is_paid, cycle.slot_infos.values()))


def is_paid(slot_info: SlotInfo) -> bool:
    """Return whether a slot is one of those that `active` returns."""
    return slot_info.state not in UNPAID and not (
        slot_info.state == "terminating" and slot_info.slot.state == "stopped"
    )


def sum_prices(budget: Budget, slot_infos: Iterable[SlotInfo]) -> float:
    """Return the sum of the prices per hour, in dollars, of the slots in `slot_infos` that the budget counts."""
    return sum(each.price for each in slot_infos if budget.covers(each.slot.pool, find_payer_of(each)))


def find_payer_of(slot_info: SlotInfo) -> str:
    """Return the account for whose reservation the machine of a slot was launched; "": for no account."""
    return slot_info.slot.launched_for or ""


def drain_over_budget_due(rules: Rules) -> float:
    """Return minus infinity if a budget drains machines, else infinity."""
    return -inf if any(each.action == "drain" for each in rules.budgets.values()) else inf


def drain_over_budget(cycle: CycleState) -> None:
    """Drain machines for each budget with the action `drain`, until the remaining machines cost no more than the budget
    allows.

    The order is: (1) slots in flight, if no reservation waits for them; (2) ready slots without leases, longest idle
    first; (3) slots with leases, but only if nothing is left of the budget for the day or the month. The leases of a
    slot that drains go on until they end. Cordoned slots and machines without a price stay.
    """
    if cycle.timers.rests_until(drain_over_budget_due(cycle.rules)):
        return
    for name, budget in cycle.rules.budgets.items():
        if budget.action != "drain":
            continue
        allowed = find_allowed(budget, cycle.rules.spending.get(name, NOTHING_SPENT))
        staying = [each for each in active(cycle) if each.state not in _LEAVING]
        rate = sum_prices(budget, staying)
        for slot_info in _list_to_go(budget, staying, spares_leases=allowed > 0):
            if rate <= allowed + TINY:
                break
            rate -= slot_info.price
            decide = Terminate if slot_info.is_coming else Drain
            cycle.move_slot(slot_info, decide(slot=slot_info.slot.id, reason="over_budget"))


def _list_to_go(budget: Budget, staying: list[SlotInfo], *, spares_leases: bool) -> list[SlotInfo]:
    """Return the slots that may drain for a budget, in the order in which they drain. `staying`: the slots that are not
    ending already. `spares_leases`: whether slots with leases stay.
    """
    mine = [
        each
        for each in staying
        if each.price > 0 and not each.slot.cordoned and budget.covers(each.slot.pool, find_payer_of(each))
    ]
    # A slot that this cycle launches or starts has an unpaid row, and stays.
    coming = [each for each in mine if each.is_coming and not each.wanted and each.slot.state not in UNPAID]
    idle = sorted((each for each in mine if each.is_idle), key=lambda each: (each.idle_since, each.order))
    used = [] if spares_leases else [each for each in mine if each.state == "ready" and not each.is_idle]
    return [*coming, *idle, *used]
