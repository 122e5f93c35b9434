"""Reads about money that the HTTP API and the console share: sums of the cost ledger, budgets, and offers."""

from collections.abc import Collection, Sequence

import msgspec

from scheduler.model.budgets import Budget, Spent, find_allowed
from scheduler.model.costs import Cost, begin_of_hour
from scheduler.model.slots import Slot
from scheduler.operations.costs import BudgetStatus, By, CostSum, add_spending, add_up, describe_budgets, sum_by
from scheduler.operations.rules.offers import Ages, Offer, list_offers
from scheduler.ports import Store
from workers.settings import MarketSettings


class CostReport(msgspec.Struct, frozen=True, kw_only=True):
    """What machines have cost since the begin of an hour, as sums by pool, account, offering or kind."""

    since: float
    """Seconds since the epoch."""
    by: By
    costs: tuple[CostSum, ...]
    """The sums, the highest first."""
    total: CostSum


class BudgetReport(msgspec.Struct, frozen=True, kw_only=True):
    """A budget with its limits and what was spent of it, in dollars. `running`: the prices per hour of its machines."""

    budget: str
    pools: tuple[str, ...]
    """The pools whose machines count; (): all."""
    accounts: tuple[str, ...]
    """The accounts for whose demand the machines were launched; (): all machines count."""
    action: str
    running: float
    day: float
    month: float
    per_hour: float | None
    per_day: float | None
    per_month: float | None
    allowed: float | None
    """The sum of prices per hour that its machines may have now; None: any, because the budget only warns."""
    exceeded: tuple[str, ...]
    """The keys of the limits that are exceeded."""


def report_costs(costs: Sequence[Cost], by: By, since: float) -> CostReport:
    """Return the sums of `costs`, which were read from the ledger for the time since `since`, by pool, account,
    offering or kind of use (`by`).
    """
    return CostReport(since=begin_of_hour(since), by=by, costs=tuple(sum_by(costs, by)), total=add_up(costs))


def report_budgets(store: Store, slots: Collection[Slot]) -> list[BudgetReport]:
    """Return each budget of the rules in force, in their order. `slots`: all slots of the cluster."""
    rules = add_spending(store, store.load_rules().rules, store.now(), is_report=True)
    return [_report(rules.budgets[each.budget], each) for each in describe_budgets(rules, slots)]


def _report(budget: Budget, status: BudgetStatus) -> BudgetReport:
    allowed = find_allowed(budget, Spent(status.day, status.month)) if budget.is_limit else None
    return BudgetReport(
        pools=budget.pools,
        accounts=budget.accounts,
        allowed=allowed,
        exceeded=status.exceeded,
        **msgspec.structs.asdict(status),
    )


def read_offers(store: Store, settings: MarketSettings, pools: Sequence[str] = ()) -> list[Offer]:
    """Return what launches of these pools (empty: of all pools) would buy, in the order of choice."""
    return list_offers(store, Ages(spot=settings.stale_after, on_demand=settings.stale_list_after), pools=pools)
