"""Slots with several leases, and reservations with several instances, under the queue `quota`.

Source: qscheduler, which has neither.
"""

from typing import Any

import pytest

from scheduler.model.decisions import Preempt
from scheduler.model.view import Row, View
from scheduler.policy.plan import plan
from tests.builders import NOW, a_component, a_lease
from tests.rules.quotas import a_host, an_account, describe, levels, quota_rules, runs, waits

RULES = quota_rules({"resources": {"cpus": 4}, "offline_timeout": 1000})
X, Y = {"x": "1"}, {"y": "1"}


def cpus(amount: float, **changes: Any) -> dict[str, Any]:
    """One component with this request."""
    return {"components": (a_component(resources={"cpus": amount}, **changes),)}


def holds(name: str, slot: int, amount: float = 2, level: int = 5, cost: float = 0, **wishes: Any) -> Row:
    """A reservation that runs there with this number of cpus; its cost was paid at level 1."""
    lease = _lease("main", slot, amount, level, cost)
    return runs(name, lease, **cpus(amount), **wishes)


def _lease(component: str, slot: int, amount: float, level: int = 5, cost: float = 0) -> Any:
    slot_info = f"hosts-{slot}"
    paid = levels(0, cost)
    given = {"cpus": amount}
    return a_lease(
        slot_info, component=component, resources=given, level=level, cost=paid, charged_at=NOW, assigned_at=NOW
    )


