"""Handlers of commands about slots, of EC2's notices about machines, and of commands about static hosts. Their senders
are operators, hosts and the cloud.

Each handler changes rows in a unit of work, and returns the new row of the slot. If a command cannot be carried out,
its handler raises `CommandRefused` before it has changed anything.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from scheduler.model.command_schemas import HostDocument, RegisterDocument, SlotDocument
from scheduler.model.decisions import SlotReason
from scheduler.model.pools import Pool
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import HOLDING, IN_FLIGHT, WITH_MACHINE, Cause
from scheduler.operations.commands.lease_commands import CommandRefused
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.protocol.heartbeats import LIVE_BEATS, find_beat

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
        return work.change(slot, drain_reason=reason)
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
        slot = work.change(slot, interrupted_at=began_at, interrupted_by=gone_at)
        why = {"refusal": refusal} if refusal else {}
        work.note(INTERRUPTED, {"epoch": slot.epoch, "gone_at": gone_at, **why}, cause="cloud", slot=name)
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
        detail = {"epoch": slot.epoch, "code": code, "begins_at": begins_at}
        work.note(MAINTENANCE, detail, cause="cloud", slot=name)
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
    return work.mark(msgspec.structs.replace(find_slot(work, name), last_seen=work.now))


SLOT_COMMANDS: dict[str, Callable[[UnitOfWork, Rules, Any], Slot]] = {
    "cordon": cordon,
    "uncordon": uncordon,
    "drain": drain,
}
"""The verb of each operator's command about a slot -> the function that carries it out."""


# Static hosts: a host registers or leaves, or an operator removes its slot. Source: Orchard's registration of workers.


REGISTER_REFUSED: Final = "register_refused"
"""Name of the event that records the refusal of a host."""
TWO_LIVE: Final = "two live agents"
"""The reason in that event if two live agents have the same slot and machine."""
MARGIN_SECONDS: Final = 0.25
"""The error of the computed times at which a heartbeat arrived and an agent first asked."""


def register(work: UnitOfWork, rules: Rules, document: RegisterDocument) -> Slot:
    """Register a host with an agent and return its slot. Raises CommandRefused if the pool does not take hosts.

    A new id gets a new slot, which is ready at once. If the same machine registers again, its resources, labels and
    `last_seen` are updated, and `cordoned` and the leases are kept; a slot that had drained becomes ready again.
    Another machine is refused until an operator removes the slot, because holders of leases on the slot must not reach
    a different machine. So is another run of the agent (`run`) while the present one is live. A refusal stores only the
    event `register_refused`.

    A launched machine has its slot, resources and labels already: its agent registers under the slot with the instance
    id as the machine. The next check of the machine makes the slot ready.
    """
    pool = rules.pools.get(document.pool)
    if pool is None or not pool.has_agents:
        raise CommandRefused("pool", "a pool of static hosts, or with `agent = true`", document.pool)
    current = work.slots.get(document.slot)
    if pool.is_elastic:
        return _register_launched(work, pool, current, document)
    if current is None:
        # If a slot of this name was removed, leases on it may be left, because no tick has ended them yet.
        # Signed heartbeats of an earlier slot of this name do not count: their counters are times before now.
        # promise: epoch-goes-on
        current = Slot(
            id=document.slot, pool=document.pool, since=work.now, epoch=work.leases.last_epoch(document.slot)
        )
        current = msgspec.structs.replace(current, heartbeat=int(work.now * 1000))
    fault = None
    if current.pool != document.pool:
        fault = CommandRefused("pool", f"{current.pool}, the pool of {current.id}", document.pool)
    elif current.machine not in {None, document.machine}:  # promise: same-machine
        fault = CommandRefused(
            "machine",
            f"the machine that {current.id} belongs to (an operator can remove the slot)",
            document.machine,
            "conflict",
        )
    if fault is not None:
        _note_refusal(work, current, document)
        raise fault
    if current.machine is not None and current.state in HOLDING and current.run != document.run:
        _check_run(work, current, document, LIVE_BEATS * find_beat(pool.offline_timeout))
    fields: dict[str, Any] = {
        "machine": document.machine,
        "run": document.run,
        "resources": pool.resources if document.resources is None else document.resources,
        "labels": pool.labels if document.labels is None else document.labels,
        "address": current.address if document.address is None else document.address,
        "last_seen": work.now,
    }
    if current.state == "empty":
        # Leases from before the host's absence are not on it now, so a new epoch begins.
        return work.move_slot(current, "ready", cause="cloud", epoch=current.epoch + 1, idle_since=work.now, **fields)
    heard = msgspec.structs.replace(current, last_seen=work.now)
    changed = msgspec.structs.replace(current, **fields)
    return work.mark(heard) if changed == heard else work.put(changed)


