"""The preemption of an elastic lease is checked on fresh rows and committed with its revoke and assignment, or not at
all; the reservation of the lease goes on.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from scheduler.model.decisions import Assign, Preempt, Relevel, Revoke
from scheduler.operations.tick.leader import take_leader_term
from scheduler.operations.tick.tick import carry_out, decide
from tests.operations.quota import QuotaHarness
from tests.operations.test_preemption import write

PARTS = [{"name": "driver"}, {"name": "helper", "kind": "elastic"}]
ACCOUNTS: dict[str, Any] = {"A": {"balance": [100]}, "B": {"balance": [0, 0, 500]}}


def a_harness(grace: float = 0, **fields: Any) -> QuotaHarness:
    """`old` of account B has its driver on lab-1 and its helper on lab-2; `new` of account A is pending."""
    harness = QuotaHarness(2, grace=grace, elastic="malleable", accounts=ACCOUNTS)
    harness.with_leased("old", account="B", components=PARTS, **fields)
    assert [(each.component, each.slot) for each in harness.row("old").leases] == [
        ("driver", "lab-1"),
        ("helper", "lab-2"),
    ]
    harness.now += 10
    harness.submit("new", account="A")
    return harness


def change_helper(**changes: Any) -> Callable[[QuotaHarness], object]:
    def act(harness: QuotaHarness) -> None:
        row = harness.row("old")
        driver, helper = row.leases
        harness.put(msgspec.structs.replace(row, leases=(driver, msgspec.structs.replace(helper, **changes))))

    return act


GONE = "old does not have this elastic lease on lab-2 any more"
MEANWHILE: dict[str, tuple[Callable[[QuotaHarness], object], str]] = {
    "the helper was given back": (
        lambda harness: harness.ask(
            "surrender", reservation="old", token=harness.token("old"), component="helper", reason="x"
        ),
        GONE,
    ),
    "the helper is being revoked": (change_helper(state="revoking", revoke_by=2e9), GONE),
    "the helper runs at the same level": (change_helper(level=0), "old is not leased at a worse level"),
    "its share is more than the balance": (
        change_helper(cost=(200.0, 0.0, 0.0, 0.0, 0.0)),
        "account A has too little balance to preempt old",
    ),
    "the reservation ended": (lambda harness: harness.ask("cancel", reservation="old"), GONE),
    "the host is cordoned": (lambda harness: harness.ask("cordon", slot="lab-2"), "lab-2 takes no leases"),
}


@pytest.mark.parametrize("grace", [0, 30])
@pytest.mark.parametrize("case", MEANWHILE)
def test_what_no_longer_holds_is_skipped_as_a_whole(case: str, grace: float) -> None:
    change, reason = MEANWHILE[case]
    harness = a_harness(grace)
    leader_term = take_leader_term(harness.ports, harness.leader)
    ticked = decide(harness.ports, harness.leader, leader_term)
    kinds = [Preempt, Revoke] if grace else [Preempt, Revoke, Assign]
    assert [type(each) for each in ticked.plan.decisions] == kinds
    change(harness)
    before = (harness.row("old"), harness.row("new"), harness.balance("A")[0])
    carry_out(harness.ports, harness.leader, leader_term, ticked)
    assert [each.reason for each in ticked.skipped] == [reason] * len(kinds)
    assert (harness.row("old"), harness.row("new"), harness.balance("A")[0]) == before


@pytest.mark.parametrize("grace", [0, 30])
def test_the_reservation_goes_on_and_the_share_is_paid_and_refunded(grace: float) -> None:
    harness = a_harness(grace)
    before = harness.row("old")
    harness.tick()
    after = harness.row("old")
    driver, *helper = after.leases
    assert (after.phase, after.leased_at, after.token, driver.token) == (
        "leased",
        before.leased_at,
        *[before.token] * 2,
    )
    assert (driver.level, driver.cost) == (2, (0, 0, 10, 0, 0))
    assert [(each.state, each.cost, each.charged_at) for each in helper] == [("revoking", (0,) * 5, None)] * bool(grace)
    (new,) = harness.row("new").leases
    assert (new.slot, new.state, new.cost) == ("lab-2", "claimed" if grace else "held", (0, 0, 10, 0, 0))
    assert harness.balance("A") == (100, 0, -10, 0, 0)
    assert harness.balance("B") == (0, 0, 500 - 20 + 10, 0, 0)
    (event,) = [each for each in harness.events if each.name == "reservation_revoked"]
    shown = {name: event.detail[name] for name in ("component", "slot", "reason", "by", "account", "level", "ran_at")}
    assert shown == {
        "component": "helper",
        "slot": "lab-2",
        "reason": "preempted",
        "by": "new",
        "account": "A",
        "level": 0,
        "ran_at": 2,
    }
    assert event.detail["cost"] == [0, 0, 10, 0, 0]


def test_a_lease_that_is_revoked_alone_costs_nothing_after_its_reservation_changed_its_level() -> None:
    harness = a_harness(30)
    harness.tick()
    assert write(harness, Relevel(reservation="old", source=2, to=3)) == []
    driver, helper = harness.row("old").leases
    assert (driver.level, helper.level) == (3, 3)
    assert driver.charged_at is not None
    assert helper.charged_at is None


def test_the_reason_is_kept_until_the_end_of_the_grace() -> None:
    harness = a_harness(30)
    harness.tick()
    harness.now += 30
    harness.tick()
    reasons = [each.detail["reason"] for each in harness.events if each.name == "reservation_revoked"]
    assert reasons == ["preempted", "preempted"]
    assert harness.holders() == {"lab-1": ["old"], "lab-2": ["new"]}


def test_a_revoke_without_its_preemption_is_skipped() -> None:
    harness = a_harness()
    (_, helper) = harness.row("old").leases
    revoke = Revoke(reservation="old", component="helper", slot="lab-2", reason="preempted", epoch=helper.epoch)
    assert write(harness, revoke) == ["no preemption of the lease comes with the revoke"]
