"""Leases that run while the rules change their queue: they cost their accounts something only while it is `quota`."""

from typing import Any

import pytest

from tests.rules.playing import SYSTEM, Document, Played, act, ticks
from tests.rules.qscheduler import an_account, ask, balances, held, idle, leases, play_quota, runs


def for_all(queue: str) -> Document:
    """A change of the rules that sets the queue of every system."""
    return {"scheduler": {"queue": queue}}


def for_one(queue: str) -> Document:
    """A change of the rules that sets the queue of one system. Other systems have the queue `quota`."""
    return {"scheduler": {"system": {SYSTEM: {"queue": queue}}}}


def play_changes(changes: dict[float, Document], *at: float, **parts: Any) -> Played:
    """Submit r1 at 0, change the rules at these times, and tick at the times `at` and after each change."""
    timeline = [ask(0, "r1", account="A"), *ticks(*at), *(act(when, "rules", each) for when, each in changes.items())]
    accounts = {"A": an_account([100])}
    return play_quota(*sorted(timeline, key=lambda each: each["at"]), accounts=accounts, slots=idle("lab-1"), **parts)


@pytest.mark.parametrize("change", [for_all, for_one])
def test_a_lease_costs_nothing_from_the_time_at_which_its_queue_is_another_one(change: Any) -> None:
    played = play_changes({2: change("fifo")}, 0, 1, 2, 5, 9)
    assert leases(played) == {"r1": (0, [2])}
    assert balances(played) == {"A": [98]}


@pytest.mark.parametrize("change", [for_all, for_one])
def test_only_the_times_under_quota_are_paid(change: Any) -> None:
    played = play_changes({2: change("fifo"), 8: change("quota")}, 0, 5, 8, 10)
    assert leases(played) == {"r1": (0, [4])}
    assert balances(played) == {"A": [96]}


def test_a_lease_from_before_its_queue_was_quota_is_paid_from_then_on() -> None:
    played = play_quota(
        *(act(2, "rules", for_all("quota")), *ticks(2, 7, 10)),
        slots=[runs("lab-1", "r1", 1, [5])],
        reservations=[held("r1", "A")],
        accounts={"A": an_account([100, 100])},
        scheduler={"queue": "fifo"},
    )
    assert leases(played) == {"r1": (1, [5, 8])}
    assert balances(played) == {"A": [100, 92]}


def test_a_lease_that_was_assigned_under_another_queue_is_free_and_may_be_promoted() -> None:
    played = play_quota(
        *(ask(0, "r1", account="A"), *ticks(0), act(2, "rules", for_all("quota")), *ticks(2, 10)),
        slots=idle("lab-1"),
        accounts={"A": an_account([700], [1], max_charge_seconds=700)},
        scheduler={"queue": "fifo"},
    )
    assert played.ticks == [["assign r1 lab-1"], ["relevel r1 5 to 0"], []]
    assert leases(played) == {"r1": (0, [8])}


def test_a_revoked_lease_is_not_paid_when_its_queue_becomes_quota_again() -> None:
    played = play_quota(
        *(ask(0, "r2", account="B"), *ticks(0)),
        *(act(5, "rules", for_all("fifo")), act(10, "rules", for_all("quota")), *ticks(20)),
        slots=[runs("lab-1", "r1", 3, [0, 0, 0, 4])],
        reservations=[held("r1", "A")],
        accounts={"A": an_account([0, 0, 0, 9]), "B": an_account([50])},
        grace=30,
    )
    # From its claim on r2 pays: 5 s before the change and 10 s after it, beside what r1 has cost.
    assert balances(played) == {"A": [0, 0, 0, 13], "B": [35, 0, 0, -4]}
