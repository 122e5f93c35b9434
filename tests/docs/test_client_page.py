"""docs/reference/client.md names the fields of a reservation and the methods that send requests."""

import re
from pathlib import Path

from leasehold import Client
from leasehold.client.reservation_fields import ReservationFields
from scheduler.protocol.verbs import VERBS

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "client.md").read_text(encoding="utf-8")


def list_names(text: str) -> set[str]:
    """Return the names in backticks, each without what follows it, like `renew` of `renew(id)`."""
    return set(re.findall(r"`([a-z_]+)", text))


def test_each_field_of_a_reservation_is_named() -> None:
    [paragraph] = [each for each in PAGE.split("\n\n") if each.startswith("Fields are those of a reservation")]
    assert set(ReservationFields.__annotations__) <= list_names(paragraph)


def test_each_verb_that_a_client_sends_is_in_a_table() -> None:
    """`reserve` sends the requests with the verb `submit`."""
    rows = "\n".join(line for line in PAGE.splitlines() if line.startswith("|"))
    assert VERBS.keys() & {*dir(Client)} - {"submit"} <= list_names(rows)
