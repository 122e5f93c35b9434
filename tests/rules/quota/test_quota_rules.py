"""Cases of qscheduler that one plan decides."""

from typing import Any

import pytest

from scheduler.model.decisions import Launch
from scheduler.model.view import Row, View
from scheduler.policy.plan import plan
from tests.builders import NOW, SYSTEM, a_lease, a_slot
from tests.rules.quotas import a_claim, a_host, an_account, describe, quota_rules, runs, waits

X = {"x": "1"}
B12I1, IMG1 = {"b1": "", "b2": "", "img": "1"}, {"img": "1"}
PLACING: dict[str, tuple[list[Any], list[str], dict[str, str]]] = {
    "without an account work is free": ([a_host(), waits("r1")], ["r1 on 1 at 5"], {}),
    "so does work of an account that does not exist": ([a_host(), waits("r1", "Z")], ["r1 on 1 at 5"], {}),
    "required labels have to be there": (
        [a_host(), a_host(2, X, cordoned=True), waits("r1", "A", labels=X), an_account("A", 1)],
        [],
        {"r1": "cordoned"},
    ),
    "without balance work is free": ([a_host(), waits("r1", "A"), an_account()], ["r1 on 1 at 5"], {}),
    "unless its account has no free work": (
        [a_host(), waits("r1", "A"), an_account(disable_free_tasks=True)],
        [],
        {"r1": "no_quota"},
    ),
    "the best level with a balance above 0": (
        [a_host(), waits("r1", "A"), an_account("A", 0, 1)],
        ["r1 on 1 at 1"],
        {},
    ),
    "deeper levels may be negative": ([a_host(), waits("r1", "A"), an_account("A", -5, 3)], ["r1 on 1 at 1"], {}),
    "the most demanding first": (
        [a_host(1, B12I1), waits("r1", labels={"b1": ""}, at=-9), waits("r2", labels={"b1": "", "b2": ""})],
        ["r2 on 1 at 5"],
        {"r1": "no_capacity"},
    ),
    "the preference before the number of labels": (
        [
            a_host(1, B12I1),
            waits("r1", labels={"b1": "", "b2": ""}, prefers={"img": "2"}),
            waits("r2", labels={"b1": ""}, prefers=IMG1),
        ],
        ["r2 on 1 at 5"],
        {"r1": "no_capacity"},
    ),
    "the level before the preference": (
        [
            a_host(1, IMG1),
            waits("r1", "A", prefers=IMG1),
            waits("r2", "B", prefers={"img": "9"}),
            an_account("A", 0, 1),
            an_account("B", 1),
        ],
        ["r2 on 1 at 0"],
        {"r1": "no_capacity"},
    ),
    "a reservation without preferences has them met everywhere": (
        [a_host(1, IMG1), waits("r1"), waits("r2", prefers=IMG1)],
        ["r1 on 1 at 5"],
        {"r2": "no_capacity"},
    ),
    "the oldest first, then the first one submitted": (
        [a_host(n) for n in range(1, 5)] + [waits("r1", at=-1), waits("r2", at=-2), waits("r4"), waits("r3")],
        ["r2 on 1 at 5", "r1 on 2 at 5", "r3 on 3 at 5", "r4 on 4 at 5"],
        {},
    ),
    "priority counts only as on hold": (
        [a_host(), waits("r1", at=-1), waits("r2", priority=9), waits("r3", priority=0, at=-2)],
        ["r1 on 1 at 5"],
        {"r2": "no_capacity", "r3": "on_hold"},
    ),
    "a slot with an unknown occupant takes nothing": (
        [a_host(stranger="r9"), waits("r1"), a_host(2, cordoned=True)],
        [],
        {"r1": "cordoned"},
    ),
    "max_fanout: the rest of those that are alike runs free": (
        [
            a_host(1),
            a_host(2),
            a_host(3),
            an_account("A", 9, max_fanout=1),
            waits("r1", "A"),
            waits("r2", "A"),
            waits("r3", "A", prefers=X),
        ],
        ["r1 on 1 at 0", "r3 on 2 at 0", "r2 on 3 at 5"],
        {},
    ),
    "max_fanout without free work: the rest waits": (
        [
            a_host(1),
            a_host(2),
            an_account("A", 9, max_fanout=1, disable_free_tasks=True),
            waits("r1", "A"),
            waits("r2", "A"),
        ],
        ["r1 on 1 at 0"],
        {"r2": "account_limit"},
    ),
    "max_fanout counts what runs, at whatever level": (
        [a_host(1), a_host(2), runs("r9", 1, 5, "A", labels={}), waits("r1", "A"), an_account("A", 9, max_fanout=1)],
        ["r1 on 2 at 5"],
        {},
    ),
    "per_label_task_limits: no more on slots with that value": (
        [a_host(n, IMG1) for n in (1, 2)]
        + [a_host(3, {"img": "2"}), a_host(4, {"img2": "1"}), an_account("A", 9, per_label_task_limits={"img": 1})]
        + [waits(f"r{n}", "A") for n in range(1, 5)],
        ["r1 on 1 at 0", "r2 on 3 at 0", "r3 on 4 at 0"],
        {"r4": "account_limit"},
    ),
    "per_label_task_limits hold at the free level too": (
        [
            a_host(1, IMG1),
            a_host(2, IMG1),
            an_account("A", per_label_task_limits={"img": 1}),
            waits("r1", "A"),
            waits("r2", "A"),
        ],
        ["r1 on 1 at 5"],
        {"r2": "account_limit"},
    ),
    "if no slot is idle, the limit is not the reason": (
        [
            a_host(1, IMG1),
            runs("r9", 1, 0, "A"),
            an_account("A", 9, per_label_task_limits={"img": 1}),
            waits("r1", "A"),
        ],
        [],
        {"r1": "no_capacity"},
    ),
}


