"""The gauges of costs: what machines have cost today, and how much of each budget was spent."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from prometheus_client.metrics_core import Metric as Family

from scheduler.model.budgets import begin_of_day
from scheduler.model.costs import COST_KINDS
from scheduler.model.rules import Rules
from scheduler.ports import Store
from workers.gauges import make_gauge

_PERIODS: Final = {"hour": ("running", "per_hour"), "day": ("day", "per_day"), "month": ("month", "per_month")}
"""Period of a budget -> the field of its status with the amount, and the field with the limit."""


def measure_costs(store: Store, rules: Rules) -> Iterator[Family]:
    """Yield the gauges of what the machines of each pool have cost since the day began in UTC, by the kind of use
    (COST_KINDS, such as leased or idle).
    """
    dollars = {(pool, kind): 0.0 for pool in rules.pools for kind in COST_KINDS}
    seconds, unpriced = dict(dollars), {(pool,): 0.0 for pool in rules.pools}
    for cost in store.read_costs(begin_of_day(store.now())):
        key = (cost.pool, cost.kind)
        dollars[key] = dollars.get(key, 0.0) + cost.dollars
        seconds[key] = seconds.get(key, 0.0) + cost.seconds
        unpriced[cost.pool,] = unpriced.get((cost.pool,), 0.0) + cost.unpriced
    labels, since = ["pool", "kind"], "since the day began in UTC"
    yield make_gauge("leasehold_cost_today_dollars", f"Cost of machines {since}, in dollars", labels, dollars)
    yield make_gauge("leasehold_cost_today_seconds", f"Time of machines {since}", labels, seconds)
    about = f"Time of machines without a known price {since}"
    yield make_gauge("leasehold_cost_today_unpriced_seconds", about, ["pool"], unpriced)


def measure_budgets(report: Mapping[str, Any]) -> Iterator[Family]:
    """Yield the gauges of the budgets, from the report of the last tick: the amounts and the limits of each period."""
    amounts, limits = {}, {}
    for each in report.get("budgets", ()):
        for period, (amount, limit) in _PERIODS.items():
            amounts[each["budget"], period] = float(each[amount])
            if each[limit] is not None:
                limits[each["budget"], period] = float(each[limit])
    labels = ["budget", "period"]
    about = "Dollars of a budget: price of its running machines per hour (hour), and what was spent (day, month)"
    yield make_gauge("leasehold_budget_dollars", about, labels, amounts)
    yield make_gauge("leasehold_budget_limit_dollars", "Limit of a budget in a period", labels, limits)
