"""Builders: rows and rules with defaults, of which a test names only the values that its rule depends on."""

from typing import Any

from scheduler.model.reservations import Component, Lease, Request, Reservation
from scheduler.model.rules import Rules, merge_rules, read_rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import HOLDING, INACTIVE, WITH_MACHINE, SlotState

NOW = 1_800_000_000.0
"""The time at which the rows of builders are made."""
SYSTEM = "x86_64-linux"


def a_slot(name: str = "linux-1", *, state: SlotState = "ready", **changes: object) -> Slot:
    """Return a slot of the pool `linux` (the part of the id before the number), with a machine if its state has one."""
    defaults: dict[str, Any] = {"id": name, "pool": name.rpartition("-")[0] or "linux", "state": state, "since": NOW}
    if state not in INACTIVE:
        defaults |= {"epoch": 1, "launch_id": f"launch-{name}", "launch_reason": "demand"}
    if state in WITH_MACHINE:
        defaults |= {"instance_id": f"i-{name}", "address": "10.0.0.1", "market": "spot"}
    if state in HOLDING:
        defaults |= {"idle_since": NOW, "last_seen": NOW}
    return Slot(**(defaults | changes))


def a_component(name: str = "main", **changes: object) -> Component:
    """Return an essential component of one instance without resources."""
    fields: dict[str, Any] = {"name": name, **changes}
    return Component(**fields)


def a_request(**changes: object) -> Request:
    """Return a request for one slot in any pool of the system x86_64-linux; `resources` are those of its component."""
    resources = changes.pop("resources", {})
    fields: dict[str, Any] = {"system": SYSTEM, "components": (a_component(resources=resources),), **changes}
    return Request(**fields)


def a_reservation(name: str = "r1", **changes: object) -> Reservation:
    """Return a pending reservation. `changes` may name fields of its request: `a_reservation("r1", account="ci")`."""
    wishes = {key: changes.pop(key) for key in list(changes) if key in (*Request.__struct_fields__, "resources")}
    defaults: dict[str, Any] = {"id": name, "request": a_request(**wishes), "created_at": NOW, "changed_at": NOW}
    return Reservation(**(defaults | changes))


def a_lease(slot: str = "linux-1", **changes: object) -> Lease:
    """Return a held lease of the component `main` on this slot, in its first epoch."""
    defaults: dict[str, Any] = {"component": "main", "slot": slot, "epoch": 1, "token": 1, "assigned_at": NOW}
    return Lease(**(defaults | changes))


def some_rules(document: dict[str, Any] | None = None) -> Rules:
    """Return rules with one pool `linux` of ten slots; `document` replaces parts of them."""
    base: dict[str, Any] = {"pools": {"linux": {"system": SYSTEM, "max_slots": 10}}}
    return read_rules(merge_rules(base, document or {}))
