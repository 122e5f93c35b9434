"""Handlers of commands about slots and of EC2's notices about machines. Their senders are operators, hosts and the
cloud.

Each handler changes rows in a unit of work, and returns the new row of the slot. If a command cannot be carried out,
its handler raises `CommandRefused` before it has changed anything.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from scheduler.model.command_schemas import SlotDocument
from scheduler.model.decisions import SlotReason
from scheduler.model.events import Event
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import HOLDING, IN_FLIGHT, Cause
from scheduler.operations.commands.lease_commands import CommandRefused
from scheduler.operations.unit_of_work import UnitOfWork

INTERRUPTED, MAINTENANCE = "slot_interrupted", "slot_maintenance"
"""Names of the events that record EC2's notice of an interruption and of a scheduled change of the machine."""


def find_slot(work: UnitOfWork, name: str) -> Slot:
    """Return the slot with the id `name`. Raises CommandRefused if there is none."""
    slot = work.slots.get(name)
    if slot is None:
        raise CommandRefused("slot", "a known slot", name, "unknown")
    return slot


def cordon(work: UnitOfWork, _rules: Rules, document: SlotDocument) -> Slot:
    """Mark a slot so that it takes no new leases, and return its new row. Leases that are on the slot continue."""
    return work.change(find_slot(work, document.slot), cordoned=True)


def uncordon(work: UnitOfWork, _rules: Rules, document: SlotDocument) -> Slot:
    """End the cordon of a slot, so that it takes new leases again. Return its new row."""
    return work.change(find_slot(work, document.slot), cordoned=False)


def drain(work: UnitOfWork, _rules: Rules, document: SlotDocument) -> Slot:
    """Drain a slot at the command of an operator: its leases continue, and it ends when they are over. Return its new
    row.

    A ready slot drains at once. A slot whose machine is not ready yet, or is stopped, ends in the next tick. Slots in
    other states do not change.
    """
    return start_draining(work, find_slot(work, document.slot), "requested", "operator")


def start_draining(work: UnitOfWork, slot: Slot, reason: SlotReason, by: Cause) -> Slot:
    """Drain a slot for this reason, and return its new row. A ready slot drains at once. A slot whose machine is not
    ready yet drains in the next tick; so does a stopped slot, but only if an operator drains it (`by`). Slots in other
    states do not change.
    """
    if slot.state == "ready":
        slot = work.move_slot(slot, "draining", cause=by, reason=reason, drain_reason=reason)
    elif slot.state in IN_FLIGHT | ({"stopped"} if by == "operator" else set()) and slot.drain_reason is None:
        slot = msgspec.structs.replace(slot, drain_reason=reason)
        work.put(slot)
    return slot


def interrupt(work: UnitOfWork, name: str, gone_at: float, refusal: str = "") -> Slot:
    """Record on a slot EC2's notice that it will take the spot machine back at `gone_at`. Return the slot's row.

    A later notice changes nothing, unless it gives an earlier time than the slot's row has. `refusal`: for
    the event, why the machine ends if it is no spot interruption; "": not known.
    """
    slot = find_slot(work, name)
    is_news = slot.interrupted_by is None or gone_at < slot.interrupted_by
    if is_news and slot.state in IN_FLIGHT | HOLDING:
        began_at = work.now if slot.interrupted_at is None else slot.interrupted_at
        slot = msgspec.structs.replace(slot, interrupted_at=began_at, interrupted_by=gone_at)
        work.put(slot)
        detail: dict[str, Any] = {"epoch": slot.epoch, "gone_at": gone_at} | ({"refusal": refusal} if refusal else {})
        work.add_event(Event(at=work.now, name=INTERRUPTED, cause="cloud", slot=name, detail=detail))
    return slot


def rebalance(work: UnitOfWork, rules: Rules, name: str) -> Slot:
    """Handle EC2's recommendation to replace the machine of a slot: drain the slot, unless the rules of the pool ignore
    such recommendations. Return the slot's row.

    A second recommendation changes nothing.
    """
    slot = find_slot(work, name)
    pool = rules.pools.get(slot.pool)
    if pool is None or pool.rebalance == "ignore":
        return slot
    return start_draining(work, slot, "rebalance", "cloud")


def maintain(work: UnitOfWork, rules: Rules, name: str, code: str, begins_at: float | None) -> Slot:
    """Handle EC2's announcement that it will stop, restart or retire the machine of a slot: drain the slot, unless the
    rules of the pool ignore such announcements. Return the slot's row.

    A second announcement changes nothing. `code`: EC2's name of the maintenance, for the event. `begins_at`: when the
    maintenance begins; None: unknown.
    """
    slot = find_slot(work, name)
    if (pool := rules.pools.get(slot.pool)) is None or pool.maintenance == "ignore":
        return slot
    drained = start_draining(work, slot, "maintenance", "cloud")
    if drained != slot:
        detail: dict[str, Any] = {"epoch": slot.epoch, "code": code, "begins_at": begins_at}
        work.add_event(Event(at=work.now, name=MAINTENANCE, cause="cloud", slot=name, detail=detail))
    return drained


def lose(work: UnitOfWork, name: str) -> Slot:
    """Make a slot empty because its machine is gone. The next tick fails the reservations that had leases on the
    slot.
    """
    slot = find_slot(work, name)
    if slot.state in {"booting", "binding", "ready", "draining", "terminating"}:
        slot = work.move_slot(slot, "empty", cause="cloud", reason="lost")
    return slot


def hear(work: UnitOfWork, name: str) -> Slot:
    """Record a heartbeat of a static host: `last_seen` of its slot becomes the present cluster time."""
    slot = msgspec.structs.replace(find_slot(work, name), last_seen=work.now)
    work.mark(slot)
    return slot


SLOT_COMMANDS: dict[str, Callable[[UnitOfWork, Rules, Any], Slot]] = {
    "cordon": cordon,
    "uncordon": uncordon,
    "drain": drain,
}
"""The verb of each operator's command about a slot -> the function that carries it out."""
