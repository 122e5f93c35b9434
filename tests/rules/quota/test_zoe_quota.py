"""Elastic instances under `quota`: essential ones of anybody go before elastic ones of others, and those give way
before whole reservations are preempted.
"""

from typing import Any

import pytest

from tests.rules.playing import Document, act, play_out, tick
from tests.rules.zoe import a_lab, an_application, component, decided, on_slot, submitted

ACCOUNTS: Document = {"rich": {"balance": [100]}, "capped": {"per_label_task_limits": {"rack": 1}}, "poor": {}}
GRACE = {"preemption_grace": 30}


def by_quota(*timeline: Document, **parts: Any) -> Document:
    """A lab whose queue is `quota`, with these accounts."""
    scenario = a_lab(*timeline, scheduler={"queue": "quota", **parts.pop("scheduler", {})}, **parts)
    scenario["config"]["accounts"] = ACCOUNTS
    return scenario


def stretched(more: int, *timeline: Document, slots: list[Document] | None = None, **parts: Any) -> Document:
    """`low` holds its essential instance and so many elastic ones, on a slot that is full of them if none are given."""
    names = ["core", *(["more"] if more == 1 else [f"more.{index}" for index in range(more)])]
    full = [on_slot("lab-1", 1 + more, *[("low", name) for name in names])]
    rows = [an_application("low", 1, more, phase="leased"), *parts.pop("others", ())]
    return by_quota(*timeline, slots=slots or full, reservations=rows, **parts)


