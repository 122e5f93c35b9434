"""Commands about static hosts: a host registers itself and its resources, or leaves; an operator removes a host.

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


def register(work: UnitOfWork, rules: Rules, document: RegisterDocument) -> Slot:
    """Create the slot of a host, ready at once, or update it.

    The same machine updates resources, labels and `last_seen`, and keeps `cordoned` and the leases. A host that had
    drained becomes ready again. Another machine is refused, and only the event `register_refused` is written, until the
    slot is removed: the leases on it belong to the first machine. Raises CommandRefused, also for a pool without hosts.
    """
    pool = rules.pools.get(document.pool)
    if pool is None or pool.is_elastic:
        raise CommandRefused("pool", "a pool of static hosts", document.pool)
    current = work.slots.get(document.slot)
    if current is None:
        # Leases on a slot of this name that was removed may be left, because no tick has ended them yet.
        # Signed heartbeats of an earlier slot of this name do not count: their counters are times before now.
        # promise: epoch-goes-on
        current = Slot(id=document.slot, pool=document.pool, since=work.now, epoch=work.last_epoch(document.slot))
        current = msgspec.structs.replace(current, heartbeat=int(work.now * 1000))
    _check_identity(work, current, document)
    fields: dict[str, Any] = {
        "machine": document.machine,
        "resources": pool.resources if document.resources is None else document.resources,
        "labels": pool.labels if document.labels is None else document.labels,
        "address": current.address if document.address is None else document.address,
        "last_seen": work.now,
    }
    if current.state == "empty":
        # Leases from before its absence are not on the host now: a new epoch begins.
        epoch = current.epoch + 1
        return work.move_slot(current, "ready", cause="cloud", epoch=epoch, idle_since=work.now, **fields)
    heard = msgspec.structs.replace(current, last_seen=work.now)
    changed = msgspec.structs.replace(current, **fields)
    if changed == heard:
        work.mark(heard)
    else:
        work.put(changed)
    return changed


def _check_identity(work: UnitOfWork, current: Slot, document: RegisterDocument) -> None:
    """Raise CommandRefused, and append an event, if the slot belongs to another machine or another pool."""
    fault = None
    if current.pool != document.pool:
        fault = CommandRefused("pool", f"{current.pool}, the pool of {current.id}", document.pool)
    elif current.machine not in {None, document.machine}:  # promise: same-machine
        fault = CommandRefused(
            "machine", f"the machine that {current.id} belongs to, or that it is removed", document.machine
        )
    if fault is not None:
        work.tell(
            Event(
                at=work.now,
                name="register_refused",
                cause=work.cause,
                slot=current.id,
                detail={"pool": document.pool, "machine": document.machine},
            )
        )
        raise fault


def leave(work: UnitOfWork, _rules: Rules, document: HostDocument) -> Slot:
    """Drain the slot of a host that leaves: it takes no new leases, and becomes empty when its leases have ended.

    A second call changes nothing. Raises CommandRefused for an unknown slot, or one of another machine.
    """
    return start_draining(work, check_host(find_slot(work, document.slot), document.machine), "leaving", "cloud")


def check_host(slot: Slot, machine: str) -> Slot:
    """Return the slot if it belongs to this machine. Raises CommandRefused."""
    if slot.machine != machine:
        raise CommandRefused("machine", f"the machine that {slot.id} belongs to", machine)
    return slot


def remove(work: UnitOfWork, rules: Rules, document: SlotDocument) -> Slot:
    """Delete the slot of a host that does not return.

    The leases on it fail in the next tick (`slot_gone`), and any machine may register under its name. Raises
    CommandRefused for the slot of an elastic pool, because its machine would be leaked.
    """
    slot = find_slot(work, document.slot)
    pool = rules.pools.get(slot.pool)
    if (slot.machine is None) if pool is None else pool.is_elastic:
        raise CommandRefused("slot", "a slot of a static pool", document.slot)
    work.delete(slot)
    work.tell(Event(at=work.now, name="slot_removed", cause=work.cause, slot=slot.id))
    return msgspec.structs.replace(slot, state="empty")


HOST_COMMANDS: dict[str, Callable[[UnitOfWork, Rules, Any], Slot]] = {
    "register": register,
    "leave": leave,
    "remove": remove,
}
"""By verb about a host: the function that carries it out."""
