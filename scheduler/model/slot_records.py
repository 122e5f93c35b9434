"""Slot records: a slot as a scenario gives it. Snapshots and suggested changes are written in them."""

from collections.abc import Iterable
from typing import Any

from scheduler.model.reservations import Lease
from scheduler.model.slots import Slot


def describe_slot_record(slot: Slot, leases: Iterable[tuple[str, Lease]]) -> dict[str, Any]:
    """A slot as a scenario has it, without its times; of the leases (reservation, lease) those of its epoch."""
    record = {
        "id": slot.id,
        "pool": slot.pool,
        "state": slot.state,
        "resources": slot.resources,
        "labels": slot.labels,
        "offering": slot.offering,
        "machine": slot.machine,
        "cordoned": slot.cordoned,
        "leases": [
            {"reservation": owner, "component": lease.component} for owner, lease in leases if lease.epoch == slot.epoch
        ],
    }
    return {key: value for key, value in record.items() if value is not None}