CASES: dict[str, tuple[Document, list[str]]] = {
    "work at the free level takes the place of an elastic instance": (
        stretched(2, submitted(5, an_application("r1", 1))),
        ["5 revoke low more.1 lab-1 reclaimed", "5 assign r1 lab-1 at 5"],
    ),
    "who pays preempts nobody who can give way": (
        stretched(3, submitted(5, an_application("r1", 2, account="rich"))),
        [
            "5 revoke low more.2 lab-1 reclaimed",
            "5 revoke low more.1 lab-1 reclaimed",
            "5 assign r1 lab-1 lab-1 at 0",
        ],
    ),
    "but the whole where that does not suffice": (
        stretched(2, submitted(5, an_application("r1", 3, account="rich"))),
        ["5 preempt r1 lab-1 of low at 0", "5 assign r1 lab-1 lab-1 lab-1 at 0"],
    ),
    "the better level comes first": (
        stretched(1, submitted(5, an_application("r1", 1), an_application("r2", 1, account="rich"))),
        ["5 revoke low more lab-1 reclaimed", "5 assign r2 lab-1 at 0"],
    ),
    "an idle slot is taken before anybody gives way": (
        stretched(
            1,
            submitted(5, an_application("r1", 1)),
            slots=[on_slot("lab-1", 2, ("low", "core"), ("low", "more")), on_slot("lab-2", 1)],
        ),
        ["5 assign r1 lab-2 at 5"],
    ),
    "a gang takes what is idle and what is given back": (
        stretched(
            1,
            submitted(5, an_application("r1", 2)),
            slots=[on_slot("lab-1", 2, ("low", "core"), ("low", "more")), on_slot("lab-2", 1)],
        ),
        ["5 revoke low more lab-1 reclaimed", "5 assign r1 lab-2 lab-1 at 5"],
    ),
    "who would give way in vain keeps what he has": (
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
    "nobody gives way to a gang that has no room all the same": (
        stretched(2, submitted(5, an_application("r1", 3))),
        [],
    ),
    "with a grace it claims the place, and has it when that is given back": (
        stretched(
            2,
            submitted(5, an_application("r1", 1, account="rich")),
            act(9, "surrender", {"reservation": "low"}),
            scheduler=GRACE,
        ),
        ["5 revoke low more.1 lab-1 reclaimed", "9 assign r1 lab-1 at 0"],
    ),
    "or when the grace is over": (
        stretched(2, submitted(5, an_application("r1", 1)), scheduler=GRACE, until=60, wakes=True),
        ["5 revoke low more.1 lab-1 reclaimed", "35 revoke low more.1 lab-1 reclaimed", "35 assign r1 lab-1 at 5"],
    ),
    "what is given back to nobody's claim is nobody's until it is free": (
        stretched(
            2,
            submitted(5, an_application("r1", 1)),
            act(6, "cancel", "r1"),
            submitted(7, an_application("r2", 2)),
            act(9, "surrender", {"reservation": "low"}),
            scheduler=GRACE,
        ),
        [
            "5 revoke low more.1 lab-1 reclaimed",
            "7 revoke low more.0 lab-1 reclaimed",
            "9 assign r2 lab-1 lab-1 at 5",
        ],
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
    "flexible: only if more of the pool is used by it": (
        stretched(2, submitted(5, an_application("r1", 1)), elastic="flexible"),
        [],
    ),
    "as it is by a gang with one of its places idle": (
        stretched(
            1,
            submitted(5, an_application("r1", 2)),
            slots=[on_slot("lab-1", 2, ("low", "core"), ("low", "more")), on_slot("lab-2", 1)],
            elastic="flexible",
        ),
        ["5 revoke low more lab-1 reclaimed", "5 assign r1 lab-2 lab-1 at 5"],
    ),
    "malleable: nothing is taken back": (
        stretched(2, submitted(5, an_application("r1", 1)), elastic="malleable"),
        [],
    ),
    "a limit of its account keeps a newcomer out": (
        stretched(
            2,
            submitted(5, an_application("r1", 1, account="capped"), an_application("r2", 1, account="capped")),
            slots=[
                on_slot("lab-1", 3, ("low", "core"), ("low", "more.0"), ("low", "more.1"), labels={"rack": "a"}),
            ],
        ),
        ["5 revoke low more.1 lab-1 reclaimed", "5 assign r1 lab-1 at 5"],
    ),
    "an elastic instance of who ranks before takes the place of one of who ranks behind": (
        stretched(
            1,
            submitted(5, an_application("r1", 1, 1, account="rich")),
            slots=[on_slot("lab-1", 2, ("low", "core"), ("low", "more")), on_slot("lab-2", 1)],
        ),
        ["5 assign r1 lab-2 at 0", "5 revoke low more lab-1 reclaimed", "5 grant r1 more lab-1 room"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_this_is_decided(name: str) -> None:
    scenario, expected = CASES[name]
    played = play_out(scenario)
    assert played.decisions == expected
    assert not [each for line in played.lines for each in line.get("decisions", []) if "skipped" in each]


def test_who_gives_way_pays_no_more_and_the_newcomer_from_its_claim_on() -> None:
    """As with a preemption: the elastic instance for 5 s, the essential one for all 35, the claim for the last 30."""
    scenario = stretched(1, tick(0), submitted(5, an_application("r1", 1, account="rich")), scheduler=GRACE)
    scenario["reservations"][0]["account"] = "poor"
    scenario["config"]["accounts"] = {"poor": {"balance": [100]}, "rich": {"balance": [0, 100]}}
    scenario["slots"][0]["leases"] = [{**each, "level": 0} for each in scenario["slots"][0]["leases"]]
    played = play_out({**scenario, "until": 35, "wakes": True})
    accounts = {each["id"]: each["balance"] for each in played.state["accounts"]}
    assert (accounts["poor"][0], accounts["rich"][1]) == (100 - 5 - 35, 100 - 30)


def test_what_this_tick_has_assigned_is_not_given_out_twice_by_a_preemption() -> None:
    """`c` needs four cpus, of which `b` got two a moment ago: it preempts nobody for the other two."""
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
def test_under_quota_elastic_instances_get_what_is_left_and_go_with_their_reservation(
    grace: float, decisions: list[str]
) -> None:
    """Better work that needs more than they could give back preempts the whole of worse work, elastic instances too."""
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
