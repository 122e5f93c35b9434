"""Budgets in dollars: what they prevent, what they drain, and what `config check` refuses of them."""

from typing import Any

import pytest

from scheduler.model.budgets import Budget, Spent, begin_of_day, begin_of_month, find_allowed, find_next_period
from scheduler.model.decisions import Drain, Launch, Plan, Terminate
from scheduler.model.rules import read_rules
from scheduler.model.slots import Slot
from scheduler.model.validation import InvalidInputError
from scheduler.model.view import Row, View
from scheduler.policy.plan import plan
from tests.builders import NOW, a_component, a_lease, a_reservation, a_slot
from tests.rules.playing import a_scenario, play_out, submit

SMALL = {"name": "small", "price": 1.0, "resources": {"cpus": 1}}
LARGE = {"name": "large", "price": 3.0, "resources": {"cpus": 8}}
DAY = 86_400.0


def decide(*rows: Row, budgets: dict[str, Any], spent: dict[str, Spent] | None = None, **pool: Any) -> Plan:
    """Plan a pool `linux` of five slots, of which the slots in `rows` may be in use."""
    keys = {"system": "x86_64-linux", "max_slots": 5, "offerings": [SMALL, LARGE], "price_factor": 5, **pool}
    rules = read_rules({"pools": {"linux": keys}, "budgets": budgets}).with_spending(spent or {})
    given = {row.id for row in rows}
    empty = (Slot(id=f"linux-{number}", pool="linux") for number in range(1, 6))
    return plan(View([*rows, *(slot for slot in empty if slot.id not in given)]), rules, NOW)


def waiting(*accounts: str | None, cpus: float = 1) -> list[Row]:
    return [
        a_reservation(f"r{number}", sequence=number, account=account, resources={"cpus": cpus})
        for number, account in enumerate(accounts, 1)
    ]


def running(number: int, price: float = 1.0, **changes: Any) -> Slot:
    """A ready slot without leases that does not fit a request for 8 cpus."""
    fields = {"price": price, "offering": "small", "resources": {"cpus": 1}, "version": 1, **changes}
    return a_slot(f"linux-{number}", **fields)


def launched(planned: Plan) -> list[tuple[str | None, str | None]]:
    return [(each.offering, each.account) for each in planned.decisions if isinstance(each, Launch)]


def codes(planned: Plan) -> list[str]:
    return [each.code for each in planned.waiting]


class TestStop:
    def test_launches_of_one_tick_count_at_once(self) -> None:
        planned = decide(*waiting(None, None, None), budgets={"all": {"per_hour": 2}}, max_leases_per_slot=1)
        assert launched(planned) == [("small", None), ("small", None)]
        assert codes(planned) == ["booting", "booting", "over_budget"]

    def test_the_detail_names_the_budget(self) -> None:
        planned = decide(*waiting(None), budgets={"all": {"per_hour": 0.5}, "large": {"per_hour": 100}})
        [wait] = planned.waiting
        assert wait.detail == "a launch would serve the reservation, but it would exceed a budget: all"

    def test_the_detail_names_no_budget_of_a_pool_without_prices(self) -> None:
        keys = {"system": "x86_64-linux", "max_slots": 5}
        hosts = {"system": "x86_64-linux", "provider": "static"}
        budgets = {name: {"pools": [name], "per_hour": 0.5} for name in ("linux", "hosts")}
        pools = {"linux": {**keys, "offerings": [SMALL]}, "hosts": hosts}
        rules = read_rules({"pools": pools, "budgets": budgets}).with_spending({})
        [wait] = plan(View([*waiting(None), Slot(id="linux-1", pool="linux")]), rules, NOW).waiting
        assert wait.detail == "a launch would serve the reservation, but it would exceed a budget: linux"

    def test_machines_that_leave_still_count(self) -> None:
        leaving = running(1, state="terminating")
        assert codes(decide(*waiting(None), leaving, budgets={"all": {"per_hour": 1.5}})) == ["over_budget"]
        assert codes(decide(*waiting(None), leaving, budgets={"all": {"per_hour": 2}})) == ["booting"]

    def test_a_cheaper_offering_that_is_within_the_budget_is_launched(self) -> None:
        planned = decide(
            *waiting(None), budgets={"all": {"per_hour": 2}}, offerings=[LARGE, {**SMALL, "price": 1.5}], price_factor=9
        )
        assert launched(planned) == [("small", None)]

    def test_a_gang_that_only_fits_in_part_launches_nothing(self) -> None:
        gang = a_reservation("g1", sequence=1, components=(a_component("n", count=3, resources={"cpus": 1}),))
        planned = decide(gang, budgets={"all": {"per_hour": 2}}, max_leases_per_slot=1)
        assert (launched(planned), codes(planned)) == ([], ["over_budget"])

    def test_a_machine_without_a_price_exceeds_no_budget(self) -> None:
        planned = decide(*waiting(None), budgets={"all": {"per_hour": 0}}, offerings=[], resources={"cpus": 1})
        assert codes(planned) == ["booting"]

    def test_a_budget_that_warns_prevents_nothing(self) -> None:
        assert codes(decide(*waiting(None), budgets={"all": {"per_hour": 0, "action": "warn"}})) == ["booting"]

    def test_an_hour_of_each_machine_has_to_be_left_of_the_day(self) -> None:
        day = {"all": {"per_day": 10}}
        planned = decide(*waiting(None, cpus=8), running(1), budgets=day, spent={"all": Spent(day=6.01)})
        assert codes(planned) == ["over_budget"]
        planned = decide(*waiting(None, cpus=8), running(1), budgets=day, spent={"all": Spent(day=6.0)})
        assert codes(planned) == ["booting"]

    def test_the_warm_reserve_is_within_the_budget_too(self) -> None:
        planned = decide(budgets={"all": {"per_hour": 2}}, target_warm_slots=4)
        assert launched(planned) == [("small", None)] * 2

    def test_the_next_tick_is_due_when_the_next_day_begins(self) -> None:
        planned = decide(*waiting(None), budgets={"all": {"per_day": 10}}, spent={"all": Spent(day=10)})
        assert planned.wake_at == begin_of_day(NOW) + DAY


