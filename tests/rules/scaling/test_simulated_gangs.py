"""In a simulation the machines of a gang are one request: all of them are launched, or none is."""

from typing import Any

import pytest

from scheduler.model.slots import Slot
from scheduler.simulation.runner import Runner
from scheduler.simulation.scenario import read_scenario
from tests.rules.playing import Document, a_scenario, act, play_out, submit, tick, ticks

GANG: Document = {"components": [{"name": "worker", "count": 3}]}
POOL: Document = {"max_slots": 6, "max_leases_per_slot": 1, "quota_hold": 60, "capacity_hold": 60}
NAMES = ("linux-1", "linux-2", "linux-3")
OFFERINGS: Document = {"offerings": [{"name": "small", "price": 1}, {"name": "large", "price": 1.2}]}


def states(document: Document) -> list[tuple[str, str]]:
    """Return the changes of slots' states as (slot, event), in order."""
    events = (event.split(" ") for event in play_out(document).events)
    return [(slot, name) for _, name, slot in events if name.startswith("slot_")]


def test_a_gang_beyond_the_quota_gets_no_machine() -> None:
    document = a_scenario(submit(0, "gang", **GANG), tick(0), tick(9), pool=POOL, cloud={"quota": 2, "launch": 5})
    found = states(document)
    assert [slot for slot, name in found if name == "slot_booting"] == []
    assert [slot for slot, name in found if name == "slot_empty"] == [*NAMES]


def test_single_launches_of_the_same_tick_get_what_the_quota_has() -> None:
    wishes = [submit(0, f"r{number}") for number in range(1, 4)]
    found = states(a_scenario(*wishes, tick(0), tick(9), pool=POOL, cloud={"quota": 2, "launch": 5}))
    assert [slot for slot, name in found if name == "slot_booting"] == ["linux-1", "linux-2"]


def test_a_refused_gang_leaves_the_quota_to_others_of_the_tick() -> None:
    document = a_scenario(
        submit(0, "gang", **GANG), submit(0, "single"), *ticks(0, 9), pool=POOL, cloud={"quota": 2, "launch": 5}
    )
    found = states(document)
    assert [slot for slot, name in found if name == "slot_booting"] == ["linux-4"]


def test_the_machines_of_a_refused_gang_do_not_count_for_later_launches() -> None:
    document = a_scenario(
        submit(0, "gang", **GANG), tick(0), submit(1, "single"), tick(1), pool=POOL, cloud={"quota": 2, "launch": 5}
    )
    assert [slot for slot, name in states(document | {"until": 20}) if name == "slot_booting"] == ["linux-4"]


def test_a_gang_during_a_shortage_is_launched_whole_with_another_offering() -> None:
    document = a_scenario(
        act(0, "outage", {"pool": "linux", "offering": "small", "error": "capacity", "until": 100}),
        submit(0, "gang", **GANG),
        *ticks(0, 1, 2),
        pool=POOL | OFFERINGS,
    )
    played = play_out(document)
    assert played.ticks == [
        [*(f"launch {name} small demand" for name in NAMES), "gang waits booting"],
        [*(f"launch {name} large demand" for name in NAMES), "gang waits booting"],
        ["assign gang linux-1 linux-2 linux-3"],
    ]
    runner = Runner(read_scenario(document))
    list(runner.play())
    assert [row.offering for row in runner.cluster.store.find_slots(states=["ready"])] == ["large"] * 3


@pytest.mark.parametrize("launch", [0, 5])
def test_a_gang_is_one_call_of_the_cloud(launch: float) -> None:
    document = a_scenario(submit(0, "gang", **GANG), *ticks(0, 20), pool=POOL, cloud={"launch": launch})
    runner = Runner(read_scenario(document))
    list(runner.play())
    assert runner.cluster.cloud.calls == 1
    rows: list[Slot] = runner.cluster.store.find_slots(states=["ready"])
    assert len({row.instance_id for row in rows}) == 3


def test_a_gang_that_is_cancelled_before_the_answer_gets_no_machine() -> None:
    document: dict[str, Any] = a_scenario(
        submit(0, "gang", **GANG),
        tick(0),
        act(1, "cancel", "gang"),
        *ticks(1, 9),
        pool=POOL | {"launch_timeout": 1},
        cloud={"launch": 5},
    )
    runner = Runner(read_scenario(document))
    list(runner.play())
    assert runner.cluster.cloud.calls == 0
    assert {row.state for row in runner.cluster.store.find_slots()} == {"empty"}
