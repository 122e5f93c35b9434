"""Elastic instances under `quota`: they are reclaimed for essential ones before whole reservations are preempted."""

from typing import Any

import pytest

from tests.rules.playing import Document, act, play_out, tick
from tests.rules.zoe import a_lab, an_application, component, decided, on_slot, submitted

ACCOUNTS: Document = {"rich": {"balance": [100]}, "capped": {"per_label_task_limits": {"rack": 1}}, "poor": {}}
ACCOUNTS["one"] = {"balance": [100], "max_fanout": 1}
GRACE = {"preemption_grace": 30}


def by_quota(*timeline: Document, **parts: Any) -> Document:
    """A lab whose queue is `quota`, with these accounts."""
    scenario = a_lab(*timeline, scheduler={"queue": "quota", **parts.pop("scheduler", {})}, **parts)
    scenario["config"]["accounts"] = ACCOUNTS
    return scenario


def stretched(more: int, *timeline: Document, slots: list[Document] | None = None, **parts: Any) -> Document:
    """`low` holds its essential instance and this number of elastic ones, by default all that fit on its slot."""
    names = ["core", *(["more"] if more == 1 else [f"more.{index}" for index in range(more)])]
    full = [on_slot("lab-1", 1 + more, *[("low", name) for name in names])]
    rows = [an_application("low", 1, more, phase="leased"), *parts.pop("others", ())]
    return by_quota(*timeline, slots=slots or full, reservations=rows, **parts)