class TestScope:
    def test_a_budget_of_an_account_limits_only_its_launches(self) -> None:
        planned = decide(
            *waiting("a", "a", "b", None), budgets={"a": {"accounts": ["a"], "per_hour": 1}}, max_leases_per_slot=1
        )
        assert launched(planned) == [("small", "a"), ("small", "b"), ("small", None)]
        assert dict(zip(planned.waiting.names, codes(planned), strict=True))["r2"] == "over_budget"

    def test_machines_that_were_launched_for_others_do_not_count(self) -> None:
        budgets = {"a": {"accounts": ["a"], "per_hour": 3}}
        mine, other = running(1, launched_for="a"), running(1, launched_for="b")
        assert codes(decide(*waiting("a", cpus=8), mine, budgets=budgets)) == ["over_budget"]
        assert codes(decide(*waiting("a", cpus=8), other, budgets=budgets)) == ["booting"]

    def test_a_budget_of_other_pools_limits_nothing(self) -> None:
        rules = read_rules(
            {
                "pools": {
                    "linux": {"system": "x86_64-linux", "max_slots": 1, "offerings": [SMALL]},
                    "mac": {"system": "mac", "max_slots": 1, "offerings": [SMALL]},
                },
                "budgets": {"mac": {"pools": ["mac"], "per_hour": 0}},
            }
        )
        assert codes(plan(View([*waiting(None), Slot(id="linux-1", pool="linux")]), rules, NOW)) == ["booting"]


class TestDrain:
    BUDGETS: dict[str, Any] = {"all": {"per_hour": 2, "action": "drain"}}

    def test_the_slot_that_was_idle_longest_drains_first(self) -> None:
        slots = [running(number, idle_since=NOW - number) for number in (1, 2, 3)]
        planned = decide(*slots, budgets=self.BUDGETS)
        assert planned.decisions == (Drain(slot="linux-3", reason="over_budget"),)

    def test_machines_in_flight_end_before_idle_ones(self) -> None:
        booting = running(3, state="booting", idle_since=None)
        planned = decide(running(1), running(2), booting, budgets=self.BUDGETS)
        assert planned.decisions == (Terminate(slot="linux-3", reason="over_budget"),)

    @pytest.mark.parametrize(("spent", "drained"), [(99.0, 1), (100.0, 2)])
    def test_slots_with_leases_drain_only_when_nothing_is_left(self, spent: float, drained: int) -> None:
        holder = a_reservation("r1", sequence=1, phase="leased", leases=(a_lease("linux-1"),))
        budgets = {"all": {"per_day": 100, "action": "drain"}}
        rows: list[Row] = [running(1, idle_since=None), running(2), holder]
        planned = decide(*rows, budgets=budgets, spent={"all": Spent(day=spent)})
        decided = [each for each in planned.decisions if isinstance(each, Drain)]
        assert decided == [Drain(slot=name, reason="over_budget") for name in ("linux-2", "linux-1")[:drained]]

    def test_machines_that_leave_already_make_room(self) -> None:
        leaving = running(3, state="terminating", drain_reason="idle")
        assert decide(running(1), running(2), leaving, budgets=self.BUDGETS).decisions == ()


