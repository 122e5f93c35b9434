"""Why a reservation waits: the codes in their order, and the order of the queue."""

import pytest

from scheduler.model.waiting_codes import WAITING_CODES
from tests.rules.playing import Document, a_holder, a_pool, a_scenario, a_slot, act, play_out, reported, submit, tick

GANG = {"components": [{"name": "w", "count": 2}]}
HOSTS = {"hosts": {"system": "x86_64-linux", "provider": "static", "lease_ttl": 0}}

CODES: dict[str, tuple[Document, str]] = {
    "on_hold": (a_scenario(submit(0, "r1", priority=0), tick(0), slots=[a_slot("linux-1")]), "on_hold"),
    "on_hold before no_pool": (a_scenario(submit(0, "r1", priority=0, system="mac"), tick(0)), "on_hold"),
    "no_pool": (a_scenario(submit(0, "r1", system="mac"), tick(0)), "no_pool"),
    "no_pool for a pool": (a_scenario(act(0, "submit", {"id": "r1", "pool": "gone"}), tick(0)), "no_pool"),
    "never_fits by resources": (
        a_scenario(submit(0, "r1", resources={"cpus": 5}), tick(0), pool={"resources": {"cpus": 4}}),
        "never_fits",
    ),
    "exactly as much fits": (
        a_scenario(submit(0, "r1", resources={"cpus": 4}), tick(0), pool={"resources": {"cpus": 4}}),
        "booting",
    ),
    "never_fits by labels": (a_scenario(submit(0, "r1", labels={"disk": "ssd"}), tick(0)), "never_fits"),
    "an empty value does not match a missing label": (
        a_scenario(submit(0, "r1", labels={"disk": ""}), tick(0), slots=[a_slot("linux-1")]),
        "never_fits",
    ),
    "never_fits while a slot of another size could": (
        a_scenario(
            submit(0, "r1", resources={"cpus": 5}),
            tick(0),
            pool={"resources": {"cpus": 4}},
            slots=[a_slot("linux-1", "ready", "r0", resources={"cpus": 8})],
            reservations=[a_holder("r0", resources={"cpus": 8})],
        ),
        "no_capacity",
    ),
    "never_fits by default_resources": (
        a_scenario(submit(0, "r1"), tick(0), pool={"resources": {"cpus": 4}, "default_resources": {"cpus": 5}}),
        "never_fits",
    ),
    "booting": (a_scenario(submit(0, "r1"), tick(0)), "booting"),
    "at_max_slots": (a_scenario(submit(0, "r1"), tick(0), pool={"max_slots": 0}), "at_max_slots"),
    "gang_incomplete": (
        a_scenario(submit(0, "r1", **GANG), tick(0), pools=HOSTS, slots=[a_slot("hosts-1")]),
        "gang_incomplete",
    ),
    "a gang too large for max_slots": (
        a_scenario(submit(0, "r1", **GANG), tick(0), pool={"max_slots": 1}),
        "at_max_slots",
    ),
    "cordoned": (
        a_scenario(submit(0, "r1"), tick(0), pools=HOSTS, slots=[a_slot("hosts-1", cordoned=True)]),
        "cordoned",
    ),
    "cordoned, and max_slots is reached": (
        a_scenario(submit(0, "r1"), tick(0), pool={"max_slots": 1}, slots=[a_slot("linux-1", cordoned=True)]),
        "cordoned",
    ),
    "max_slots is reached, and the holder declined the cordoned slot": (
        a_scenario(
            submit(0, "r1"),
            tick(0),
            act(1, "decline", "r1"),
            act(1, "cordon", "linux-1"),
            tick(1),
            pool={"max_slots": 1},
            slots=[a_slot("linux-1")],
        ),
        "at_max_slots",
    ),
    "max_slots is reached, and the cordoned slot is full": (
        a_scenario(
            submit(0, "r1"),
            tick(0),
            pool={"max_slots": 1},
            slots=[a_slot("linux-1", "ready", "r0", cordoned=True)],
            reservations=[a_holder("r0")],
        ),
        "at_max_slots",
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
    "a gang for which one slot could be launched, and cordoned ones have capacity for all of it": (
        a_scenario(
            submit(0, "r1", **GANG),
            tick(0),
            pool={"max_slots": 3},
            slots=[a_slot("linux-1", cordoned=True), a_slot("linux-2", cordoned=True)],
        ),
        "at_max_slots",
    ),
    "a cordoned slot that is full is no reason": (
        a_scenario(
            submit(0, "r1"),
            tick(0),
            pools=HOSTS,
            slots=[a_slot("hosts-1", "ready", "r0", cordoned=True)],
            reservations=[a_holder("r0")],
        ),
        "no_capacity",
    ),
    "a cordoned host that is offline would have no capacity either": (
        a_scenario(submit(200, "r1"), tick(200), pools=HOSTS, slots=[a_slot("hosts-1", cordoned=True)]),
        "no_capacity",
    ),
    "no_capacity": (
        a_scenario(
            submit(0, "r1"),
            tick(0),
            pools=HOSTS,
            slots=[a_slot("hosts-1", "ready", "r0")],
            reservations=[a_holder("r0")],
        ),
        "no_capacity",
    ),
}


@pytest.mark.parametrize("name", CODES)
def test_the_code_is_the_reason_of_the_wait(name: str) -> None:
    document, code = CODES[name]
    last = play_out(document).ticks[-1]
    assert [each for each in last if " waits " in each] == [f"r1 waits {code}"]


def test_without_backfill_the_first_reservation_without_a_ready_slot_ends_the_placing() -> None:
    """Slots are still launched for later reservations, and the capacity that they would take is kept for them."""
    assert reported(
        submit(0, "r1", resources={"cpus": 4}),
        submit(0, "r2", resources={"cpus": 1}),
        submit(0, "r3", resources={"cpus": 4}),
        tick(0),
        scheduler={"backfill": False},
        pool={"resources": {"cpus": 4}, "max_slots": 2},
        slots=[a_slot("linux-1", resources={"cpus": 1})],
    ) == [["launch linux-2 demand", "r1 waits booting", "r2 waits behind_queue", "r3 waits behind_queue"]]


def test_without_backfill_reservations_before_the_first_that_waits_are_served() -> None:
    assert reported(
        submit(0, "r1", "r2", "r3"),
        tick(0),
        scheduler={"backfill": False},
        slots=[a_slot("linux-1"), a_slot("linux-2")],
    ) == [["assign r1 linux-1", "assign r2 linux-2", "launch linux-3 demand", "r3 waits booting"]]


def test_without_backfill_a_reservation_that_never_fits_blocks_no_other() -> None:
    assert reported(
        submit(0, "r1", priority=0),
        submit(0, "r2", system="mac"),
        submit(0, "r3", labels={"no": "where"}),
        submit(0, "r4"),
        tick(0),
        scheduler={"backfill": False},
        slots=[a_slot("linux-1")],
    ) == [["assign r4 linux-1", "r1 waits on_hold", "r2 waits no_pool", "r3 waits never_fits"]]


def test_with_backfill_later_reservations_are_still_tried() -> None:
    assert reported(
        submit(0, "r1", resources={"cpus": 4}),
        submit(0, "r2", resources={"cpus": 1}),
        tick(0),
        pool={"resources": {"cpus": 4}, "max_slots": 1},
        slots=[a_slot("linux-1", resources={"cpus": 1})],
    ) == [["assign r2 linux-1", "r1 waits at_max_slots"]]


QUEUES = {
    # the order of pending reservations
    "fifo": ["old", "low", "high", "small", "twin"],
    "priority": ["high", "old", "low", "small", "twin"],
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


def test_a_leased_reservation_whose_priority_becomes_0_keeps_its_lease() -> None:
    played = play_out(
        a_scenario(
            submit(0, "r1"),
            tick(0),
            act(1, "priority", {"reservation": "r1", "priority": 0}),
            tick(1),
            slots=[a_slot("linux-1")],
        )
    )
    assert played.slots == {"linux-1": "ready r1"}


def test_a_newer_reservation_of_higher_priority_gets_the_booting_slot() -> None:
    assert reported(
        submit(0, "c1"),
        tick(0),
        submit(5, "c5", priority=5),
        tick(5),
        tick(20),
        scheduler={"queue": "priority"},
        pool={"max_slots": 1},
        cloud={"boot": 10},
    ) == [
        ["launch linux-1 demand", "c1 waits booting"],
        ["c5 waits booting", "c1 waits at_max_slots"],
        ["assign c5 linux-1", "c1 waits at_max_slots"],
    ]


def test_a_gang_keeps_its_ready_capacity_while_the_rest_boots() -> None:
    assert reported(
        submit(0, "g", **GANG),
        submit(0, "r1"),
        tick(0),
        tick(10),
        pool={"max_slots": 2},
        slots=[a_slot("linux-1"), a_slot("linux-2", "booting")],
        cloud={"boot": 10},
    ) == [["g waits booting", "r1 waits at_max_slots"], ["assign g linux-1 linux-2", "r1 waits at_max_slots"]]


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


def test_a_gang_that_cannot_be_completed_holds_nothing() -> None:
    assert reported(
        submit(0, "g", components=[{"name": "w", "count": 3}]),
        submit(0, "r1"),
        tick(0),
        pool={"max_slots": 2},
        slots=[a_slot("linux-1")],
    ) == [["assign r1 linux-1", "g waits at_max_slots"]]


def test_the_codes_are_in_the_order_of_the_contract() -> None:
    assert (
        *("on_hold", "no_pool", "never_fits", "no_quota", "account_limit", "behind_queue", "booting"),
        *("at_max_slots", "at_quota", "over_budget", "capacity", "throttled", "misconfigured"),
        *("gang_incomplete", "cordoned", "no_capacity"),
    ) == WAITING_CODES


def test_fractions_that_add_up_fit() -> None:
    assert reported(
        submit(0, "r1", "r2", "r3", resources={"cpus": 0.1}),
        tick(0),
        pool={"resources": {"cpus": 0.3}, "max_slots": 1},
        slots=[a_slot("linux-1")],
    ) == [["assign r1 linux-1", "assign r2 linux-1", "assign r3 linux-1"]]


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


def test_the_older_reservation_is_first_whatever_the_order_of_submission() -> None:
    assert reported(
        tick(0),
        pool={"max_slots": 1},
        reservations=[
            {"id": "young", "system": "x86_64-linux", "created_at": -5},
            {"id": "old", "system": "x86_64-linux", "created_at": -10},
        ],
        slots=[a_slot("linux-1")],
    ) == [["assign old linux-1", "young waits at_max_slots"]]


@pytest.mark.parametrize(
    ("wish", "sentence"), [({"system": "mac"}, "no pool serves mac"), ({"pool": "gone"}, "no pool is named gone")]
)
def test_no_pool_names_what_was_requested(wish: Document, sentence: str) -> None:
    played = play_out(a_scenario(act(0, "submit", {"id": "r1", **wish}), tick(0)))
    [waiting] = next(line["waiting"] for line in played.lines if "tick" in line)
    assert (waiting["code"], waiting["detail"]) == ("no_pool", sentence)
