"""What waiters and callbacks are told about a reservation."""

from collections.abc import Mapping
from typing import Any

from scheduler.model.events import Event
from scheduler.model.reservations import Lease, Reservation, usable_cores
from scheduler.model.slots import Slot


def describe_notice(event: Event, reservation: Reservation, slots: Mapping[str, Slot]) -> dict[str, Any]:
    """The notice: `event` without its prefix (`leased`, `revoking`, `released` …), phase, reason, deadline and,
    while it holds any, its leases with token, slot, instance id, address, type, zone, resources and usable cores.
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
        "instance_id": slot.instance_id if slot else None,
        "address": slot.address if slot else None,
        "type": slot.instance_type if slot else None,
        "zone": slot.zone if slot else None,
    }
