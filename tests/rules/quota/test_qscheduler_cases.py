"""Cases from qscheduler: a static pool, one lease a slot, no grace period; each row as in the source."""

import json
from typing import Any

import pytest

from tests.rules.playing import Document, act, tick, ticks
from tests.rules.qscheduler import an_account, ask, balances, held, idle, leases, play_quota, runs

RICH = an_account([10])
Reported = list[list[str]]

DECIDED: dict[str, tuple[list[Document], Document, Reported]] = {
    "slot without labels; reservation without account": (
        [ask(0, "r1"), tick(0)],
        {"slots": idle("lab-1")},
        [["assign r1 lab-1 at 5"]],
    ),
    "slot without labels; reservation wants a label": (
        [ask(0, "r1", account="A", labels={"x": "1"}), tick(0)],
        {"slots": idle("lab-1"), "accounts": {"A": an_account([1])}},
        [["r1 waits never_fits"]],
    ),
    "three idle slots, A(0) allows free tasks": (
        [ask(0, "r1", account="A"), tick(0)],
        {"slots": idle("lab-1", "lab-2", "lab-3"), "accounts": {"A": an_account()}},
        [["assign r1 lab-1 at 5"]],
    ),
    "three idle slots, A(0) disables free tasks": (
        [ask(0, "r1", account="A"), tick(0)],
        {"slots": idle("lab-1", "lab-2", "lab-3"), "accounts": {"A": an_account(disable_free_tasks=True)}},
        [["r1 waits no_quota"]],
    ),
    "balances {0,0,0}": (
        [ask(0, "r1", account="A"), tick(0)],
        {"slots": idle("lab-1"), "accounts": {"A": an_account([0, 0, 0])}},
        [["assign r1 lab-1 at 5"]],
    ),
    "balances {0,1,0}": (
        [ask(0, "r1", account="A"), tick(0)],
        {"slots": idle("lab-1"), "accounts": {"A": an_account([0, 1, 0])}},
        [["assign r1 lab-1 at 1"]],
    ),
    "balances {-5,3}": (
        [ask(0, "r1", account="A"), tick(0)],
        {"slots": idle("lab-1"), "accounts": {"A": an_account([-5, 3])}},
        [["assign r1 lab-1 at 1"]],
    ),
    "rates {1.1,0.9}, balance {-1200,1200,1200}; two leases at 0, costs {0} and {1}": (
        [tick(0)],
        {
            "slots": [runs("lab-1", "r1", 0), runs("lab-2", "r2", 0, [1])],
            "reservations": [held("r1", "A"), held("r2", "A")],
            "accounts": {"A": an_account([-1200, 1200, 1200], [1.1, 0.9])},
        },
        [["relevel r1 0 to 1"]],
    ),
    "balance {0,600}, rate 0.5, lease at 2": (
        [tick(0)],
        {
            "slots": [runs("lab-1", "r1", 2)],
            "reservations": [held("r1", "A")],
            "accounts": {"A": an_account([0, 600], [0.5] * 5)},
        },
        [[]],
    ),
    "balance {0,600.5}, rate 0.5, lease at 2": (
        [tick(0)],
        {
            "slots": [runs("lab-1", "r1", 2)],
            "reservations": [held("r1", "A")],
            "accounts": {"A": an_account([0, 600.5], [0.5] * 5)},
        },
        [["relevel r1 2 to 1"]],
    ),
    "balance {0,-600}, rate 0.5, lease at 1": (
        [tick(0)],
        {
            "slots": [runs("lab-1", "r1", 1)],
            "reservations": [held("r1", "A")],
            "accounts": {"A": an_account([0, -600], [0.5] * 5)},
        },
        [[]],
    ),
    "balance {0,-600.5}, rate 0.5, lease at 1": (
        [tick(0)],
        {
            "slots": [runs("lab-1", "r1", 1)],
            "reservations": [held("r1", "A")],
            "accounts": {"A": an_account([0, -600.5], [0.5] * 5)},
        },
        [["relevel r1 1 to 2"]],
    ),
    "A(300,1; 1,1,1), two leases at 1, costs {0,1} and {0}; B(1) submits one; tick at 1": (
        [ask(0, "r3", account="B"), tick(1)],
        {
            "slots": [runs("lab-1", "r1", 1, [0, 1]), runs("lab-2", "r2", 1)],
            "reservations": [held("r1", "A"), held("r2", "A")],
            "accounts": {"A": an_account([300, 1], [1, 1, 1], max_charge_seconds=300), "B": an_account([1])},
        },
        # The source names the second: the one with the smaller cost. A's own leases keep their level: 300 is below 600.
        [["preempt r3 lab-2 of r2 at 0", "assign r3 lab-2 at 0", "r2 waits no_capacity"]],
    ),
    "A(10) has a lease at 4; C has a free one; A submits": (
        [ask(0, "r3", account="A"), tick(0)],
        {
            "slots": [runs("lab-1", "r1", 4), runs("lab-2", "r2")],
            "reservations": [held("r1", "A"), held("r2", "C")],
            "accounts": {"A": RICH, "C": an_account()},
        },
        [["r3 waits no_capacity"]],
    ),
    "one free lease, three reservations of A(10)": (
        [ask(0, "r1", "r2", "r3", account="A"), tick(0)],
        {"slots": [runs("lab-1", "r0")], "reservations": [held("r0")], "accounts": {"A": RICH}},
        [
            [
                "preempt r1 lab-1 of r0 at 0",
                "assign r1 lab-1 at 0",
                "r2 waits no_capacity",
                "r3 waits no_capacity",
                "r0 waits no_capacity",
            ]
        ],
    ),
    "slot {b1,b2,img1}; r1 wants {b1,b2} prefers {img2}; r2 wants {b1} prefers {img1}; same level": (
        [
            ask(0, "r1", labels={"b1": "1", "b2": "1"}, prefers={"img": "2"}),
            ask(0, "r2", labels={"b1": "1"}, prefers={"img": "1"}),
            tick(0),
        ],
        {"slots": idle("lab-1", labels={"b1": "1", "b2": "1", "img": "1"})},
        [["assign r2 lab-1 at 5", "r1 waits no_capacity"]],
    ),
    "the same at a paid level": (
        [
            ask(0, "r1", account="A", labels={"b1": "1", "b2": "1"}, prefers={"img": "2"}),
            ask(0, "r2", account="A", labels={"b1": "1"}, prefers={"img": "1"}),
            tick(0),
        ],
        {"slots": idle("lab-1", labels={"b1": "1", "b2": "1", "img": "1"}), "accounts": {"A": {"balance": [9]}}},
        [["assign r2 lab-1 at 0", "r1 waits no_capacity"]],
    ),
    "slot {img1}; level 1 prefers {img1}, level 0 prefers {img9}": (
        [ask(0, "r1", account="B", prefers={"img": "1"}), ask(0, "r2", account="A", prefers={"img": "9"}), tick(0)],
        {"slots": idle("lab-1", labels={"img": "1"}), "accounts": {"A": RICH, "B": an_account([0, 10])}},
        [["assign r2 lab-1 at 0", "r1 waits no_capacity"]],
    ),
    "max_fanout 1, three slots; two alike, one other": (
        [ask(0, "r1", "r2", account="A"), ask(0, "r3", account="A", prefers={"img": "1"}), tick(0)],
        {"slots": idle("lab-1", "lab-2", "lab-3"), "accounts": {"A": an_account([10], max_fanout=1)}},
        [["assign r1 lab-1 at 0", "assign r3 lab-2 at 0", "assign r2 lab-3 at 5"]],
    ),
    "max_fanout 1, three free leases elsewhere, three alike of A(100)": (
        [ask(0, "r1", "r2", "r3", account="A"), tick(0)],
        {
            "slots": [runs(f"lab-{number}", f"f{number}") for number in (1, 2, 3)],
            "reservations": [held(f"f{number}") for number in (1, 2, 3)],
            "accounts": {"A": an_account([100], max_fanout=1)},
        },
        [
            [
                "preempt r1 lab-1 of f1 at 0",
                "assign r1 lab-1 at 0",
                "r2 waits no_capacity",
                "r3 waits no_capacity",
                "f1 waits no_capacity",
            ]
        ],
    ),
    "ten alike, submitted at 0…9, no account": (
        [*(ask(number, f"r{number}") for number in range(10)), tick(9)],
        {"slots": idle(*(f"lab-{number}" for number in range(10)))},
        [[f"assign r{number} lab-{number} at 5" for number in range(10)]],
    ),
    "r queued, s idle; confirm r on s; tick": (
        [ask(0, "r1"), act(0, "confirm", {"reservation": "r1", "slot": "lab-1"}), tick(0)],
        {"slots": idle("lab-1")},
        [[]],
    ),
    "r assigned to s, idle s at the same instant": (
        [ask(0, "r1"), tick(0), act(0, "idle", {"slot": "lab-1"}), tick(0)],
        {"slots": idle("lab-1")},
        [["assign r1 lab-1 at 5"], []],
    ),
    "r queued, absent r": ([ask(0, "r1"), act(0, "absent", "r1"), tick(0)], {"slots": idle("lab-1")}, [[]]),
    "grace 30: victim on s1, s2 becomes idle at 5": (
        [ask(0, "r2", account="A"), tick(0), act(5, "slot", idle("lab-2")[0]), *ticks(5, 29, 30)],
        {"slots": [runs("lab-1", "r1")], "reservations": [held("r1")], "accounts": {"A": RICH}, "grace": 30},
        [
            ["preempt r2 lab-1 of r1 at 0", "r2 waits no_capacity"],
            ["r2 waits no_capacity"],
            ["r2 waits no_capacity"],
            ["requeue r1 preempted", "assign r2 lab-1 at 0", "assign r1 lab-2 at 5"],
        ],
    ),
}


