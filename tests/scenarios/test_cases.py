"""The cases of the autoscaler's tick, each with its neighbours: exact boundaries, more leases a slot, other pools."""

import pytest

from tests.scenarios.playing import (
    Document,
    a_holder,
    a_pool,
    a_scenario,
    a_slot,
    a_wish,
    act,
    play_out,
    submit,
    tick,
    ticks,
    told,
)

OTHER = "aarch64-linux"
TWO_POOLS = {"linux": a_pool(), "arm": a_pool(system=OTHER)}
FOR_EVER = "9999d"

CASES: dict[str, tuple[Document, list[list[str]]]] = {
    # one pending, all empty
    "one pending, all empty": (
        a_scenario(submit(0, "r1"), tick(0)),
        [["launch linux-1 demand", "r1 waits booting"]],
    ),
    # the launch is on its way: the next tick makes no other
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
    "L 2: one slot booting and a slot with room, three pending": (
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
    # what is left after the places in flight, rounded up to whole slots
    "L 3: five pending, one booting": (
        a_scenario(
            submit(0, *(f"r{n}" for n in range(1, 9))),
            tick(0),
            pool={"max_leases_per_slot": 3},
            slots=[a_slot("linux-1", "launching")],
            cloud={"launch": 60},
        ),
        [
            ["launch linux-2 demand", "launch linux-3 demand"] + [f"r{n} waits booting" for n in range(1, 9)],
        ],
    ),
    "a binding slot counts as on its way": (
        a_scenario(submit(0, "r1"), tick(0), slots=[a_slot("linux-1", "binding")], cloud={"bind": 60}),
        [["r1 waits booting"]],
    ),
    "pending for a system that no pool serves": (
        a_scenario(submit(0, "r1", system="riscv"), tick(0)),
        [["r1 waits no_pool"]],
    ),
    "pending for a pool that is not there": (
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
    "max 1: a further record that is empty is no way past it": (
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
            submit(0, "r1", "r2", "r3", "r4", "r5"),
            tick(0),
            slots=[a_slot(f"linux-{n}") for n in (4, 2, 3, 1)],
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
    "a slot in flight of another system is no room": (
        a_scenario(submit(0, "r1"), tick(0), pools=TWO_POOLS, slots=[a_slot("arm-1", "booting")], cloud={"boot": 9}),
        [["launch linux-1 demand", "r1 waits booting"]],
    ),
    "two pools of one system: the first that is configured launches": (
        a_scenario(submit(0, "r1", "r2", "r3"), tick(0), pools={"b": a_pool(max_slots=2), "a": a_pool(max_slots=2)}),
        [["launch b-1 demand", "launch b-2 demand", "launch a-1 demand"] + [f"r{n} waits booting" for n in (1, 2, 3)]],
    ),
    "who names a pool gets no other of its system": (
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
    "min 2, no demand": (
        a_scenario(*ticks(0, 5), pool={"min_slots": 2}, cloud={"boot": 60}),
        [["launch linux-1 minimum", "launch linux-2 minimum"], []],
    ),
    "min 4 of 4": (
        a_scenario(tick(0), pool={"min_slots": 4}),
        [[f"launch linux-{n} minimum" for n in (1, 2, 3, 4)]],
    ),
    "min 1 and one pending make one launch": (
        a_scenario(submit(0, "r1"), tick(0), pool={"min_slots": 1}),
        [["launch linux-1 demand", "r1 waits booting"]],
    ),
    "min 2 and one pending make two": (
        a_scenario(submit(0, "r1"), tick(0), pool={"min_slots": 2}),
        [["launch linux-1 demand", "launch linux-2 minimum", "r1 waits booting"]],
    ),
    "min 2: leased slots serve": (
        a_scenario(
            tick(0),
            pool={"min_slots": 2},
            slots=[a_slot("linux-1", "ready", "r0"), a_slot("linux-2", "booting")],
            reservations=[a_holder("r0")],
            cloud={"boot": 9},
        ),
        [[]],
    ),
    "each pool keeps its own minimum": (
        a_scenario(
            tick(0),
            pools={"linux": a_pool(min_slots=1), "arm": a_pool(system=OTHER, min_slots=2)},
            slots=[a_slot("linux-1"), a_slot("linux-2")],
        ),
        [["launch arm-1 minimum", "launch arm-2 minimum"]],
    ),
    "warm 1: linux-1 leased": (
        a_scenario(
            tick(0),
            pool={"target_warm_slots": 1},
            slots=[a_slot("linux-1", "ready", "r0")],
            reservations=[a_holder("r0")],
        ),
        [["launch linux-2 warm"]],
    ),
    "warm 1: linux-1 ready without leases": (
        a_scenario(tick(0), pool={"target_warm_slots": 1}, slots=[a_slot("linux-1")]),
        [[]],
    ),
    "warm 1: one pending, all empty": (
        a_scenario(submit(0, "r1"), tick(0), pool={"target_warm_slots": 1}),
        [["launch linux-1 demand", "launch linux-2 warm", "r1 waits booting"]],
    ),
    "warm 1, L 2: a slot that somebody waits for is no reserve, even with places left": (
        a_scenario(submit(0, "r1"), tick(0), pool={"target_warm_slots": 1, "max_leases_per_slot": 2}),
        [["launch linux-1 demand", "launch linux-2 warm", "r1 waits booting"]],
    ),
    "warm 1, L 2: neither is a booting slot that somebody is set against": (
        a_scenario(
            submit(0, "r1"),
            tick(0),
            pool={"target_warm_slots": 1, "max_leases_per_slot": 2},
            slots=[a_slot("linux-1", "booting")],
            cloud={"boot": 60},
        ),
        [["launch linux-2 warm", "r1 waits booting"]],
    ),
    "warm 1, min 1: a slot launched for the minimum is reserve": (
        a_scenario(tick(0), pool={"target_warm_slots": 1, "min_slots": 1}),
        [["launch linux-1 minimum"]],
    ),
    "warm 1: a cordoned slot is no reserve": (
        a_scenario(tick(0), pool={"target_warm_slots": 1}, slots=[a_slot("linux-1", cordoned=True)]),
        [["launch linux-2 warm"]],
    ),
    "warm 9 of 4 is bounded by max_slots": (
        a_scenario(tick(0), pool={"target_warm_slots": 9}),
        [[f"launch linux-{n} warm" for n in (1, 2, 3, 4)]],
    ),
    "warm 1: what takes a lease in this tick is no reserve": (
        a_scenario(submit(0, "r1"), tick(0), pool={"target_warm_slots": 1}, slots=[a_slot("linux-1")]),
        [["assign r1 linux-1", "launch linux-2 warm"]],
    ),
    "idle for exactly 900": (
        a_scenario(tick(900), pool={"idle_scale_down": 900}, slots=[a_slot("linux-1")]),
        [[]],
    ),
    "idle for 900.5": (
        a_scenario(tick(900.5), pool={"idle_scale_down": 900}, slots=[a_slot("linux-1")]),
        [["drain linux-1 idle"]],
    ),
    "idle_since counts, not since": (
        a_scenario(tick(0), pool={"idle_scale_down": 900}, slots=[a_slot("linux-1", since=-5000, idle_since=-899)]),
        [[]],
    ),
    "min 1: two slots idle too long": (
        a_scenario(
            *ticks(0, 5),
            pool={"min_slots": 1},
            slots=[a_slot("linux-1", idle_since=-4000), a_slot("linux-2", idle_since=-5000)],
        ),
        [["drain linux-2 idle"], ["terminate linux-2 drained"]],
    ),
    "idle equally long: slot order": (
        a_scenario(
            tick(0),
            pool={"min_slots": 1, "max_slots": 12},
            slots=[a_slot("linux-10", idle_since=-5000), a_slot("linux-2", idle_since=-5000)],
        ),
        [["drain linux-2 idle"]],
    ),
    "min 1: a booting slot serves, so the idle one may go": (
        a_scenario(
            tick(0),
            pool={"min_slots": 1},
            slots=[a_slot("linux-1", idle_since=-5000), a_slot("linux-2", "booting")],
            cloud={"boot": 60},
        ),
        [["drain linux-1 idle"]],
    ),
    "warm 1: the only slot is idle too long": (
        a_scenario(*ticks(0, 5, 10, 9999), pool={"target_warm_slots": 1}, slots=[a_slot("linux-1", idle_since=-5000)]),
        [[], [], [], []],
    ),
    "warm 1: of two idle too long one goes": (
        a_scenario(
            *ticks(0, 5),
            pool={"target_warm_slots": 1},
            slots=[a_slot("linux-1", idle_since=-5000), a_slot("linux-2", idle_since=-5000)],
        ),
        [["drain linux-1 idle"], ["terminate linux-1 drained"]],
    ),
    "leased, ready for 99999 s": (
        a_scenario(
            *ticks(0, 99999),
            slots=[a_slot("linux-1", "ready", "r0", since=-99999)],
            reservations=[a_holder("r0", created_at=-99999)],
        ),
        [[], []],
    ),
    "cordoned, idle too long": (
        a_scenario(tick(0), slots=[a_slot("linux-1", idle_since=-5000, cordoned=True)]),
        [[]],
    ),
    "expired and a slot is ready": (
        a_scenario(submit(0, "r1", ttl=10), tick(10), slots=[a_slot("linux-1")]),
        [["expire r1 ttl"]],
    ),
    "one second before": (
        a_scenario(submit(0, "r1", ttl=10), tick(9), slots=[a_slot("linux-1")]),
        [["assign r1 linux-1"]],
    ),
    "a pending one and a slot that is idle too long": (
        a_scenario(submit(0, "r1"), tick(0), slots=[a_slot("linux-1", idle_since=-5000)]),
        [["assign r1 linux-1"]],
    ),
    "a slot that is kept for one behind a blocked queue is not idle": (
        a_scenario(
            submit(0, "r1", resources={"cpus": 4}),
            submit(0, "r2", resources={"cpus": 1}),
            tick(0),
            scheduler={"backfill": False},
            pool={"resources": {"cpus": 4}, "max_slots": 1},
            slots=[a_slot("linux-1", idle_since=-5000, resources={"cpus": 1})],
        ),
        [["r1 waits at_max_slots", "r2 waits behind_queue"]],
    ),
    "min 1: linux-1 draining": (
        a_scenario(
            tick(0),
            pool={"min_slots": 1},
            slots=[a_slot("linux-1", "draining", "r0")],
            reservations=[a_holder("r0")],
        ),
        [["launch linux-2 minimum"]],
    ),
    "min 1: linux-1 cordoned": (
        a_scenario(tick(0), pool={"min_slots": 1}, slots=[a_slot("linux-1", cordoned=True)]),
        [["launch linux-2 minimum"]],
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
def test_the_tick_decides_as_its_table_says(name: str) -> None:
    document, expected = CASES[name]
    assert play_out(document).ticks == expected


@pytest.mark.parametrize("name", CASES)
def test_with_kicks_and_wakes_the_first_tick_decides_the_same(name: str) -> None:
    """What a tick decides does not depend on who asked for it."""
    document, expected = CASES[name]
    first = play_out({**document, "kicks": True, "wakes": True}).ticks
    if all("at" in item and item["at"] == 0 for item in document["timeline"]) and expected[0]:
        assert first[0] == expected[0]
    else:
        assert first


def test_after_a_capacity_outage_every_slot_is_empty() -> None:
    document, _ = CASES["capacity outage, two pending"]
    assert play_out(document).slots == {}


def test_maximum_over_all_pools_holds_back_the_launches_of_each() -> None:
    pools = {"linux": a_pool(), "arm": a_pool(system=OTHER)}
    wishes = [a_wish("a1", system=OTHER), a_wish("r1"), a_wish("a2", system=OTHER), a_wish("r2")]
    assert told({"at": 0, "submit": wishes}, tick(0), pools=pools, scheduler={"max_slots": 3}) == [
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


def test_minimum_and_warm_are_bounded_by_the_maximum_over_all_pools() -> None:
    pools = {"linux": a_pool(min_slots=2), "arm": a_pool(system=OTHER, target_warm_slots=3)}
    assert told(tick(0), pools=pools, scheduler={"max_slots": 3}) == [
        ["launch linux-1 minimum", "launch linux-2 minimum", "launch arm-1 warm"]
    ]


def test_draining_and_terminating_slots_of_one_pool_use_up_the_maximum_over_all() -> None:
    assert told(
        submit(0, "r1"),
        tick(0),
        pools=TWO_POOLS,
        scheduler={"max_slots": 2},
        slots=[a_slot("arm-1", "terminating"), a_slot("arm-2", "draining", "r0")],
        reservations=[a_holder("r0", system=OTHER)],
        cloud={"terminate": 60},
    ) == [["r1 waits at_max_slots"]]


def test_an_error_slot_is_not_active_and_not_launched_on() -> None:
    assert told(
        submit(0, "r1", "r2"),
        tick(0),
        pool={"max_slots": 2, "error_cooldown": FOR_EVER},
        slots=[a_slot("linux-1", "error")],
    ) == [["launch linux-2 demand", "r1 waits booting", "r2 waits at_max_slots"]]
