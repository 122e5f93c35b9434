"""The order of submissions follows the changes of the view, without a look at every row for each page."""

from typing import Any

from leasehold.api.lists import Submissions
from leasehold.web.feed import Changed
from scheduler.model.reservations import Reservation
from tests.builders import a_reservation


def rows(**sequences: int) -> dict[str, Reservation]:
    return {name: a_reservation(name, sequence=sequence) for name, sequence in sequences.items()}


def changed(*names: str, **more: Any) -> Changed:
    return Changed(1, 2, {"reservations": frozenset(names)}, **more)


def test_new_reservations_are_added_in_order() -> None:
    order = Submissions()
    order.follow(rows(b=2, a=1), {})
    order.note(changed("c", "d", "gone"))
    order.follow(rows(b=2, a=1, d=3), rows(c=4))
    assert order.after(0) == [(1, "a"), (2, "b"), (3, "d"), (4, "c")]
    assert order.after(2) == [(3, "d"), (4, "c")]


def test_only_changed_rows_are_looked_at() -> None:
    order = Submissions()
    order.follow(rows(a=1), {})
    order.follow(rows(a=1, b=2), {})
    assert order.after(0) == [(1, "a")]


def test_every_row_of_a_new_view_is_looked_at() -> None:
    order = Submissions()
    order.follow(rows(a=1), {})
    order.note(changed(is_reset=True))
    order.follow(rows(a=1, b=2), {})
    assert order.after(0) == [(1, "a"), (2, "b")]


def test_an_id_that_is_submitted_again_has_its_new_place() -> None:
    order = Submissions()
    order.follow(rows(a=1, b=2), {})
    order.note(changed("a"))
    order.follow(rows(b=2, a=3), {})
    assert (3, "a") in order.after(2)
