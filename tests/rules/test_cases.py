"""Cases of the autoscaler's tick, each with its neighbours: exact boundaries, several leases a slot, other pools."""

import pytest

from tests.rules.playing import (
    Cases,
    a_holder,
    a_pool,
    a_scenario,
    a_slot,
    a_wish,
    act,
    play_out,
    reported,
    submit,
    tick,
    ticks,
)

OTHER = "aarch64-linux"
TWO_POOLS = {"linux": a_pool(), "arm": a_pool(system=OTHER)}
FOR_EVER = "9999d"


CASES: Cases = {
    # one pending, all empty
    "one pending, all empty": (a_scenario(submit(0, "r1"), tick(0)), [["launch linux-1 demand", "r1 waits booting"]]),
    # the launch is in flight: the next tick makes no other
    "one pending, a launch on its way": (
        a_scenario(submit(0, "r1"), *ticks(0, 5, 10), cloud={"launch": 60}),
        [["launch linux-1 demand", "r1 waits booting"], ["r1 waits booting"], ["r1 waits booting"]],
    ),
    "three pending, all empty": (
        a_scenario(submit(0, "r1", "r2", "r3"), tick(0)),
        [
            [
                "launch linux-1 demand",
                "launch linux-2 demand",
                "launch linux-3 demand",
                "r1 waits booting",
                "r2 waits booting",
                "r3 waits booting",
            ]
        ],
    ),
    # the first empty ones in slot order, by number and not by text
    "linux-2 goes before linux-10": (
        a_scenario(
            submit(0, *(f"r{n}" for n in range(2))),
            tick(0),
            pool={"max_slots": 12},
            slots=[a_slot(f"linux-{n}", "draining", f"h{n}") for n in (1, 3, 4, 5, 6, 7, 8, 9)],
            reservations=[a_holder(f"h{n}") for n in (1, 3, 4, 5, 6, 7, 8, 9)],
        ),
        [["launch linux-2 demand", "launch linux-10 demand", "r0 waits booting", "r1 waits booting"]],
    ),
    "L 2: one slot booting, two pending": (
        a_scenario(
            submit(0, "r1", "r2"),
            tick(0),
            pool={"max_leases_per_slot": 2},
            slots=[a_slot("linux-1", "booting")],
            cloud={"boot": 60},
        ),
        [["r1 waits booting", "r2 waits booting"]],
    ),
    "L 2: one slot booting, three pending": (
        a_scenario(
            submit(0, "r1", "r2", "r3"),
            tick(0),
            pool={"max_leases_per_slot": 2},
            slots=[a_slot("linux-1", "booting")],
            cloud={"boot": 60},
        ),
        [["launch linux-2 demand", "r1 waits booting", "r2 waits booting", "r3 waits booting"]],
    ),
    "L 2: one slot booting and a slot with a free lease, three pending": (
        a_scenario(
            submit(0, "r1", "r2", "r3"),
            tick(0),
            pool={"max_leases_per_slot": 2},
            slots=[a_slot("linux-1", "booting"), a_slot("linux-2", "ready", "r0")],
            reservations=[a_holder("r0")],
            cloud={"boot": 60},
        ),
        [["assign r1 linux-2", "r2 waits booting", "r3 waits booting"]],
    ),
    # what is left after the leases in flight, rounded up to whole slots
    "L 3: five pending, one booting": (
        a_scenario(
            submit(0, *(f"r{n}" for n in range(1, 9))),
            tick(0),
            pool={"max_leases_per_slot": 3},
            slots=[a_slot("linux-1", "launching")],
            cloud={"launch": 60},
        ),
        [["launch linux-2 demand", "launch linux-3 demand"] + [f"r{n} waits booting" for n in range(1, 9)]],
    ),
    "a binding slot counts as in flight": (
        a_scenario(submit(0, "r1"), tick(0), slots=[a_slot("linux-1", "binding")], cloud={"bind": 60}),
        [["r1 waits booting"]],
    ),
    "pending for a system that no pool serves": (
        a_scenario(submit(0, "r1", system="riscv"), tick(0)),
        [["r1 waits no_pool"]],
    ),
    "pending for an unknown pool": (
        a_scenario({"at": 0, "submit": {"id": "r1", "pool": "mac"}}, tick(0)),
        [["r1 waits no_pool"]],
    ),
    "max 1: linux-1 draining, one pending": (
        a_scenario(
            submit(0, "r1"),
            tick(0),
            pool={"max_slots": 1},
            slots=[a_slot("linux-1", "draining", "r0")],
            reservations=[a_holder("r0")],
        ),
        [["r1 waits at_max_slots"]],
    ),
    "max 1: linux-1 terminating, one pending": (
        a_scenario(
            submit(0, "r1"),
            *ticks(0, 20),
            pool={"max_slots": 1},
            slots=[a_slot("linux-1", "terminating")],
            cloud={"terminate": 20},
        ),
        [["r1 waits at_max_slots"], ["launch linux-1 demand", "r1 waits booting"]],
    ),
    "max 1: a further empty record does not exceed the maximum": (
        a_scenario(
            submit(0, "r1"),
            tick(0),
            pool={"max_slots": 1, "target_warm_slots": 1},
            slots=[a_slot("linux-1", "ready", "r0"), a_slot("linux-9", "empty")],
            reservations=[a_holder("r0")],
        ),
        [["r1 waits at_max_slots"]],
    ),
    "max 0": (a_scenario(submit(0, "r1"), tick(0), pool={"max_slots": 0}), [["r1 waits at_max_slots"]]),
    "L 2: two ready, three pending": (
        a_scenario(
            submit(0, "r1", "r2", "r3"),
            tick(0),
            pool={"max_leases_per_slot": 2},
            slots=[a_slot("linux-1"), a_slot("linux-2")],
        ),
        [["assign r1 linux-1", "assign r2 linux-1", "assign r3 linux-2"]],
    ),
    "L 2: a later slot that is fuller goes first": (
        a_scenario(
            submit(0, "r1", "r2"),
            tick(0),
            pool={"max_leases_per_slot": 2},
            slots=[a_slot("linux-1"), a_slot("linux-2", "ready", "r0")],
            reservations=[a_holder("r0")],
        ),
        [["assign r1 linux-2", "assign r2 linux-1"]],
    ),
    "L 1: four ready, five pending": (
        a_scenario(
            submit(0, "r1", "r2", "r3", "r4", "r5"), tick(0), slots=[a_slot(f"linux-{n}") for n in (4, 2, 3, 1)]
        ),
        [["assign r1 linux-1", "assign r2 linux-2", "assign r3 linux-3", "assign r4 linux-4", "r5 waits at_max_slots"]],
    ),
    "only a ready slot of another system: r1 has no slot, r2 fits": (
        a_scenario(
            submit(0, "r1"),
            submit(0, "r2", system=OTHER),
            tick(0),
            pools={"linux": a_pool(max_slots=0), "arm": a_pool(system=OTHER)},
            slots=[a_slot("arm-1")],
        ),
        [["assign r2 arm-1", "r1 waits at_max_slots"]],
    ),
    "a slot in flight of another system is no capacity": (
        a_scenario(submit(0, "r1"), tick(0), pools=TWO_POOLS, slots=[a_slot("arm-1", "booting")], cloud={"boot": 9}),
        [["launch linux-1 demand", "r1 waits booting"]],
    ),
    "two pools of one system: the first that is configured launches": (
        a_scenario(submit(0, "r1", "r2", "r3"), tick(0), pools={"b": a_pool(max_slots=2), "a": a_pool(max_slots=2)}),
        [["launch b-1 demand", "launch b-2 demand", "launch a-1 demand"] + [f"r{n} waits booting" for n in (1, 2, 3)]],
    ),
    "a reservation that names a pool gets no other pool of its system": (
        a_scenario(
            {"at": 0, "submit": {"id": "r1", "pool": "b"}},
            tick(0),
            pools={"a": a_pool(), "b": a_pool()},
            slots=[a_slot("a-1")],
        ),
        [["launch b-1 demand", "r1 waits booting"]],
    ),
    "max 2: linux-1 ready, interrupted, idle; one pending": (
        a_scenario(
            submit(0, "r1"),
            act(0, "interrupt", {"slot": "linux-1", "deadline": 120}),
            tick(0),
            pool={"max_slots": 2},
            slots=[a_slot("linux-1")],
        ),
        [["drain linux-1 interrupted", "launch linux-2 demand", "r1 waits booting"]],
    ),
    "max 1: linux-1 ready, interrupted, idle; one pending": (
        a_scenario(
            submit(0, "r1"),
            act(0, "interrupt", {"slot": "linux-1", "deadline": 120}),
            *ticks(0, 5, 10, 15),
            pool={"max_slots": 1},
            slots=[a_slot("linux-1")],
            cloud={"terminate": 10},
        ),
        [
            ["drain linux-1 interrupted", "r1 waits at_max_slots"],
            ["terminate linux-1 drained", "r1 waits at_max_slots"],
            ["r1 waits at_max_slots"],
            ["launch linux-1 demand", "r1 waits booting"],
        ],
    ),
    "expired and a slot is ready": (
        a_scenario(submit(0, "r1", ttl=10), tick(10), slots=[a_slot("linux-1")]),
        [["expire r1 ttl"]],
    ),
    "one second before": (
        a_scenario(submit(0, "r1", ttl=10), tick(9), slots=[a_slot("linux-1")]),
        [["assign r1 linux-1"]],
    ),
    "a pending one and a slot that is idle for too long": (
        a_scenario(submit(0, "r1"), tick(0), slots=[a_slot("linux-1", idle_since=-5000)]),
        [["assign r1 linux-1"]],
    ),
    "capacity outage, two pending": (
        a_scenario(
            act(0, "outage", {"pool": "linux", "error": "capacity", "until": 999}),
            submit(0, "r1", "r2"),
            *ticks(0, 5, 10),
        ),
        [
            ["launch linux-1 demand", "launch linux-2 demand", "r1 waits booting", "r2 waits booting"],
            ["r1 waits capacity", "r2 waits capacity"],
            ["r1 waits capacity", "r2 waits capacity"],
        ],
    ),
    "max 1: linux-1 times out while booting": (
        a_scenario(
            submit(0, "r1"),
            *ticks(599.9, 600, 610, 620),
            pool={"max_slots": 1},
            slots=[a_slot("linux-1", "booting")],
            cloud={"boot": 99999, "terminate": 20},
        ),
        [
            ["r1 waits booting"],
            ["terminate linux-1 timeout", "r1 waits at_max_slots"],
            ["r1 waits at_max_slots"],
            ["launch linux-1 demand", "r1 waits booting"],
        ],
    ),
    "max 2: the launch is made in the tick of the timeout": (
        a_scenario(
            submit(0, "r1"),
            tick(600),
            pool={"max_slots": 2},
            slots=[a_slot("linux-1", "booting")],
            cloud={"boot": 99999},
        ),
        [["terminate linux-1 timeout", "launch linux-2 demand", "r1 waits booting"]],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_tick_of_the_autoscaler_launches_assigns_and_ends(name: str) -> None:
    document, expected = CASES[name]
    assert play_out(document).ticks == expected


def test_after_a_capacity_outage_every_slot_is_empty() -> None:
    document, _ = CASES["capacity outage, two pending"]
    assert play_out(document).slots == {}


def test_maximum_over_all_pools_limits_the_launches_of_each() -> None:
    pools = {"linux": a_pool(), "arm": a_pool(system=OTHER)}
    wishes = [a_wish("a1", system=OTHER), a_wish("r1"), a_wish("a2", system=OTHER), a_wish("r2")]
    assert reported({"at": 0, "submit": wishes}, tick(0), pools=pools, scheduler={"max_slots": 3}) == [
        [
            "launch arm-1 demand",
            "launch linux-1 demand",
            "launch arm-2 demand",
            "a1 waits booting",
            "r1 waits booting",
            "a2 waits booting",
            "r2 waits at_max_slots",
        ]
    ]


def test_draining_and_terminating_slots_of_one_pool_count_towards_the_maximum_over_all() -> None:
    assert reported(
        submit(0, "r1"),
        tick(0),
        pools=TWO_POOLS,
        scheduler={"max_slots": 2},
        slots=[a_slot("arm-1", "terminating"), a_slot("arm-2", "draining", "r0")],
        reservations=[a_holder("r0", system=OTHER)],
        cloud={"terminate": 60},
    ) == [["r1 waits at_max_slots"]]


def test_an_error_slot_is_not_active_and_not_launched_on() -> None:
    assert reported(
        submit(0, "r1", "r2"),
        tick(0),
        pool={"max_slots": 2, "error_cooldown": FOR_EVER},
        slots=[a_slot("linux-1", "error")],
    ) == [["launch linux-2 demand", "r1 waits booting", "r2 waits at_max_slots"]]