@pytest.mark.parametrize(("rows", "decided", "waiting"), PLACING.values(), ids=PLACING)
def test_reservations_are_placed_by_level_preference_and_labels(
    rows: list[Any], decided: list[str], waiting: dict[str, str]
) -> None:
    assert describe(*rows) == (decided, waiting)


PREEMPTING: dict[str, tuple[list[Any], list[str]]] = {
    "better work takes the place of worse": (
        [a_host(), runs("r9", 1), waits("r1", "A"), an_account("A", 1)],
        ["r1 takes 1 of r9", "r1 on 1 at 0"],
    ),
    "never of an equal level": (
        [a_host(), runs("r9", 1, 0, "B"), waits("r1", "A"), an_account("A", 1), an_account("B")],
        [],
    ),
    "an equal cost is refused": ([a_host(), runs("r9", 1, 2, "B", (1,)), waits("r1", "A"), an_account("A", 1)], []),
    "a lower one is not": (
        [a_host(), runs("r9", 1, 2, "B", (1,)), waits("r1", "A"), an_account("A", 1.5)],
        ["r1 takes 1 of r9", "r1 on 1 at 0"],
    ),
    "the first level at which they differ decides": (
        [a_host(), runs("r9", 1, 2, "B", (0, 100)), waits("r1", "A"), an_account("A", 1, -50)],
        ["r1 takes 1 of r9", "r1 on 1 at 0"],
    ),
    "the cheapest first, then in slot order": (
        [
            a_host(1),
            a_host(2),
            a_host(3),
            runs("r7", 1, 1, "B", (0, 1)),
            runs("r8", 3, 1, "B"),
            runs("r9", 2, 1, "B"),
            waits("r1", "A"),
            an_account("A", 300, 1, rate=(1, 1, 1)),
            an_account("B"),
        ],
        ["r1 takes 2 of r9", "r1 on 2 at 0"],
    ),
    "one slot for a reservation, and one preemption for a slot": (
        [a_host(), runs("r9", 1), waits("r1", "A"), waits("r2", "A"), waits("r3", "A"), an_account("A", 10)],
        ["r1 takes 1 of r9", "r1 on 1 at 0"],
    ),
    "an account with a lease at a worse level anywhere is barred": (
        [a_host(1), a_host(2), runs("r8", 1, 4, "A"), runs("r9", 2), waits("r1", "A"), an_account("A", 10)],
        [],
    ),
    "each reservation pays from what is left": (
        [
            a_host(1),
            a_host(2),
            runs("r8", 1, 2, "B", (2,)),
            runs("r9", 2, 2, "B", (2,)),
            waits("r1", "A"),
            waits("r2", "A"),
            an_account("A", 3),
            an_account("B"),
        ],
        ["r1 takes 1 of r8", "r1 on 1 at 0"],
    ),
    "max_fanout lets no more preempt": (
        [
            a_host(1),
            a_host(2),
            a_host(3),
            runs("r7", 1),
            runs("r8", 2),
            runs("r9", 3),
            waits("r1", "A"),
            waits("r2", "A"),
            waits("r3", "A"),
            an_account("A", 100, max_fanout=1),
        ],
        ["r1 takes 1 of r7", "r1 on 1 at 0"],
    ),
    "per_label_task_limits let nothing be preempted there": (
        [
            a_host(1, IMG1),
            a_host(2, IMG1),
            a_host(3, IMG1),
            runs("r7", 1, 0, "A"),
            runs("r8", 2),
            runs("r9", 3),
            waits("r1", "A"),
            waits("r2", "A"),
            an_account("A", 100, per_label_task_limits={"img": 2}),
        ],
        ["r1 takes 2 of r8", "r1 on 2 at 0"],
    ),
    "preferences do not matter": (
        [a_host(1, X), runs("r9", 1), waits("r1", "A", prefers=IMG1), an_account("A", 1)],
        ["r1 takes 1 of r9", "r1 on 1 at 0"],
    ),
    "required labels do": ([a_host(1, X), runs("r9", 1), waits("r1", "A", labels=IMG1), an_account("A", 1)], []),
    "some work may not be preempted": (
        [a_host(), runs("r9", 1, preemptible=False), waits("r1", "A"), an_account("A", 1)],
        [],
    ),
    "free work preempts nothing": (
        [a_host(), runs("r9", 1, 5, "B"), waits("r1", "A"), an_account(), an_account("B")],
        [],
    ),
    "the first in order that may": (
        [
            a_host(),
            runs("r9", 1, 1, "C", (5,)),
            waits("r1", "A", at=-1),
            waits("r2", "B"),
            an_account("A", 5),
            an_account("B", 6),
        ],
        ["r2 takes 1 of r9", "r2 on 1 at 0"],
    ),
    "no lease is preempted on a cordoned slot, or beside an unknown occupant": (
        [
            a_host(1, cordoned=True),
            a_host(2, stranger="r6"),
            runs("r8", 1),
            runs("r9", 2),
            waits("r1", "A"),
            an_account("A", 1),
        ],
        [],
    ),
    "an idle slot comes first": (
        [a_host(1), a_host(2), runs("r9", 1), waits("r1", "A"), an_account("A", 1)],
        ["r1 on 2 at 0"],
    ),
}


