"""The cases of the Orchard page, each with its neighbours: resources, labels, which slot, order, health, restarts."""

from typing import Any

import pytest

from scheduler.model.resources import add, fits, merge, shape_of, subtract
from tests.scenarios.playing import Document, a_scenario, a_slot, act, play_out, submit, tick, ticks

HOSTS = {
    "lab": {
        "system": "x86_64-linux",
        "provider": "static",
        "max_leases_per_slot": 100,
        "lease_ttl": 0,
        "offline_timeout": 180,
    }
}


def a_case(*timeline: Document, **parts: Any) -> Document:
    """Hosts of a static pool with room for 100 leases; `lab` changes the pool."""
    pools = {"lab": {**HOSTS["lab"], **parts.pop("lab", {})}}
    return a_scenario(*timeline, pools=pools, **parts)


def host(name: str, *holders: str, **fields: Any) -> Document:
    """A host of 3 vms, unless it says what it has."""
    return a_slot(name, "ready", *holders, **{"pool": "lab", "resources": {"vms": 3}} | fields)


def ask(at: float, *names: str, **fields: Any) -> Document:
    """Reservations of one vm, unless said."""
    return submit(at, *names, **{"resources": {"vms": 1}} | fields)


def held(name: str, vms: float = 1, **fields: Any) -> Document:
    return {"id": name, "system": "x86_64-linux", "phase": "leased", "resources": {"vms": vms}} | fields


A, B, C = "lab-1", "lab-2", "lab-3"
ON_FAILURE: dict[str, Any] = {"restart_policy": "on_failure"}

