"""The notices about a reservation that channels and callbacks get."""

from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler.model.events import Event
from scheduler.model.reservations import Lease, Reservation, usable_cores
from scheduler.model.slots import Slot


def describe_notice(event: Event, reservation: Reservation, slots: Mapping[str, Slot]) -> dict[str, Any]:
    """Return the notice of an event.

    It has `event` without its prefix (`leased`, `revoking`, `released` …), phase, reason and deadline. A leased
    reservation also has its leases with token, slot, instance id, address, type, zone, resources and usable cores.
    """
    return {
        "event": event.name.removeprefix("reservation_"),
        "at": event.at,
        "reservation": reservation.id,
        "phase": reservation.phase,
        "reason": reservation.reason,
        "token": reservation.token,
        "expires_at": reservation.expires_at,
        "deadline": reservation.revoke_by,
        "leases": [_describe_lease(lease, slots) for lease in reservation.leases],
    }


def describe_row(reservation: Reservation, slots: Mapping[str, Slot]) -> dict[str, Any]:
    """Return the row without the hash of the holder's key. Each lease also has instance id, address, type and zone, as
    long as the slot still has the lease's machine.
    """
    row: dict[str, Any] = msgspec.to_builtins(reservation)
    del row["key_hash"]
    for lease in row["leases"]:
        slot = slots.get(lease["slot"])
        if slot is not None and slot.epoch == lease["epoch"]:
            lease.update(_describe_machine(slot))
    return row


def _describe_lease(lease: Lease, slots: Mapping[str, Slot]) -> dict[str, Any]:
    slot = slots.get(lease.slot)
    return {
        "component": lease.component,
        "kind": lease.kind,
        "state": lease.state,
        "deadline": lease.revoke_by,
        "slot": lease.slot,
        "token": lease.token,
        "resources": lease.resources,
        "cores": usable_cores(lease),
        **(_describe_machine(slot) if slot else dict.fromkeys(("instance_id", "address", "type", "zone"))),
    }


def _describe_machine(slot: Slot) -> dict[str, Any]:
    return {
        "instance_id": slot.instance_id,
        "address": slot.address,
        "type": slot.instance_type,
        "zone": slot.zone,
    }
