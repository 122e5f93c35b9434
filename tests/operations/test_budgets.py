"""Budgets in ticks: what was spent is read from the ledger, and no budget is exceeded by more than a machine-hour."""

from random import Random
from typing import Any

import pytest

from scheduler.model.budgets import begin_of_day
from scheduler.operations.costs import REFRESH_SECONDS, SpendingReader, read_spending
from scheduler.operations.explain import explain
from scheduler.simulation.runner import Runner
from scheduler.simulation.scenario import read_scenario
from tests.operations.harness import NOW, Harness

OFFERING = {"name": "small", "price": 10.0, "resources": {"cpus": 4}}
DAY = 86_400.0


def a_harness(**budget: Any) -> Harness:
    pool = {"system": "x86_64-linux", "max_slots": 3, "lease_ttl": 0, "max_leases_per_slot": 1, "offerings": [OFFERING]}
    return Harness({"pools": {"linux": pool}, "budgets": {"all": budget}})


def codes(harness: Harness) -> list[str]:
    return [each.code for each in harness.tick().plan.waiting]


def test_what_was_spent_of_the_day_stops_launches_until_the_next_day() -> None:
    harness = a_harness(per_day=35).leased("r1")
    harness.submit("r2")
    assert codes(harness) == ["booting"]
    harness.play_tasks()
    harness.now += 3600  # 20 dollars are spent, and the two machines may cost 20 in the next hour
    harness.submit("r3")
    assert codes(harness) == ["over_budget"]
    harness.now = begin_of_day(NOW) + DAY - 1
    assert codes(harness) == ["over_budget"]
    harness.now += 1
    assert codes(harness) == ["booting"]


def test_the_machine_is_booked_to_the_account_of_the_reservation_that_caused_its_launch() -> None:
    harness = a_harness(per_day=1000)
    harness.submit("r1", account="ci")
    harness.tick()
    assert harness.slot().launched_for == "ci"
    harness.play_tasks()
    harness.now += 1800
    assert [(each.account, each.dollars) for each in harness.store.sum_costs(0.0)] == [("ci", 5.0)]


def test_a_machine_that_is_gone_is_for_no_account() -> None:
    harness = a_harness(per_day=1000)
    harness.submit("r1", account="ci")
    harness.tick()
    harness.play_tasks()
    harness.ask("cancel", reservation="r1")
    harness.settle(600)
    assert (harness.slot().state, harness.slot().launched_for, harness.slot().meter) == ("empty", None, None)


@pytest.mark.parametrize(("budgets", "offerings"), [({"all": {"per_hour": 30}}, {"small"}), ({}, {"dearer"})])
def test_ec2_chooses_no_dearer_offering_than_the_plan_counted(budgets: dict[str, Any], offerings: set[str]) -> None:
    pool: dict[str, Any] = {"system": "x86_64-linux", "max_slots": 3, "lease_ttl": 0, "max_leases_per_slot": 1}
    pool["offerings"] = [OFFERING, OFFERING | {"name": "dearer", "price": 12.0}]
    harness = Harness({"pools": {"linux": pool}, "budgets": budgets})
    for number in range(1, 4):
        harness.submit(f"r{number}")
    harness.tick()
    harness.play_tasks()
    assert {slot.offering for slot in harness.store.find_slots()} == offerings


def test_the_explanation_names_the_smallest_amount_that_would_do() -> None:
    harness = a_harness(per_hour=15).leased("r1")
    harness.submit("r2")
    harness.tick()
    found = explain(harness.ports, "r2", patience=60)
    assert found["waiting"]["code"] == "over_budget"
    assert found["change"]["text"] == "budget all allows 15.00 dollars an hour at present: 20.00 would do"
    assert found["change"]["actions"] == [{"rules": {"budgets": {"all": {"per_hour": 20.0}}}}]
    [condition] = [each for each in found["conditions"] if each["name"] == "budget"]
    assert condition["met"] is False
    assert condition["evidence"].endswith("budget all allows 15.00 dollars an hour at present, 10.00 run")