CASES: dict[str, tuple[Document, list[list[str]]]] = {
    # ---- resources
    "free 2: 0, 1 and 2 fit": (
        a_case(ask(0, "r0", resources={"vms": 0}), ask(0, "r2", resources={"vms": 2}), tick(0), slots=[host(A)]),
        [["assign r0 lab-1", "assign r2 lab-1"]],
    ),
    "free 2: 3 does not": (
        a_case(ask(0, "r3", resources={"vms": 3}), tick(0), slots=[host(A, "h")], reservations=[held("h")]),
        [["r3 waits no_capacity"]],
    ),
    "what the request does not name does not matter": (
        a_case(ask(0, "r1"), tick(0), slots=[host(A, resources={"vms": 1, "gpus": 0})]),
        [["assign r1 lab-1"]],
    ),
    "a key that the slot lacks counts as 0": (
        a_case(
            ask(0, "r0", resources={"gpus": 0}),
            ask(0, "r1", resources={"gpus": 1}),
            tick(0),
            slots=[host(A)],
        ),
        [["assign r0 lab-1", "r1 waits never_fits"]],
    ),
    "an empty request fits always": (
        a_case(ask(0, "r1", resources={}), tick(0), slots=[host(A, resources={})]),
        [["assign r1 lab-1"]],
    ),
    "within max_leases_per_slot": (
        a_case(ask(0, "r1", "r2", resources={}), tick(0), slots=[host(A)], lab={"max_leases_per_slot": 1}),
        [["assign r1 lab-1", "r2 waits no_capacity"]],
    ),
    "every key has to fit": (
        a_case(
            ask(0, "r1", resources={"vms": 1, "memory_mib": 2}),
            tick(0),
            slots=[host(A, resources={"vms": 9, "memory_mib": 1}), host(B, resources={"vms": 1, "memory_mib": 2})],
        ),
        [["assign r1 lab-2"]],
    ),
    # registered anew with less than is leased on it: nothing is left of that key, and its leases stay
    "never below 0": (
        a_case(
            act(0, "slot", host(A, "h", resources={"vms": 1, "cpus": 4})),
            ask(0, "r1"),
            ask(0, "r0", resources={"cpus": 4}),
            tick(0),
            slots=[host(A)],
            reservations=[held("h", 3)],
        ),
        [["assign r0 lab-1", "r1 waits no_capacity"]],
    ),
    "default_resources fill in what is left out": (
        a_case(
            ask(0, "r1", "r2", resources={"vms": 1}),
            tick(0),
            slots=[host(A, resources={"vms": 9, "cpus": 4})],
            lab={"default_resources": {"cpus": 3, "vms": 5}},
        ),
        [["assign r1 lab-1", "r2 waits no_capacity"]],
    ),
    "gangs over several slots": (
        a_case(
            submit(0, "g", components=[{"name": "w", "count": 5, "resources": {"vms": 1}}]),
            tick(0),
            slots=[host(A), host(B)],
        ),
        [["assign g lab-1 lab-1 lab-1 lab-2 lab-2"]],
    ),
    "a gang is placed whole or not at all": (
        a_case(
            submit(0, "g", components=[{"name": "w", "count": 7, "resources": {"vms": 1}}]),
            ask(0, "r1"),
            tick(0),
            slots=[host(A), host(B)],
        ),
        [["assign r1 lab-1", "g waits gang_incomplete"]],
    ),
    # ---- labels
    "slot without labels, request with": (
        a_case(ask(0, "r1", labels={"foo": "bar", "baz": "qux"}), tick(0), slots=[host(A)]),
        [["r1 waits never_fits"]],
    ),
    "slot with labels, request without": (
        a_case(ask(0, "r1"), tick(0), slots=[host(A, labels={"foo": "bar", "baz": "qux"})]),
        [["assign r1 lab-1"]],
    ),
    "one of two labels is not enough": (
        a_case(ask(0, "r1", labels={"foo": "bar", "baz": "qux"}), tick(0), slots=[host(A, labels={"foo": "bar"})]),
        [["r1 waits never_fits"]],
    ),
    "an empty value matches an empty value only": (
        a_case(ask(0, "r1", labels={"foo": ""}), tick(0), slots=[host(A), host(B, labels={"foo": ""})]),
        [["assign r1 lab-2"]],
    ),
    "those of the component count as well": (
        a_case(
            submit(0, "g", labels={"a": "1"}, components=[{"name": "w", "labels": {"b": "2"}}]),
            tick(0),
            slots=[host(A, labels={"a": "1"}), host(B, labels={"b": "2"}), host(C, labels={"a": "1", "b": "2"})],
        ),
        [["assign g lab-3"]],
    ),
    "wants role=test; a second slot with it registers": (
        a_case(
            ask(0, "r1", labels={"role": "test"}),
            tick(0),
            act(1, "slot", host(B, labels={"role": "test"})),
            tick(1),
            slots=[host(A)],
        ),
        [["r1 waits never_fits"], ["assign r1 lab-2"]],
    ),
    "a slot that gains the label is used from the next tick on": (
        a_case(
            ask(0, "r1", labels={"role": "test"}),
            tick(0),
            act(1, "slot", host(A, labels={"role": "test"})),
            tick(1),
            slots=[host(A)],
        ),
        [["r1 waits never_fits"], ["assign r1 lab-1"]],
    ),
    "a lease is not ended because its slot's labels changed": (
        a_case(
            ask(0, "r1", labels={"role": "test"}),
            tick(0),
            act(1, "slot", host(A, "r1", labels={})),
            tick(1),
            slots=[host(A, labels={"role": "test"})],
        ),
        [["assign r1 lab-1"], []],
    ),
    # ---- which slot
    "pack: a, a, a": (
        a_case(ask(0, "r1", "r2", "r3"), tick(0), slots=[host(A), host(B), host(C)]),
        [["assign r1 lab-1", "assign r2 lab-1", "assign r3 lab-1"]],
    ),
    "spread: a, b, c": (
        a_case(ask(0, "r1", "r2", "r3"), tick(0), slots=[host(A), host(B), host(C)], scheduler={"profile": "spread"}),
        [["assign r1 lab-1", "assign r2 lab-2", "assign r3 lab-3"]],
    ),
    "the number of leases counts, not the share": (
        a_case(
            ask(0, "r1"),
            tick(0),
            slots=[host(A, "h0"), host(B, "h1", "h2", resources={"vms": 99})],
            reservations=[held("h0", 2), held("h1"), held("h2")],
        ),
        [["assign r1 lab-2"]],
    ),
    "most preferred labels first, whatever the leases": (
        a_case(
            ask(0, "r1", prefers={"disk": "ssd", "zone": "a"}),
            tick(0),
            slots=[
                host(A, "h"),
                host(B, labels={"disk": "ssd"}),
                host(C, labels={"disk": "ssd", "zone": "a", "gpu": "yes"}),
            ],
            reservations=[held("h")],
        ),
        [["assign r1 lab-3"]],
    ),
    "what is preferred is not required": (
        a_case(ask(0, "r1", prefers={"disk": "ssd"}), tick(0), slots=[host(A)]),
        [["assign r1 lab-1"]],
    ),
    "a preferred label with another value does not count": (
        a_case(
            ask(0, "r1", prefers={"disk": "ssd"}),
            tick(0),
            slots=[host(A, labels={"disk": "hdd"}), host(B)],
        ),
        [["assign r1 lab-2"]],
    ),
    "fewest surplus labels before the profile": (
        a_case(
            ask(0, "r1", labels={"disk": "ssd"}),
            tick(0),
            slots=[host(A, "h", labels={"disk": "ssd", "gpu": "yes"}), host(B, labels={"disk": "ssd"})],
            reservations=[held("h")],
        ),
        [["assign r1 lab-2"]],
    ),
    "lab-2 before lab-10": (
        a_case(ask(0, "r1"), tick(0), slots=[host("lab-10"), host(B)]),
        [["assign r1 lab-2"]],
    ),
    # ---- order
    "two pending, room for one: the older": (
        a_case(ask(0, "old"), ask(1, "young"), tick(2), slots=[host(A, resources={"vms": 1})]),
        [["assign old lab-1", "young waits no_capacity"]],
    ),
    "the older fits nowhere: the younger": (
        a_case(
            ask(0, "old", resources={"vms": 3}),
            ask(1, "young"),
            tick(2),
            slots=[host(A, "h")],
            reservations=[held("h")],
        ),
        [["assign young lab-1", "old waits no_capacity"]],
    ),
    # ---- slots that may not take leases
    "cordoned": (
        a_case(
            ask(0, "r1"),
            tick(0),
            act(1, "seen", A),
            tick(1),
            act(2, "uncordon", A),
            tick(2),
            slots=[host(A, "h", cordoned=True)],
            reservations=[held("h")],
        ),
        [["r1 waits cordoned"], ["r1 waits cordoned"], ["assign r1 lab-1"]],
    ),
    "exactly the timeout is online": (
        a_case(ask(180, "r1"), tick(180), slots=[host(A, last_seen=0)]),
        [["assign r1 lab-1"]],
    ),
    "longer is offline": (
        a_case(ask(180, "r1"), tick(180.001), slots=[host(A, last_seen=0)]),
        [["r1 waits no_capacity"]],
    ),
    "heard again: from then on it may be used": (
        a_case(ask(180, "r1"), tick(181), act(182, "seen", A), tick(182), tick(362), tick(362.5), slots=[host(A)]),
        [["r1 waits no_capacity"], ["assign r1 lab-1"], [], ["fail r1 slot_offline"]],
    ),
    "only static slots go offline": (
        a_scenario(submit(0, "r1"), *ticks(0, 9999), slots=[a_slot("linux-1", last_seen=-9999)]),
        [["assign r1 linux-1"], []],
    ),
    # ---- failure and restart
    "never; remove": (
        a_case(
            act(1, "remove", A),
            *ticks(1, 2),
            slots=[host(A, "h", resources={"special": 1}), host(B, "other")],
            reservations=[held("h", resources={"special": 1}), held("other")],
        ),
        [["fail h slot_gone"], []],
    ),
    "never, silent for longer than the timeout: its room is free": (
        a_case(
            ask(0, "r1", resources={"vms": 3}),
            tick(180),
            act(181, "seen", A),
            tick(181),
            slots=[host(A, "h", last_seen=-1)],
            reservations=[held("h", 3)],
        ),
        [["fail h slot_offline", "r1 waits no_capacity"], ["assign r1 lab-1"]],
    ),
    "others are placed in the tick of the failure": (
        a_case(
            act(0, "remove", A),
            ask(0, "r1", resources={"vms": 3}),
            tick(0),
            slots=[host(A, "g"), host(B, "g2")],
            reservations=[
                {
                    "id": "g",
                    "system": "x86_64-linux",
                    "phase": "leased",
                    "components": [{"name": "main", "resources": {"vms": 1}}],
                },
                held("g2", 0),
            ],
        ),
        [["fail g slot_gone", "assign r1 lab-2"]],
    ),
    "on_failure, fails for the first time at 10": (
        a_case(
            ask(0, "r1", **ON_FAILURE),
            tick(0),
            act(10, "fail", {"reservation": "r1"}),
            tick(10),
            slots=[host(A)],
        ),
        [["assign r1 lab-1"], ["restart r1 restart_due", "assign r1 lab-1"]],
    ),
    "restarted at 10, fails at 30": (
        a_case(
            ask(0, "r1", **ON_FAILURE),
            tick(0),
            act(10, "fail", {"reservation": "r1"}),
            tick(10),
            act(30, "fail", {"reservation": "r1"}),
            tick(30),
            slots=[host(A)],
        ),
        [["assign r1 lab-1"], *[["restart r1 restart_due", "assign r1 lab-1"]] * 2],
    ),
    # strictly greater than 15 s, and no hole: the first tick after it restarts
    "fails again within the delay": (
        a_case(
            ask(0, "r1", **ON_FAILURE),
            tick(0),
            act(10, "fail", {"reservation": "r1"}),
            tick(10),
            act(12, "fail", {"reservation": "r1"}),
            *ticks(12, 20, 25, 25.001, 26),
            slots=[host(A)],
        ),
        [
            ["assign r1 lab-1"],
            ["restart r1 restart_due", "assign r1 lab-1"],
            [],
            [],
            [],
            ["restart r1 restart_due", "assign r1 lab-1"],
            [],
        ],
    ),
    "failed by a slot that is gone: the following tick restarts it": (
        a_case(
            act(5, "remove", A),
            *ticks(5, 5, 6),
            slots=[host(A, "h"), host(B)],
            reservations=[held("h", **ON_FAILURE)],
        ),
        [["fail h slot_gone"], ["restart h restart_due", "assign h lab-2"], []],
    ),
    "a restart keeps its place in the queue": (
        a_case(
            ask(1, "young"),
            act(5, "fail", {"reservation": "old"}),
            tick(5),
            slots=[host(A, "old", resources={"vms": 1})],
            reservations=[held("old", created_at=-5, **ON_FAILURE)],
        ),
        [["restart old restart_due", "assign old lab-1", "young waits no_capacity"]],
    ),
    "while it waits for its restart it blocks nobody": (
        a_case(
            act(5, "fail", {"reservation": "old"}),
            tick(5),
            act(6, "fail", {"reservation": "old"}),
            ask(6, "young"),
            tick(6),
            slots=[host(A, "old", resources={"vms": 1})],
            reservations=[held("old", **ON_FAILURE)],
        ),
        [["restart old restart_due", "assign old lab-1"], ["assign young lab-1"]],
    ),
    "never: neither release nor renew nor priority changes that it failed": (
        a_case(
            act(5, "fail", {"reservation": "h"}),
            act(6, "release", "h"),
            act(6, "renew", "h"),
            act(6, "priority", {"reservation": "h", "priority": 9}),
            tick(99),
            slots=[host(A, "h")],
            reservations=[held("h")],
        ),
        [[]],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_tick_decides_as_the_page_says(name: str) -> None:
    document, expected = CASES[name]
    assert play_out(document).ticks == expected


def test_arithmetic_goes_key_by_key() -> None:
    assert add({"vms": 1}, {"vms": 3}) == {"vms": 4}
    assert not fits({"vms": 2}, subtract({"vms": 2}, {"vms": 1}))
    assert merge({"vms": 2, "other": 5}, {"vms": 4}) == {"vms": 4, "other": 5}
    assert subtract({"vms": 1}, {"vms": 2}) == {"vms": 0}


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ({}, {}, True),
        ({"a": 10}, {"a": 10}, True),
        ({"a": 10}, {"a": 10, "b": 15}, False),
        ({"a": 10, "b": 15}, {"a": 10}, False),
        ({"a": 0}, {"b": 0}, False),
        ({"a": 0}, {}, False),
    ],
)
def test_maps_are_equal_if_they_have_the_same_keys_with_the_same_amounts(
    left: dict[str, float], right: dict[str, float], equal: bool
) -> None:
    assert (shape_of(left) == shape_of(right)) == equal