@pytest.mark.parametrize("case", DECIDED)
def test_the_tick_decides_as_the_source_states(case: str) -> None:
    timeline, parts, expected = DECIDED[case]
    assert play_quota(*timeline, **parts).ticks == expected


CHARGED: dict[str, tuple[list[Document], Document, dict[str, list[float]]]] = {
    "new account, rates {1,2,3}, 2 s; charge at 1": (
        [tick(1)],
        {"accounts": {"A": an_account(rates=[1, 2, 3], max_charge_seconds=2)}},
        {"A": [1, 2, 3]},
    ),
    "new account, rates {1,2,3}, 2 s; charge at 10": (
        [tick(10)],
        {"accounts": {"A": an_account(rates=[1, 2, 3], max_charge_seconds=2)}},
        {"A": [2, 4, 6]},
    ),
    "same, two leases at level 0; charge at 1": (
        [tick(1)],
        {
            "slots": [runs("lab-1", "r1", 0), runs("lab-2", "r2", 0)],
            "reservations": [held("r1", "A"), held("r2", "A")],
            "accounts": {"A": an_account(rates=[1, 2, 3], max_charge_seconds=2)},
        },
        {"A": [-1, 2, 3]},
    ),
    "rates {1,2,3}, 10 s; balance 0; one lease at each level; 2 s": (
        [tick(2)],
        {
            "slots": [runs(f"lab-{level}", f"r{level}", level) for level in range(3)],
            "reservations": [held(f"r{level}", "A") for level in range(3)],
            "accounts": {"A": an_account(rates=[1, 2, 3], max_charge_seconds=10)},
        },
        {"A": [0, 2, 4]},
    ),
}


