"""Checks the machines of slots in EC2, and moves each slot to the state of its machine. A periodic sweep starts the
checks.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, cast

import msgspec

from scheduler.model.events import Event
from scheduler.model.lives import find_drift
from scheduler.model.market import ADDRESS, VOLUME, StoredMarket
from scheduler.model.pools import Pool
from scheduler.model.rules import Rules
from scheduler.model.slots import Machine, Slot
from scheduler.model.transitions import WITH_MACHINE, SlotState
from scheduler.operations.change_set import STOP_DONE
from scheduler.operations.commands.slot_commands import INTERRUPTED, interrupt
from scheduler.operations.machines.holds import forget_holds, note_refusal
from scheduler.operations.machines.launch import describe_machine, is_put_off
from scheduler.operations.machines.terminate import list_spared
from scheduler.operations.machines.work import BATCH, count_room, is_lost, name_check
from scheduler.operations.ports import Ports, announce, cloud_work, send_callbacks
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.operations.writers.slots import BOOTING, note_failed_boot, note_good_boot
from scheduler.ports import Category, Refusal, RefusedMessage, Scope, StoreUnavailableError, Waiting, Work
from scheduler.protocol.names import HEALTH, LAUNCH, TERMINATE

SWEPT: frozenset[SlotState] = frozenset({"booting", "binding", "terminating"})
"""The states in which each sweep checks a slot that has a machine."""
PROBES_AT_ONCE = 25
"""How many machines one task probes at the same time. Each probe may last until its timeout."""
YOUNG_SECONDS = 300.0
MOST_MISSES = 3
"""After this number of checks in a row that did not find a machine in EC2, the machine counts as gone, if it was
launched at least YOUNG_SECONDS ago.
"""


def check(ports: Ports, slot_ids: Sequence[str]) -> int:
    """Read the machines of these slots from EC2, and move each slot to the state of its machine. Return the number of
    events.

    A booting slot becomes `binding` when its machine runs, and `ready` when the probe succeeds. A slot in any state
    becomes `empty` when its machine is gone; the next tick then fails the reservations that had leases there. A machine
    that EC2 takes back, or has taken back, counts as interrupted, in case its interruption notice was lost: its slot
    becomes `empty` only after a tick has requeued the reservations that had leases there.
    """
    with ports.work_watch.begin([name_check(name) for name in slot_ids]):
        return _check(ports, slot_ids)


def _check(ports: Ports, slot_ids: Sequence[str]) -> int:
    version = ports.store.rules_versions()
    rules, extras = ports.rules(version), ports.extra_prices(version)
    slots = [slot for slot in ports.store.find_slots(ids=slot_ids) if slot.instance_id]
    if not slots:
        return 0
    # Only the status checks of machines without a probe count, and they cost further calls.
    checked = [slot.instance_id for slot in slots if slot.instance_id and _needs_status(slot, rules)]
    machines = ports.fleet.describe([slot.instance_id for slot in slots if slot.instance_id], checked=checked)

    def probe(slot: Slot) -> tuple[bool, bool]:
        return _serves(ports, slot, machines, rules), _fails(ports, slot, machines, rules)

    if len(slots) > 1 and len(checked) < len(slots):
        with ThreadPoolExecutor(PROBES_AT_ONCE, thread_name_prefix="leasehold-probe") as probes:
            probed = list(probes.map(probe, slots))
    else:
        probed = list(map(probe, slots))
    serving = {slot.id for slot, (serves, _) in zip(slots, probed, strict=True) if serves}
    failing = {slot.id for slot, (_, fails) in zip(slots, probed, strict=True) if fails}
    answered = [slot for slot in slots if slot.instance_id in machines and slot.id not in failing]
    ports.meter.note_probes([slot.id for slot in answered if slot.state in WITH_MACHINE], ports.store.now())
    with cloud_work(ports) as work:
        work.slots = work.transaction.load_slots([slot.id for slot in slots])
        before = dict(work.slots)
        for seen in slots:
            current = before.get(seen.id)
            if current is not None and current.instance_id == seen.instance_id:
                mirror(work, rules, current, machines.get(seen.instance_id or ""), serves=seen.id in serving)
                if seen.state == "ready":
                    _note_probe(work, seen.id, failed=seen.id in failing)
                if seen.instance_id in machines:
                    _note_extras(work, rules, extras, seen.id, machines[seen.instance_id])
        _note_boots(work, rules, [slot for slot in before.values() if slot.state in BOOTING], machines)
        change_set = work.flush()
    interrupted = [
        change_set.slots[event.slot] for event in change_set.events if event.slot and event.name == INTERRUPTED
    ]
    announce(ports, change_set, kick=change_set.turned_slots or bool(interrupted))
    for slot in interrupted:
        ports.meter.count("leasehold_interruptions_total", {"pool": slot.pool, "kind": "interruption"})
    return len(change_set.events)


def _needs_status(slot: Slot, rules: Rules) -> bool:
    """Return whether the cloud's status checks decide if the machine of this slot is healthy. They do if the pool of
    the slot has no probe or is unknown, and the slot is booting, binding or ready.
    """
    pool = rules.pools.get(slot.pool)
    is_wanted = pool is None or (pool.probe.kind == "none" and not pool.agent)
    return is_wanted and slot.state in {"booting", "binding", "ready"}


def _serves(ports: Ports, slot: Slot, machines: dict[str, Machine], rules: Rules) -> bool:
    machine = machines.get(slot.instance_id or "")
    if machine is None or machine.state != "running" or slot.state not in {"booting", "binding"}:
        return False
    return ports.probe.is_ready(slot, machine, rules)


def _fails(ports: Ports, slot: Slot, machines: dict[str, Machine], rules: Rules) -> bool:
    """Return whether the machine of a ready slot fails its probe or, if its pool has no probe, is reported as unhealthy
    by the cloud. Return False if the pool's `unhealthy_after` is 0.
    """
    machine, pool = machines.get(slot.instance_id or ""), rules.pools.get(slot.pool)
    if machine is None or machine.state != "running" or slot.state != "ready" or pool is None:
        return False
    if not pool.unhealthy_after or pool.agent:  # silence shows a lost agent
        return False
    if pool.probe.kind == "none":
        return machine.healthy is False
    return not ports.probe.is_ready(slot, machine, rules)


def _note_probe(work: UnitOfWork, name: str, *, failed: bool) -> None:
    """Record the result of a probe of a ready slot's machine. A failed probe increases the count of failed probes in a
    row by one; a successful probe sets it to 0.
    """
    slot = work.slots.get(name)
    count = slot.failed_probes + 1 if slot and failed else 0
    if slot is not None and slot.state == "ready" and slot.failed_probes != count:
        work.put(msgspec.structs.replace(slot, failed_probes=count))


def _note_extras(work: UnitOfWork, rules: Rules, extras: StoredMarket, name: str, machine: Machine) -> None:
    """Record in the cost ledger what the volume and the public address of a slot's machine cost, as far as the table of
    prices has them. `extras`: these prices.
    """
    slot = work.slots.get(name)
    pool = rules.pools.get(slot.pool) if slot else None
    if slot is None or slot.meter is None or pool is None or machine.state not in {"pending", "running"}:
        return
    # The ledger books a stopped machine with the price of its storage, until the machine is started or gone.
    if slot.meter.kind == "stopped" or slot.state == "stopped":
        return

    def find_price(kind: str) -> float:
        found = extras.find_price(kind, "on-demand", [machine.zone] if machine.zone else ())
        return found.price if found else 0.0

    volume = (pool.ec2.volume_gib or 0) * find_price(VOLUME)
    if "machine" in find_drift(slot, pool.launch_digest):  # its volume may have the size of earlier rules
        volume = slot.meter.volume
    work.note_prices(slot, volume=volume, address=find_price(ADDRESS) if "public" in machine.addresses else 0.0)


def mirror(work: UnitOfWork, rules: Rules, slot: Slot, machine: Machine | None, *, serves: bool) -> None:
    """Move one slot to the state that its machine has in the cloud. `machine` None: the cloud does not list the
    machine. `serves`: whether the probe of the machine succeeded.
    """
    if machine is None:
        # The cloud may not list a machine yet that was launched a moment ago. The termination of a slot that is
        # `terminating` may not have reached its machine.
        missed = slot.missed + 1
        born = slot.since if slot.last_seen is None else slot.last_seen
        if work.now - born >= YOUNG_SECONDS and missed >= MOST_MISSES:
            _mirror_gone(work, rules, slot)
        else:
            work.put(msgspec.structs.replace(slot, missed=missed))
        return
    if _mirror_end(work, rules, slot, machine):
        return
    if slot.state == "stopped" or (machine.state == "stopped" and slot.power is None):
        _mirror_power(work, slot, machine)
        return
    if slot.power == "start" and machine.state in {"pending", "running"}:
        slot = work.change(slot, power=None)
    pool = rules.pools.get(slot.pool)
    # EC2 may return the address of a machine later than the state `running`.
    is_late = slot.address is None and slot.state != "booting" and machine.state == "running"
    if is_late and (address := describe_machine(machine, pool)["address"]) is not None:
        slot = work.change(slot, address=address)
    if machine.state == "running" and slot.state == "booting":
        slot = work.move_slot(slot, "binding", missed=0, **_whereabouts(machine, pool))
    if serves and slot.state == "binding":
        work.move_slot(slot, "ready", idle_since=work.now, missed=0, **_whereabouts(machine, pool))
        note_good_boot(work, slot)
    elif slot.missed:
        work.put(msgspec.structs.replace(slot, missed=0))


def _mirror_end(work: UnitOfWork, rules: Rules, slot: Slot, machine: Machine) -> bool:
    """Handle a machine that EC2 stops or ends, or has ended. Return whether nothing is left to do for the slot now: its
    machine is gone, or EC2 takes it back.
    """
    if machine.state == "stopping":
        work.note_ending(slot)
    if machine.interrupted and machine.state in {"stopping", "terminated"}:
        slot = interrupt(work, slot.id, work.now)
        # A tick finds the leases of an interrupted slot only while the slot has them: a slot that is empty has lost its
        # machine, and their reservations would fail.
        if machine.state == "stopping" or work.leases.list_on(slot):  # promise: taken-back-requeued
            return True
    if machine.state == "terminated":
        _mirror_gone(work, rules, slot, machine)
        return True
    return False


def _note_boots(work: UnitOfWork, rules: Rules, booting: Sequence[Slot], machines: Mapping[str, Machine]) -> None:
    """Stage the launch back-offs of machines that ended while they booted, for a reason with which EC2 also refuses
    launches, like a quota of volumes. End such back-offs if a machine has become ready. `booting`: the slots as they
    were before.
    """
    ready = [slot for slot in booting if work.slots[slot.id].state == "ready"]
    if ready:
        forget_holds(work, rules, ready, at_boot=True)
    refused: dict[tuple[str, str | None, Refusal], list[Slot]] = defaultdict(list)
    for slot in booting:
        machine = machines.get(slot.instance_id or "")
        if machine is not None and machine.category and work.slots[slot.id].state == "empty":
            refused[slot.pool, slot.market, _read_reason(rules, slot, machine)].append(slot)
    gone = Counter(slot.pool for slots in refused.values() for slot in slots)
    for (name, _, refusal), slots in refused.items():
        if pool := rules.pools.get(name):
            # A booting slot has the time of its launch only in `launched_at`.
            first = msgspec.structs.replace(slots[0], since=slots[0].launched_at or slots[0].since)
            note_refusal(work, pool, first, refusal, refused=gone[name], at_boot=True)


def _read_reason(rules: Rules, slot: Slot, machine: Machine) -> Refusal:
    """Return the reason for which a machine ended while it booted as a refusal of the launch of its slot."""
    code, _, message = machine.reason.partition(": ")
    pool = rules.pools.get(slot.pool)
    places = pool.ec2.list_places(None) if pool else []
    is_placed = machine.category == "capacity" and any(machine.zone in place for place in places)
    return Refusal(
        offering=slot.offering,
        category=cast("Category", machine.category),
        scope=cast("Scope", machine.scope or "offering"),
        code=code,
        message=message,
        place=(machine.zone or "") if is_placed else "",
    )


def _mirror_power(work: UnitOfWork, slot: Slot, machine: Machine) -> None:
    """Compare the slot's power state with the state of its machine, and correct what differs. The power state is:
    stopped, to be stopped, to be started, or none of these.

    A stop that was decided is done when the machine is stopped. If the machine of a stopped slot runs although no start
    was decided, the machine is stopped again. If a machine is stopped although no stop was decided, it counts as
    interrupted now: its leases end, and it is terminated. These two corrections need several checks in a row with the
    same result, because the cloud may report an earlier state.
    """
    is_stopped = machine.state == "stopped"
    if slot.state == "stopped" and is_stopped:
        if slot.power is not None:
            work.put(msgspec.structs.replace(slot, power=None, attempts=0, not_before=0.0, missed=0))
            work.note(STOP_DONE, {"epoch": slot.epoch}, cause="cloud", slot=slot.id)
        elif slot.missed:
            work.put(msgspec.structs.replace(slot, missed=0))
        return
    if slot.power is not None or slot.state == "terminating":
        return
    missed = slot.missed + 1
    if missed < MOST_MISSES:
        work.put(msgspec.structs.replace(slot, missed=missed))
    elif is_stopped:
        interrupt(work, slot.id, work.now, machine.reason)  # promise: stopped-elsewhere
    else:
        work.put(msgspec.structs.replace(slot, power="stop", attempts=0, not_before=0.0, sent_at=0.0, missed=0))


def _whereabouts(machine: Machine, pool: Pool | None) -> dict[str, Any]:
    return {key: value for key, value in describe_machine(machine, pool).items() if key != "instance_id"}


def _mirror_gone(work: UnitOfWork, rules: Rules, slot: Slot, machine: Machine | None = None) -> None:
    """Make a slot empty because its machine is gone. Store why EC2 ended the machine, unless its end was decided here.
    If the machine had not become ready, count a failed boot of the slot's pool, except for a reason with which EC2 also
    refuses launches. `machine`: as EC2 still describes it.
    """
    reason = "" if machine is None or slot.state == "terminating" else machine.reason
    if slot.state in BOOTING and not (machine and machine.category):
        note_failed_boot(work, rules.pools.get(slot.pool), slot, f"lost its machine while {slot.state}")
    if machine is not None and machine.interrupted:
        work.note_taken_back(slot)
    changes: dict[str, Any] = {"refusal": reason} if reason else {}
    work.move_slot(slot, "empty", reason="gone", **changes)  # promise: empty-confirmed


RESEND_SECONDS = 10.0
"""Seconds after which a launch, termination or callback that is still not done is sent again."""


def recover(ports: Ports, resend_seconds: float = RESEND_SECONDS) -> int:
    """Send again the launches, terminations, starts, stops and callbacks that are due and were not sent in the last
    `resend_seconds`. Return the number of messages. Work that waits in its queue
    or that a worker carries out is not sent again (`is_lost`).
    """
    now = ports.store.now()
    due = [
        slot
        for slot in ports.store.find_slots(states=["launching", "booting", "terminating", "stopped"])
        if slot.power is not None or slot.state in {"launching", "terminating"}
        if not is_put_off(slot, now)
    ]
    work = ports.work_watch.read([LAUNCH, TERMINATE]) if due else Work()
    lost = [slot for slot in due if is_lost(slot, work, resend_seconds, now)]
    spared = list_spared(ports, lost, now)
    claimed = _claim(ports, [slot for slot in lost if slot.id not in spared], now)
    ports.dispatcher.send_launches([slot for slot in claimed if slot.state == "launching"])
    ports.dispatcher.send_terminations([slot for slot in claimed if slot.state == "terminating"])
    if powered := [slot for slot in claimed if slot.power is not None]:
        ports.dispatcher.send_power(powered)
    outgoing = ports.store.find_outgoing(sent_before=now - resend_seconds)
    send_callbacks(ports, outgoing)  # promise: callbacks-sent
    return len(claimed) + len(outgoing)


def _claim(ports: Ports, due: Sequence[Slot], now: float) -> list[Slot]:
    """Set `sent_at` to `now` for those slots of `due` that have not changed since they were read, and return them. So
    two processes do not send the same work.
    """
    if not due:
        return []
    with ports.store.transaction() as transaction:
        current = transaction.load_slots([slot.id for slot in due])
        claimed = [
            msgspec.structs.replace(found, sent_at=now)
            for slot in due
            if (found := current.get(slot.id)) is not None
            and (found.version, found.sent_at) == (slot.version, slot.sent_at)
        ]
        transaction.mark(claimed)
    return claimed


def sweep(ports: Ports, *, all_machines: bool = False) -> int:
    """Send tasks that check the machines of slots, each task for a batch of slots. Return the number of slots.

    Checked are slots that boot, bind or terminate, slots whose stop is not confirmed, and slots that drain because of
    an interruption. `all_machines`: check every slot that has a machine. At most MOST_CHECKED slots are checked at
    once, those first whose state is changing; later sweeps check the others. So the tasks do not fill their queue, and
    no slot is checked again before its last check has ended, however slow EC2 is.
    """
    probed = ports.store.find_slots(states=["booting", "binding", *(["ready"] if all_machines else [])])
    going = ports.store.find_slots(states=["terminating", "draining", "stopped"])
    moving = [slot for slot in going if slot.state == "terminating" or slot.interrupted_at is not None or slot.power]
    urgent = {slot.id for slot in [*probed, *moving] if slot.state != "ready" and slot.instance_id}
    ready = {slot.id for slot in [*probed, *going] if slot.instance_id} if all_machines else ()
    ports.unchecked |= dict.fromkeys(sorted([*urgent, *ready]))
    work = ports.work_watch.read([HEALTH])
    waiting = work.waiting.get(HEALTH, Waiting())
    if waiting.since is not None and waiting.since <= ports.swept_at:
        return 0
    checked = {name for name in ports.unchecked if name_check(name) in work.under_way}
    due = sorted((name for name in ports.unchecked if name not in checked), key=lambda name: name not in urgent)
    chosen = sorted(due[: count_room(work)])
    for name in [*chosen, *checked]:
        del ports.unchecked[name]
    _send_names(ports, chosen)
    ports.swept_at = ports.store.now()
    return len(chosen)


def send_checks(ports: Ports, slots: Sequence[Slot]) -> int:
    """Send tasks that check the machines of these slots, each task for up to `BATCH` slots. Slots without a machine are
    skipped. Slots that sweeps check are left to them if there is no room for them (`count_room`). Return the number of
    slots.
    """
    present = sorted((slot.id, slot.state in SWEPT) for slot in slots if slot.instance_id)
    room = count_room(ports.work_watch.read([HEALTH])) if present else 0
    names = [name for name, is_swept in present if not is_swept or len(present) <= room]
    _send_names(ports, names)
    return len(names)


def _send_names(ports: Ports, names: Iterable[str]) -> None:
    unsent = iter(names)
    while batch := list(islice(unsent, BATCH)):
        ports.dispatcher.send_checks(batch)


MESSAGE_REFUSED = "message_refused"
"""Name of the event that a message was refused, because it is malformed or not allowed. Its cause is `holder`, as for
every message from a queue.
"""


def record_refused(ports: Ports) -> int:
    """Append an event for each refused message that a process has kept since the last call. Return the number of
    messages.

    Raises StoreUnavailableError if the database cannot be reached; then the messages are kept for the next call.
    """
    refused = ports.meter.take_refused()
    if not refused:
        return 0
    try:
        with ports.store.transaction() as transaction:
            transaction.append_events([_describe(each) for each in refused])
    except StoreUnavailableError:
        ports.meter.put_back_refused(refused)
        raise
    return len(refused)


def _describe(refused: RefusedMessage) -> Event:
    detail: dict[str, str | int | float | bool | list[str | float] | None] = {
        "queue": refused.queue,
        "task": refused.task,
        "message": refused.message,
        "defect": refused.defect,
        "path": refused.path,
        "expected": refused.expected,
        "got": refused.got,
    }
    if refused.more_faults:
        detail["more_faults"] = refused.more_faults
    return Event(at=refused.at, name=MESSAGE_REFUSED, cause="holder", detail=detail)
