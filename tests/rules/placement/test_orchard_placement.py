"""Cases from Orchard: resources, labels, the choice of a slot, the order."""

import pytest

from scheduler.model.resources import add, shape_of, subtract
from scheduler.policy.capacity.fits import fits
from tests.rules.orchard import A, B, C, a_case, ask, held, host
from tests.rules.playing import Cases, act, play_out, submit, tick

CASES: Cases = {
    # ---- resources
    "free 2: 0, 1 and 2 fit": (
        a_case(ask(0, "r0", resources={"vms": 0}), ask(0, "r2", resources={"vms": 2}), tick(0), slots=[host(A)]),
        [["assign r0 lab-1", "assign r2 lab-1"]],
    ),
    "free 2: 3 does not": (
        a_case(ask(0, "r3", resources={"vms": 3}), tick(0), slots=[host(A, "h")], reservations=[held("h")]),
        [["r3 waits no_capacity"]],
    ),
    "a resource that the request does not name does not matter": (
        a_case(ask(0, "r1"), tick(0), slots=[host(A, resources={"vms": 1, "gpus": 0})]),
        [["assign r1 lab-1"]],
    ),
    "a key that the slot lacks counts as 0": (
        a_case(ask(0, "r0", resources={"gpus": 0}), ask(0, "r1", resources={"gpus": 1}), tick(0), slots=[host(A)]),
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
    # registered again with less than is leased on it: nothing is left of that key, and its leases stay
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
    "default_resources apply to what a component omits": (
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
    "labels of the component count as well": (
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
    "a lease does not end because the labels of its slot changed": (
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
        a_case(ask(0, "r1", prefers={"disk": "ssd"}), tick(0), slots=[host(A, labels={"disk": "hdd"}), host(B)]),
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
    "lab-2 before lab-10": (a_case(ask(0, "r1"), tick(0), slots=[host("lab-10"), host(B)]), [["assign r1 lab-2"]]),
    # ---- order
    "two pending, room for one: the older": (
        a_case(ask(0, "old"), ask(1, "young"), tick(2), slots=[host(A, resources={"vms": 1})]),
        [["assign old lab-1", "young waits no_capacity"]],
    ),
    "the older fits nowhere: the younger is placed": (
        a_case(
            ask(0, "old", resources={"vms": 3}),
            ask(1, "young"),
            tick(2),
            slots=[host(A, "h")],
            reservations=[held("h")],
        ),
        [["assign young lab-1", "old waits no_capacity"]],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_reservation_is_placed_by_resources_labels_profile_and_order(name: str) -> None:
    document, expected = CASES[name]
    assert play_out(document).ticks == expected


def test_arithmetic_goes_key_by_key() -> None:
    assert add({"vms": 1}, {"vms": 3}) == {"vms": 4}
    assert not fits({"vms": 2}, subtract({"vms": 2}, {"vms": 1}))
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
