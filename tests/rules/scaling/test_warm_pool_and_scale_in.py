"""Minimum, warm and idle slots: how many are kept, and which drain."""

import pytest

from tests.rules.playing import Cases, a_holder, a_pool, a_scenario, a_slot, play_out, reported, submit, tick, ticks

OTHER = "aarch64-linux"


CASES: Cases = {
    "min 2, no demand": (
        a_scenario(*ticks(0, 5), pool={"min_slots": 2}, cloud={"boot": 60}),
        [["launch linux-1 minimum", "launch linux-2 minimum"], []],
    ),
    "min 4 of 4": (a_scenario(tick(0), pool={"min_slots": 4}), [[f"launch linux-{n} minimum" for n in (1, 2, 3, 4)]]),
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
    "warm 1, L 2: a slot that a reservation waits for is no reserve, even with free leases": (
        a_scenario(submit(0, "r1"), tick(0), pool={"target_warm_slots": 1, "max_leases_per_slot": 2}),
        [["launch linux-1 demand", "launch linux-2 warm", "r1 waits booting"]],
    ),
    "warm 1, L 2: a booting slot that a reservation waits for is no reserve either": (
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
    "warm 1: a slot that takes a lease in this tick is no reserve": (
        a_scenario(submit(0, "r1"), tick(0), pool={"target_warm_slots": 1}, slots=[a_slot("linux-1")]),
        [["assign r1 linux-1", "launch linux-2 warm"]],
    ),
    "idle for exactly 900": (a_scenario(tick(900), pool={"idle_scale_down": 900}, slots=[a_slot("linux-1")]), [[]]),
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
    "min 1: a booting slot serves, so the idle one may drain": (
        a_scenario(
            tick(0),
            pool={"min_slots": 1},
            slots=[a_slot("linux-1", idle_since=-5000), a_slot("linux-2", "booting")],
            cloud={"boot": 60},
        ),
        [["drain linux-1 idle"]],
    ),
    "warm 1: the only slot is idle for too long": (
        a_scenario(*ticks(0, 5, 10, 9999), pool={"target_warm_slots": 1}, slots=[a_slot("linux-1", idle_since=-5000)]),
        [[], [], [], []],
    ),
    "warm 1: of two slots that are idle for too long one drains": (
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
    "cordoned, idle too long": (a_scenario(tick(0), slots=[a_slot("linux-1", idle_since=-5000, cordoned=True)]), [[]]),
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
            tick(0), pool={"min_slots": 1}, slots=[a_slot("linux-1", "draining", "r0")], reservations=[a_holder("r0")]
        ),
        [["launch linux-2 minimum"]],
    ),
    "min 1: linux-1 cordoned": (
        a_scenario(tick(0), pool={"min_slots": 1}, slots=[a_slot("linux-1", cordoned=True)]),
        [["launch linux-2 minimum"]],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_minimum_and_warm_slots_are_launched_and_idle_slots_drain(name: str) -> None:
    document, expected = CASES[name]
    assert play_out(document).ticks == expected


@pytest.mark.parametrize(("most", "warm"), [(0, ["launch linux-1 warm"]), (1, [])])
def test_the_minimum_of_each_pool_goes_before_the_reserve_of_any(most: int, warm: list[str]) -> None:
    """A maximum over all pools that allows one more slot allows the minimum, not the reserve."""
    pools = {"linux": a_pool(target_warm_slots=1), "arm": a_pool(system=OTHER, min_slots=1)}
    found = reported(tick(0), pools=pools, scheduler={"max_slots": most})
    assert found == [["launch arm-1 minimum", *warm]]


def test_minimum_and_warm_pool_are_bounded_by_the_maximum_over_all_pools() -> None:
    pools = {"linux": a_pool(min_slots=2), "arm": a_pool(system=OTHER, target_warm_slots=3)}
    assert reported(tick(0), pools=pools, scheduler={"max_slots": 3}) == [
        ["launch linux-1 minimum", "launch linux-2 minimum", "launch arm-1 warm"]
    ]