def _register_launched(work: UnitOfWork, pool: Pool, current: Slot | None, document: RegisterDocument) -> Slot:
    if current is None or current.state not in WITH_MACHINE or current.pool != document.pool:
        raise CommandRefused("slot", f"a slot of {document.pool} with a machine", document.slot, "conflict")
    if current.instance_id != document.machine:
        _note_refusal(work, current, document)
        wanted = f"{current.instance_id}, the instance of {current.id}"
        raise CommandRefused("machine", wanted, document.machine, "conflict")
    if current.machine is None:
        # Signed heartbeats of an earlier machine of this slot do not count.
        current = msgspec.structs.replace(current, heartbeat=int(work.now * 1000))
    elif current.run != document.run:
        _check_run(work, current, document, LIVE_BEATS * find_beat(pool.offline_timeout))
    return work.put(msgspec.structs.replace(current, machine=document.machine, run=document.run, last_seen=work.now))


def _check_run(work: UnitOfWork, current: Slot, document: RegisterDocument, live_seconds: float) -> None:
    """Raise CommandRefused while the agent that has registered the slot last is live: it sent a heartbeat in the last
    `live_seconds`. Two live agents would both use the leases of the slot.

    An agent that was started again after its end asks again until the earlier run is not live any more. If the earlier
    run sends a heartbeat after the first attempt (`waited`), both are live: the refusal then names the field `machine`,
    is final, and is recorded as an event.
    """
    heard_at = work.heard.get(current.id)
    silent = work.now - ((current.last_seen or 0.0) if heard_at is None else heard_at)
    # Without a heartbeat the agent has just registered, or Redis has lost it: the agent has as long to send one.
    if silent > live_seconds or (heard_at is None and document.waited > live_seconds):
        return
    if document.waited and heard_at is not None and heard_at > work.now - document.waited + MARGIN_SECONDS:
        _note_refusal(work, current, document, {"reason": TWO_LIVE})
        wanted = f"an id that no other live agent has: that of {current.id} was heard {silent:.1f} s ago"
        raise CommandRefused("machine", wanted, document.machine, "conflict")
    raise CommandRefused(
        "run", f"no live agent of {current.id}: one was heard {silent:.1f} s ago", document.run, "conflict"
    )


def _note_refusal(
    work: UnitOfWork, current: Slot, document: RegisterDocument, detail: Mapping[str, str] | None = None
) -> None:
    work.note(REGISTER_REFUSED, {"pool": document.pool, "machine": document.machine, **(detail or {})}, slot=current.id)


def leave(work: UnitOfWork, _rules: Rules, document: HostDocument) -> Slot:
    """Drain the slot of a static host that wants to leave: it takes no new leases, and becomes empty when its leases
    have ended. Return the new row of the slot.

    A repeated command changes nothing. Raises CommandRefused if the slot is unknown or belongs to another machine.
    """
    slot = check_host(find_slot(work, document.slot), document.machine, document.run)
    return start_draining(work, slot, "leaving", "cloud")


def check_host(slot: Slot, machine: str, run: str | None = None) -> Slot:
    """Return `slot` if it belongs to the host `machine`. Raises CommandRefused if it belongs to another machine, or to
    another run of the agent than `run`. None: the sender does not know the run.
    """
    if slot.machine != machine:
        raise CommandRefused("machine", f"the machine that {slot.id} belongs to", machine, "conflict")
    if run is not None and slot.run not in {None, run}:
        raise CommandRefused("run", f"the agent of {slot.id}, which another agent is now", run, "conflict")
    return slot


def remove(work: UnitOfWork, rules: Rules, document: SlotDocument) -> Slot:
    """Delete the slot of a static host that does not come back (a command of operators).

    The next tick fails the reservations that have leases on the slot (`slot_gone`). Afterwards any machine may register
    under the name of the slot. Raises CommandRefused for a slot of an EC2 pool, because its machine would keep running
    without a slot.
    """
    slot = find_slot(work, document.slot)
    pool = rules.pools.get(slot.pool)
    if (not slot.is_host) if pool is None else pool.is_elastic:
        raise CommandRefused("slot", "a slot of a static pool", document.slot, "conflict")
    work.delete(slot)
    work.note("slot_removed", slot=slot.id)
    return msgspec.structs.replace(slot, state="empty")


HOST_COMMANDS: dict[str, Callable[[UnitOfWork, Rules, Any], Slot]] = {
    "register": register,
    "leave": leave,
    "remove": remove,
}
"""The verb of each command about static hosts -> the function that carries it out."""
