"""Sums of the cost ledger, as commands and metrics show them, and the amounts that were spent of each budget, which are
added to the rules of a tick.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Final, Literal, get_args

import msgspec

from scheduler.model.budgets import Budget, Spent, begin_of_day, begin_of_month
from scheduler.model.costs import COST_KINDS, Cost
from scheduler.model.rules import Rules
from scheduler.model.slots import CostKind, Slot
from scheduler.model.transitions import UNPAID
from scheduler.ports import PoolCost, Store

By = Literal["pool", "account", "offering", "kind"]
WAYS: Final[tuple[By, ...]] = get_args(By)


class CostSum(msgspec.Struct, frozen=True, kw_only=True):
    """What the machines of one pool, account, offering or kind have cost, in dollars. `name`: the pool, account,
    offering or kind; "" for costs without an account or offering. `seconds`: the time of the machines.
    """

    name: str
    dollars: float
    seconds: float
    unpriced_seconds: float
    """The part of `seconds` for which the price is unknown, so that it costs 0 dollars."""
    dollars_by_kind: dict[CostKind, float]
    seconds_by_kind: dict[CostKind, float]


def sum_by(costs: Iterable[Cost], by: By) -> list[CostSum]:
    """Return the sums of these costs by pool, account, offering or kind (`by`), the highest cost first. Offerings are
    named with their pools: `POOL/OFFERING`.
    """
    groups: dict[str, list[Cost]] = defaultdict(list)
    for cost in costs:
        groups[f"{cost.pool}/{cost.offering}" if by == "offering" else getattr(cost, by)].append(cost)
    sums = [_add_up(name, each) for name, each in groups.items()]
    return sorted(sums, key=lambda each: (-each.dollars, -each.seconds, each.name))


def add_up(costs: Iterable[Cost]) -> CostSum:
    """Return the sum of all these costs, with an empty name."""
    return _add_up("", list(costs))


def _add_up(name: str, costs: list[Cost]) -> CostSum:
    dollars, seconds = dict.fromkeys(COST_KINDS, 0.0), dict.fromkeys(COST_KINDS, 0.0)
    for cost in costs:
        dollars[cost.kind] += cost.dollars
        seconds[cost.kind] += cost.seconds
    return CostSum(
        name=name,
        dollars=sum(dollars.values()),
        seconds=sum(seconds.values()),
        unpriced_seconds=sum(cost.unpriced for cost in costs),
        dollars_by_kind=dollars,
        seconds_by_kind=seconds,
    )


REFRESH_SECONDS: Final = 30.0
"""Seconds after which a tick reads the spent amounts again. In this time, a machine costs less than 1 % of its price
per hour.
"""


class BudgetStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What was spent of one budget, in dollars. `running`: the sum of the prices per hour of the active machines that
    the budget covers. `day`, `month`: the amounts spent since the present day and month began, in UTC. `per_hour`,
    `per_day`, `per_month`: the limits; None: no limit.
    """

    budget: str
    action: str
    running: float
    day: float
    month: float
    per_hour: float | None
    per_day: float | None
    per_month: float | None

    @property
    def exceeded(self) -> tuple[str, ...]:
        """The names of the limits that are exceeded: `per_hour`, `per_day`, `per_month`."""
        pairs = {
            "per_hour": (self.running, self.per_hour),
            "per_day": (self.day, self.per_day),
            "per_month": (self.month, self.per_month),
        }
        return tuple(key for key, (amount, most) in pairs.items() if most is not None and amount > most)


def read_spending(
    store: Store, rules: Rules, now: float, time_zero: float = 0.0, *, is_report: bool = False
) -> dict[str, Spent]:
    """Return what was spent of each budget since the present day and month began, in UTC. Without `is_report`, amounts
    that no limit of the rules needs are not read. `time_zero`: the time (seconds since the epoch) at which cluster time
    is 0, see `Ports.time_zero`.
    """
    if not (rules.budgets if is_report else any(each.is_timed for each in rules.budgets.values())):
        return {}
    day = store.sum_costs(begin_of_day(now, time_zero))
    is_monthly = is_report or any(each.per_month is not None for each in rules.budgets.values())
    month = store.sum_costs(begin_of_month(now, time_zero)) if is_monthly else []
    return {name: Spent(_add(each, day), _add(each, month), time_zero) for name, each in rules.budgets.items()}


def add_spending(store: Store, rules: Rules, now: float, time_zero: float = 0.0, *, is_report: bool = False) -> Rules:
    """Return the rules with the amounts that were spent of each budget. If no budget has a limit for a day or month,
    return the rules unchanged, unless `is_report`. `time_zero`: as for `read_spending`.
    """
    spending = read_spending(store, rules, now, time_zero, is_report=is_report)
    return rules.with_spending(spending) if spending else rules


def _add(budget: Budget, costs: Iterable[PoolCost]) -> float:
    return sum(each.dollars for each in costs if budget.covers(each.pool, each.account))


def describe_budgets(rules: Rules, slots: Collection[Slot]) -> list[BudgetStatus]:
    """Return the status of each budget. `rules`: rules that contain the spent amounts; `slots`: all slots."""
    active = [slot for slot in slots if slot.state not in UNPAID and slot.price]
    return [
        BudgetStatus(
            budget=name,
            action=each.action,
            running=sum(slot.price or 0.0 for slot in active if each.covers(slot.pool, slot.launched_for or "")),
            day=rules.spending.get(name, Spent()).day,
            month=rules.spending.get(name, Spent()).month,
            per_hour=each.per_hour,
            per_day=each.per_day,
            per_month=each.per_month,
        )
        for name, each in rules.budgets.items()
    ]


@dataclass
class SpendingReader:
    """Reads the spent amounts of the budgets for the ticks of one process. The object keeps the status of the budgets
    at the last reading, and the last rules to which spent amounts were added.
    """

    status: list[BudgetStatus] = field(default_factory=list)
    """The status of each budget when the amounts were read."""
    _base: Rules | None = None
    _rules: Rules | None = None
    _at: float = -inf

    def follow(
        self, store: Store, rules: Rules, slots: Collection[Slot], now: float, time_zero: float = 0.0
    ) -> tuple[Rules, list[BudgetStatus]]:
        """Return two things: the rules with the spent amounts, and the budgets that have exceeded a limit since the
        last call.

        The amounts are read again after REFRESH_SECONDS, on a new day, and for new rules. If the amounts have not
        changed, the rules are the same object, so that plans that are kept for this object stay valid. `time_zero`: as
        for `read_spending`.
        """
        if not rules.budgets:
            self._base, self.status = None, []
            return rules, []
        is_same_day = begin_of_day(now, time_zero) == begin_of_day(max(self._at, 0.0), time_zero)
        if rules is self._base and self._rules is not None and is_same_day and 0 <= now - self._at < REFRESH_SECONDS:
            return self._rules, []
        spending = read_spending(store, rules, now, time_zero)
        if rules is not self._base or self._rules is None or dict(self._rules.spending) != spending:
            self._rules = rules.with_spending(spending)
        self._base, self._at = rules, now
        known = {(each.budget, key) for each in self.status for key in each.exceeded}
        self.status = describe_budgets(self._rules, slots)
        crossed = [each for each in self.status if any((each.budget, key) not in known for key in each.exceeded)]
        return self._rules, crossed
