"""`found`: machines with the project's tags that belong to no slot. And `unhealthy_after`: boots that fail in a row."""

from typing import Any

import pytest

from scheduler.model.validation import InvalidInputError
from tests.rules.playing import Document, a_holder, a_scenario, a_slot, act, play_out, reported, submit, tick, ticks

TWO = [
    {"name": "small", "price": 1, "resources": {"cpus": 2}},
    {"name": "big", "price": 2, "resources": {"cpus": 8}, "labels": {"disk": "ssd"}},
]


def found(at: float, slot: str = "linux-1", **fields: Any) -> Document:
    return act(at, "found", {"pool": "linux", "slot": slot, **fields})


def test_a_found_machine_is_adopted_and_boots_until_probed() -> None:
    played = play_out(a_scenario(found(5, "linux-2"), cloud={"boot": 60, "bind": 5}, until=100))
    assert played.events == ["5 slot_adopted linux-2", "65 slot_binding linux-2", "70 slot_ready linux-2"]
    assert played.slots == {"linux-2": "ready"}


def test_an_adopted_machine_has_the_capacity_of_its_offering() -> None:
    played = play_out(a_scenario(found(0, offering="big"), pool={"offerings": TWO}))
    slot = played.state["slots"][0]
    assert (slot["offering"], slot["resources"], slot["labels"]) == ("big", {"cpus": 8}, {"disk": "ssd"})


def test_a_reservation_waits_for_an_adopted_machine_and_nothing_is_launched() -> None:
    assert reported(found(0), submit(0, "r1"), *ticks(0, 10), cloud={"boot": 10}) == [
        ["r1 waits booting"],
        ["assign r1 linux-1"],
    ]


def test_with_kicks_an_adoption_asks_for_a_tick() -> None:
    played = play_out(a_scenario(found(5), kicks=True, until=5))
    assert played.tick_times[0] == 5


@pytest.mark.parametrize("state", ["ready", "booting", "draining", "terminating", "error"])
def test_a_found_machine_is_terminated_if_its_slot_is_not_empty(state: str) -> None:
    """The slot keeps what it had."""
    alone = play_out(a_scenario(slots=[a_slot("linux-1", state)], until=1, cloud={"boot": 9, "terminate": 9}))
    beside = play_out(
        a_scenario(found(0), slots=[a_slot("linux-1", state)], until=1, cloud={"boot": 9, "terminate": 9})
    )
    assert beside.events == []
    assert beside.state == alone.state


def test_a_found_machine_counts_towards_max_slots_until_it_has_ended() -> None:
    """linux-1 is ready and full, and one more machine runs: of two slots none is left."""
    assert reported(
        found(0),
        submit(0, "r1"),
        *ticks(0, 19, 20),
        slots=[a_slot("linux-1", "ready", "h1")],
        reservations=[a_holder("h1")],
        pool={"max_slots": 2},
        cloud={"terminate": 20},
    ) == [["r1 waits at_max_slots"], ["r1 waits at_max_slots"], ["launch linux-2 demand", "r1 waits booting"]]


def test_of_two_found_machines_of_one_slot_the_first_is_adopted() -> None:
    played = play_out(a_scenario(found(0), found(1), until=1, cloud={"boot": 60}))
    assert played.events == ["0 slot_adopted linux-1"]


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ({"pool": "windows"}, 'timeline[0].found.pool: expected a pool of config, got "windows"'),
        ({"slot": "linux-9"}, "timeline[0].found.slot: expected a slot that was declared"),
        ({"offering": "huge"}, 'timeline[0].found.offering: expected an offering of linux, got "huge"'),
        ({"offering": 3}, "timeline[0].found.offering: expected"),
    ],
)
def test_bad_input_is_refused_by_name(value: dict[str, Any], line: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        play_out(a_scenario(act(0, "found", {"pool": "linux", "slot": "linux-1", **value}), pool={"offerings": TWO}))
    assert str(caught.value).startswith(line)


SLOW: dict[str, Any] = {"cloud": {"boot": 1000}, "pool": {"boot_timeout": 100, "error_cooldown": 60}}
RETRY = ["terminate linux-1 timeout", "launch linux-2 demand", "r1 waits booting"]


def test_three_failed_boots_in_a_row_pause_launches_of_the_pool() -> None:
    """A slot is launched again in the same tick after the first and the second failure; then a pause, and one launch
    alone.
    """
    played = reported(submit(0, "r1", "r2"), tick(0), *ticks(100, 160), **SLOW)
    assert played == [
        ["launch linux-1 demand", "launch linux-2 demand", "r1 waits booting", "r2 waits booting"],
        [
            *("terminate linux-1 timeout", "terminate linux-2 timeout"),
            *("launch linux-3 demand", "launch linux-4 demand", "r1 waits booting", "r2 waits booting"),
        ],
        ["r1 waits booting", "r2 waits booting"],
    ]
    played = reported(submit(0, "r1"), *ticks(0, 100, 200, 300, 359, 360, 460), **SLOW)
    assert played == [
        ["launch linux-1 demand", "r1 waits booting"],
        RETRY,
        ["terminate linux-2 timeout", "launch linux-1 demand", "r1 waits booting"],
        ["terminate linux-1 timeout", "r1 waits misconfigured"],
        ["r1 waits misconfigured"],
        ["launch linux-1 demand", "r1 waits booting"],
        ["terminate linux-1 timeout", "r1 waits misconfigured"],
    ]


def test_the_trial_launch_goes_alone_also_for_minimum_and_warm_pool() -> None:
    pool = {**SLOW["pool"], "min_slots": 2, "target_warm_slots": 3, "unhealthy_after": 1}
    played = reported(*ticks(0, 100, 159, 160, 161), cloud=SLOW["cloud"], pool=pool)
    assert [len(each) for each in played] == [3, 3, 0, 1, 0]
    assert played[3] == ["launch linux-1 minimum"]


def test_with_wakes_the_trial_launch_comes_when_the_pause_is_over() -> None:
    pool = {**SLOW["pool"], "unhealthy_after": 1}
    played = play_out(
        a_scenario(submit(0, "r1"), tick(1), cloud=SLOW["cloud"], pool=pool, kicks=True, wakes=True, until=170)
    )
    assert played.decisions == ["0 launch linux-1 demand", "100 terminate linux-1 timeout", "160 launch linux-1 demand"]


def test_a_slot_that_becomes_ready_resets_the_count_of_failed_boots() -> None:
    """Two fail, then one serves; then two more may fail."""
    pool = {**SLOW["pool"], "max_slots": 1}
    timeline = [submit(0, "r1"), *ticks(0, 100, 200), act(200, "slot", a_slot("linux-1", "binding"))]
    timeline += [tick(201), act(201, "release", "r1"), act(201, "lose", "linux-1"), submit(201, "r2")]
    played = reported(*timeline, *ticks(201, 301, 401, 402), cloud=SLOW["cloud"], pool=pool)
    assert played[3] == ["assign r1 linux-1"]
    assert played[4:] == [
        ["launch linux-1 demand", "r2 waits booting"],
        ["terminate linux-1 timeout", "r2 waits at_max_slots"],
        ["launch linux-1 demand", "r2 waits booting"],
        ["r2 waits booting"],
    ]


def test_with_unhealthy_after_0_failed_boots_never_pause_launches() -> None:
    pool = {**SLOW["pool"], "unhealthy_after": 0}
    played = reported(submit(0, "r1"), *ticks(*range(0, 1000, 100)), cloud=SLOW["cloud"], pool=pool)
    assert all(each[-1] == "r1 waits booting" for each in played)
