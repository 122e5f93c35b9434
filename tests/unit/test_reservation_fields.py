"""A field of a reservation is stored, and `leasehold get` prints it unless it is listed here."""

from typing import Any, Final

import msgspec

from leasehold.cli.reading import describe_reservation
from leasehold.client.models import Reservation
from scheduler.model.command_schemas import ReservationDocument
from scheduler.model.reservations import PublicRequest, Request
from tests.builders import a_component, a_reservation

OF_THE_ROW: Final = {"id", "priority", "key_hash", "run"}
"""Fields that the row itself has, and not its request. Of `run` the row has only the state."""
SHOWN: Final[dict[str, Any]] = {
    "system": "other",
    "pool": "mine",
    "components": (a_component(name="other"),),
    "labels": {"disk": "ssd"},
    "account": "ci",
    "tags": {"job": "7"},
    "expected_runtime": 60.0,
    "max_runtime": 90.0,
}
"""Field of a request that the table of `leasehold get` shows -> a value that changes the table."""
NOT_SHOWN: Final = {"prefers", "size", "ttl", "restart_policy", "on_interruption", "preemptible", "runtime"}
"""Fields of a request that only the other formats of `leasehold get` have."""


def test_each_field_of_a_document_is_stored() -> None:
    """The first component has the `resources` of a document without components."""
    assert set(ReservationDocument.model_fields) - OF_THE_ROW - {"resources"} == set(Request.__struct_fields__)


def test_each_field_that_clients_read_is_shown_or_listed_as_not_shown() -> None:
    assert {*SHOWN, *NOT_SHOWN} == set(PublicRequest.__struct_fields__)
    plain = describe(system=None)
    assert [name for name, value in SHOWN.items() if describe(**{"system": None, name: value}) == plain] == []


def describe(**fields: Any) -> list[tuple[str, str]]:
    """Return the table that `leasehold get` shows of a reservation with these fields."""
    row = msgspec.to_builtins(a_reservation(**fields))
    return describe_reservation(msgspec.convert(row, Reservation))
