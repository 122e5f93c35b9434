"""Cases from Orchard: resources, labels, the choice of a slot, the order."""

import pytest

from scheduler.model.resources import add, shape_of, subtract
from scheduler.policy.capacity.fits import fits
from tests.rules.orchard import A, B, a_case, ask, host
from tests.rules.playing import Cases, act, play_out, tick

CASES: Cases = {
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
    "lab-2 before lab-10": (a_case(ask(0, "r1"), tick(0), slots=[host("lab-10"), host(B)]), [["assign r1 lab-2"]]),
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
