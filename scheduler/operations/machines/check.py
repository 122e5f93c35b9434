"""Checks slots' machines and moves each slot to the state of its machine. A periodic sweep starts the checks."""

from collections.abc import Sequence

import msgspec

from scheduler.model.rules import Rules
from scheduler.model.slots import Machine, Slot
from scheduler.model.transitions import WITH_MACHINE
from scheduler.operations.boot_health import BOOTING, note_failed_boot, note_good_boot
from scheduler.operations.commands.lease_commands import INTERRUPTED, interrupt
from scheduler.operations.ports import Ports, announce
from scheduler.operations.unit_of_work import UnitOfWork

BATCH = 100
"""Slots in one message to the health queue: as many as one describe call takes."""
PROBED_BATCH = 10
"""Slots in one message when each machine may have to be probed, one after the other, up to its probe's timeout."""
YOUNG_SECONDS = 300.0
MOST_MISSES = 3
"""A machine that the cloud does not list counts as gone when it was launched YOUNG_SECONDS ago and was missing this
often in a row.
"""


def check(ports: Ports, slot_ids: Sequence[str]) -> int:
    """Move each slot to the state of its machine. Return how many events that made.

    booting: the machine runs -> binding. binding: the probe succeeds -> ready. terminating: the machine is gone ->
    empty. Any other state: the machine is gone -> empty, and the next tick fails what it held. A machine that EC2 is
    taking back counts as interrupted, in case its notice was lost.
    """
    rules = ports.rules()
    slots = [slot for slot in ports.store.find_slots(ids=slot_ids) if slot.instance_id]
    if not slots:
        return 0
    machines = ports.fleet.describe([slot.instance_id for slot in slots if slot.instance_id])
    serving = {slot.id for slot in slots if _serves(ports, slot, machines, rules)}
    failing = {slot.id for slot in slots if _fails(ports, slot, machines, rules)}
    _note_answers(ports, [slot for slot in slots if slot.instance_id in machines and slot.id not in failing])
    with ports.store.transaction() as transaction:
        work = UnitOfWork(transaction, "cloud")
        work.slots = transaction.load_slots([slot.id for slot in slots])
        for seen in slots:
            current = work.slots.get(seen.id)
            if current is not None and current.instance_id == seen.instance_id:
                mirror(work, rules, current, machines.get(seen.instance_id or ""), serves=seen.id in serving)
                if seen.state == "ready":
                    _note_probe(work, seen.id, failed=seen.id in failing)
        change_set = work.flush()
    interrupted = [
        change_set.slots[event.slot] for event in change_set.events if event.slot and event.name == INTERRUPTED
    ]
    announce(ports, change_set, kick=change_set.turned_slots or bool(interrupted))
    for slot in interrupted:
        ports.meter.count("leasehold_interruptions_total", {"pool": slot.pool, "kind": "interruption"})
    return len(change_set.events)


def _note_answers(ports: Ports, slots: Sequence[Slot]) -> None:
    """Note for the metric of the oldest probe that these slots' machines answered now."""
    ports.meter.note_probes([slot.id for slot in slots if slot.state in WITH_MACHINE], ports.store.now())


def _serves(ports: Ports, slot: Slot, machines: dict[str, Machine], rules: Rules) -> bool:
    machine = machines.get(slot.instance_id or "")
    if machine is None or machine.state != "running" or slot.state not in {"booting", "binding"}:
        return False
    return ports.probe.is_ready(slot, machine, rules)


def _fails(ports: Ports, slot: Slot, machines: dict[str, Machine], rules: Rules) -> bool:
    """Return whether a ready machine fails its probe or is reported unhealthy. Without a probe and
    report it does not.
    """
    machine, pool = machines.get(slot.instance_id or ""), rules.pools.get(slot.pool)
    if machine is None or machine.state != "running" or slot.state != "ready" or pool is None:
        return False
    if not pool.unhealthy_after:
        return False
    if pool.probe.kind == "none":
        return machine.healthy is False
    return not ports.probe.is_ready(slot, machine, rules)


def _note_probe(work: UnitOfWork, name: str, *, failed: bool) -> None:
    """Count the failed probes in a row. A successful probe sets the count to 0."""
    slot = work.slots.get(name)
    count = slot.failed_probes + 1 if slot and failed else 0
    if slot is not None and slot.state == "ready" and slot.failed_probes != count:
        work.put(msgspec.structs.replace(slot, failed_probes=count))


def mirror(work: UnitOfWork, rules: Rules, slot: Slot, machine: Machine | None, *, serves: bool) -> None:
    """Move one slot to the state of its machine."""
    if machine is None:
        _mirror_missing(work, rules, slot)
        return
    if machine.state == "terminated":
        _mirror_gone(work, rules, slot)
        return
    if machine.state == "stopping" and machine.interrupted:
        interrupt(work, slot.id, work.now)
        return
    if machine.state == "running" and slot.state == "booting":
        slot = work.move_slot(slot, "binding", missed=0, **_whereabouts(machine))
    if serves and slot.state == "binding":
        work.move_slot(slot, "ready", idle_since=work.now, missed=0, **_whereabouts(machine))
        note_good_boot(work, slot)
    elif slot.missed:
        work.put(msgspec.structs.replace(slot, missed=0))


def _whereabouts(machine: Machine) -> dict[str, str | None]:
    return {"address": machine.address, "instance_type": machine.type, "zone": machine.zone}


def _mirror_gone(work: UnitOfWork, rules: Rules, slot: Slot) -> None:
    """The machine is gone: make the slot empty. If it never served, count a failed boot."""
    if slot.state in BOOTING:
        note_failed_boot(work, rules.pools.get(slot.pool), slot, f"lost its machine while {slot.state}")
    work.move_slot(slot, "empty", reason="gone")  # promise: empty-confirmed


def _mirror_missing(work: UnitOfWork, rules: Rules, slot: Slot) -> None:
    """The cloud does not list the machine: treat it as gone only once it is old enough and was missing often enough.

    This also holds for terminating slots: a machine that is not listed yet may not have received the termination.
    """
    missed = slot.missed + 1
    born = slot.since if slot.last_seen is None else slot.last_seen
    if work.now - born >= YOUNG_SECONDS and missed >= MOST_MISSES:
        _mirror_gone(work, rules, slot)
    else:
        work.put(msgspec.structs.replace(slot, missed=missed))
