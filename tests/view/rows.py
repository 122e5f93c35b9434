"""Rows at a given version, and the content of a view for comparisons."""

import base64
from collections.abc import Iterable
from typing import Any

from scheduler.model.launch_backoff import Hold
from scheduler.model.reservations import Reservation
from scheduler.model.run_times import RunTimes
from scheduler.model.slots import Slot
from scheduler.model.view import Change, View, as_published
from tests.builders import NOW, a_reservation, a_slot


def slot_at(version: int, name: str = "linux-1", marked_at: float | None = None) -> Slot:
    """A slot at this version; each version is written one second after the one before."""
    return a_slot(name, version=version, marked_at=NOW + version if marked_at is None else marked_at)


SECRET = "#!/bin/sh\necho user-data-of-the-pool"
_ENCODED = base64.b64encode(SECRET.encode()).decode()
_TEMPLATE = {"LaunchTemplateName": "boxes", "Version": "3", "LaunchTemplateSpecificationUserData": _ENCODED}
LAUNCH_REQUESTS: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "RunInstances": (
        {"action": "RunInstances", "parameters": {"ImageId": "ami-1", "UserData": SECRET}},
        {"parameters": {"ImageId": "ami-1"}},
    ),
    "CreateFleet": (
        {
            "parameters": {
                "LaunchTemplateConfigs": [
                    {"LaunchTemplateSpecification": _TEMPLATE, "Overrides": [{}, {"ImageId": "ami-2"}]}
                ]
            },
            "batch": "b1",
        },
        {"parameters": {"ImageId": "ami-2"}},
    ),
    "no image": ({"parameters": {"UserData": SECRET}}, None),
}
"""Launch requests with user data, and what the view has of them."""


def reservation_at(version: int, name: str = "r1", **changes: object) -> Reservation:
    return a_reservation(name, **{"version": version, "marked_at": NOW + version} | changes)


def hold_at(version: int, name: str = "linux/quota/spot") -> Hold:
    """A launch back-off at this version."""
    return Hold(
        version=version, marked_at=NOW + version, id=name, pool="linux", kind="quota", refused_at=NOW, until=NOW + 60
    )


def run_times_at(version: int, name: str = '["ci",null]') -> RunTimes:
    """The run times of a class at this version. Ids of classes are JSON, and may contain any characters."""
    return RunTimes(version=version, marked_at=NOW + version, id=name, seconds=(60.0,) * version, released_at=NOW)


def content(view: View | None) -> dict[str, Any]:
    assert view is not None
    return {
        "slots": view.slots,
        "reservations": view.reservations,
        "holds": view.holds,
        "accounts": view.accounts,
        "run_times": view.run_times,
        "leases_on": view.leases_on,
        "special": view.special,
    }


def newest(changes: list[Change]) -> View:
    """Return the view that results from these changes in the order of their versions."""
    view = View()
    for change in sorted(changes, key=lambda change: change.version):
        view.apply(change)
    return view


def as_in_view(rows: Iterable[Change]) -> list[Any]:
    return [as_published(row) for row in rows]
