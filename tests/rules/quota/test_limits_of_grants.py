"""The per-label limits of quota accounts are limits for elastic instances too: an account at a limit gets no further
slot with that label.
"""

from typing import Any

import pytest

from tests.rules.playing import Document, Played, a_slot, a_wish, act, tick
from tests.rules.qscheduler import an_account, held, play_quota

RACK_1, RACK_2 = {"rack": "1"}, {"rack": "2"}
SETTINGS = ("yielding", "flexible", "malleable")


def stretchable(name: str, more: int, **fields: Any) -> Document:
    """A reservation with one essential instance and this number of elastic ones."""
    elastic = {"name": "more", "count": more, "kind": "elastic"}
    return a_wish(name, components=[{"name": "core"}, elastic], **{"account": "A"} | fields)


def play_with_limit(*timeline: Document, limit: int = 2, **parts: Any) -> Played:
    """Play it with an account A that may have `limit` leases on slots of one rack."""
    accounts = {"A": an_account([0, 100], per_label_task_limits={"rack": limit}), "B": an_account([100])}
    return play_quota(*timeline, **{"accounts": accounts} | parts)


@pytest.mark.parametrize("elastic", SETTINGS)
def test_an_elastic_instance_gets_no_slot_with_a_label_whose_limit_is_reached(elastic: str) -> None:
    slots = [a_slot(f"lab-{number}", labels=RACK_1) for number in range(1, 5)]
    submitted = act(0, "submit", stretchable("r1", 3))
    played = play_with_limit(submitted, tick(0), tick(1), slots=slots, scheduler={"elastic": elastic})
    assert played.ticks == [["assign r1 lab-1 at 1", "grant r1 more.0 lab-2 room"], []]


@pytest.mark.parametrize("elastic", SETTINGS)
def test_slots_with_another_value_and_slots_without_the_label_are_granted(elastic: str) -> None:
    slots = [a_slot(f"lab-{number}", labels=RACK_1) for number in (1, 2)]
    slots += [a_slot("lab-3", labels=RACK_2), a_slot("lab-4", labels=RACK_2), a_slot("lab-5")]
    submitted = act(0, "submit", stretchable("r1", 4))
    played = play_with_limit(submitted, tick(0), tick(1), limit=1, slots=slots, scheduler={"elastic": elastic})
    # Slots without labels come first, then those with the fewest.
    assert played.ticks == [["assign r1 lab-1 at 1", "grant r1 more.0 lab-5 room", "grant r1 more.1 lab-3 room"], []]


@pytest.mark.parametrize("elastic", SETTINGS)
def test_leases_of_all_reservations_of_the_account_count_and_another_account_is_not_limited(elastic: str) -> None:
    slots = [a_slot(f"lab-{number}", labels=RACK_1) for number in range(1, 7)]
    timeline = [
        act(0, "submit", [stretchable("r1", 1), stretchable("r2", 1), stretchable("r3", 1, account="B")]),
        tick(0),
        tick(1),
        act(2, "release", "r1"),
        tick(2),
    ]
    played = play_with_limit(*timeline, limit=3, slots=slots, scheduler={"elastic": elastic})
    assert sorted(played.ticks[0]) == [
        *("assign r1 lab-2 at 1", "assign r2 lab-3 at 1", "assign r3 lab-1 at 0"),
        *("grant r1 more lab-5 room", "grant r3 more lab-4 room"),
    ]
    assert played.ticks[1:] == [[], ["grant r2 more lab-2 room"]]


def test_a_limited_instance_takes_no_slot_of_an_elastic_instance_behind_it() -> None:
    """A slot that the account cannot get is not reclaimed for it, and a later account gets what it leaves."""
    slots = [
        a_slot("lab-1", labels=RACK_1) | {"leases": [{"reservation": "a", "component": "core", "level": 1}]},
        a_slot("lab-2", labels=RACK_1) | {"leases": [{"reservation": "b", "component": "core", "level": 1}]},
        a_slot("lab-3", labels=RACK_1) | {"leases": [{"reservation": "b", "component": "more.0", "level": 1}]},
        a_slot("lab-4", labels=RACK_1),
    ]
    parts = {name: stretchable(name, 3)["components"] for name in "ab"}
    reservations = [held("a", "A", components=parts["a"]), held("b", "B", components=parts["b"])]
    accounts = {"A": an_account([100], per_label_task_limits={"rack": 1}), "B": an_account([100])}
    played = play_with_limit(tick(0), tick(1), slots=slots, reservations=reservations, accounts=accounts)
    assert played.ticks == [["grant b more.1 lab-4 room"], []]


def test_no_slot_is_launched_for_an_elastic_instance_whose_account_is_at_the_limit() -> None:
    pool = {"provider": "ec2", "max_slots": 4, "labels": RACK_1, "launch_for_elastic": True}
    slots = [a_slot("lab-1") | {"leases": [{"reservation": "r1", "component": "core", "level": 1}]}]
    reservations = [held("r1", "A", components=stretchable("r1", 3)["components"])]
    parts: Document = {"pool": pool, "slots": slots, "reservations": reservations}
    assert play_with_limit(tick(0), tick(1), limit=1, **parts).decisions == []
    launched = play_with_limit(tick(0), tick(1), limit=4, **parts).decisions
    assert [line for line in launched if "launch" in line] == [f"0 launch lab-{number} demand" for number in (2, 3, 4)]


def test_a_limit_of_another_queue_limits_no_grant() -> None:
    slots = [a_slot(f"lab-{number}", labels=RACK_1) for number in range(1, 4)]
    submitted = act(0, "submit", stretchable("r1", 2))
    played = play_with_limit(submitted, tick(0), limit=1, slots=slots, scheduler={"queue": "fifo"})
    assert played.ticks == [["assign r1 lab-1", "grant r1 more.0 lab-2 room", "grant r1 more.1 lab-3 room"]]
