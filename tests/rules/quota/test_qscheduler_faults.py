"""Faults of qscheduler that are not copied: a test for each."""

from typing import Any

import pytest

from scheduler.model.validation import InvalidInputError
from scheduler.simulation.scenario import read_scenario
from tests.rules.playing import act, tick, ticks
from tests.rules.qscheduler import a_quota, an_account, ask, balances, held, idle, leases, play_quota, runs


def test_a_slot_has_one_preemption_a_tick_and_the_other_requests_wait() -> None:
    """One free job and 3 paid requests are 3 "preemptions" there, and 2 requests vanish."""
    played = play_quota(
        ask(0, "r1", account="A"),
        ask(1, "r2", account="B"),
        ask(2, "r3", account="C"),
        *ticks(2, 3),
        slots=[runs("lab-1", "r0"), runs("lab-2", "h", 0)],
        reservations=[held("r0"), held("h")],
        accounts={name: an_account([100]) for name in "ABC"},
    )
    assert [word for line in played.ticks for word in line if word.startswith("preempt")] == [
        "preempt r1 lab-1 of r0 at 0"
    ]
    assert played.phases == {"r0": "pending", "h": "leased", "r1": "leased", "r2": "pending", "r3": "pending"}


def test_an_account_that_had_nothing_preempts_when_it_has_saved() -> None:
    played = play_quota(
        ask(0, "r1", account="A"),
        *ticks(0, 2, 3),
        slots=[runs("lab-1", "r0", 5, [2])],
        reservations=[held("r0")],
        accounts={"A": an_account(rates=[1], max_charge_seconds=100, disable_free_tasks=True)},
    )
    assert played.ticks == [
        ["r1 waits no_quota"],
        ["r1 waits no_capacity"],
        ["preempt r1 lab-1 of r0 at 0", "assign r1 lab-1 at 0", "r0 waits no_capacity"],
    ]


def test_a_reservation_at_a_limit_is_placed_on_the_same_slot_when_the_limit_frees() -> None:
    played = play_quota(
        ask(0, "r1", "r2", account="A"),
        tick(0),
        act(5, "release", "r1"),
        tick(5),
        slots=idle("lab-1", "lab-2"),
        accounts={"A": an_account([100], max_fanout=1, disable_free_tasks=True)},
    )
    assert played.ticks == [["assign r1 lab-1 at 0", "r2 waits account_limit"], ["assign r2 lab-1 at 0"]]


def test_of_equal_reservations_the_oldest_is_first() -> None:
    played = play_quota(ask(0, "r1"), ask(1, "r2"), ask(2, "r3"), tick(2), slots=idle("lab-1"))
    assert played.ticks == [["assign r1 lab-1 at 5", "r2 waits no_capacity", "r3 waits no_capacity"]]


def test_a_lease_that_ends_between_two_ticks_is_charged_for_the_time_that_it_ran() -> None:
    played = play_quota(
        ask(0, "r1", account="A"),
        tick(0),
        act(3, "release", "r1"),
        tick(10),
        slots=idle("lab-1"),
        accounts={"A": an_account([10])},
    )
    assert balances(played) == {"A": [7]}


@pytest.mark.parametrize("end", ["cancel", "fail", "suspend", "decline", "absent"])
def test_a_lease_is_charged_for_its_time_however_it_ends(end: str) -> None:
    value: Any = {"reservation": "r1"} if end in {"fail", "absent"} else "r1"
    played = play_quota(
        ask(0, "r1", account="A", priority=1),
        tick(0),
        act(3, end, value),
        act(3, "priority", {"reservation": "r1", "priority": 0}),
        tick(10),
        slots=idle("lab-1"),
        accounts={"A": an_account([10])},
    )
    assert balances(played) == {"A": [7]}


def test_a_promotion_from_4_to_1_is_reported_as_to_1() -> None:
    played = play_quota(
        tick(0),
        slots=[runs("lab-1", "r1", 4)],
        reservations=[held("r1", "A")],
        accounts={"A": an_account([0, 700], [0, 1])},
    )
    (decision,) = played.lines[0]["decisions"]
    assert decision == {"do": "relevel", "reservation": "r1", "from": 4, "to": 1}
    assert leases(played) == {"r1": (1, [])}


def test_a_preempted_reservation_keeps_its_time_and_need_not_be_submitted_again() -> None:
    played = play_quota(
        ask(0, "r1"),
        tick(0),
        ask(5, "r2", account="A"),
        tick(5),
        act(7, "release", "r2"),
        tick(7),
        slots=idle("lab-1"),
        accounts={"A": an_account([100])},
    )
    assert played.ticks[-1] == ["assign r1 lab-1 at 5"]
    assert played.reservation("r1")["created_at"] == 0