def a_gang(*amounts: float, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """Components `c0`, `c1`, …; the first one requires these labels."""
    found = [a_component(f"c{number}", resources={"cpus": each}) for number, each in enumerate(amounts)]
    return {"components": (a_component("c0", resources={"cpus": amounts[0]}, labels=labels or {}), *found[1:])}


def _pair(name: str, slot: int, other: int, *, cost: float, amounts: tuple[float, float] = (2, 2)) -> Row:
    """A gang that runs on two slots; its cost was paid at level 1."""
    leases = (_lease("c0", slot, amounts[0], cost=cost), _lease("c1", other, amounts[1]))
    return runs(name, leases[0], **a_gang(*amounts) | {"leases": leases})


PLACING: dict[str, tuple[list[Any], list[str]]] = {
    "each slot takes as many as fit, in slot order": (
        [a_host(1), a_host(2), *(waits(f"r{n}", **cpus(2)) for n in range(1, 6))],
        ["r1 on 1 at 5", "r2 on 1 at 5", "r3 on 2 at 5", "r4 on 2 at 5"],
    ),
    "a reservation that is too large blocks no other": (
        [a_host(1), holds("r9", 1, 2), waits("r1", **cpus(3)), waits("r2", **cpus(2))],
        ["r2 on 1 at 5"],
    ),
    "a slot that is half full takes more": (
        [a_host(1), a_host(2), holds("r9", 1, 3), waits("r1", **cpus(2)), waits("r2", **cpus(1))],
        ["r2 on 1 at 5", "r1 on 2 at 5"],
    ),
    "a gang is placed where its first instance goes": (
        [a_host(1), a_host(2, X), waits("r1", **a_gang(4, 4, labels=X))],
        ["r1 on 2+1 at 5"],
    ),
    "all of a gang or nothing": (
        [a_host(1), a_host(2), holds("r9", 2, 1), waits("r1", **a_gang(4, 4)), waits("r2", at=1, **cpus(1))],
        ["r2 on 1 at 5"],
    ),
    "a gang that has no capacity here may have it there": (
        [
            a_host(1, X),
            a_host(2),
            waits("r1", components=(a_component("a", resources={"cpus": 3}), a_component(labels=X))),
            holds("r9", 2, 1),
        ],
        ["r1 on 1+1 at 5"],
    ),
    "a gang prefers with all its instances": (
        [a_host(1), a_host(2, X), a_host(3, X), waits("r1", prefers=X, **a_gang(4, 4))],
        ["r1 on 2+3 at 5"],
    ),
    "a slot needs all labels that a reservation requires": (
        [a_host(1, X), a_host(2, X | Y), holds("r9", 2, 4), waits("r1", labels=X | Y, **cpus(1))],
        [],
    ),
    "more labels of a component count as more demanding": (
        [a_host(1, X), waits("r1", at=-9, **cpus(4)), waits("r2", **cpus(4, labels=X))],
        ["r2 on 1 at 5"],
    ),
    "a gang takes what a per-label limit leaves, or nothing": (
        [
            a_host(1, X),
            a_host(2, X),
            waits("r1", "A", **a_gang(4, 4)),
            an_account("A", 1, per_label_task_limits={"x": 1}),
        ],
        [],
    ),
}


@pytest.mark.parametrize(("rows", "decided"), PLACING.values(), ids=PLACING)
def test_leases_share_slots_and_gangs_are_placed_whole(rows: list[Any], decided: list[str]) -> None:
    assert describe(*rows, rules=RULES)[0] == decided


def test_a_gang_takes_no_more_uses_of_a_machine_than_are_left() -> None:
    rules = quota_rules({"resources": {"cpus": 4}, "max_uses": 2})
    rows: list[Row] = [a_host(1, uses=1), a_host(2, uses=1), waits("r1", **a_gang(1, 1))]
    assert describe(*rows, rules=rules)[0] == ["r1 on 1+2 at 5"]


A, B = an_account("A", 100), an_account("B")
PREEMPTING: dict[str, tuple[list[Any], list[str]]] = {
    "the fewest victims end": (
        [a_host(1), A, holds("r7", 1, 1), holds("r8", 1, 1), holds("r9", 1, 2, cost=3), waits("r1", "A", **cpus(2))],
        ["r1 takes 1 of r9", "r1 on 1 at 0"],
    ),
    "of equally few victims the cheapest": (
        [a_host(1), A, *(holds(f"r{n}", 1, 1, cost=n) for n in (9, 8, 7, 6)), waits("r1", "A", **cpus(2))],
        ["r1 takes 1 of r6+r7", "r1 on 1 at 0"],
    ),
    "what is free there counts": (
        [a_host(1), A, holds("r8", 1, 1, cost=1), holds("r9", 1, 2, cost=2), waits("r1", "A", **cpus(2))],
        ["r1 takes 1 of r8", "r1 on 1 at 0"],
    ),
    "better work stays": (
        [
            a_host(1),
            A,
            holds("r8", 1, 2, 0),
            holds("r9", 1, 2),
            waits("r1", "A", **cpus(3)),
            waits("r2", "A", **cpus(2)),
        ],
        ["r2 takes 1 of r9", "r2 on 1 at 0"],
    ),
    "the costs of the victims are paid together": (
        [
            a_host(1),
            B,
            an_account("A", 0, 5),
            *(holds(f"r{n}", 1, 2, 4, 2.5, account="B") for n in (8, 9)),
            waits("r1", "A", **cpus(4)),
            waits("r2", "A", at=1, **cpus(2)),
        ],
        ["r2 takes 1 of r8", "r2 on 1 at 1"],
    ),
    "one preemption a slot": (
        [a_host(1), A, holds("r8", 1, 2), holds("r9", 1, 2), waits("r1", "A", **cpus(2)), waits("r2", "A", **cpus(2))],
        ["r1 takes 1 of r8", "r1 on 1 at 0"],
    ),
    "several instances preempt where all of them fit": (
        [
            a_host(1),
            a_host(2, resources={"cpus": 2}),
            A,
            holds("r8", 1, 4, cost=1),
            holds("r9", 2),
            waits("r1", "A", **a_gang(2, 2)),
        ],
        ["r1 takes 1 of r8", "r1 on 1+1 at 0"],
    ),
    "a gang is preempted as a whole": (
        [
            a_host(1),
            a_host(2),
            A,
            waits("r1", "A", **cpus(4)),
            runs("r9", _lease("c0", 1, 4), leases=(_lease("c0", 1, 4), _lease("c1", 2, 4)), **a_gang(4, 4)),
        ],
        ["r1 takes 1 of r9", "r1 on 1 at 0"],
    ),
    # r1 cannot pay for all of hosts-1. What r9 gives up there is not enough, and r1 does not try again.
    "a slot that is tried is not tried again when a victim on another slot frees a part of it": (
        [
            *(a_host(n, {"number": str(n)}) for n in (1, 2)),
            an_account("A", 0, 2.5),
            an_account("B", 0, 100),
            holds("r8", 1, 2, cost=2),
            _pair("r9", 1, 2, cost=1),
            waits("r1", "A", labels={"number": "1"}, **cpus(4)),
            waits("r2", "B", labels={"number": "2"}, **cpus(4)),
        ],
        ["r2 takes 2 of r9", "r2 on 2 at 1"],
    ),
    "nor if it was tried later than at first because a victim on it had ended": (
        [
            *(a_host(n, {"number": str(n)}) for n in (1, 2, 3)),
            an_account("A", 0, 2.5),
            an_account("B", 0, 100),
            holds("r7", 2, 2, cost=2),
            _pair("r8", 2, 3, cost=1, amounts=(1, 2)),
            _pair("r9", 1, 2, cost=0, amounts=(2, 1)),
            waits("r1", "A", labels={"number": "2"}, **cpus(4)),
            waits("r2", "B", labels={"number": "3"}, **cpus(4)),
            waits("r3", "B", labels={"number": "1"}, **cpus(4)),
        ],
        ["r3 takes 1 of r9", "r3 on 1 at 1", "r2 takes 3 of r8", "r2 on 3 at 1"],
    ),
    # Without r7, hosts-3 has the cheapest work of the slots that are left.
    "a gang takes its next slot in the order of what is left after a victim on two slots": (
        [
            *(a_host(n) for n in (1, 2, 3)),
            A,
            _pair("r7", 1, 2, cost=1),
            holds("r8", 2, 2, cost=5),
            holds("r9", 3, 4, cost=3),
            waits("r1", "A", **a_gang(4, 4)),
        ],
        ["r1 takes 1 of r7", "r1 takes 3 of r9", "r1 on 1+3 at 0"],
    ),
    # Both could not be paid for on hosts-1, but one of them suffices.
    "a gang pays for the work that has to end, and not for other work on the same slots": (
        [
            *(a_host(n, {"number": str(n)}) for n in (1, 2)),
            an_account("A", 0, 5),
            *(holds(f"r{n}", slot, 2, cost=2) for slot in (1, 2) for n in (5 + slot, 7 + slot)),
            waits(
                "r1",
                "A",
                components=tuple(
                    a_component(f"c{n}", resources={"cpus": 2}, labels={"number": str(n)}) for n in (1, 2)
                ),
            ),
        ],
        ["r1 takes 1 of r6", "r1 takes 2 of r7", "r1 on 1+2 at 1"],
    ),
    "not where slots are recycled with their leases": ([a_host(1), A, holds("r9", 1), waits("r1", "A", **cpus(4))], []),
}


@pytest.mark.parametrize(("rows", "decided"), PREEMPTING.values(), ids=PREEMPTING)
def test_a_preemption_on_a_shared_slot_ends_the_fewest_and_cheapest(rows: list[Any], decided: list[str]) -> None:
    recycles = not decided
    rules = quota_rules({"resources": {"cpus": 4}, "recycle_unclean": recycles})
    assert describe(*rows, rules=rules)[0] == decided


def test_of_too_many_sets_of_victims_the_cheapest_work_ends_one_after_the_other_until_the_newcomer_fits() -> None:
    """There are 2,024 sets of three leases."""
    running = [holds(f"r{number}", 1, 1, cost=30 - number) for number in range(1, 25)]
    rows: list[Row] = [a_host(1, resources={"cpus": 24}), A, *running, waits("r99", "A", **cpus(3))]
    assert describe(*rows, rules=RULES)[0] == ["r99 takes 1 of r24+r23+r22", "r99 on 1 at 0"]


def test_a_gang_is_relevelled_as_a_whole_in_the_order_of_what_it_cost_in_all() -> None:
    pairs = (_lease("c0", 1, 1, 0, 3), _lease("c1", 1, 1, 0, 1))
    rows: list[Row] = [a_host(1), an_account("A", -601, rate=(2.5,)), holds("r8", 1, 1, 0, 5, account="A")]
    rows += [runs("r9", pairs[0], account="A", leases=pairs, **a_gang(1, 1))]
    assert describe(*rows, rules=RULES)[0] == ["r9 from 0 to 1"]


def test_with_a_grace_period_revoked_leases_and_claims_share_their_capacity() -> None:
    rules = quota_rules({"resources": {"cpus": 4}}, preemption_grace=30)
    leaving = _lease("main", 1, 2)
    rows: list[Row] = [a_host(1), A, holds("r8", 1, 1, 0)]
    rows += [runs("r9", _revoke(leaving), phase="revoking", revoke_by=NOW + 9)]
    rows += [waits("r1", "A", leases=(_claim(leaving),), **cpus(2)), waits("r2", **cpus(2)), waits("r3", **cpus(1))]
    assert describe(*rows, rules=rules) == (["r3 on 1 at 5"], {"r1": "no_capacity", "r2": "no_capacity"})


def _revoke(lease: Any) -> Any:
    return a_lease(lease.slot, state="revoking", resources=lease.resources, revoke_by=NOW + 9)


def _claim(lease: Any) -> Any:
    return a_lease(lease.slot, state="claimed", resources=lease.resources, level=0, charged_at=NOW, assigned_at=NOW)


def test_work_is_not_preempted_before_its_minimum_run_time() -> None:
    rules = quota_rules(min_run_time=60)
    rows: list[Row] = [a_host(1), A, runs("r9", 1), waits("r1", "A")]
    assert describe(*rows, rules=rules, now=NOW + 59)[0] == []
    assert plan(View(rows), rules, NOW + 59).wake_at == NOW + 60
    assert describe(*rows, rules=rules, now=NOW + 60)[0] == ["r1 takes 1 of r9", "r1 on 1 at 0"]


def test_preemption_can_be_switched_off() -> None:
    rows: list[Row] = [a_host(1), A, runs("r9", 1), waits("r1", "A")]
    assert describe(*rows, rules=quota_rules(preemption=False))[0] == []


def test_only_systems_whose_queue_is_quota_are_placed_by_it() -> None:
    rules = quota_rules(
        queue="fifo", system={"arm": {"queue": "quota"}}, pools={"arms": {"system": "arm", "provider": "static"}}
    )
    account = an_account("A", 1)
    rows: list[Row] = [a_host(1), a_host(1, id="arms-1", pool="arms"), account, waits("r1", "A")]
    rows += [waits("r2", "A", system="arm"), runs("r9", 1, account="A"), a_host(2)]
    assert describe(*rows, rules=rules)[0] == ["r2 on arms-1 at 0", "r1 on 2 at None"]


def test_a_preemption_names_the_leases_of_the_new_reservation() -> None:
    rows: list[Row] = [a_host(1), A, runs("r9", 1), waits("r1", "A")]
    [preempted] = [each for each in plan(View(rows), quota_rules(), NOW).decisions if isinstance(each, Preempt)]
    assert [(each.component, each.slot, each.epoch) for each in preempted.leases] == [("main", "hosts-1", 1)]


def test_a_preemption_frees_on_another_slot_only_what_this_tick_has_not_assigned_there() -> None:
    """r9 has four cpus of hosts-1 and two of hosts-2, where r1 gets the other two before r2 preempts r9."""
    gang = a_gang(4, 2)
    leases = (_lease("c0", 1, 4), _lease("c1", 2, 2))
    rows: list[Row] = [a_host(1), a_host(2), A, runs("r9", leases[0], **gang | {"leases": leases})]
    rows += [waits("r1", "A", **cpus(2)), waits("r2", "A", at=1, **cpus(4))]
    rows += [waits("r3", at=2, **cpus(3)), waits("r4", at=3, **cpus(2))]
    decided = ["r1 on 2 at 0", "r2 takes 1 of r9", "r2 on 1 at 0", "r4 on 2 at 5"]
    assert describe(*rows, rules=RULES)[0] == decided


def test_with_a_grace_period_the_capacity_that_a_victim_leaves_on_another_slot_is_claimed() -> None:
    """r9 has four cpus of hosts-1 and two of hosts-2, where r1 gets the other two before r2 preempts r9."""
    leases = (_lease("c0", 1, 4), _lease("c1", 2, 2))
    rows: list[Row] = [a_host(1), a_host(2), A, runs("r9", leases[0], **a_gang(4, 2) | {"leases": leases})]
    rows += [waits(f"r{n}", "A", at=n, **cpus(amount)) for n, amount in enumerate((2, 4, 3, 2, 1), 1)]
    rules = quota_rules({"resources": {"cpus": 4}}, preemption_grace=30)
    assert describe(*rows, rules=rules)[0] == ["r1 on 2 at 0", "r2 takes 1 of r9 by 30", "r4 claims 2 at 0"]
