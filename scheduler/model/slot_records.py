"""Slot records: slots in the format of a scenario file. Snapshots and suggested changes use them."""

from collections.abc import Iterable
from typing import Any

from scheduler.model.reservations import Lease
from scheduler.model.slots import Slot


def describe_slot_record(slot: Slot, leases: Iterable[tuple[str, Lease]]) -> dict[str, Any]:
    """Return a slot as a table in the format of a scenario, without times. `leases`: pairs (reservation id, lease);
    leases of other epochs of the slot are omitted.
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
