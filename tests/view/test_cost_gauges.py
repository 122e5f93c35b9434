"""The gauges of costs and budgets."""

import msgspec
from prometheus_client.metrics_core import Metric as Family

from scheduler.model.costs import HOUR, Cost
from scheduler.model.rules import read_rules
from scheduler.operations.costs import describe_budgets
from scheduler.store.memory import MemoryStore
from tests.builders import a_slot
from workers.gauges import measure_budgets, measure_costs

NOON = 12 * HOUR
RULES = read_rules(
    {
        "pools": {"linux": {"system": "x86_64-linux", "max_slots": 1}},
        "budgets": {"all": {"per_hour": 3, "per_month": 90}},
    }
)


def sample(families: list[Family], name: str, **labels: str) -> float | None:
    found = [each.value for family in families for each in family.samples if (each.name, each.labels) == (name, labels)]
    return found[0] if found else None


def test_the_costs_of_the_day_are_by_pool_and_kind_and_those_of_yesterday_are_missing() -> None:
    store = MemoryStore(lambda: NOON)
    with store.transaction() as transaction:
        transaction.book(
            [
                Cost(2 * HOUR, "linux", "small", "ci", "used", 900.0, 0.5),
                Cost(3 * HOUR, "linux", "large", "", "used", 100.0, 0.25),
                Cost(3 * HOUR, "gone", "", "", "idle", 60.0, 0.0, unpriced=60.0),
                Cost(-HOUR, "linux", "small", "ci", "used", 900.0, 100.0),
            ]
        )
    found = list(measure_costs(store, RULES))
    assert sample(found, "leasehold_cost_today_dollars", pool="linux", kind="used") == 0.75
    assert sample(found, "leasehold_cost_today_seconds", pool="linux", kind="used") == 1000.0
    assert sample(found, "leasehold_cost_today_seconds", pool="linux", kind="interrupted") == 0.0
    assert sample(found, "leasehold_cost_today_unpriced_seconds", pool="gone") == 60.0


def test_budgets_have_their_amounts_and_the_limits_that_they_have() -> None:
    status = describe_budgets(RULES, [a_slot(price=2.5), a_slot("linux-2", price=None)])
    found = list(measure_budgets({"budgets": [msgspec.to_builtins(each) for each in status]}))
    assert sample(found, "leasehold_budget_dollars", budget="all", period="hour") == 2.5
    assert sample(found, "leasehold_budget_dollars", budget="all", period="day") == 0.0
    assert sample(found, "leasehold_budget_limit_dollars", budget="all", period="month") == 90.0
    assert sample(found, "leasehold_budget_limit_dollars", budget="all", period="day") is None
    assert all(not family.samples for family in measure_budgets({}))