class TestAmounts:
    def test_the_least_of_the_limits_counts(self) -> None:
        budget = Budget(per_hour=5, per_day=100, per_month=1000)
        assert find_allowed(budget, Spent()) == 5
        assert find_allowed(budget, Spent(day=97)) == 3
        assert find_allowed(budget, Spent(day=97, month=999)) == 1
        assert find_allowed(budget, Spent(day=101)) == 0

    def test_days_and_months_are_those_of_utc(self) -> None:
        at = 1_709_251_200.0 - 1  # 2024-02-29T23:59:59Z
        assert begin_of_day(at) == 1_709_164_800
        assert begin_of_month(at) == 1_706_745_600
        assert find_next_period(Budget(per_month=1), at) == at + 1
        assert find_next_period(Budget(per_day=1), at) == at + 1


FAULTY: dict[str, tuple[dict[str, Any], str]] = {
    "a budget without a limit": (
        {"all": {"pools": ["linux"]}},
        "config.budgets.all.per_hour: expected an amount in dollars (per_hour, per_day or per_month), got null",
    ),
    "an unknown pool": (
        {"all": {"pools": ["linus"], "per_hour": 1}},
        'config.budgets.all.pools: expected a configured pool (did you mean "linux"?), got "linus"',
    ),
    "less than the minimum costs in an hour": (
        {"all": {"per_hour": 1.9}},
        "config.budgets.all.per_hour: expected at least 2.00, the cost of the min_slots of its pools, got 1.9",
    ),
    "less than the minimum costs in a month": (
        {"all": {"per_month": 1000, "action": "drain"}},
        "config.budgets.all.per_month: expected at least 1488.00, the cost of the min_slots of its pools, got 1000.0",
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_budget_is_refused_with_its_path(name: str) -> None:
    budgets, message = FAULTY[name]
    with pytest.raises(InvalidInputError) as raised:
        decide(budgets=budgets, min_slots=2)
    assert str(raised.value) == message


@pytest.mark.parametrize("budget", [{"per_hour": 1, "action": "warn"}, {"per_hour": 1, "accounts": ["a"]}])
def test_a_budget_that_does_not_concern_the_minimum_may_be_lower(budget: dict[str, Any]) -> None:
    assert launched(decide(budgets={"all": budget}, min_slots=2)) == [("small", None)] * 2


@pytest.mark.parametrize(
    ("starts_at", "limit", "launched_at"),
    [
        (None, "per_day", 24),
        ("2027-03-28T02:00:00Z", "per_day", 22),
        ("2027-03-28T04:00:00+02:00", "per_day", 22),
        ("2027-03-30T02:00:00Z", "per_month", 46),
    ],
)
def test_a_day_of_a_play_begins_at_midnight_in_utc(starts_at: str | None, limit: str, launched_at: int) -> None:
    """The first machine runs for more than five hours and uses the budget up. The second one has to wait for the next
    period, for which the plan asks for a tick.
    """
    document = a_scenario(
        submit(0, "r1", runtime=18_000),
        submit(20_000, "r2"),
        pool={"offerings": [SMALL], "max_leases_per_slot": 1, "idle_scale_down": 0},
        kicks=True,
        wakes=True,
        until=200_000,
        cloud={"boot": 60},
        **({} if starts_at is None else {"starts_at": starts_at}),
    )
    document["config"]["budgets"] = {"all": {limit: 5}}
    launches = [each for each in play_out(document).decisions if "launch" in each]
    assert launches == ["0 launch linux-1 small demand", f"{launched_at * 3600} launch linux-1 small demand"]