@pytest.mark.parametrize("case", CHARGED)
def test_the_charge_is_as_the_source_states(case: str) -> None:
    timeline, parts, expected = CHARGED[case]
    assert balances(play_quota(*timeline, **parts)) == expected


@pytest.mark.parametrize(
    ("until", "balance", "cost"), [([1], 0.5, 1), ([1, 2], 0, 2), ([1, 2, 5], -1.5, 5), ([1, 2, 5, 10], -4, 10)]
)
def test_the_cost_of_a_lease_and_the_balance_that_is_left(until: list[float], balance: float, cost: float) -> None:
    """Rate 0.5, 10 s, balance 1, one lease at 0."""
    played = play_quota(
        *ticks(*until),
        slots=[runs("lab-1", "r1", 0)],
        reservations=[held("r1", "A")],
        accounts={"A": an_account([1], [0.5], max_charge_seconds=10)},
    )
    assert balances(played) == {"A": [balance] if balance else []}
    assert leases(played) == {"r1": (0, [cost])}


def test_the_new_lease_takes_over_the_cost_and_the_victims_account_gets_it_back() -> None:
    """A lease of cost {1} at 2; B(2) submits; A(1)."""
    played = play_quota(
        ask(0, "r2", account="B"),
        tick(0),
        slots=[runs("lab-1", "r1", 2, [1])],
        reservations=[held("r1", "A")],
        accounts={"A": an_account([1]), "B": an_account([2])},
    )
    assert balances(played) == {"A": [2], "B": [1]}
    assert leases(played) == {"r2": (0, [1])}
    assert played.phases == {"r1": "pending", "r2": "leased"}


