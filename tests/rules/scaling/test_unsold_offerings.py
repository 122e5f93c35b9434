"""Offerings that are not for sale: without a known type or price, or with a price above a limit. The reference model
decides the same.
"""

from typing import Any

import pytest

from scheduler.model.decisions import Launch, Plan
from scheduler.model.market import InstanceType, Price, StoredMarket
from scheduler.model.rules import read_rules
from scheduler.model.view import View
from scheduler.operations.market import resolve_rules
from scheduler.policy.plan import plan
from tests.builders import NOW, SYSTEM, a_reservation, a_slot
from tests.reference_model.comparing import describe
from tests.reference_model.tick import tick

TYPES = tuple(
    InstanceType(name=name, cpus=cpus, memory_mib=4096.0, architectures=("x86_64",), zones=("a",), seen_at=NOW)
    for name, cpus in (("small", 2.0), ("large", 8.0))
)
BY_REQUIREMENT = {"name": "any", "require": {}}


def price(kind: str, amount: float) -> Price:
    return Price(type=kind, zone="a", market="spot", price=amount, seen_at=NOW, source="file")


def decide(*prices: Price, cpus: float = 1.0, types: tuple[InstanceType, ...] = TYPES, **pool: Any) -> Plan:
    """Plan one tick, in which a reservation waits and two slots are empty; the reference model decides the same."""
    table = {"system": SYSTEM, "max_slots": 2, "offerings": [BY_REQUIREMENT], "default_resources": {"cpus": 1}, **pool}
    rules = resolve_rules(read_rules({"pools": {"linux": table}}), StoredMarket(types=types, prices=prices))
    rows = [a_slot("linux-1", state="empty"), a_slot("linux-2", state="empty")]
    waiting = a_reservation("r1", sequence=1, resources={"cpus": cpus})
    planned = plan(View([*rows, waiting]), rules, NOW)
    assert describe(planned) == tick([*rows, waiting], rules, NOW)
    return planned


def launched(planned: Plan) -> list[str | None]:
    return [each.offering for each in planned.decisions if isinstance(each, Launch)]


def codes(planned: Plan) -> list[str]:
    return [each.code for each in planned.waiting]


def test_the_cheapest_priced_type_is_launched_and_a_type_without_a_price_is_not() -> None:
    assert launched(decide(price("small", 0.1), price("large", 0.05))) == ["large/spot"]
    assert launched(decide(price("small", 0.1))) == ["small/spot"]


def test_an_unpriced_type_does_not_set_the_price_of_the_others() -> None:
    """Otherwise its price of 0 would make every other offering too dear."""
    assert launched(decide(price("small", 0.1), price_factor=1.0)) == ["small/spot"]


def test_a_pool_without_an_offering_for_sale_launches_nothing() -> None:
    """It is not taken for a pool without offerings, which launches the type of its template."""
    assert launched(decide()) == []
    assert launched(decide(types=())) == []
    assert launched(decide(min_slots=1)) == []


@pytest.mark.parametrize("pool", [{}, {"market": {"max_price": 0.01}}])
def test_a_reservation_that_only_an_unsold_offering_could_hold_waits_for_it(pool: dict[str, Any]) -> None:
    prices = [price("small", 0.001)] + ([price("large", 0.1)] if pool else [])
    found = decide(*prices, cpus=8.0, **pool)
    assert (launched(found), codes(found)) == ([], ["no_capacity"])
    assert codes(decide(*prices, cpus=9.0, **pool)) == ["never_fits"]
