"""Records of accounts: samples of balances, metrics of payments and preemptions, and their events as sentences."""

from typing import Any

import pytest

from leasehold.texts.values import describe_event
from scheduler.model.accounts import Account, BalanceSample
from scheduler.model.decisions import Assign, Decision, Placement, Plan, Preempt, Relevel
from scheduler.model.view import View
from scheduler.model.waits import Waits
from scheduler.operations.ports import announce
from scheduler.operations.tick.commit import PlannedRules, commit
from scheduler.operations.tick.leader import WaitFigures
from scheduler.ports import DeposedError
from scheduler.view.memory import MemoryMeter
from tests.builders import a_lease, a_reservation, a_slot, some_rules
from tests.operations.harness import NOW, Harness

CONFIG: dict[str, Any] = {
    "scheduler": {"queue": "quota"},
    "pools": {"linux": {"system": "x86_64-linux", "max_slots": 1}},
}
FULL_MINUTE = NOW - NOW % 60
LEASES = (Placement(component="main", slot="linux-1", epoch=1, resources={}),)


def a_harness(*, level: int = 2, began: float = FULL_MINUTE + 20) -> Harness:
    """Return a harness where `old` of account lab runs since `began` and `new` of account ci is pending.

    Both accounts were charged 30 s after a full minute.
    """
    harness = Harness(CONFIG)
    harness.now = FULL_MINUTE + 30
    with harness.store.transaction() as transaction:
        lease = a_lease(level=level, charged_at=began, assigned_at=began)
        old = a_reservation("old", account="lab", phase="leased", token=1, leases=(lease,))
        transaction.insert_reservations([old, a_reservation("new", account="ci")])
    harness.put(
        a_slot("linux-1", version=harness.slot().version),
        Account(id="ci", balance=(100.0, 0.0, 0.0, 0.0, 0.0), charged_at=harness.now),
        Account(id="lab", balance=(0.0, 0.0, 50.0, 0.0, 0.0), charged_at=harness.now),
    )
    return harness


def carry_out(harness: Harness, *decisions: Decision, charged: tuple[str, ...] = ()) -> None:
    with harness.store.transaction() as transaction:
        leader_term = transaction.take_term("me")
    rules = harness.store.load_rules().rules
    for skipped, change_set, _ in commit(
        harness.store,
        decisions,
        PlannedRules(rules, harness.store.rules_version()),
        leader_term,
        str,
        harness.now,
        charged,
    ):
        assert skipped == []
        announce(harness.ports, change_set, kick=False)


def counts_of(harness: Harness) -> dict[tuple[str, ...], float]:
    meter = harness.ports.meter
    assert isinstance(meter, MemoryMeter)
    counts = {(name, *(value for _, value in labels)): count for (name, labels), count in meter.counts.items()}
    return {key: count for key, count in counts.items() if key[0] != "leasehold_requests_total"}


def describe_events(harness: Harness, name: str) -> list[str]:
    return [describe_event(event) for event in harness.events if event.name == name]


