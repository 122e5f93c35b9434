"""Rows that a reader decodes when it loads the whole view: equal requests of reservations become one object."""

import msgspec
import pytest

from scheduler.model.reservations import Reservation
from scheduler.model.view import Row, View
from scheduler.view import codec
from scheduler.view.codec import RowReader, decode_deltas
from tests.builders import a_reservation, a_slot

KINDS = [a_reservation("r1"), a_reservation("r2"), a_reservation("r3", priority=2.0)]


def encode(*rows: Row) -> bytes:
    return msgspec.json.encode(rows)


def test_the_rows_are_those_that_a_delta_contains() -> None:
    reader, text = RowReader(), encode(*KINDS)
    for _ in range(2):
        rows = reader.decode("reservations", text)
        assert rows == decode_deltas("reservations", text) == KINDS
        assert {type(row) for row in rows} == {Reservation}
    assert reader.decode("slots", encode(a_slot())) == [a_slot()]


def test_equal_requests_are_one_object_in_all_arrays_of_a_view() -> None:
    other = a_reservation("r4", account="team")
    rows = [*KINDS, other]
    reader = RowReader()
    found = [*reader.decode("reservations", encode(*rows)), *reader.decode("reservations", encode(*rows))]
    requests = {id(row.request): row.request for row in found if isinstance(row, Reservation)}
    assert list(requests.values()) == [KINDS[0].request, other.request]


def test_many_different_requests_are_decoded_with_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MOST_REQUESTS", 1)
    reader = RowReader()
    for sizes in ((1.0, 2.0), (1.0, 3.0)):
        rows = [a_reservation(f"r{size}", size=size) for size in sizes]
        assert reader.decode("reservations", encode(*rows)) == rows
    first, second = (reader.decode("reservations", encode(KINDS[0]))[0] for _ in range(2))
    assert isinstance(first, Reservation)
    assert isinstance(second, Reservation)
    assert first.request is not second.request


@pytest.mark.parametrize("text", [b'[{"id":"r1","created_at":1,"request":3}]', b'[{"id":"r1","created_at":1}]', b"[{"])
def test_unreadable_rows_are_refused(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        RowReader().decode("reservations", text)


def test_a_view_of_such_rows_has_the_tables_of_a_view_of_other_rows() -> None:
    rows = [*KINDS, a_slot()]
    read = [*RowReader().decode("reservations", encode(*KINDS)), a_slot()]
    view, other = View(read), View(rows)  # type: ignore[arg-type]
    assert (view.reservations, view.by_phase, view.slots) == (other.reservations, other.by_phase, other.slots)
    assert len(set(view.shapes.values())) == 1
