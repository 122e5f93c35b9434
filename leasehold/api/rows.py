"""Rows as JSON: the fields that clients read, and for each lease the machine of its slot."""

from typing import Any

import msgspec

from leasehold.client.http_hints import mark_row
from leasehold.client.models import Account, Reservation, Slot
from leasehold.client.ports import Joined
from leasehold.client.view_reader import join_machines
from scheduler.model import accounts, reservations, slots
from scheduler.model.view import View

_MACHINE = ("instance_id", "address", "type", "zone")
_OF_ANSWERS = ("waiting", "notes")
"""Fields of the class Reservation that are set only in the answer to a submission. They are removed from rows of the
view.
"""


def write_joined(found: Joined) -> dict[str, Any]:
    """Return a reservation as JSON values. A lease whose machine is unknown lacks the fields of the machine. The value
    `mark` differs after each change of the reservation; a client sends it as the parameter `after` to wait for the next
    change.
    """
    row: dict[str, Any] = msgspec.to_builtins(found.row)
    for name in _OF_ANSWERS:
        row.pop(name, None)
    for lease in row["leases"]:
        if lease["slot"] in found.missing:
            for name in _MACHINE:
                del lease[name]
    return {**row, "mark": mark_row(found)}


def join_row(row: reservations.Reservation, view: View) -> Joined:
    """Return a stored reservation with the machines of its leases, as far as this view has them, without fields that
    clients do not read.
    """
    public = msgspec.convert(row, Reservation, from_attributes=True)
    found = {lease.slot: view.slots.get(lease.slot) for lease in public.leases}
    return join_machines(public, found)


def write_slot(row: slots.Slot | Slot) -> dict[str, Any]:
    """Return a slot as JSON values, without fields that clients do not read."""
    public = row if isinstance(row, Slot) else msgspec.convert(row, Slot, from_attributes=True)
    found: dict[str, Any] = msgspec.to_builtins(public)
    return found


def write_account(row: accounts.Account | Account) -> dict[str, Any]:
    """Return a quota account as JSON values."""
    public = row if isinstance(row, Account) else msgspec.convert(row, Account, from_attributes=True)
    found: dict[str, Any] = msgspec.to_builtins(public)
    return {**found, "level": public.level}
