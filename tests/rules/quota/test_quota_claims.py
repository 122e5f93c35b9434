"""With a grace period, a preempting reservation has a claim on the slot until the victims have ended. Source:
qscheduler.
"""

from typing import Any

import pytest

from scheduler.model.view import Row, View
from scheduler.policy.plan import plan
from tests.builders import NOW, a_lease
from tests.rules.quotas import a_host, an_account, describe, levels, quota_rules, runs, waits

RULES = quota_rules(preemption_grace=30)


def claims(name: str, slot: int = 1, account: str = "A", **changes: Any) -> Row:
    """A pending reservation that claimed this slot a while ago, at level 0, for the cost of its victim."""
    own: dict[str, Any] = {"level": 0, "cost": levels(1), "charged_at": NOW - 9, "assigned_at": NOW - 9, **changes}
    lease = a_lease(f"hosts-{slot}", state="claimed", token=0, **own)
    return waits(name, account, at=-100, leases=(lease,))


def leaves(name: str, slot: int = 1, until: float = 21, **changes: Any) -> Row:
    """A reservation that was preempted on this slot, with this number of seconds left."""
    lease = a_lease(f"hosts-{slot}", state="revoking", level=5, revoke_by=NOW + until, **changes)
    return runs(name, lease, phase="revoking", revoke_reason="preempted", revoke_by=NOW + until)


def test_with_a_grace_period_the_victim_is_revoking_and_the_preempting_reservation_waits() -> None:
    rows: list[Row] = [a_host(), runs("r9", 1), waits("r1", "A"), an_account("A", 1)]
    assert describe(*rows, rules=RULES) == (["r1 takes 1 of r9 by 30"], {"r1": "no_capacity"})
    found = plan(View(rows), RULES, NOW)
    assert found.wake_at == NOW + 30
    assert [each.detail for each in found.waiting] == [
        "takes the place of r9 on hosts-1, at the end of the grace at the latest"
    ]


CLAIMS: dict[str, tuple[list[Any], list[str], dict[str, str]]] = {
    "it waits while the victim holds its lease, and gets no other slot": (
        [a_host(1), a_host(2), leaves("r9"), claims("r1"), an_account("A", 1)],
        [],
        {"r1": "no_capacity"},
    ),
    "it gets the slot when the victim has ended": (
        [a_host(1), a_host(2), claims("r1"), an_account("A", 1)],
        ["r1 on 1 at 0"],
        {},
    ),
    "it gets the slot when the grace period is over, the victim another": (
        [a_host(1), a_host(2), leaves("r9", until=0), claims("r1"), an_account("A", 1)],
        ["r9 again: preempted", "r1 on 1 at 0", "r9 on 2 at 5"],
        {},
    ),
    "at the level for which it was claimed, whatever is left": (
        [a_host(1), claims("r1", level=2), an_account("A", -9, disable_free_tasks=True)],
        ["r1 on 1 at 2"],
        {},
    ),
    "no other reservation gets the slot, and none preempts it again": (
        [a_host(1), leaves("r9"), claims("r1"), waits("r2", "B"), an_account("A", 1), an_account("B", 100)],
        [],
        {"r1": "no_capacity", "r2": "no_capacity"},
    ),
    "a cordoned slot is waited for": (
        [a_host(1, cordoned=True), claims("r1"), an_account("A", 1)],
        [],
        {"r1": "cordoned"},
    ),
    "a slot with an unknown occupant is waited for": (
        [a_host(1, stranger="r6"), claims("r1"), an_account("A", 1)],
        [],
        {"r1": "no_capacity"},
    ),
    "a slot with another machine is not: the reservation is placed as all others are": (
        [a_host(1, epoch=2), a_host(2), claims("r1"), an_account("A", 1)],
        ["r1 again: slot_gone", "r1 on 1 at 0"],
        {},
    ),
    "a draining slot is not waited for": (
        [a_host(1, state="draining"), a_host(2), leaves("r9"), claims("r1"), an_account("A", 1)],
        ["r1 again: slot_draining", "r1 on 2 at 0"],
        {},
    ),
    "an interrupted slot is not waited for": (
        [a_host(1, interrupted_at=NOW, interrupted_by=NOW + 9), a_host(2), claims("r1"), an_account("A", 1)],
        ["r1 again: slot_interrupted", "r1 on 2 at 0"],
        {},
    ),
    "an offline slot is not waited for": (
        [a_host(1, last_seen=NOW - 500), a_host(2), claims("r1"), an_account("A", 1)],
        ["r1 again: slot_offline", "r1 on 2 at 0"],
        {},
    ),
    "a claim counts for max_fanout": (
        [a_host(1), a_host(2), leaves("r9"), claims("r1"), waits("r2", "A"), an_account("A", 5, max_fanout=1)],
        ["r2 on 2 at 5"],
        {"r1": "no_capacity"},
    ),
    "a preempted reservation bars its account no more": (
        [
            a_host(1),
            a_host(2),
            runs("r8", 2),
            waits("r2", "V"),
            an_account("A", 5),
            an_account("V", 5),
            runs("r9", a_lease("hosts-1", state="revoking", level=5), account="V", phase="revoking", revoke_by=NOW + 9),
            claims("r1"),
        ],
        ["r2 takes 2 of r8 by 30"],
        {"r1": "no_capacity", "r2": "no_capacity"},
    ),
}


@pytest.mark.parametrize(("rows", "decided", "waiting"), CLAIMS.values(), ids=CLAIMS)
def test_a_claim_is_assigned_when_the_earlier_leases_have_ended(
    rows: list[Any], decided: list[str], waiting: dict[str, str]
) -> None:
    assert describe(*rows, rules=RULES) == (decided, waiting)


def test_a_reservation_that_is_preempted_at_once_gets_no_slot_in_that_tick() -> None:
    rows: list[Row] = [a_host(1, {"x": "1"}), a_host(2), runs("r9", 1), an_account("A", 1)]
    rows.append(waits("r1", "A", labels={"x": "1"}))
    assert describe(*rows) == (["r1 takes 1 of r9", "r1 on 1 at 0"], {"r9": "no_capacity"})
    assert plan(View(rows), quota_rules(), NOW).wake_at == NOW
