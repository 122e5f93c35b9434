"""What a second of a lease costs: a worker, a share of its slot, or dollars."""

from typing import Any

import pytest

from scheduler.model.pools import Pool
from scheduler.model.rules import SchedulerKeys
from scheduler.policy.quota.accounting import bill, weigh
from tests.builders import NOW, SYSTEM, a_lease, a_slot
from tests.rules.quotas import an_account, levels

SIZED: dict[str, Any] = {"resources": {"cpus": 8, "memory_mib": 1000}}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, float], float]] = {
    # charge_by, the pool, what the lease is given, what a second of it costs
    "one worker, however large": ("lease", SIZED, {"cpus": 8}, 1.0),
    "the greatest share": ("dominant_share", SIZED, {"cpus": 2, "memory_mib": 500}, 0.5),
    "all of it": ("dominant_share", SIZED, {"cpus": 8}, 1.0),
    "the number of leases is a resource too": (
        "dominant_share",
        {**SIZED, "max_leases_per_slot": 4},
        {"cpus": 1, "memory_mib": 10},
        0.25,
    ),
    "where leases alone are counted": ("dominant_share", {"max_leases_per_slot": 4}, {}, 0.25),
    "a resource that the slot lacks has no share": ("dominant_share", SIZED, {"licences": 1, "cpus": 4}, 0.5),
    "dollars of the slot": ("price", SIZED, {"cpus": 1}, 0.5),
}


@pytest.mark.parametrize("case", CASES)
def test_the_cost_of_a_second_of_a_lease_follows_charge_by(case: str) -> None:
    charge_by, pool, given, expected = CASES[case]
    settings = SchedulerKeys.model_validate({"charge_by": charge_by})
    rules = Pool(system=SYSTEM, max_slots=1, **pool)
    assert weigh(given, a_slot(price=1800.0), rules, settings) == expected


def test_a_slot_without_a_price_costs_nothing() -> None:
    settings = SchedulerKeys(charge_by="price")
    assert weigh({}, a_slot(), Pool(system=SYSTEM, max_slots=1), settings) == 0


@pytest.mark.parametrize(
    ("charged", "due"),
    [
        # The account was charged for the lease up to 4 s ago.
        (-4.0, 4 * 0.5),
        (0.0, 0.0),
        # It was charged by a transaction that overlaps with this one, for 3 s after the end of the lease.
        (3.0, -3 * 0.5),
        (35.0, -35 * 0.5),
        # The clock went back.
        (36.0, 0.0),
    ],
)
def test_a_lease_that_ended_owes_what_the_last_charge_left_out_and_gets_back_what_it_charged_too_much(
    charged: float, due: float
) -> None:
    account = an_account("A", charged_at=NOW + charged)
    lease = a_lease(level=1, weight=0.5, charged_at=NOW - 10)
    assert bill(account, lease, None, NOW).due == levels(0, due)
    began_now = a_lease(level=1, weight=0.5, charged_at=NOW)
    assert bill(account, began_now, None, NOW).due == levels(0, min(due, 0.0))
    free = a_lease(level=1, weight=0.5, charged_at=None)
    assert bill(account, free, None, NOW).due == levels()