@pytest.mark.parametrize(("rows", "decided"), PREEMPTING.values(), ids=PREEMPTING)
def test_better_work_preempts_worse_work(rows: list[Any], decided: list[str]) -> None:
    assert describe(*rows)[0] == decided


RELEVELLING: dict[str, tuple[list[Any], list[str]]] = {
    "below -600 as many of the cheapest as the rates lack": (
        [
            a_host(1),
            a_host(2),
            runs("r8", 1, 0, "A", (1,)),
            runs("r9", 2, 0, "A"),
            an_account("A", -1200, 1200, 1200, rate=(1.1, 0.9)),
        ],
        ["r9 from 0 to 1"],
    ),
    "exactly 600 changes nothing": ([a_host(1), runs("r9", 1, 2, "A"), an_account("A", 0, 600, rate=(0, 0.5))], []),
    "above 600 they are promoted": (
        [a_host(1), runs("r9", 1, 2, "A"), an_account("A", 0, 600.5, rate=(0, 0.5))],
        ["r9 from 2 to 1"],
    ),
    "exactly -600 changes nothing": ([a_host(1), runs("r9", 1, 1, "A"), an_account("A", 0, -600, rate=(0, 0.5))], []),
    "below they are demoted": (
        [a_host(1), runs("r9", 1, 1, "A"), an_account("A", 0, -600.5, rate=(0, 0.5))],
        ["r9 from 1 to 2"],
    ),
    "not while the rates cover them": ([a_host(1), runs("r9", 1, 1, "A"), an_account("A", 0, -601, rate=(0, 1))], []),
    "the most expensive are promoted first, free ones too": (
        [a_host(n) for n in (1, 2, 3)]
        + [runs("r7", 1, 5, "A", (1,)), runs("r8", 2, 3, "A", (3,)), runs("r9", 3, 1, "A", (2,))]
        + [an_account("A", 601, rate=(1.5,))],
        ["r8 from 3 to 0", "r9 from 1 to 0"],
    ),
    "one tick may take a lease down several levels, to the free one": (
        [a_host(), runs("r9", 1, 3, "A"), an_account("A", 0, 0, 0, -601, -601)],
        ["r9 from 3 to 4", "r9 from 4 to 5"],
    ),
    "a reservation whose account does not exist keeps its level": ([a_host(), runs("r9", 1, 3, "A")], []),
    "what was assigned in this tick counts": (
        [a_host(1), a_host(2), runs("r9", 1, 5, "A"), waits("r1", "A"), an_account("A", 601, rate=(1,))],
        ["r1 on 2 at 0"],
    ),
}