@pytest.mark.parametrize(
    ("cost", "balance", "left"),
    [
        # an equal balance does not suffice
        ([1], [1], None),
        ([1], [1.5], [0.5]),
        # the first level at which they differ decides
        ([0, 100], [1, -50], [1, -150]),
    ],
)
def test_an_account_with_more_than_the_victims_cost_preempts(
    cost: list[float], balance: list[float], left: list[float] | None
) -> None:
    played = play_quota(
        ask(0, "r2", account="B"),
        tick(0),
        slots=[runs("lab-1", "r1", 2, cost)],
        reservations=[held("r1")],
        accounts={"B": an_account(balance)},
    )
    assert played.phases["r2"] == ("pending" if left is None else "leased")
    assert balances(played) == {"B": balance if left is None else left}


AFTER: dict[str, tuple[str, dict[str, Any]]] = {
    "r queued, s idle; confirm r on s; tick": ("r1", {"phase": "leased", "confirmed_at": 0}),
    "r assigned to s, idle s at the same instant": ("r1", {"phase": "leased", "confirmed_at": None}),
    "r queued, absent r": ("r1", {"phase": "released", "finished_at": 0}),
}


@pytest.mark.parametrize("case", AFTER)
def test_a_notice_leads_to_the_state_that_the_source_names(case: str) -> None:
    timeline, parts, _ = DECIDED[case]
    name, expected = AFTER[case]
    row = play_quota(*timeline, **parts).reservation(name)
    assert {key: row[key] for key in expected} == expected


def test_a_victim_with_a_grace_period_moves_to_a_slot_that_became_free_meanwhile() -> None:
    timeline, parts, _ = DECIDED["grace 30: victim on s1, s2 becomes idle at 5"]
    assert play_quota(*timeline, **parts).slots == {"lab-1": "ready r2", "lab-2": "ready r1"}


def test_a_simulated_holder_surrenders_at_once_when_its_lease_is_revoked() -> None:
    played = play_quota(
        ask(0, "r1", runtime=100),
        tick(0),
        ask(5, "r2", account="A"),
        slots=idle("lab-1"),
        accounts={"A": RICH},
        grace=30,
        kicks=True,
    )
    assert played.ticks_at[5] == [
        "preempt r2 lab-1 of r1 at 0",
        "r2 waits no_capacity",
        "assign r2 lab-1 at 0",
        "r1 waits no_capacity",
    ]
    assert played.events[-3:] == ["5 reservation_revoking r1", "5 reservation_pending r1", "5 reservation_leased r2"]


def test_the_lines_have_the_fields_of_the_contract() -> None:
    played = play_quota(
        ask(0, "r2", account="B"),
        tick(0),
        tick(2),
        slots=[runs("lab-1", "r1", 2, [0, 0, 1])],
        reservations=[held("r1", "A")],
        accounts={"A": an_account([0, 0, 5]), "B": an_account([900], [2], max_charge_seconds=500, max_fanout=3)},
    )
    (line,) = [line for line in played.lines if line.get("tick") == 1]
    assert json.loads(json.dumps(line["decisions"])) == [
        {"do": "preempt", "reservation": "r2", "slot": "lab-1", "victims": ["r1"], "level": 0},
        {"do": "assign", "reservation": "r2", "leases": [{"component": "main", "slot": "lab-1"}], "level": 0},
    ]
    (slot,) = played.state["slots"]
    assert slot["leases"] == [{"reservation": "r2", "component": "main", "level": 0, "cost": [2, 0, 1, 0, 0]}]
    assert played.state["accounts"][1] == {
        "id": "B",
        "balance": [902, 0, -1, 0, 0],
        "charge_rate": [2, 0, 0, 0, 0],
        "max_charge_seconds": 500,
        "max_fanout": 3,
        "per_label_task_limits": {},
        "disable_free_tasks": False,
        "description": "",
    }
