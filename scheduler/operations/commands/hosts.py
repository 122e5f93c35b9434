"""Handlers of commands about static hosts: a host registers and leaves, and an operator removes it.

Source: Orchard's registration of workers.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from scheduler.model.command_schemas import HostDocument, RegisterDocument, SlotDocument
from scheduler.model.events import Event
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.operations.commands.lease_commands import CommandRefused, find_slot, start_draining
from scheduler.operations.unit_of_work import UnitOfWork


def register(work: UnitOfWork, rules: Rules, word: RegisterDocument) -> Slot:
    """Register a static host and return its slot. Raise CommandRefused if the pool does not take hosts.

    A new id gets a new slot, which is ready at once. If the same machine registers again, its resources, labels and
    `last_seen` are updated, and `cordoned` and the leases are kept; a slot that had drained becomes ready again.
    Another machine is refused until an operator removes the slot, because holders of leases on the slot must not reach
    a different machine. A refusal stores only the event `register_refused`.
    """
    pool = rules.pools.get(word.pool)
    if pool is None or pool.is_elastic:
        raise CommandRefused("pool", "a pool of static hosts", word.pool)
    current = work.slots.get(word.slot)
    if current is None:
        # A slot that was just removed may still have leases, because no tick has ended them yet.
        # The counter starts at the present time, so copies of heartbeats of an earlier slot of this name are ignored.
        # promise: epoch-goes-on
        current = Slot(id=word.slot, pool=word.pool, since=work.now, epoch=work.last_epoch(word.slot))
        current = msgspec.structs.replace(current, heartbeat=int(work.now * 1000))
    _check_identity(work, current, word)
    says: dict[str, Any] = {
        "machine": word.machine,
        "resources": pool.resources if word.resources is None else word.resources,
        "labels": pool.labels if word.labels is None else word.labels,
        "address": current.address if word.address is None else word.address,
        "last_seen": work.now,
    }
    if current.state == "empty":
        return _move_in(work, current, says)
    heard = msgspec.structs.replace(current, last_seen=work.now)
    changed = msgspec.structs.replace(current, **says)
    if changed == heard:
        work.mark(heard)
    else:
        work.put(changed)
    return changed


def _check_identity(work: UnitOfWork, current: Slot, word: RegisterDocument) -> None:
    """Raise CommandRefused and record an event if the slot belongs to another machine or another pool."""
    fault = None
    if current.pool != word.pool:
        fault = CommandRefused("pool", f"{current.pool}, the pool of {current.id}", word.pool)
    elif current.machine not in {None, word.machine}:  # promise: same-machine
        fault = CommandRefused(
            "machine", f"the machine that {current.id} belongs to, or that it is removed", word.machine
        )
    if fault is not None:
        work.tell(
            Event(
                at=work.now,
                name="register_refused",
                cause=work.cause,
                slot=current.id,
                detail={"pool": word.pool, "machine": word.machine},
            )
        )
        raise fault


def _move_in(work: UnitOfWork, current: Slot, says: dict[str, Any]) -> Slot:
    """Make an empty slot ready for its host. A new epoch begins, because earlier leases are no longer on the host."""
    cause, work.cause = work.cause, "cloud"
    moved = work.move_slot(current, "ready", epoch=current.epoch + 1, idle_since=work.now, **says)
    work.cause = cause
    return moved


def leave(work: UnitOfWork, _rules: Rules, word: HostDocument) -> Slot:
    """Drain the slot of a host that wants to leave. The slot takes no new leases, and becomes empty when its leases
    have ended.

    A repeated command changes nothing. Raise CommandRefused if the slot is unknown or belongs to another machine.
    """
    return start_draining(work, check_host(find_slot(work, word.slot), word.machine), "leaving", "cloud")


def check_host(slot: Slot, machine: str) -> Slot:
    """Return the slot if it belongs to this machine, else raise CommandRefused."""
    if slot.machine != machine:
        raise CommandRefused("machine", f"the machine that {slot.id} belongs to", machine)
    return slot


def remove(work: UnitOfWork, rules: Rules, word: SlotDocument) -> Slot:
    """Delete the slot of a static host that does not come back (a command of operators).

    The next tick fails the reservations that have leases there (`slot_gone`). Any machine may then register under the
    name. Raise CommandRefused for a slot of an ec2 pool, because its machine would keep running without a slot.
    """
    slot = find_slot(work, word.slot)
    pool = rules.pools.get(slot.pool)
    if (slot.machine is None) if pool is None else pool.is_elastic:
        raise CommandRefused("slot", "a slot of a static pool", word.slot)
    work.delete(slot)
    work.tell(Event(at=work.now, name="slot_removed", cause=work.cause, slot=slot.id))
    return msgspec.structs.replace(slot, state="empty")


HOST_COMMANDS: dict[str, Callable[[UnitOfWork, Rules, Any], Slot]] = {
    "register": register,
    "leave": leave,
    "remove": remove,
}
"""The handler of each verb about static hosts."""