CASES: dict[str, tuple[Document, list[str]]] = {
    "work at the free level takes the slot of an elastic instance": (
        stretched(2, submitted(5, an_application("r1", 1))),
        ["5 revoke low more.1 lab-1 reclaimed", "5 assign r1 lab-1 at 5"],
    ),
    "a paid reservation preempts nothing if elastic instances can be reclaimed": (
        stretched(3, submitted(5, an_application("r1", 2, account="rich"))),
        ["5 revoke low more.2 lab-1 reclaimed", "5 revoke low more.1 lab-1 reclaimed", "5 assign r1 lab-1 lab-1 at 0"],
    ),
    "but it preempts the whole reservation where that does not suffice": (
        stretched(2, submitted(5, an_application("r1", 3, account="rich"))),
        ["5 preempt r1 lab-1 of low at 0", "5 assign r1 lab-1 lab-1 lab-1 at 0"],
    ),
    "a slot that a limit of the account refuses is passed over": (
        stretched(
            1,
            submitted(5, an_application("r1", 2, account="capped")),
            slots=[
                on_slot("lab-1", 2, ("old", "core"), labels={"rack": "a"}),
                on_slot("lab-2", 2, ("low", "core"), ("low", "more"), labels={"rack": "b"}),
                on_slot("lab-3", 1, labels={"rack": "a"}),
            ],
            others=[an_application("old", 1, account="capped", phase="leased")],
        ),
        [],
    ),
    "the instances that a reclaim places count for the limit together": (
        stretched(
            2,
            submitted(5, an_application("r1", 2, account="capped")),
            slots=[on_slot("lab-1", 3, ("low", "core"), ("low", "more.0"), ("low", "more.1"), labels={"rack": "a"})],
        ),
        [],
    ),
    "and a reclaim on another one serves the reservation": (
        stretched(
            1,
            submitted(5, an_application("r1", 1, account="capped")),
            slots=[
                on_slot("lab-1", 2, ("old", "core"), labels={"rack": "a"}),
                on_slot("lab-2", 2, ("low", "core"), ("low", "more"), labels={"rack": "b"}),
            ],
            others=[an_application("old", 1, account="capped", phase="leased")],
        ),
        ["5 revoke low more lab-2 reclaimed", "5 assign r1 lab-2 at 5", "5 grant low more lab-1 room"],
    ),
    "the better level is first": (
        stretched(1, submitted(5, an_application("r1", 1), an_application("r2", 1, account="rich"))),
        ["5 revoke low more lab-1 reclaimed", "5 assign r2 lab-1 at 0"],
    ),
    "an account pays for as many leases as it may, and the next one is free": (
        stretched(2, submitted(5, an_application("r1", 1, account="one"), an_application("r2", 1, account="one"))),
        [
            *("5 revoke low more.1 lab-1 reclaimed", "5 assign r1 lab-1 at 0"),
            *("5 revoke low more.0 lab-1 reclaimed", "5 assign r2 lab-1 at 5"),
        ],
    ),
    "with a grace period a claim counts as one of these leases": (
        stretched(
            2,
            submitted(5, an_application("r1", 1, account="one"), an_application("r2", 1, account="one")),
            act(9, "surrender", {"reservation": "low"}),
            scheduler=GRACE,
        ),
        [
            *("5 revoke low more.1 lab-1 reclaimed", "5 revoke low more.0 lab-1 reclaimed"),
            *("9 assign r1 lab-1 at 0", "9 assign r2 lab-1 at 5"),
        ],
    ),
    "an idle slot is used before anything is reclaimed": (
        stretched(
            1,
            submitted(5, an_application("r1", 1)),
            slots=[on_slot("lab-1", 2, ("low", "core"), ("low", "more")), on_slot("lab-2", 1)],
        ),
        ["5 assign r1 lab-2 at 5"],
    ),
    "what a reclaim frees beyond the need, on a slot that had no lease left, is assigned in the same tick": (
        by_quota(
            submitted(5, an_application("r1", 1, units=3, account="rich"), an_application("r2", 1)),
            slots=[on_slot("lab-1", 5, ("low", "core"), ("low", "more.0"), ("low", "more.1"))],
            reservations=[
                {
                    **an_application("low", 1, phase="leased"),
                    "components": [component("core", 1, 1), component("more", 2, 2, "elastic")],
                }
            ],
            lab={"max_leases_per_slot": 3},
        ),
        [
            *("5 revoke low more.1 lab-1 reclaimed", "5 revoke low more.0 lab-1 reclaimed"),
            *("5 assign r1 lab-1 at 0", "5 assign r2 lab-1 at 5"),
        ],
    ),
    "a gang uses what is idle and what is reclaimed": (
        stretched(
            1,
            submitted(5, an_application("r1", 2)),
            slots=[on_slot("lab-1", 2, ("low", "core"), ("low", "more")), on_slot("lab-2", 1)],
        ),
        ["5 revoke low more lab-1 reclaimed", "5 assign r1 lab-2 lab-1 at 5"],
    ),
    "each further reclaim on a slot lets the slot be examined again for the other instances": (
        by_quota(
            submitted(5, an_application("r1", 3, units=2)),
            slots=[on_slot("lab-1", 7, *[("low", name) for name in ("core", "large", "more.0", "more.1")])],
            reservations=[
                {
                    **an_application("low", 1, phase="leased"),
                    "components": [
                        *(component("core", 1), component("large", 1, 4, "elastic")),
                        component("more", 2, 1, "elastic"),
                    ],
                }
            ],
        ),
        [
            *(f"5 revoke low {name} lab-1 reclaimed" for name in ("more.1", "more.0", "large")),
            "5 assign r1 lab-1 lab-1 lab-1 at 5",
        ],
    ),
    "a small instance is put back if the reclaim of a large one on its slot suffices": (
        by_quota(
            submitted(5, an_application("r1", 1, units=2)),
            slots=[on_slot("lab-1", 4, ("low", "core"), ("low", "large"), ("low", "small"))],
            reservations=[
                {
                    **an_application("low", 1, phase="leased"),
                    "components": [
                        component("core", 1, 1),
                        component("large", 1, 2, "elastic"),
                        component("small", 1, 1, "elastic"),
                    ],
                }
            ],
        ),
        ["5 revoke low large lab-1 reclaimed", "5 assign r1 lab-1 at 5"],
    ),
    "an instance that would be reclaimed without effect stays": (
        stretched(
            2,
            submitted(5, an_application("r1", 1, units=2)),
            slots=[
                on_slot("lab-1", 2, ("low", "more.0")),
                on_slot("lab-2", 2, ("other", "core"), ("low", "more.1")),
                on_slot("lab-3", 1, ("low", "core")),
            ],
            others=[an_application("other", 1, phase="leased")],
        ),
        ["5 revoke low more.0 lab-1 reclaimed", "5 assign r1 lab-1 at 5"],
    ),
    "nothing is reclaimed on a slot that the reservation has declined": (
        stretched(2, tick(5), others=[an_application("r1", 1, declined=["lab-1"])]),
        [],
    ),
    "nothing is reclaimed for a gang that still would not fit": (
        stretched(2, submitted(5, an_application("r1", 3))),
        [],
    ),
    "with a grace period it claims the slot, and gets it when that is given back": (
        stretched(
            2,
            submitted(5, an_application("r1", 1, account="rich")),
            act(9, "surrender", {"reservation": "low"}),
            scheduler=GRACE,
        ),
        ["5 revoke low more.1 lab-1 reclaimed", "9 assign r1 lab-1 at 0"],
    ),
    "or when the grace period is over": (
        stretched(2, submitted(5, an_application("r1", 1)), scheduler=GRACE, until=60, wakes=True),
        ["5 revoke low more.1 lab-1 reclaimed", "35 revoke low more.1 lab-1 reclaimed", "35 assign r1 lab-1 at 5"],
    ),
    "capacity that is given back for no claim is assigned only when it is free": (
        stretched(
            2,
            submitted(5, an_application("r1", 1)),
            act(6, "cancel", "r1"),
            submitted(7, an_application("r2", 2)),
            act(9, "surrender", {"reservation": "low"}),
            scheduler=GRACE,
        ),
        ["5 revoke low more.1 lab-1 reclaimed", "7 revoke low more.0 lab-1 reclaimed", "9 assign r2 lab-1 lab-1 at 5"],
    ),
    "what is being given back already is waited for without another reclaim": (
        stretched(
            2,
            submitted(5, an_application("r1", 1)),
            act(6, "cancel", "r1"),
            submitted(7, an_application("r2", 1)),
            act(9, "surrender", {"reservation": "low"}),
            scheduler=GRACE,
        ),
        ["5 revoke low more.1 lab-1 reclaimed", "9 assign r2 lab-1 at 5"],
    ),
    "flexible: only if the use of the pool grows": (
        stretched(2, submitted(5, an_application("r1", 1)), elastic="flexible"),
        [],
    ),
    "as it does by a gang with one of its slots idle": (
        stretched(
            1,
            submitted(5, an_application("r1", 2)),
            slots=[on_slot("lab-1", 2, ("low", "core"), ("low", "more")), on_slot("lab-2", 1)],
            elastic="flexible",
        ),
        ["5 revoke low more lab-1 reclaimed", "5 assign r1 lab-2 lab-1 at 5"],
    ),
    "malleable: nothing is reclaimed": (stretched(2, submitted(5, an_application("r1", 1)), elastic="malleable"), []),
    "a limit of its account excludes a new reservation": (
        stretched(
            2,
            submitted(5, an_application("r1", 1, account="capped"), an_application("r2", 1, account="capped")),
            slots=[on_slot("lab-1", 3, ("low", "core"), ("low", "more.0"), ("low", "more.1"), labels={"rack": "a"})],
        ),
        ["5 revoke low more.1 lab-1 reclaimed", "5 assign r1 lab-1 at 5"],
    ),
    "an elastic instance of a reservation that ranks before takes the slot of one that ranks behind": (
        stretched(
            1,
            submitted(5, an_application("r1", 1, 1, account="rich")),
            slots=[on_slot("lab-1", 2, ("low", "core"), ("low", "more")), on_slot("lab-2", 1)],
        ),
        ["5 assign r1 lab-2 at 0", "5 revoke low more lab-1 reclaimed", "5 grant r1 more lab-1 room"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_elastic_instances_are_reclaimed_before_a_reservation_is_preempted(name: str) -> None:
    scenario, expected = CASES[name]
    played = play_out(scenario)
    assert played.decisions == expected
    assert not [each for line in played.lines for each in line.get("decisions", []) if "skipped" in each]


def test_a_reclaimed_lease_pays_no_more_and_the_new_reservation_pays_from_its_claim_on() -> None:
    """As with a preemption: the elastic instance for 5 s, the essential one for all 35, the claim for the last 30."""
    scenario = stretched(1, tick(0), submitted(5, an_application("r1", 1, account="rich")), scheduler=GRACE)
    scenario["reservations"][0]["account"] = "poor"
    scenario["config"]["accounts"] = {"poor": {"balance": [100]}, "rich": {"balance": [0, 100]}}
    scenario["slots"][0]["leases"] = [{**each, "level": 0} for each in scenario["slots"][0]["leases"]]
    played = play_out({**scenario, "until": 35, "wakes": True})
    accounts = {each["id"]: each["balance"] for each in played.state["accounts"]}
    assert (accounts["poor"][0], accounts["rich"][1]) == (100 - 5 - 35, 100 - 30)


def test_capacity_that_this_tick_has_assigned_is_not_given_out_again_by_a_preemption() -> None:
    """`c` needs four cpus, and `b` has just got two of them: `c` preempts nothing for the other two."""
    two = {"components": [component("main", 1, 2)]}
    scenario = by_quota(
        submitted(0, {**an_application("a", 1), **two}),
        submitted(
            5,
            {**an_application("b", 1, account="rich"), **two},
            {**an_application("c", 1, account="rich"), "components": [component("main", 1, 4)]},
        ),
        slots=[4],
    )
    assert decided(scenario) == ["0 assign a lab-1 at 5", "5 assign b lab-1 at 0"]


@pytest.mark.parametrize(
    ("grace", "decisions"),
    [
        (
            0,
            [
                "0 assign low lab-1 at 5",
                *(f"0 grant low more.{index} lab-1 room" for index in range(3)),
                "5 preempt high lab-1 of low at 0",
                "5 assign high lab-1 lab-1 lab-1 lab-1 at 0",
                "30 assign low lab-1 at 5",
                *(f"30 grant low more.{index} lab-1 room" for index in range(3)),
            ],
        ),
        (
            10,
            [
                "0 assign low lab-1 at 5",
                *(f"0 grant low more.{index} lab-1 room" for index in range(3)),
                "5 preempt high lab-1 of low at 0",
                "20 assign high lab-1 lab-1 lab-1 lab-1 at 0",
                "30 assign low lab-1 at 5",
                *(f"30 grant low more.{index} lab-1 room" for index in range(3)),
            ],
        ),
    ],
)
def test_under_quota_elastic_instances_get_what_is_left_and_end_with_their_reservation(
    grace: float, decisions: list[str]
) -> None:
    """Better work that needs more than elastic instances could give back preempts whole worse work, elastic instances
    too.
    """
    scenario = a_lab(
        submitted(0, an_application("low", 1, 3, account="poor")),
        submitted(5, an_application("high", 4, account="rich")),
        {"at": 20, "surrender": {"reservation": "low"}},
        {"at": 30, "release": "high"},
        tick(40),
        slots=[4],
        scheduler={"queue": "quota", "preemption_grace": grace},
    )
    rich = {"charge_rate": [1], "max_charge_seconds": 600, "balance": [200]}
    scenario["config"]["accounts"] = {"rich": rich, "poor": {}}
    assert decided(scenario) == decisions
