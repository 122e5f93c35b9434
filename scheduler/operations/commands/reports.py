"""Handlers of the reports of an observer of the machines: `confirm` (a reservation runs on a slot), `absent` (it runs
nowhere) and `idle` (nothing runs on a slot).

A report overrides the stored state, unless the report is older than what is known. This rule comes from
qscheduler, the scheduler of LUCI's machines, where reports are named notices.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from scheduler.model.accounts import FREE, level_of
from scheduler.model.command_schemas import AbsentDocument, ConfirmDocument, IdleDocument
from scheduler.model.decisions import Placement
from scheduler.model.reservations import Component, Lease, Reservation, list_instances
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import ENDED, HOLDING
from scheduler.operations.commands.lease_commands import CommandRefused, find_alive
from scheduler.operations.commands.slot_commands import find_slot
from scheduler.operations.ending_leases import drop_claims, end_reservation, note_confirmed, return_to_queue
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.operations.writers.leases import LeaseWriter
from scheduler.policy.lifecycle.timers import may_restart_again

MOVED = "reservation_moved"
"""Name of the event that a leased reservation was confirmed on another slot than the slot of its lease. The phase of
the reservation does not change.
"""
CONTRADICTED = "contradicted"


class UnknownReservation(msgspec.Struct, frozen=True):
    """The result of a report about a reservation that the database does not have. `id`: the reservation that the report
    names.
    """

    id: str


def confirm(work: UnitOfWork, rules: Rules, document: ConfirmDocument) -> Reservation | UnknownReservation:
    """Record the report that a reservation runs, so that `confirm_timeout` no longer applies to it.

    A reservation that is pending, or leased on another slot, becomes leased on the reported slot. If that slot has no
    capacity for it beside the present leases, other reservations there become pending again. A reservation that the
    database does not have is not created; the slot then takes no lease until a report `idle`. The report also counts as
    a heartbeat of a static host, because its sender has contact with the host (source: Orchard).
    """
    if document.slot is not None and document.reservation not in work.reservations:
        return _confirm_stranger(work, rules, document, find_slot(work, document.slot))
    current = find_alive(work, document)
    slots = {lease.slot for lease in current.leases if lease.state != "claimed"}
    if document.slot is None and current.phase == "pending":
        raise CommandRefused("slot", f"a slot that {current.id} is leased on", document.slot, "conflict")
    if document.slot is None or document.slot in slots:
        there = slots if document.slot is None else {document.slot}
        at = _find_instant(work, document, _known_since(current))
        if at is None:
            return current
        confirmed = work.mark(msgspec.structs.replace(current, confirmed_at=at, unconfirmed=0))
        note_confirmed(work, confirmed)
        _hear_hosts(work, rules, there, at)
        return confirmed
    return _confirm_elsewhere(work, rules, document, current, find_slot(work, document.slot))


def _find_instant(
    work: UnitOfWork, document: ConfirmDocument | AbsentDocument | IdleDocument, known_since: float
) -> float | None:
    """Return the time that a report describes, in seconds since the epoch; now if the report has none. A time in the
    future counts as now. Return None if the report describes a time before `known_since`: it is then without effect.
    """
    if document.as_of is None or document.as_of >= work.now:
        # A transaction reads its time before it waits for its locks, so the stored rows may be from a later time.
        return max(work.now, known_since)
    return document.as_of if document.as_of >= known_since else None


def _known_since(current: Reservation) -> float:
    """Return the time of the newest information about a reservation: its last change of phase, or its last
    confirmation. Reports from before that time are ignored.

    A report may itself have begun the lease. The confirmation then has the time that this report gave, and so this time
    is the result.
    """
    if current.confirmed_at is None:
        return current.changed_at
    return current.confirmed_at if current.phase == "leased" else max(current.changed_at, current.confirmed_at)


def _occupied_since(work: UnitOfWork, slot: Slot) -> float:
    """Return the time of the newest information about what runs on a slot. Reports from before that time are ignored.

    It is the latest of these: a report about the slot, the begin or end of a lease there, a confirmation, the start of
    the machine.
    """
    known = [slot.noted_at, slot.idle_since, slot.since if slot.state == "ready" else None]
    for (owner, _), lease in work.leases.list_on(slot).items():
        confirmed_at = work.reservations[owner].confirmed_at
        known.append(confirmed_at)
        if confirmed_at is None or lease.kind == "elastic":  # otherwise a dated report may have begun the lease
            known.append(lease.assigned_at)
    return max((each for each in known if each is not None), default=slot.since)


def _hear_hosts(work: UnitOfWork, rules: Rules, names: Iterable[str], at: float) -> None:
    """Set `last_seen` of the slots `names` to `at` if agents report for them; a later `last_seen` stays."""
    for name in sorted(names):
        slot = work.slots.get(name)
        pool = rules.pools.get(slot.pool) if slot is not None else None
        if slot is not None and pool is not None and pool.has_agents:
            heard = at if slot.last_seen is None else max(at, slot.last_seen)
            work.mark(msgspec.structs.replace(slot, last_seen=heard))


def _confirm_elsewhere(
    work: UnitOfWork, rules: Rules, document: ConfirmDocument, current: Reservation, slot: Slot
) -> Reservation:
    """Lease a reservation, which is pending or leased on another slot, on the slot where it was reported to run. If the
    report is older than what is known, change nothing. Return the new row.

    Raises CommandRefused for a reservation with several instances, because the report does not identify the instance,
    and for a slot that is neither ready nor draining.
    """
    instances = list_instances(current.request, "essential")
    pool = rules.pools.get(slot.pool)
    if slot.state not in HOLDING or pool is None:
        raise CommandRefused("slot", "a slot that is ready or draining", f"{slot.id} is {slot.state}", "conflict")
    if len(instances) != 1:
        raise CommandRefused("slot", f"one of the slots that {current.id} is leased on", slot.id, "conflict")
    at = _find_instant(work, document, max(_known_since(current), _occupied_since(work, slot)))
    if at is None:
        return current
    given = {**pool.default_resources, **instances[0].component.resources}
    placement = Placement(instances[0].name, slot.id, slot.epoch, given)
    _make_room(work, rules, current, slot, instances[0].component, at)
    if current.phase == "pending":
        _lease(work, rules, current, placement)
    else:
        _move(work, current, work.slots[slot.id])
        _date_freed_slots(work, current.leases, at)
    confirmed = work.put(msgspec.structs.replace(work.reservations[current.id], confirmed_at=at, unconfirmed=0))
    note_confirmed(work, confirmed)
    _hear_hosts(work, rules, [slot.id], at)
    return confirmed


def _lease(work: UnitOfWork, rules: Rules, current: Reservation, placement: Placement) -> None:
    """Lease a pending reservation on the slot where a report found it. Under `queue: quota`, the lease has the level
    that the account can pay.

    Claims of the reservation on other slots are dropped.
    """
    if current.leases:
        current = drop_claims(work, current)
    level = None
    if rules.settings_of(current.request.pool, current.request.system).queue == "quota":
        account = work.account_of(current)
        level = FREE if account is None else level_of(account.balance)
    LeaseWriter(work, rules).lease(current, [placement], level)


def _move(work: UnitOfWork, current: Reservation, slot: Slot) -> None:
    """Move the essential lease of a reservation to the slot where a report found it. Level and cost stay.

    The lease gets a new fencing token, because a holder with the old token is not on this slot.
    """
    token = work.transaction.next_tokens(1)[0]
    leases = tuple(
        msgspec.structs.replace(lease, slot=slot.id, epoch=slot.epoch, token=token, cores=None)
        if lease.kind == "essential"
        else lease
        for lease in current.leases
    )
    left = [lease.slot for lease in current.leases if lease.kind == "essential"]
    work.put(msgspec.structs.replace(current, leases=leases, token=token))
    work.free_slots(current)
    work.put(msgspec.structs.replace(slot, idle_since=None, uses=slot.uses + 1))
    work.note(MOVED, {"from": left[0], "slots": [slot.id]}, reservation=current.id)


def _date_freed_slots(work: UnitOfWork, leases: Iterable[Lease], at: float) -> None:
    """Correct the begin of the idle time of slots that lost their last lease by a report: they are idle since `at`, the
    time that the report describes. `leases`: the leases that the report has ended.
    """
    for name in sorted({lease.slot for lease in leases}):
        slot = work.slots.get(name)
        if slot is not None and slot.idle_since == work.now and at < work.now:
            work.put(msgspec.structs.replace(slot, idle_since=at))


def _make_room(
    work: UnitOfWork, rules: Rules, current: Reservation, slot: Slot, component: Component, at: float
) -> None:
    """Return other reservations on a slot to the queue until `component` fits, because `current` is known to run there.

    Reservations without a confirmation are returned before confirmed ones, and among equal ones the latest lease first.
    """
    writer = LeaseWriter(work, rules)
    while others := {key: lease for key, lease in work.leases.list_on(slot).items() if key[0] != current.id}:
        if writer.has_room(slot, list(others.values()), component):
            return
        rows = {key: work.reservations[key[0]] for key in others}
        doubtful = max(
            others, key=lambda key: (rows[key].confirmed_at is None, others[key].assigned_at, rows[key].sequence)
        )
        _contradict(work, rules, rows[doubtful], at)


def _contradict(work: UnitOfWork, rules: Rules, other: Reservation, at: float) -> None:
    """Drop the leases or claims of the reservation `other`, because a report contradicts them: for example, the
    report states that another reservation runs on the slot. If `other` is pending, its claims are dropped. Else it
    returns to the queue at its earlier position.

    `at`: the time that the report describes. A reservation that returns to the queue counts as pending since `at`.
    """
    if other.phase == "pending":
        drop_claims(work, other)
        return
    work.put(msgspec.structs.replace(return_to_queue(work, rules, other, CONTRADICTED), changed_at=at))
    _date_freed_slots(work, other.leases, at)


def _confirm_stranger(work: UnitOfWork, rules: Rules, document: ConfirmDocument, slot: Slot) -> UnknownReservation:
    name = document.reservation
    if slot.state not in HOLDING:
        raise CommandRefused("slot", "a slot that is ready or draining", f"{slot.id} is {slot.state}", "conflict")
    at = _find_instant(work, document, _occupied_since(work, slot))
    if at is not None:
        for current in _list_users(work, slot):
            _contradict(work, rules, current, at)
        seen = work.slots[slot.id]
        if seen.stranger == name:
            work.mark(msgspec.structs.replace(seen, noted_at=at))
        else:
            work.put(msgspec.structs.replace(seen, stranger=name, noted_at=at))
        _hear_hosts(work, rules, [slot.id], at)
    return UnknownReservation(name)


def absent(work: UnitOfWork, rules: Rules, document: AbsentDocument) -> Reservation | UnknownReservation:
    """End a reservation and its leases, because a report states that it neither runs nor waits. Return its new row. A
    failed reservation that waits for its restart ends too. For a reservation that the database does not have, change
    nothing.
    """
    current = work.reservations.get(document.reservation)
    if current is None:
        return UnknownReservation(document.reservation)
    waits_for_restart = current.phase == "failed" and may_restart_again(current, rules)
    at = _find_instant(work, document, _known_since(current))
    if (current.phase in ENDED and not waits_for_restart) or at is None:
        return current
    ended = end_reservation(work, rules, current, "released", "absent", clean=False)
    _date_freed_slots(work, current.leases, at)
    return ended


def idle(work: UnitOfWork, rules: Rules, document: IdleDocument) -> Slot:
    """Record the report that nothing runs on a slot: end the confirmed reservations there, and let the slot take leases
    again if an unknown reservation had prevented it.

    If no lease is left on the slot, the labels in the report are stored. A lease that is not confirmed yet is kept,
    because its holder may still start.
    """
    slot = find_slot(work, document.slot)
    at = _find_instant(work, document, _occupied_since(work, slot))
    if slot.state not in HOLDING or at is None:
        return slot
    for current in _list_users(work, slot, claims=False):
        if current.confirmed_at is not None:
            end_reservation(work, rules, current, "released", "idle", clean=False)
            _date_freed_slots(work, current.leases, at)
    seen = work.slots[slot.id]
    is_free = not _list_users(work, slot, claims=False)
    labels = document.labels if is_free and document.labels is not None else seen.labels
    changed = msgspec.structs.replace(seen, labels=labels, stranger=None, noted_at=at)
    if (changed.labels, changed.stranger) == (seen.labels, seen.stranger):
        work.mark(changed)
    else:
        work.put(changed)
    _hear_hosts(work, rules, [slot.id], at)
    return work.slots[slot.id]


def _list_users(work: UnitOfWork, slot: Slot, *, claims: bool = True) -> list[Reservation]:
    """Return the reservations that have a lease on the slot, in order of submission. `claims`: also return the
    reservations that only have a claim on it.
    """
    owners = {owner for (owner, _), lease in work.leases.list_on(slot).items() if claims or lease.state != "claimed"}
    return sorted((work.reservations[owner] for owner in owners), key=lambda row: row.sequence)


REPORT_COMMANDS: dict[str, Callable[[UnitOfWork, Rules, Any], Reservation | Slot | UnknownReservation]] = {
    "confirm": confirm,
    "absent": absent,
    "idle": idle,
}
"""The verb of each report -> the function that carries it out. The reservations with leases on the reported slot must
be loaded.
"""
