"""Rows at versions, and the whole content of a view to compare."""

from typing import Any

from scheduler.model.launch_backoff import Hold
from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from scheduler.model.view import Change, View
from tests.builders import NOW, a_reservation, a_slot


def slot_at(version: int, name: str = "linux-1", marked_at: float | None = None) -> Slot:
    """A slot as it was written the `version`th time, a second later each time."""
    return a_slot(name, version=version, marked_at=NOW + version if marked_at is None else marked_at)


def reservation_at(version: int, name: str = "r1", **changes: object) -> Reservation:
    """A reservation as it was written the `version`th time."""
    return a_reservation(name, **{"version": version, "marked_at": NOW + version} | changes)


def hold_at(version: int, name: str = "linux/quota/spot") -> Hold:
    """A hold as it was written the `version`th time."""
    return Hold(
        version=version,
        marked_at=NOW + version,
        id=name,
        pool="linux",
        kind="quota",
        refused_at=NOW,
        until=NOW + 60,
    )


def content(view: View | None) -> dict[str, Any]:
    """What a view holds, by value."""
    assert view is not None
    return {
        "slots": view.slots,
        "reservations": view.reservations,
        "holds": view.holds,
        "accounts": view.accounts,
        "leases_on": view.leases_on,
        "special": view.special,
    }


def newest(changes: list[Change]) -> View:
    """The view that these changes give in the order of their versions."""
    view = View()
    for change in sorted(changes, key=lambda change: change.version):
        view.apply(change)
    return view