SKIPPED: dict[str, tuple[tuple[Document, ...], str]] = {
    # what happens between the plan and its commit, and how the reason begins
    "cordoned": ((act(0, "cordon", A),), "lab-1 takes no leases"),
    "gone": ((act(0, "remove", A),), "its slot is gone"),
    "other labels": ((act(0, "slot", host(A, labels={})),), "lab-1 has other labels"),
    "less room": ((act(0, "slot", host(A, resources={"vms": 0}, labels={"role": "test"})),), "lab-1 has no room"),
    "another machine": (
        (act(0, "slot", host(A, machine="m2", labels={"role": "test"})),),
        "lab-1 has another machine",
    ),
    "cancelled": ((act(0, "cancel", "r1"),), "it is cancelled"),
    "on hold": ((act(0, "priority", {"reservation": "r1", "priority": 0}),), "it is on hold"),
}


@pytest.mark.parametrize("name", SKIPPED)
def test_an_assignment_is_checked_against_the_fresh_rows(name: str) -> None:
    """The loser is skipped with its reason; the rest of the pass goes on."""
    between, reason = SKIPPED[name]
    steps = [{key: value for key, value in step.items() if key != "at"} for step in between]
    played = play_out(
        a_case(
            ask(0, "r1", labels={"role": "test"}),
            ask(0, "r2"),
            tick(0, *steps),
            slots=[host(A, machine="m1", labels={"role": "test"}), host(B)],
        )
    )
    assert played.ticks[0] == [f"assign r1 lab-1 (skipped: {reason})", "assign r2 lab-2"]


def test_the_count_of_restarts_is_kept() -> None:
    played = play_out(CASES["restarted at 10, fails at 30"][0])
    assert played.reservation("r1")["restarts"] == 2
    assert played.reservation("r1")["restarted_at"] == 30
