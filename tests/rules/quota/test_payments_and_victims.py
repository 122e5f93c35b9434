"""What an account pays in a cycle, which leases change their level, and which work is preempted."""

from pathlib import Path

import pytest

from scheduler.model.reservations import Lease
from scheduler.model.view import Row
from scheduler.policy.capacity.requests import SharedAmounts
from scheduler.policy.capacity.slot_info import make_slot_info
from scheduler.policy.quota.group_table import RequirementsIndex
from tests.builders import NOW, a_component, a_lease
from tests.rules.quotas import a_host, an_account, decide, describe, levels, quota_rules, runs, waits
from tests.scenarios import test_scenarios


def a_running_lease(slot: int, level: int, since: float = 0, component: str = "main") -> Lease:
    """A lease that has been charged up to `since` seconds ago and counts as one worker."""
    charged_at = NOW - since
    return a_lease(f"hosts-{slot}", component=component, level=level, charged_at=charged_at, confirmed_at=NOW)


@pytest.mark.parametrize("level", range(5))
def test_an_account_without_leases_keeps_its_balance_at_each_level(level: int) -> None:
    account = an_account("A", *([0] * level), 1, charged_at=NOW - 10)
    assert decide(a_host(), waits("r1", "A"), account) == [f"r1 on 1 at {level}"]


def test_an_account_pays_for_each_second_that_a_lease_ran() -> None:
    rows: list[Row] = [
        a_host(1),
        a_host(2),
        runs("r9", a_running_lease(1, 0, since=100), account="A"),
        waits("r1", "A"),
    ]
    assert decide(*rows, an_account("A", 100, charged_at=NOW - 100)) == ["r1 on 2 at 5"]
    assert decide(*rows, an_account("A", 101, charged_at=NOW - 100)) == ["r1 on 2 at 0"]


@pytest.mark.parametrize(
    ("balance", "level", "moved"),
    [
        # It earns 1 and spends 2: without one of the leases it earns as much as it spends.
        (-700, 0, ["r1 from 0 to 1"]),
        # It earns 1 and spends nothing at level 0: it can pay one of the leases there.
        (700, 1, ["r1 from 1 to 0"]),
    ],
)
def test_no_more_leases_change_their_level_than_the_account_earns_or_lacks(
    balance: float, level: int, moved: list[str]
) -> None:
    work = [runs(f"r{number}", a_running_lease(number, level), account="A") for number in (1, 2)]
    account = an_account("A", balance, 0, rate=(1, 0), max_charge_seconds=1000)
    assert decide(a_host(1), a_host(2), *work, account) == moved


def test_work_at_worse_levels_does_not_move_to_the_level_below_one_that_is_overdrawn_and_earns_enough() -> None:
    work = [runs(f"r{number}", a_running_lease(number, level), account="A") for number, level in ((1, 0), (2, 3))]
    assert decide(a_host(1), a_host(2), *work, an_account("A", -700, rate=(2,))) == []


def test_work_on_a_slot_that_the_newcomer_has_declined_is_not_preempted() -> None:
    rows: list[Row] = [a_host(uses=1), runs("r9", 1), an_account("A", 100)]
    assert decide(*rows, waits("r1", "A")) == ["r1 takes 1 of r9", "r1 on 1 at 0"]
    assert decide(*rows, waits("r1", "A", declined=("hosts-1",))) == []


@pytest.mark.parametrize(
    ("grace", "decisions"),
    [(0, ["r1 takes 1 of r9", "r1 on 1 at 0", "r2 on 2 at 0"]), (60, ["r1 takes 1 of r9 by 60", "r2 claims 2 at 0"])],
)
def test_work_on_two_slots_is_preempted_once_and_its_other_slot_goes_to_the_next_reservation(
    grace: float, decisions: list[str]
) -> None:
    leases = (a_running_lease(1, 5, component="x"), a_running_lease(2, 5, component="y"))
    components = (a_component("x"), a_component("y"))
    both = runs("r9", leases[0], components=components, leases=leases)
    newcomers = [waits("r1", "A"), waits("r2", "A")]
    rules = quota_rules(preemption_grace=grace)
    assert decide(a_host(1), a_host(2), both, *newcomers, an_account("A", 100), rules=rules) == decisions


def test_a_share_that_is_paid_for_an_elastic_lease_is_no_more_there_for_the_next_preemption() -> None:
    """Each elastic lease costs 3, half of what its reservation has cost."""
    rows: list[Row] = [an_account("A", 5), an_account("B")]
    for number in (1, 2):
        parts = (a_component("core", resources={"cpus": 1}), a_component("more", kind="elastic", resources={"cpus": 3}))
        leases = [
            a_lease(
                f"hosts-{number}",
                component=part.name,
                kind=part.kind,
                resources=part.resources,
                level=5,
                cost=levels(3),
                charged_at=NOW,
                confirmed_at=NOW,
            )
            for part in parts
        ]
        rows += [a_host(number), runs(f"r{7 + number}", leases[0], account="B", components=parts, leases=tuple(leases))]
    rows += [waits(f"r{number}", "A", at=number, resources={"cpus": 3}) for number in (1, 2)]
    rules = quota_rules({"resources": {"cpus": 4}}, elastic="rigid")
    found, codes = describe(*rows, rules=rules)
    assert found == ["r1 takes 1 of r8", "r1 on 1 at 0"]
    assert codes == {"r2": "no_capacity"}


def test_requirements_that_are_added_later_are_met_too() -> None:
    index, amounts = RequirementsIndex(), SharedAmounts()
    slot_info = make_slot_info(a_host(labels={"zone": "a"}), quota_rules().pools["hosts"], 0)
    first = index.find({}, {"hosts": amounts.find({})})
    assert index.list_met(slot_info, None) == (first,)
    second = index.find({"zone": "a"}, {"hosts": amounts.find({})})
    assert index.list_met(slot_info, None) == (first, second)


@pytest.mark.parametrize(
    "name",
    [
        "lease-ends-alone-rigid",
        "lease-is-not-granted-again-at-once-grace-0",
        "lease-is-not-granted-again-at-once-grace-30",
        "lease-with-a-grace",
        "lease-min-run-time",
        "first-of-equal-victims",
        "highest-index-first",
        "leases-share-two-of-three",
    ],
)
def test_elastic_leases_are_preempted_as_their_scenario_file_expects(name: str) -> None:
    folder = Path(test_scenarios.__file__).parent
    test_scenarios.test_a_scenario_decides_what_its_file_expects(folder / f"quota-elastic-{name}.json")
