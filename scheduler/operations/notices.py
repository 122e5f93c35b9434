"""Builds the JSON values that holders get about a reservation: the notice of an event, and the row in the answer to a
query.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler.model.events import Event
from scheduler.model.reservations import Lease, Reservation, split_declined, usable_cores
from scheduler.model.slots import Slot, has_machine_of


def describe_notice(event: Event, reservation: Reservation, slots: Mapping[str, Slot]) -> dict[str, Any]:
    """Return the notice that is published after an event of a reservation: `event` (the event's name without its
    prefix, such as `leased`), phase, reason and deadline. While the reservation is leased, also its leases with token,
    slot, instance id, address, type, zone, resources and usable cores.
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
    """Return a reservation as JSON values, without the hash of its key; `want` has the most instances that the holder
    wants of its elastic components. Each lease also has the instance id, address, type and zone of its machine, if the
    slot still has this machine.
    """
    row: dict[str, Any] = msgspec.to_builtins(reservation)
    del row["key_hash"]
    del row["sender"]
    row["declined"], row["want"] = split_declined(reservation.phase, reservation.declined)
    for lease in row["leases"]:
        slot = slots.get(lease["slot"])
        if slot is not None and has_machine_of(slot, lease["epoch"]):
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
