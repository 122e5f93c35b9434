"""What is told of what accounts do: samples of balances, counts of what is spent and taken, events in words."""

from typing import Any

import pytest

from leasehold.cli.event_sentences import describe_event
from scheduler.model.accounts import Account, BalanceSample
from scheduler.model.decisions import Assign, Decision, Placement, Plan, Preempt, Relevel, Waits
from scheduler.model.view import View
from scheduler.operations.account_metrics import describe_account_waits
from scheduler.operations.ports import announce
from scheduler.operations.tick.commit import commit
from scheduler.ports import DeposedError
from scheduler.view.memory import MemoryMeter
from tests.builders import a_lease, a_reservation, a_slot
from tests.operations.harness import NOW, Harness

CONFIG: dict[str, Any] = {
    "scheduler": {"queue": "quota"},
    "pools": {"linux": {"system": "x86_64-linux", "max_slots": 1}},
}
FULL_MINUTE = NOW - NOW % 60
PLACE = (Placement(component="main", slot="linux-1", epoch=1, resources={}),)


def a_rig(*, level: int = 2, began: float = FULL_MINUTE + 20) -> Harness:
    """`old` of account lab runs since then, `new` of account ci waits; both were charged 30 s past a full minute."""
    rig = Harness(CONFIG)
    rig.now = FULL_MINUTE + 30
    with rig.store.transaction() as transaction:
        lease = a_lease(level=level, charged_at=began, assigned_at=began)
        old = a_reservation("old", account="lab", phase="leased", token=1, leases=(lease,))
        transaction.insert_reservations([old, a_reservation("new", account="ci")])
    rig.put(
        a_slot("linux-1", version=rig.slot().version),
        Account(id="ci", balance=(100.0, 0.0, 0.0, 0.0, 0.0), charged_at=rig.now),
        Account(id="lab", balance=(0.0, 0.0, 50.0, 0.0, 0.0), charged_at=rig.now),
    )
    return rig


def carry_out(rig: Harness, *decisions: Decision, charged: tuple[str, ...] = ()) -> None:
    with rig.store.transaction() as transaction:
        leader_term = transaction.take_term("me")
    rules = rig.store.load_rules().rules
    for skipped, change_set in commit(rig.store, decisions, rules, leader_term, str, rig.now, charged):
        assert skipped == []
        announce(rig.ports, change_set, kick=False)


def counts_of(rig: Harness) -> dict[tuple[str, ...], float]:
    meter = rig.ports.meter
    assert isinstance(meter, MemoryMeter)
    counts = {(name, *(value for _, value in labels)): count for (name, labels), count in meter.counts.items()}
    return {key: count for key, count in counts.items() if key[0] != "leasehold_requests_total"}


def told(rig: Harness, name: str) -> list[str]:
    return [describe_event(event) for event in rig.events if event.name == name]


class TestCharges:
    def test_what_is_paid_is_counted_by_account_and_level(self) -> None:
        rig = a_rig()
        rig.now += 8
        carry_out(rig, charged=("ci", "lab"))
        assert counts_of(rig) == {("leasehold_account_spent_total", "lab", "2"): 8}

    def test_what_was_due_already_is_counted_with_it(self) -> None:
        rig = a_rig()
        rig.now += 4
        rig.ask("release", reservation="old", token=1)
        rig.now += 4
        carry_out(rig, charged=("ci", "lab"))
        assert counts_of(rig) == {("leasehold_account_spent_total", "lab", "2"): 4}

    def test_a_charge_into_another_minute_leaves_a_sample_of_each_account(self) -> None:
        rig = a_rig()
        for seconds in (10, 15, 10, 20):
            rig.now += seconds
            carry_out(rig, charged=("ci", "lab"))
        at = FULL_MINUTE + 65
        assert rig.store.read_balances("ci") == [BalanceSample("ci", at, (100.0, 0.0, 0.0, 0.0, 0.0))]
        assert rig.store.read_balances("lab") == [BalanceSample("lab", at, (0.0, 0.0, 15.0, 0.0, 0.0))]

    def test_a_tick_that_charges_nobody_leaves_none(self) -> None:
        rig = a_rig()
        rig.now += 60
        carry_out(rig)
        assert rig.store.read_balances("ci") == []

    def test_a_deposed_leader_counts_and_keeps_nothing(self) -> None:
        rig = a_rig()
        with rig.store.transaction() as transaction:
            deposed = transaction.take_term("me")
            transaction.take_term("another")
        rig.now += 60
        rules = rig.store.load_rules().rules
        with pytest.raises(DeposedError):
            next(commit(rig.store, (), rules, deposed, str, rig.now, ("ci", "lab")))
        assert counts_of(rig) == {}
        assert rig.store.read_balances("lab") == []


class TestPreemptions:
    @pytest.mark.parametrize("level", [2, 5])
    def test_both_sides_are_counted(self, level: int) -> None:
        rig = a_rig(level=level)
        preempt = Preempt(reservation="new", slot="linux-1", victims=("old",), level=0, leases=PLACE)
        carry_out(rig, preempt, Assign(reservation="new", leases=PLACE, level=0))
        assert counts_of(rig) == {
            ("leasehold_preemptions_total", "ci", "0"): 1,
            ("leasehold_preempted_total", "lab", str(level)): 1,
        }

    def test_at_once_the_events_say_who_took_whose_place_and_why(self) -> None:
        rig = a_rig()
        preempt = Preempt(reservation="new", slot="linux-1", victims=("old",), level=0, leases=PLACE)
        carry_out(rig, preempt, Assign(reservation="new", leases=PLACE, level=0))
        assert told(rig, "reservation_pending") == [
            "preempted by new of account ci, which pays at level 0: it ran at level 2 and had used 0 0 10 0 0  term=1"
        ]
        assert told(rig, "reservation_leased")[0].startswith(
            "preempted old on linux-1 at level 0: account ci pays for what they had used, 0 0 10 0 0  "
        )

    def test_with_a_grace_they_name_the_deadline(self) -> None:
        rig = a_rig(level=5)
        by = 1_800_000_000.0
        carry_out(
            rig, Preempt(reservation="new", slot="linux-1", victims=("old",), level=0, leases=PLACE, revoke_by=by)
        )
        (victim,), (newcomer,) = told(rig, "reservation_revoking"), told(rig, "reservation_claimed")
        assert victim == (
            "preempted by new of account ci, which pays at level 0: it ran at the free level and had used 0 0 0 0 0;"
            " its holder must release it by 2027-01-15T08:00:00Z  term=1"
        )
        assert newcomer == (
            "preempts old on linux-1 at level 0: account ci pays for what they had used, 0 0 0 0 0;"
            " it is free at 2027-01-15T08:00:00Z at the latest  term=1"
        )

    def test_a_change_of_level_is_told(self) -> None:
        rig = a_rig(level=5)
        carry_out(rig, Relevel(reservation="old", source=5, to=1))
        assert told(rig, "reservation_relevelled") == ["pays at level 1 from now on, instead of the free level  term=1"]


def test_what_nobody_waits_for_is_not_told() -> None:
    rig = a_rig()
    view = View(rig.store.read_rows())
    assert describe_account_waits(Plan((), Waits(), None), view) == {}
