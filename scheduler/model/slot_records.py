"""Slot records: slots in the format of a scenario, used by snapshots and suggested changes."""

from collections.abc import Iterable
from typing import Any

from scheduler.model.reservations import Lease
from scheduler.model.slots import Slot


def describe_slot_record(slot: Slot, leases: Iterable[tuple[str, Lease]]) -> dict[str, Any]:
    """Return a slot in the format of a scenario, without times. `leases` are pairs (reservation id, lease); those of
    other epochs are omitted.
    """
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
