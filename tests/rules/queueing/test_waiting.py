"""Why a reservation waits: the codes in their order, and the order of the queue."""

import pytest

from scheduler.model.waiting_codes import WAITING_CODES
from tests.rules.playing import Document, a_holder, a_pool, a_scenario, a_slot, act, play_out, reported, submit, tick

GANG = {"components": [{"name": "w", "count": 2}]}
HOSTS = {"hosts": {"system": "x86_64-linux", "provider": "static", "lease_ttl": 0}}

CODES: dict[str, tuple[Document, str]] = {
    "cordoned, and max_slots is reached": (
        a_scenario(submit(0, "r1"), tick(0), pool={"max_slots": 1}, slots=[a_slot("linux-1", cordoned=True)]),
        "cordoned",
    ),
    "a gang, max_slots is reached, and cordoned slots have capacity for all of it": (
        a_scenario(
            submit(0, "r1", **GANG),
            tick(0),
            pool={"max_slots": 2},
            slots=[a_slot("linux-1", cordoned=True), a_slot("linux-2", cordoned=True)],
        ),
        "cordoned",
    ),
    "a gang, max_slots is reached, and the cordoned slot has capacity for a part of it": (
        a_scenario(submit(0, "r1", **GANG), tick(0), pool={"max_slots": 1}, slots=[a_slot("linux-1", cordoned=True)]),
        "at_max_slots",
    ),
}


@pytest.mark.parametrize("name", CODES)
def test_the_code_is_the_reason_of_the_wait(name: str) -> None:
    document, code = CODES[name]
    last = play_out(document).ticks[-1]
    assert [each for each in last if " waits " in each] == [f"r1 waits {code}"]


QUEUES = {
    "size": ["small", "old", "high", "twin", "low"],
}


@pytest.mark.parametrize("queue", QUEUES)
def test_waits_are_reported_in_queue_order(queue: str) -> None:
    played = play_out(
        a_scenario(
            submit(0, "old", size=5),
            submit(1, "low", size=9),
            submit(2, "high", priority=7, size=5),
            submit(3, "small", size=1),
            submit(3, "twin", size=5),
            tick(4),
            scheduler={"queue": queue},
            pool={"max_slots": 0},
        )
    )
    assert [each.split()[0] for each in played.ticks[0]] == QUEUES[queue]


def test_a_changed_priority_counts_from_the_next_tick_and_0_is_on_hold() -> None:
    assert reported(
        submit(0, "r1", "r2"),
        act(0, "priority", {"reservation": "r2", "priority": 5}),
        tick(0),
        act(1, "priority", {"reservation": "r1", "priority": 0}),
        tick(1),
        scheduler={"queue": "priority"},
        pool={"max_slots": 1},
        slots=[a_slot("linux-1")],
    ) == [["assign r2 linux-1", "r1 waits at_max_slots"], ["r1 waits on_hold"]]


def test_a_reservation_for_which_capacity_appears_during_the_tick_is_placed_by_the_next_one() -> None:
    """Its first instance took the emptier slot from its second one, until `r12` made the other slot the fuller one. It
    has too many different requests for backtracking.
    """
    others = [{"name": f"other{number}", "resources": {"gpus": number}} for number in range(1, 8)]
    played = play_out(
        a_scenario(
            submit(
                0,
                "g",
                components=[
                    {"name": "big", "resources": {"cpus": 4}},
                    {"name": "wide", "resources": {"cpus": 1, "memory_mib": 50}},
                    *others,
                ],
            ),
            submit(0, "r12", resources={"cpus": 1}),
            tick(0),
            tick(1),
            pool={"max_slots": 3, "resources": {"cpus": 4, "memory_mib": 100}},
            slots=[
                a_slot("linux-1", "ready", "h1"),
                a_slot("linux-2", "ready", "h2"),
                a_slot("linux-3", "ready", resources={"gpus": 28}),
            ],
            reservations=[a_holder("h1", resources={"memory_mib": 50}), a_holder("h2", resources={"memory_mib": 100})],
        )
    )
    assert played.ticks == [
        ["assign r12 linux-1", "g waits no_capacity"],
        [f"assign g linux-2 linux-1{' linux-3' * 7}"],
    ]
    [waiting] = next(line["waiting"] for line in played.lines if "tick" in line)
    assert waiting["detail"] == "capacity became available during this tick; the next one places it"


def test_the_codes_are_in_the_order_of_the_contract() -> None:
    assert (
        *("on_hold", "no_pool", "never_fits", "no_quota", "account_limit", "behind_queue", "booting"),
        *("at_max_slots", "at_quota", "over_budget", "capacity", "throttled", "misconfigured"),
        *("gang_incomplete", "cordoned", "no_capacity"),
    ) == WAITING_CODES


def test_a_record_with_empty_labels_has_none() -> None:
    """It does not get the labels of its pool: these apply to a record that names no labels."""
    wish = submit(0, "r1", labels={"disk": "ssd"})
    pool = {"labels": {"disk": "ssd"}, "max_slots": 1}
    assert reported(wish, tick(0), pool=pool, slots=[a_slot("linux-1")]) == [["assign r1 linux-1"]]
    assert reported(wish, tick(0), pool=pool, slots=[a_slot("linux-1", labels={})]) == [
        ["drain linux-1 at_quota", "r1 waits at_max_slots"]
    ]


def test_a_cordoned_empty_slot_is_not_launched_on() -> None:
    assert reported(act(0, "cordon", "linux-1"), submit(0, "r1", "r2"), tick(0), pool=a_pool(max_slots=2)) == [
        ["launch linux-2 demand", "r1 waits booting", "r2 waits at_max_slots"]
    ]


@pytest.mark.parametrize(
    ("wish", "sentence"), [({"system": "mac"}, "no pool serves mac"), ({"pool": "gone"}, "no pool is named gone")]
)
def test_no_pool_names_what_was_requested(wish: Document, sentence: str) -> None:
    played = play_out(a_scenario(act(0, "submit", {"id": "r1", **wish}), tick(0)))
    [waiting] = next(line["waiting"] for line in played.lines if "tick" in line)
    assert (waiting["code"], waiting["detail"]) == ("no_pool", sentence)