def test_an_account_that_is_set_again_keeps_its_balance_unless_one_is_given() -> None:
    played = play_quota(
        act(0, "account", {"id": "A", "charge_rate": [1], "balance": [7, 8]}),
        act(1, "account", {"id": "A", "max_fanout": 3}),
        act(2, "account", {"id": "B", "balance": [5]}),
        act(3, "account", {"id": "B", "balance": [1]}),
    )
    assert balances(played) == {"A": [7, 8], "B": [1]}
    assert played.state["accounts"][0]["charge_rate"] == [1, 0, 0, 0, 0]


def test_reservations_are_alike_if_their_values_are_equal_however_they_join() -> None:
    """In its source "a" + "bc" and "ab" + "c" are one group."""
    played = play_quota(
        ask(0, "r1", account="A", labels={"a": "bc"}),
        ask(0, "r2", account="A", labels={"ab": "c"}),
        tick(0),
        slots=idle("lab-1", "lab-2", labels={"a": "bc", "ab": "c"}),
        accounts={"A": an_account([100], max_fanout=1)},
    )
    assert played.ticks == [["assign r1 lab-1 at 0", "assign r2 lab-2 at 0"]]


def test_a_limit_applies_to_the_label_of_exactly_that_name() -> None:
    """Any label that starts with the key is limited there, the first that is found."""
    played = play_quota(
        ask(0, "r1", "r2", account="A", labels={"img_size": "1"}),
        ask(0, "r3", "r4", account="A", labels={"img": "1"}),
        tick(0),
        slots=[*idle("lab-1", "lab-2", labels={"img_size": "1"}), *idle("lab-3", "lab-4", labels={"img": "1"})],
        accounts={"A": an_account([100], per_label_task_limits={"img": 1})},
    )
    assert played.ticks == [
        ["assign r1 lab-1 at 0", "assign r2 lab-2 at 0", "assign r3 lab-3 at 0", "r4 waits account_limit"]
    ]


def test_reservations_at_a_limit_join_the_free_level_in_its_one_order() -> None:
    """In qscheduler they are put at its end, unsorted."""
    played = play_quota(
        ask(0, "r1", "r2", account="A"),
        ask(1, "r3"),
        tick(1),
        slots=idle("lab-1", "lab-2"),
        accounts={"A": an_account([100], max_fanout=1)},
    )
    assert played.ticks == [["assign r1 lab-1 at 0", "assign r2 lab-2 at 5", "r3 waits no_capacity"]]


