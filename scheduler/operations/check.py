"""Check: mirror what the cloud says of some slots' machines. The sweep drives it, not a chain of tasks a slot."""

from collections.abc import Sequence

import msgspec

from scheduler.model.moves import WITH_MACHINE
from scheduler.model.rules import Rules
from scheduler.model.slots import Machine, Slot
from scheduler.operations.boots import BOOTING, note_failed_boot, note_good_boot
from scheduler.operations.engine import Engine, announce
from scheduler.operations.ledger import Ledger
from scheduler.operations.words import INTERRUPTED, interrupt

BATCH = 100
"""Slots in one message to the health queue: as many as one describe call takes."""
PROBED_BATCH = 10
"""The same where each machine may have to be probed, one after the other, up to its probe's timeout."""
YOUNG_SECONDS = 300.0
MOST_MISSES = 3
"""A machine that the cloud does not know is gone when it was last seen this long ago (the clock begins when it
was launched) and was missed this often in a row.
"""


def check(engine: Engine, slot_ids: Sequence[str]) -> int:
    """Move each slot on as far as its machine is: running, ready to serve, gone; how many moved.

    booting: the machine runs -> binding; binding: the probe says it serves -> ready; terminating: the machine
    is gone -> empty; any other: the machine is gone -> empty, and what it held fails in the next tick. One that EC2
    is taking back right now counts as interrupted, should its notice have been lost.
    """
    rules = engine.rules()
    slots = [slot for slot in engine.store.find_slots(ids=slot_ids) if slot.instance_id]
    if not slots:
        return 0
    machines = engine.fleet.describe([slot.instance_id for slot in slots if slot.instance_id])
    serving = {slot.id for slot in slots if _serves(engine, slot, machines, rules)}
    failing = {slot.id for slot in slots if _fails(engine, slot, machines, rules)}
    _note_answers(engine, [slot for slot in slots if slot.instance_id in machines and slot.id not in failing])
    with engine.store.transaction() as transaction:
        ledger = Ledger(transaction, "cloud")
        ledger.slots = transaction.load_slots([slot.id for slot in slots])
        for seen in slots:
            current = ledger.slots.get(seen.id)
            if current is not None and current.instance_id == seen.instance_id:
                mirror(ledger, rules, current, machines.get(seen.instance_id or ""), serves=seen.id in serving)
                if seen.state == "ready":
                    _note_probe(ledger, seen.id, failed=seen.id in failing)
        outcome = ledger.flush()
    interrupted = [outcome.slots[event.slot] for event in outcome.events if event.slot and event.name == INTERRUPTED]
    announce(engine, outcome, kick=outcome.turned_slots or bool(interrupted))
    for slot in interrupted:
        engine.meter.count("leasehold_interruptions_total", {"pool": slot.pool, "kind": "interruption"})
    return len(outcome.events)


def _note_answers(engine: Engine, slots: Sequence[Slot]) -> None:
    """For the metric of the oldest probe: these answered now."""
    engine.meter.note_probes([slot.id for slot in slots if slot.state in WITH_MACHINE], engine.store.now())


def _serves(engine: Engine, slot: Slot, machines: dict[str, Machine], rules: Rules) -> bool:
    machine = machines.get(slot.instance_id or "")
    if machine is None or machine.state != "running" or slot.state not in {"booting", "binding"}:
        return False
    return engine.probe.is_ready(slot, machine, rules)


def _fails(engine: Engine, slot: Slot, machines: dict[str, Machine], rules: Rules) -> bool:
    """Whether a machine that was ready to serve says that it no longer is; one that nobody asks says nothing."""
    machine, pool = machines.get(slot.instance_id or ""), rules.pools.get(slot.pool)
    if machine is None or machine.state != "running" or slot.state != "ready" or pool is None:
        return False
    if not pool.unhealthy_after:
        return False
    if pool.probe.kind == "none":
        return machine.healthy is False
    return not engine.probe.is_ready(slot, machine, rules)


def _note_probe(ledger: Ledger, name: str, *, failed: bool) -> None:
    """Count the probes that failed in a row; a good one begins anew."""
    slot = ledger.slots.get(name)
    count = slot.failed_probes + 1 if slot and failed else 0
    if slot is not None and slot.state == "ready" and slot.failed_probes != count:
        ledger.put(msgspec.structs.replace(slot, failed_probes=count))


def mirror(ledger: Ledger, rules: Rules, slot: Slot, machine: Machine | None, *, serves: bool) -> None:
    """Move one slot to where its machine is."""
    if machine is None:
        _mirror_missing(ledger, rules, slot)
        return
    if machine.state == "terminated":
        _mirror_gone(ledger, rules, slot)
        return
    if machine.state == "stopping" and machine.interrupted:
        interrupt(ledger, slot.id, ledger.now)
        return
    if machine.state == "running" and slot.state == "booting":
        slot = ledger.move_slot(slot, "binding", missed=0, **_whereabouts(machine))
    if serves and slot.state == "binding":
        ledger.move_slot(slot, "ready", idle_since=ledger.now, missed=0, **_whereabouts(machine))
        note_good_boot(ledger, slot)
    elif slot.missed:
        ledger.put(msgspec.structs.replace(slot, missed=0))


def _whereabouts(machine: Machine) -> dict[str, str | None]:
    return {"address": machine.address, "instance_type": machine.type, "zone": machine.zone}


def _mirror_gone(ledger: Ledger, rules: Rules, slot: Slot) -> None:
    """Its machine is gone: the slot is empty; one that never served is a boot that failed."""
    if slot.state in BOOTING:
        note_failed_boot(ledger, rules.pools.get(slot.pool), slot, f"lost its machine while {slot.state}")
    ledger.move_slot(slot, "empty", reason="gone")  # promise: empty-confirmed


def _mirror_missing(ledger: Ledger, rules: Rules, slot: Slot) -> None:
    """Absent is not dead until it is old enough and was missed often enough, one that is to go as any other: of
    a machine that the cloud does not show yet nobody knows whether it heard the termination.
    """
    missed = slot.missed + 1
    born = slot.since if slot.last_seen is None else slot.last_seen
    if ledger.now - born >= YOUNG_SECONDS and missed >= MOST_MISSES:
        _mirror_gone(ledger, rules, slot)
    else:
        ledger.put(msgspec.structs.replace(slot, missed=missed))
