"""Register, leave, remove: a static host reports its identity, its resources and its end; an operator removes it.

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
    """A new id is a new slot, ready at once. From the same machine it updates resources, labels and `last_seen`, and
    keeps `cordoned` and the leases; a host that had drained is ready again.

    From another machine it is refused (event `register_refused`, the only thing that is written) until the slot is
    removed: whoever holds leases there must not meet a stranger. Raises Refusal, also for a pool that takes no hosts.
    """
    pool = rules.pools.get(word.pool)
    if pool is None or pool.is_elastic:
        raise CommandRefused("pool", "a pool of static hosts", word.pool)
    current = work.slots.get(word.slot)
    if current is None:
        # Leases on one that was removed a moment ago may be left, for no tick has ended them yet.
        # Signed heartbeats of an earlier slot of this name do not count: their counters are times before now.
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
        # Leases from before its absence are not on the host now: a new epoch begins.
        epoch = current.epoch + 1
        return work.move_slot(current, "ready", cause="cloud", epoch=epoch, idle_since=work.now, **says)
    heard = msgspec.structs.replace(current, last_seen=work.now)
    changed = msgspec.structs.replace(current, **says)
    if changed == heard:
        work.mark(heard)
    else:
        work.put(changed)
    return changed


def _check_identity(work: UnitOfWork, current: Slot, word: RegisterDocument) -> None:
    """Raise Refusal, and leave an event, where another machine or another pool has this slot."""
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


def leave(work: UnitOfWork, _rules: Rules, word: HostDocument) -> Slot:
    """The host wants to go: it takes no new leases, those it has run on; without leases its slot is empty.

    A second word changes nothing. Raises Refusal for a slot that is unknown or another machine's.
    """
    return start_draining(work, check_host(find_slot(work, word.slot), word.machine), "leaving", "cloud")


def check_host(slot: Slot, machine: str) -> Slot:
    """The slot, if it belongs to this machine. Raises Refusal."""
    if slot.machine != machine:
        raise CommandRefused("machine", f"the machine that {slot.id} belongs to", machine)
    return slot


def remove(work: UnitOfWork, rules: Rules, word: SlotDocument) -> Slot:
    """An operator's word: this host does not come back. What it holds fails in the next tick (`slot_gone`), and any
    machine may register under its name. Raises Refusal for a slot that is no host's: its machine would be leaked.
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
"""What is done for each verb about a host."""
