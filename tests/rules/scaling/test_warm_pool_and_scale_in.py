"""Minimum, warm and idle slots: how many are kept, and which drain."""

import pytest

from tests.rules.playing import Cases, a_pool, a_scenario, a_slot, play_out, reported, submit, tick

OTHER = "aarch64-linux"


CASES: Cases = {
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