@pytest.mark.parametrize(("rows", "decided"), RELEVELLING.values(), ids=RELEVELLING)
def test_work_is_demoted_below_minus_600_and_promoted_above_600(rows: list[Any], decided: list[str]) -> None:
    assert describe(*rows)[0] == decided


def test_a_reservation_that_its_account_blocks_launches_nothing() -> None:
    rules = quota_rules(pools={"linux": {"system": SYSTEM, "max_slots": 9}})
    wanted: list[Row] = [waits("r1", "A", pool="linux", system=None), a_slot(state="empty")]
    assert plan(View([an_account("A", disable_free_tasks=True), *wanted]), rules, NOW).decisions == ()
    assert [type(each) for each in plan(View([an_account("A"), *wanted]), rules, NOW).decisions] == [Launch]


def test_no_second_machine_is_launched_while_the_first_one_boots() -> None:
    rules = quota_rules(pools={"linux": {"system": SYSTEM, "max_slots": 9}})
    slots = [a_slot("linux-1", state="booting"), a_slot("linux-2", state="empty")]
    found = plan(View([*slots, waits("r1", pool="linux", system=None)]), rules, NOW)
    assert (found.decisions, [each.code for each in found.waiting]) == ((), ["booting"])


def test_a_preempted_reservation_whose_account_may_not_run_free_waits_for_a_balance() -> None:
    rows: list[Row] = [a_host(), runs("r9", 1, 5, "V"), waits("r1", "A"), an_account("A", 100)]
    for is_free_work_disabled, code in ((False, "no_capacity"), (True, "no_quota")):
        victim = an_account("V", -1, disable_free_tasks=is_free_work_disabled)
        assert describe(*rows, victim) == (["r1 takes 1 of r9", "r1 on 1 at 0"], {"r9": code})


def test_accounts_are_charged_before_levels_are_taken() -> None:
    rows: list[Row] = [a_host(), waits("r1", "A"), an_account("A", rate=(0, 1), max_charge_seconds=10)]
    assert describe(*rows, now=NOW + 1)[0] == ["r1 on 1 at 1"]
    assert plan(View(rows), quota_rules(), NOW + 1).charged == ("A",)
    assert plan(View(rows), quota_rules(), NOW).charged == ()
    assert plan(View(rows), quota_rules(queue="fifo"), NOW + 1).charged == ()


def test_a_claim_that_is_assigned_and_preempted_in_the_same_tick_does_not_wait() -> None:
    """Its lease lasts until its own grace period is over."""
    claimant = waits("r8", **a_claim(a_lease("hosts-1", level=1, charged_at=NOW)))
    rows: list[Row] = [a_host(), claimant, waits("r1", "A"), an_account("A", 1)]
    decided, waiting = describe(*rows, rules=quota_rules(preemption_grace=30))
    assert decided == ["r8 on 1 at 1", "r1 takes 1 of r8 by 30"]
    assert waiting == {"r1": "no_capacity"}


def test_a_reservation_from_before_its_account_was_forgotten_runs_free_when_the_account_exists_again() -> None:
    rows: list[Row] = [a_host(1), a_host(2), waits("r1", "A"), waits("r2", "A")]
    assert describe(*rows, an_account("A", 1, forgotten_upto=1))[0] == ["r2 on 1 at 0", "r1 on 2 at 5"]
