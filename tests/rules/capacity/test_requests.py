"""What one request implies for another: if the larger one found no capacity, the smaller one may still find some."""

import pytest

from scheduler.policy.capacity.requests import InstanceRequest, RequestClass
from tests.builders import a_component


def _need(cpus: float, of_component: dict[str, str], of_reservation: dict[str, str]) -> InstanceRequest:
    component = a_component(labels=of_component)
    required = frozenset((*of_reservation.items(), *of_component.items()))
    given = {"linux": {"cpus": cpus}}
    return InstanceRequest(component, of_reservation, {}, given, {}, RequestClass(), spreads=False, required=required)


@pytest.mark.parametrize(
    ("cpus", "of_component", "of_reservation", "expected"),
    [
        (2, {"gpu": "yes"}, {"zone": "a"}, True),  # the same
        (3, {"gpu": "yes"}, {"zone": "a"}, True),  # more
        (1, {"gpu": "yes"}, {"zone": "a"}, False),  # less
        (2, {}, {"zone": "a"}, False),  # slots without gpu can hold it
        (2, {"gpu": "yes"}, {}, False),  # slots of every zone can hold it
    ],
)
def test_a_request_asks_as_much_as_another_one_only_with_the_same_labels(
    cpus: float, of_component: dict[str, str], of_reservation: dict[str, str], expected: bool
) -> None:
    refused = _need(2, {"gpu": "yes"}, {"zone": "a"})
    assert _need(cpus, of_component, of_reservation).asks_as_much_as(refused) is expected
