"""`register`: hosts of static pools register, return, and are distinguished by their machine."""

from typing import Any

import pytest

from scheduler.model.validation import InvalidInputError
from tests.rules.playing import Document, a_pool, a_scenario, act, play_out, submit, tick, ticks

POOLS: dict[str, Any] = {
    "lab": {"system": "x86_64-linux", "provider": "static", "lease_ttl": 0, "max_leases_per_slot": 9},
    "linux": a_pool(system="other"),
}


def a_case(*timeline: Document, **parts: Any) -> Document:
    return a_scenario(*timeline, pools=POOLS, **parts)


def host(at: float, name: str = "lab-1", machine: str = "m1", **fields: Any) -> Document:
    return act(at, "register", {"id": name, "pool": "lab", "machine": machine, "resources": {"cpus": 4}, **fields})


def test_a_new_id_is_a_new_slot_and_serves_at_once() -> None:
    played = play_out(a_case(submit(0, "r1", resources={"cpus": 4}), tick(0), host(1), tick(1)))
    assert played.ticks == [["r1 waits never_fits"], ["assign r1 lab-1"]]
    assert "1 slot_ready lab-1" in played.events


def test_a_registration_from_the_same_machine_updates_the_slot_and_keeps_cordon_and_leases() -> None:
    played = play_out(
        a_case(
            host(0),
            submit(0, "r1", resources={"cpus": 3}),
            tick(0),
            act(1, "cordon", "lab-1"),
            host(2, resources={"cpus": 8}, labels={"disk": "ssd"}),
            tick(2),
        )
    )
    slot = next(each for each in played.state["slots"] if each["id"] == "lab-1")
    assert slot["resources"] == {"cpus": 8}
    assert (slot["labels"], slot["cordoned"], slot["last_seen"]) == ({"disk": "ssd"}, True, 2)
    assert [each["reservation"] for each in slot["leases"]] == ["r1"]


def test_a_cordon_before_the_first_registration_applies_to_the_host() -> None:
    """An id within max_slots of a static pool may be used before a host has registered under it."""
    pools = {"lab": {**POOLS["lab"], "max_slots": 1}}
    played = play_out(
        a_scenario(
            act(0, "cordon", "lab-1"),
            submit(1, "r1"),
            host(1),
            tick(1),
            act(2, "uncordon", "lab-1"),
            tick(2),
            pools=pools,
        )
    )
    assert played.ticks == [["r1 waits cordoned"], ["assign r1 lab-1"]]


@pytest.mark.parametrize("action", ["uncordon", "drain", "lose", "remove", "rebalance"])
def test_other_requests_about_an_unregistered_host_change_nothing(action: str) -> None:
    pools = {"lab": {**POOLS["lab"], "max_slots": 1}}
    played = play_out(a_scenario(act(0, action, "lab-1"), tick(0), pools=pools))
    assert (played.ticks, played.events, played.state["slots"]) == ([[]], [], [])


def test_a_host_that_registers_with_less_than_its_leases_has_nothing_free() -> None:
    played = play_out(
        a_case(
            host(0),
            submit(0, "r1", resources={"cpus": 3}),
            tick(0),
            host(1, resources={"cpus": 2}),
            submit(1, "r2", resources={"cpus": 1}),
            tick(1),
        )
    )
    assert played.ticks[1] == ["r2 waits no_capacity"]
    assert played.slots == {"lab-1": "ready r1"}


def test_a_registration_from_another_machine_is_refused_until_the_slot_is_removed() -> None:
    timeline = [host(0), host(1, machine="m2", resources={"cpus": 99}), act(2, "remove", "lab-1")]
    played = play_out(a_case(*timeline, host(3, machine="m2", resources={"cpus": 7})))
    assert played.events == ["0 slot_ready lab-1", "1 register_refused lab-1", "3 slot_ready lab-1"]
    slot = next(each for each in played.state["slots"] if each["id"] == "lab-1")
    assert (slot["machine"], slot["resources"]) == ("m2", {"cpus": 7})


def test_a_drained_host_is_empty_until_it_registers_again_and_keeps_its_machine() -> None:
    played = play_out(
        a_case(
            host(0),
            act(1, "drain", "lab-1"),
            *ticks(1, 2),
            host(3, machine="m2"),
            submit(4, "r1"),
            tick(4),
            host(5),
            tick(5),
        )
    )
    assert played.ticks == [["reset lab-1 drained"], [], ["r1 waits no_capacity"], ["assign r1 lab-1"]]
    assert "3 register_refused lab-1" in played.events


def test_a_silent_host_that_registers_again_is_used_again_and_asks_for_a_tick() -> None:
    played = play_out(a_case(host(0), submit(200, "r1"), host(300), kicks=True))
    assert played.ticks_at[300] == ["assign r1 lab-1"]


def test_labels_and_capacity_are_checked_again_between_plan_and_commit() -> None:
    again = {"register": {"id": "lab-1", "pool": "lab", "machine": "m1", "resources": {"cpus": 1}}}
    played = play_out(a_case(host(0), submit(0, "r1", resources={"cpus": 4}), tick(0, again)))
    assert played.ticks[0] == ["assign r1 lab-1 (skipped: lab-1 has too few resources left)"]


@pytest.mark.parametrize("change", [{"resources": {"cpus": 8}}, {"labels": {"zone": "b"}}])
def test_an_assignment_to_a_host_that_registered_again_before_the_commit_is_planned_again(change: Document) -> None:
    """It still has capacity, but another slot might be the better one now."""
    again = {"register": {"id": "lab-1", "pool": "lab", "machine": "m1", **change}}
    played = play_out(a_case(host(0), submit(0, "r1", resources={"cpus": 1}), tick(0, again), kicks=True))
    assert played.ticks[:2] == [
        ["assign r1 lab-1 (skipped: lab-1 was registered again with other resources or labels)"],
        ["assign r1 lab-1"],
    ]


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ({"machine": None}, "timeline[0].register.machine: expected the id of a machine"),
        ({"pool": "linux"}, "timeline[0].register.pool: expected a pool of static hosts"),
        ({"pool": "moon"}, "timeline[0].register.pool: expected a pool of config"),
    ],
)
def test_bad_input_is_refused_by_name(value: dict[str, Any], line: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        play_out(a_case(host(0, **value)))
    assert str(caught.value).startswith(line)
