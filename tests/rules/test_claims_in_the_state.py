"""The final state of a scenario during a grace period: a claim is listed beside the leases and is none of them."""

from tests.rules.playing import Document, Played, play_out, tick
from tests.rules.qscheduler import an_account, ask, held, play_quota, runs
from tests.rules.zoe import a_lab, an_application, on_slot


def a_play_of_quota(until: float) -> Played:
    """r1 preempts r9 on the only slot at 5, and r9 has 30 seconds to stop."""
    return play_quota(
        ask(5, "r1", account="A"),
        tick(5),
        tick(until),
        slots=[runs("lab-1", "r9", 1, [0, 3])],
        reservations=[held("r9", "B")],
        accounts={"A": an_account([100]), "B": an_account()},
        grace=30,
    )


def a_line(name: str, component: str, level: int, cost: list[float], **fields: str) -> Document:
    return {"reservation": name, "component": component, "level": level, "cost": cost, **fields}


def test_a_preempting_reservation_has_no_lease_before_its_assignment() -> None:
    played = a_play_of_quota(until=15)
    (slot,) = played.state["slots"]
    assert slot["leases"] == [a_line("r9", "main", 1, [0, 8, 0, 0, 0], state="revoking")]
    assert slot["claims"] == [a_line("r1", "main", 0, [10, 8, 0, 0, 0])]
    row = played.reservation("r1")
    assert (row["phase"], row["leases"], row["claims"]) == ("pending", [], [{"component": "main", "slot": "lab-1"}])


def test_after_its_assignment_it_has_the_lease_and_no_claim() -> None:
    played = a_play_of_quota(until=35)
    (slot,) = played.state["slots"]
    assert (slot["leases"], "claims" in slot) == ([a_line("r1", "main", 0, [30, 8, 0, 0, 0])], False)
    row = played.reservation("r1")
    assert (row["leases"], "claims" in row) == ([{"component": "main", "slot": "lab-1"}], False)


def test_a_reservation_for_which_elastic_instances_are_reclaimed_has_no_lease_before_its_assignment() -> None:
    played = play_out(
        a_lab(
            {"at": 5, "submit": an_application("r2", 1)},
            slots=[on_slot("lab-1", 2, ("r1", "core"), ("r1", "more"))],
            reservations=[an_application("r1", 1, 1, phase="leased")],
            scheduler={"preemption_grace": 30},
        )
    )
    (slot,) = played.state["slots"]
    assert [(each["reservation"], each["component"]) for each in slot["leases"]] == [("r1", "core"), ("r1", "more")]
    assert [each["reservation"] for each in slot["claims"]] == ["r2"]
    assert played.reservation("r2")["leases"] == []