def test_the_rise_of_a_budget_of_a_day_contains_what_was_spent() -> None:
    harness = a_harness(per_day=24).leased("r1")
    harness.now += 1800  # 5 dollars are spent, and two machines cost 20 in the next hour
    harness.submit("r2")
    assert codes(harness) == ["over_budget"]
    change = explain(harness.ports, "r2", patience=60)["change"]
    assert change["actions"] == [{"rules": {"budgets": {"all": {"per_day": 25.0}}}}]


class TestReader:
    def follow(self, harness: Harness, reader: SpendingReader) -> tuple[Any, list[str]]:
        rules, crossed = reader.follow(harness.store, harness.ports.rules(), harness.store.find_slots(), harness.now)
        return rules, [each.budget for each in crossed]

    def test_the_same_amounts_are_the_same_rules_so_that_kept_plans_stay_valid(self) -> None:
        harness, reader = a_harness(per_day=100), SpendingReader()
        first, _ = self.follow(harness, reader)
        harness.now += 2 * REFRESH_SECONDS
        assert self.follow(harness, reader)[0] is first

    def test_the_amounts_are_read_again_after_a_while(self) -> None:
        harness, reader = a_harness(per_day=100).leased(), SpendingReader()
        assert self.follow(harness, reader)[0].spending["all"].day == 0
        harness.now += REFRESH_SECONDS - 1
        assert self.follow(harness, reader)[0].spending["all"].day == 0
        harness.now += 1
        assert self.follow(harness, reader)[0].spending["all"].day == pytest.approx(10 / 120)

    def test_a_budget_that_is_exceeded_is_reported_once(self) -> None:
        harness, reader = a_harness(per_day=1, action="warn").leased(), SpendingReader()
        assert self.follow(harness, reader)[1] == []
        harness.now += 3600
        assert self.follow(harness, reader)[1] == ["all"]
        harness.now += 3600
        assert self.follow(harness, reader)[1] == []

    def test_without_a_budget_of_a_day_or_month_the_ledger_is_not_read(self) -> None:
        harness = a_harness(per_hour=100).leased()
        assert read_spending(harness.store, harness.ports.rules(), harness.now) == {}


def a_busy_day(seed: int, budgets: dict[str, Any]) -> dict[str, Any]:
    """More work than the budgets allow, in leases of at most 45 minutes, for 30 hours."""
    random = Random(seed)
    wishes: list[dict[str, Any]] = [
        {"id": f"r{number}", "system": "x86_64-linux", "runtime": random.randint(60, 2700), "account": "ci"}
        | {"resources": {"cpus": random.choice([1, 4])}, "at": random.randint(0, 100_000)}
        for number in range(120)
    ]
    wishes.sort(key=lambda each: each["at"])
    timeline = [{"at": each.pop("at"), "submit": [each]} for each in wishes]
    offerings = [OFFERING | {"price": 1.0, "resources": {"cpus": 1}}, OFFERING | {"name": "large", "price": 3.0}]
    pool = {"system": "x86_64-linux", "max_slots": 20, "lease_ttl": 0, "max_leases_per_slot": 1, "offerings": offerings}
    pool |= {"idle_scale_down": 120, "price_factor": 5}
    config = {"pools": {"linux": pool}, "budgets": budgets}
    cloud = {"launch": 1, "boot": 60, "terminate": 30}
    return {"config": config, "cloud": cloud, "timeline": timeline, "kicks": True, "wakes": True, "until": 108_000}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("action", ["stop", "drain"])
def test_no_budget_is_exceeded_by_more_than_a_machine_hour(seed: int, action: str) -> None:
    budgets = {"hour": {"per_hour": 5, "action": action}, "day": {"per_day": 25, "action": action, "accounts": ["ci"]}}
    player = Runner(read_scenario(a_busy_day(seed, budgets)))
    list(player.play())
    costs = player.cluster.store.read_costs()
    days = [sum(each.dollars for each in costs if begin_of_day(each.hour) == day) for day in (0.0, DAY)]
    assert days[0] > 20
    if action == "drain":  # else machines that run serve one reservation after the other
        assert max(days) <= 25 + 3
    hours = {each.hour for each in costs}
    assert all(sum(each.dollars for each in costs if each.hour == hour) <= 5 + 1e-6 for hour in hours)
