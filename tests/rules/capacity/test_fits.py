"""The rule of capacity: what leases take of a slot, and what a slot lacks for more."""

import pytest

from scheduler.policy.capacity.fits import Moment, Usage, find_obstacle, is_overfull, measure
from tests.builders import a_lease

LEASES = [
    a_lease(state=state, resources=resources)
    for state, resources in (
        ("held", {"cpus": 1}),
        ("revoking", {"cpus": 4}),
        ("revoking", {"cpus": 1}),
        ("claimed", {"cpus": 2, "gpus": 1}),
    )
]


@pytest.mark.parametrize(
    ("moment", "count", "amounts"),
    [
        ("now", 3, {"cpus": 6}),
        ("later", 2, {"cpus": 3, "gpus": 1}),
        # The claim begins when both revoking leases have ended: by number and by name the larger side counts.
        ("always", 3, {"cpus": 6, "gpus": 1}),
    ],
)
def test_a_claim_and_the_leases_that_it_waits_for_count_once(
    moment: Moment, count: int, amounts: dict[str, float]
) -> None:
    assert measure(LEASES, moment) == Usage(count, amounts)


@pytest.mark.parametrize(
    ("revoking", "claimed"), [({}, {"cpus": 0.5}), ({"cpus": 0.5}, {}), ({"cpus": 0.25}, {"cpus": 0.5})]
)
def test_a_part_of_a_core_counts_as_that_part(revoking: dict[str, float], claimed: dict[str, float]) -> None:
    leases = [a_lease(state="revoking", resources=revoking), a_lease(state="claimed", resources=claimed)]
    assert measure(leases) == Usage(1, {"cpus": 0.5})


@pytest.mark.parametrize(
    ("request_", "free", "leases", "uses", "count", "obstacle"),
    [
        ({"cpus": 2}, {"cpus": 2}, 1, 1, 1, None),
        ({"cpus": 2}, {"cpus": 1}, 1, 1, 1, "resources"),
        ({"gpus": 1}, {"cpus": 1}, 1, 1, 1, "resources"),
        ({"gpus": 1}, None, 1, 1, 1, None),  # the slot counts leases only
        ({}, {}, 0, 1, 1, "leases"),
        ({}, {}, 1, 0, 1, "uses"),
        ({}, {}, 2, 1, 2, "uses"),
        ({}, {}, -1, 1, 0, "leases"),
    ],
)
def test_what_a_slot_lacks(
    request_: dict[str, float],
    free: dict[str, float] | None,
    leases: float,
    uses: float,
    count: int,
    obstacle: str | None,
) -> None:
    assert find_obstacle(request_, free, leases, uses, count) == obstacle


def test_a_slot_is_overfull_only_with_more_than_it_has() -> None:
    assert not is_overfull(Usage(2, {"cpus": 4}), 2, {"cpus": 4})
    assert is_overfull(Usage(3, {"cpus": 4}), 2, {"cpus": 4})
    assert is_overfull(Usage(2, {"cpus": 5}), 2, {"cpus": 4})
