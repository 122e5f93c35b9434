"""The change set: what one transaction changed, for the announcement that follows its commit; and the JSON values that
holders get about a reservation, in notices of events and in answers to queries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from scheduler.model.accounts import Levels
from scheduler.model.events import Event
from scheduler.model.reservations import Lease, Reservation, split_declined, usable_cores
from scheduler.model.runs import Outcome
from scheduler.model.slots import Slot, has_machine_of
from scheduler.model.view import Gone, Row
from scheduler.ports import OutboxMessage

STOP_DONE: Final = "slot_stop_done"
"""Name of the event that the machine of a stopped slot has stopped, as the cloud reports. The state of the slot stays
`stopped`; from now on its machine may be started.
"""


@dataclass
class ChangeSet:
    """What a transaction changed: the new rows, the deleted rows (`gone`), the events, and the callbacks (tasks for
    producers) to send (`outgoing`).
    """

    rows: list[Row] = field(default_factory=list)
    gone: list[Gone] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    outgoing: list[OutboxMessage] = field(default_factory=list)
    slots: dict[str, Slot] = field(default_factory=dict)
    """By id: all slots that the transaction loaded, changed or not."""
    hosts: list[Slot] = field(default_factory=list)
    """The changed slots of static hosts. A slot of which only time marks such as `last_seen` changed is not among
    them.
    """
    spent: dict[str, Levels] = field(default_factory=dict)
    """Account id -> what the account paid in this transaction for the use of leases, by level."""
    at: float = 0.0
    """Cluster time of the transaction."""
    is_change: bool = False
    """Whether the transaction wrote more than time marks such as `last_seen`. Then a tick should run."""
    outcomes: list[Outcome] = field(default_factory=list)
    """How commands have ended, by the reports of their hosts."""

    @property
    def turned_slots(self) -> bool:
        """Return whether a slot became ready, empty or stopped in this transaction. Then a tick should run at once."""
        return any(event.name in {"slot_ready", "slot_empty", "slot_stopped", STOP_DONE} for event in self.events)

    def find_new_commands(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Return slot id -> the leases on it that this transaction has granted to reservations with a command, so that
        a host need not ask for its leases before it takes the commands.
        """
        rows = {row.id: row for row in self.rows if isinstance(row, Reservation) and row.run is not None}
        found: dict[str, list[Mapping[str, Any]]] = {}
        for event in self.events if rows else ():
            row = rows.get(event.reservation or "")
            if row is not None and event.name == "reservation_leased":
                for lease in row.leases:
                    named = {"reservation": row.id, "component": lease.component, "token": lease.token}
                    found.setdefault(lease.slot, []).append(named)
        return found


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