@pytest.mark.parametrize(
    ("account", "line"),
    [
        ({"id": "A", "balance": [1, 2, 3, 4, 5, 6]}, "timeline[0].account.balance"),
        ({"id": "A", "charge_rate": [-1]}, "timeline[0].account.charge_rate"),
        ({"id": "A", "balanced": [1]}, "timeline[0].account.balanced"),
        ({"balance": [1]}, "timeline[0].account.id"),
    ],
)
def test_bad_input_names_its_key(account: dict[str, Any], line: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_scenario(a_quota(act(0, "account", account)))
    assert str(caught.value.faults[0]).startswith(f"{line}: expected")


@pytest.mark.parametrize("action", ["forget_account", "reset_account"])
def test_an_account_that_was_never_declared_is_bad_input(action: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_scenario(a_quota(act(0, action, "B"), accounts={"A": an_account()}))
    assert str(caught.value.faults[0]) == f'timeline[0].{action}: expected an account that was declared, got "B"'


def test_durations_are_measured_by_the_time_that_is_passed_in() -> None:
    played = play_quota(ask(0, "r1", ttl=100), *ticks(99.5, 100), slots=[runs("lab-1", "h")], reservations=[held("h")])
    assert played.ticks == [["r1 waits no_capacity"], ["expire r1 ttl"]]


class TestForgotten:
    def test_leases_of_a_forgotten_account_run_on_at_their_levels_unpaid(self) -> None:
        played = play_quota(
            act(2, "forget_account", "A"),
            tick(5),
            slots=[runs("lab-1", "r1", 1)],
            reservations=[held("r1", "A")],
            accounts={"A": an_account([0, 9])},
        )
        assert (balances(played), leases(played)) == ({}, {"r1": (1, [0, 5])})

    def test_pending_reservations_of_a_forgotten_account_have_none_although_it_is_created_again(self) -> None:
        played = play_quota(
            ask(0, "r1", account="A"),
            act(1, "forget_account", "A"),
            act(2, "account", {"id": "A", "balance": [50]}),
            ask(3, "r2", account="A"),
            tick(3),
            slots=idle("lab-1", "lab-2"),
            accounts={"A": an_account([9])},
        )
        assert played.ticks == [["assign r2 lab-1 at 0", "assign r1 lab-2 at 5"]]
        assert balances(played) == {"A": [50]}

    def test_a_forgotten_account_that_is_created_again_starts_from_0(self) -> None:
        played = play_quota(
            act(1, "forget_account", "A"),
            act(4, "account", {"id": "A", "charge_rate": [1], "max_charge_seconds": 9}),
            tick(6),
            accounts={"A": an_account([9])},
        )
        assert balances(played) == {"A": [2]}

    def test_reset_sets_its_balance_to_0(self) -> None:
        accounts = {"A": an_account([9, -3, 2])}
        assert balances(play_quota(act(1, "reset_account", "A"), accounts=accounts)) == {"A": []}

    def test_a_request_about_a_forgotten_account_changes_nothing(self) -> None:
        timeline = [act(1, "forget_account", "A"), act(2, "reset_account", "A"), act(2, "forget_account", "A")]
        assert balances(play_quota(*timeline, accounts={"A": an_account([9])})) == {}


class TestRules:
    """Accounts of a configuration that is applied again."""

    def apply(self, *changes: dict[str, Any], accounts: dict[str, Any] | None = None) -> dict[str, list[float]]:
        timeline = [act(number, *next(iter(change.items()))) for number, change in enumerate(changes)]
        return balances(play_quota(*timeline, accounts=accounts or {"A": an_account([9], [1])}))

    def test_a_table_that_has_changed_keeps_the_balance(self) -> None:
        spent = {"account": {"id": "A", "balance": [3]}}
        assert self.apply(spent, {"rules": {"accounts": {"A": {"charge_rate": [2]}}}}) == {"A": [3]}

    def test_a_balance_of_the_table_that_has_changed_is_the_balance(self) -> None:
        assert self.apply({"rules": {"accounts": {"A": {"balance": [4]}}}}) == {"A": [4]}

    def test_a_balance_that_was_set_stays_if_the_table_is_unchanged(self) -> None:
        stated = {"account": {"id": "A", "balance": [3]}}
        assert self.apply(stated, {"rules": {"scheduler": {"profile": "spread"}}}) == {"A": [3]}

    def test_a_new_table_is_a_new_account(self) -> None:
        assert self.apply({"rules": {"accounts": {"B": {"balance": [4]}}}}) == {"A": [9], "B": [4]}

    def test_when_the_queue_becomes_quota_accounts_begin_to_earn_and_pay(self) -> None:
        played = play_quota(
            ask(0, "r1", account="A"),
            tick(0),
            act(10, "rules", {"scheduler": {"queue": "quota"}}),
            *ticks(10, 12),
            slots=idle("lab-1"),
            accounts={"A": an_account([9], [2], max_charge_seconds=100)},
            scheduler={"queue": "fifo"},
        )
        assert played.ticks[0] == ["assign r1 lab-1"]
        assert balances(played) == {"A": [13]}

    def test_under_any_other_queue_no_reservation_is_charged_promoted_or_preempted(self) -> None:
        played = play_quota(
            ask(0, "r2", account="A"),
            *ticks(0, 5),
            slots=[runs("lab-1", "r1")],
            reservations=[held("r1", "B")],
            accounts={"A": an_account([900], [2]), "B": an_account([-700])},
            scheduler={"queue": "fifo"},
        )
        assert played.ticks == [["r2 waits no_capacity"]] * 2
        assert balances(played) == {"A": [900], "B": [-700]}


def test_min_run_time_counts_from_the_assignment_not_from_the_claim() -> None:
    """At 10 n1 is assigned the slot that it claimed at 0: p preempts w, which costs more, and not n1."""
    long_since = {"reservation": "v", "level": 5, "assigned_at": -9}
    played = play_quota(
        ask(0, "n1", account="A"),
        tick(0),
        ask(10, "p", account="B"),
        *ticks(10, 20),
        slots=[*idle("lab-1", leases=[long_since]), runs("lab-2", "w", 1, [0, 100])],
        reservations=[held("v"), held("w")],
        accounts={"A": an_account([0, 50]), "B": an_account([200])},
        grace=10,
        scheduler={"min_run_time": 5},
    )
    assert played.decisions == [
        "0 preempt n1 lab-1 of v at 1",
        *("10 requeue v preempted", "10 assign n1 lab-1 at 1", "10 preempt p lab-2 of w at 0"),
        *("20 requeue w preempted", "20 assign p lab-2 at 0"),
    ]


def test_work_that_has_run_for_exactly_its_minimum_time_is_preempted() -> None:
    """64.1 is exactly 60 s after 4.1; the difference of the two numbers is rounded to less."""
    played = play_quota(
        ask(4.1, "p", account="B"),
        *ticks(64, 64.1),
        slots=idle("lab-1", leases=[{"reservation": "w", "level": 5, "assigned_at": 4.1}]),
        reservations=[held("w")],
        accounts={"B": an_account([200])},
        scheduler={"min_run_time": 60},
    )
    assert played.decisions == ["64.1 preempt p lab-1 of w at 0", "64.1 assign p lab-1 at 0"]