class TestCharges:
    def test_payments_are_counted_by_account_and_level(self) -> None:
        harness = a_harness()
        harness.now += 8
        carry_out(harness, charged=("ci", "lab"))
        assert counts_of(harness) == {("leasehold_account_spent_total", "lab", "2"): 8}

    def test_the_cost_of_an_ended_lease_is_counted_with_the_next_charge(self) -> None:
        harness = a_harness()
        harness.now += 4
        harness.ask("release", reservation="old", token=1)
        harness.now += 4
        carry_out(harness, charged=("ci", "lab"))
        assert counts_of(harness) == {("leasehold_account_spent_total", "lab", "2"): 4}

    def test_a_charge_into_another_minute_leaves_a_sample_of_each_account(self) -> None:
        harness = a_harness()
        for seconds in (10, 15, 10, 20):
            harness.now += seconds
            carry_out(harness, charged=("ci", "lab"))
        at = FULL_MINUTE + 65
        assert harness.store.read_balances("ci") == [BalanceSample("ci", at, (100.0, 0.0, 0.0, 0.0, 0.0))]
        assert harness.store.read_balances("lab") == [BalanceSample("lab", at, (0.0, 0.0, 15.0, 0.0, 0.0))]

    def test_a_tick_without_charges_leaves_no_sample(self) -> None:
        harness = a_harness()
        harness.now += 60
        carry_out(harness)
        assert harness.store.read_balances("ci") == []

    def test_a_deposed_leader_counts_and_keeps_nothing(self) -> None:
        harness = a_harness()
        with harness.store.transaction() as transaction:
            deposed = transaction.take_term("me")
            transaction.take_term("another")
        harness.now += 60
        rules = harness.store.load_rules().rules
        with pytest.raises(DeposedError):
            next(
                commit(
                    harness.store,
                    (),
                    PlannedRules(rules, harness.store.rules_version()),
                    deposed,
                    str,
                    harness.now,
                    ("ci", "lab"),
                )
            )
        assert counts_of(harness) == {}
        assert harness.store.read_balances("lab") == []


class TestPreemptions:
    @pytest.mark.parametrize("level", [2, 5])
    def test_both_sides_are_counted(self, level: int) -> None:
        harness = a_harness(level=level)
        preempt = Preempt(reservation="new", slot="linux-1", victims=("old",), level=0, leases=LEASES)
        carry_out(harness, preempt, Assign(reservation="new", leases=LEASES, level=0))
        assert counts_of(harness) == {
            ("leasehold_preemptions_total", "ci", "0"): 1,
            ("leasehold_preempted_total", "lab", str(level)): 1,
        }

    def test_without_a_grace_the_events_name_both_reservations_and_the_reason(self) -> None:
        harness = a_harness()
        preempt = Preempt(reservation="new", slot="linux-1", victims=("old",), level=0, leases=LEASES)
        carry_out(harness, preempt, Assign(reservation="new", leases=LEASES, level=0))
        assert describe_events(harness, "reservation_pending") == [
            (
                "preempted by new of account ci, which pays at level 0: it ran at level 2 and had used 10 of level 2"
                "  term=1"
            )
        ]
        assert describe_events(harness, "reservation_leased")[0].startswith(
            "preempted old on linux-1 at level 0: account ci pays for what they had used, 10 of level 2  "
        )

    def test_with_a_grace_the_events_name_the_deadline(self) -> None:
        harness = a_harness(level=5)
        by = 1_800_000_000.0
        carry_out(
            harness, Preempt(reservation="new", slot="linux-1", victims=("old",), level=0, leases=LEASES, revoke_by=by)
        )
        (victim,), (claiming,) = (
            describe_events(harness, "reservation_revoking"),
            describe_events(harness, "reservation_claimed"),
        )
        assert victim == (
            "preempted by new of account ci, which pays at level 0: it ran at the free level and had used nothing;"
            " its holder must release it by 2027-01-15T08:00:00Z  term=1"
        )
        assert claiming == (
            "preempts old on linux-1 at level 0: account ci pays for what they had used, nothing;"
            " it is free at 2027-01-15T08:00:00Z at the latest  term=1"
        )

    def test_a_change_of_level_has_an_event(self) -> None:
        harness = a_harness(level=5)
        carry_out(harness, Relevel(reservation="old", source=5, to=1))
        assert describe_events(harness, "reservation_relevelled") == [
            "pays at level 1 from now on, instead of the free level  term=1"
        ]


def test_accounts_without_waiting_reservations_are_missing() -> None:
    harness = a_harness()
    view, rules = View(harness.store.read_rows()), some_rules({"pools": {"linux": {}}})
    assert WaitFigures().describe(Plan((), Waits(), None), view, rules, 0.0)["accounts"] == {}
