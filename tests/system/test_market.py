"""A pool by requirement on real processes: the health worker reads prices, and a launch takes the cheapest type."""

from collections.abc import Iterator
from typing import Any

import pytest

from scheduler.model.rules import read_rules
from scheduler.operations.market import refresh_market
from tasks.queues import MARKET
from testbed.processes import wait_for
from testbed.stack import Stack, a_pool
from tests.system.conftest import RULES

pytestmark = pytest.mark.timeout(120)
POOL = "market"
CHEAP, CHEAPER = "c6id.large", "m5dn.large"


def some_rules() -> dict[str, Any]:
    require = {"cpus": {"max": 2}, "memory_mib": {"min": 4096, "max": 8192}, "exclude": ["t*"]}
    pool = a_pool(system=POOL, max_slots=2, max_leases_per_slot=1, offerings=[{"name": "any", "require": require}])
    return {"pools": {**RULES["pools"], POOL: pool}}


def fix_prices(stack: Stack, **prices: float) -> None:
    """Let EC2 have these spot prices, whose types have no dot here."""
    fixed = [{"type": name.replace("_", "."), "price": price} for name, price in prices.items()]
    types = ["c6id.*", "m5dn.*", "t3.*"]
    stack.control("settings", {"spot_prices": {"fixed": fixed}, "instance_types": types}, method="PUT")


def price_of(stack: Stack, kind: str) -> float | None:
    found = stack.services.ports.store.load_market().find_price(kind, "spot")
    return None if found is None else found.price


@pytest.fixture(autouse=True)
def _market(stack: Stack) -> Iterator[None]:
    """Read the catalogue, and apply a pool by requirement; afterwards no machine of it is left."""
    fix_prices(stack, c6id_large=0.001)
    refresh_market(stack.services.ports.store, stack.services.market, read_rules(some_rules()))
    stack.apply(some_rules())
    yield
    for row in stack.services.ports.store.find_reservations(phases=["pending", "leased", "revoking"]):
        if row.request.pool == POOL:
            stack.ask("cancel", {"reservation": row.id})
    stack.await_empty(POOL)
    fix_prices(stack)
    stack.apply(RULES)


def test_a_launch_takes_the_type_that_is_the_cheapest_one_now(stack: Stack) -> None:
    assert stack.ask("submit", {"id": "market-1", "pool": POOL})["ok"]
    stack.await_phase(["market-1"], "leased")
    (slot,) = [each for each in stack.slots(POOL) if each.state == "ready"]
    assert (slot.offering, slot.instance_type, slot.price) == (f"{CHEAP}/spot", CHEAP, 0.001)
    assert slot.labels == {"architecture": "x86_64"}
    fix_prices(stack, m5dn_large=0.0005)

    def read_prices() -> bool:
        stack.app.send_task(MARKET)
        return price_of(stack, CHEAPER) == 0.0005

    wait_for(read_prices, "the price that the health worker reads")
    assert stack.ask("submit", {"id": "market-2", "pool": POOL})["ok"]
    stack.await_phase(["market-2"], "leased")
    assert {each.instance_type for each in stack.slots(POOL) if each.state == "ready"} == {CHEAP, CHEAPER}
