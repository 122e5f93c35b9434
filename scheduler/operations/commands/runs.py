"""Handlers of the messages of hosts about commands on leases: a host takes the command of a lease on its slot, and
reports that the command has started, what it prints, and how it ended.

A handler checks the sender's slot, machine and agent before anything else. If a message cannot be carried out, the
handler raises `CommandRefused` before it has changed anything. The lease may have ended meanwhile: then a report is
recorded with the run of the command, and the reservation stays as it is.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from scheduler.model.command_schemas import (
    ExecutionDocument,
    ExitedDocument,
    OutputDocument,
    RerunDocument,
    ReservationDocument,
    TakeDocument,
)
from scheduler.model.principals import (
    Principal,
    find_account_fault,
    find_owner_fault,
    find_reader_fault,
    find_run_fault,
)
from scheduler.model.reservations import (
    LIMIT,
    Lease,
    Reservation,
    find_limit,
    is_at_limit,
    list_instances,
    usable_cores,
)
from scheduler.model.rules import Rules
from scheduler.model.runs import Execution, Outcome, RunState, describe_outcome, is_success
from scheduler.model.transitions import ENDED, HOLDING
from scheduler.model.validation import InvalidInputError, read_document
from scheduler.operations.commands.lease_commands import CommandRefused, give_back, note_alive, renew_lease
from scheduler.operations.commands.slot_commands import check_host, find_slot
from scheduler.operations.ending_leases import (
    count_restarts,
    end_failed,
    end_instances,
    end_reservation,
    note_confirmed,
    return_to_queue,
)
from scheduler.operations.ports import Ports
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.protocol.signing import RunFields, sign_run

LOST: Final = "run_lost"
"""The reason of a reservation whose command has ended without an outcome, while it has the lease."""


def take(work: UnitOfWork, _rules: Rules, document: TakeDocument) -> Reservation:
    """Give the command of a lease to the host of its slot. The first agent that asks gets it, however often it asks;
    another one is refused, so that nothing runs twice under one token. Return the reservation, which does not change.
    """
    _check_sender(work, document)
    current = _find_with_run(work, document)
    _find_lease(work, current, document)
    _find_signer(work)
    note_alive(work, document.slot)
    known = _find_execution(work, document)
    if known is not None and (known.machine, known.run) != (document.machine, document.run):
        taker = f"no other agent: one of {known.machine} took it {work.now - known.taken_at:.0f} s ago"
        raise CommandRefused("run", taker, document.run, "conflict")  # promise: one-taker
    if known is not None and known.state != "taken":
        raise CommandRefused("token", "a command that has not started", f"it has {known.state}", "conflict")
    if known is None:
        fields = {name: getattr(document, name) for name in ("reservation", "token", "component", "slot", "machine")}
        work.transaction.save_executions([Execution(**fields, run=document.run, taken_at=work.now)])
    return current


def describe_command(work: UnitOfWork, rules: Rules, document: TakeDocument, current: Reservation) -> dict[str, Any]:
    """Return the fields of the answer to `take`: the command as JSON text, and its signature for this one request.
    Everything that the host acts on is in the text.
    """
    (name, key), lease = _find_signer(work), _find_lease(work, current, document)
    stored = json.loads(work.transaction.load_commands([current.id])[current.id])
    request, slot = current.request, work.slots[lease.slot]
    settings, pool = rules.settings_of(request.pool, request.system), rules.pools.get(slot.pool)
    account = rules.accounts.get(request.account) if request.account is not None else None
    index = lease.component.rpartition(".")[2]
    command = stored | {
        "grace": settings.preemption_grace if stored["grace"] is None else stored["grace"],
        "reservation": current.id,
        "component": lease.component,
        "kind": lease.kind,
        "index": int(index) if index.isdecimal() else 0,
        "token": lease.token,
        "slot": lease.slot,
        "ttl": None if current.expires_at is None else current.expires_at - work.now,
        "deadline": find_limit(current) if account is not None and account.enforce_max_runtime else None,
        "offline_timeout": None if pool is None else pool.offline_timeout,
        "resources": lease.resources,
        "cores": usable_cores(lease),
        "peers": [_describe_peer(work, each) for each in current.leases],
    }
    text = json.dumps(command, ensure_ascii=False, separators=(",", ":"))
    fields = RunFields(
        cluster=work.transaction.identity(),
        principal=name,
        slot=document.slot,
        machine=document.machine,
        run=document.run,
        reservation=current.id,
        component=document.component,
        token=str(document.token),
        nonce=document.nonce,
        command_sha256=hashlib.sha256(text.encode()).hexdigest(),
    )
    return {"command": text, "signature": sign_run(key, fields)}


def _find_signer(work: UnitOfWork) -> tuple[str, bytes]:
    """Return the principal that signed the request, and its key."""
    sender = work.principal
    if sender is None or sender.key is None:
        raise CommandRefused("principal", "a request that its host has signed", "an unsigned request", "forbidden")
    return sender.name, sender.key


def _describe_peer(work: UnitOfWork, lease: Lease) -> dict[str, Any]:
    slot = work.slots.get(lease.slot)
    return {"component": lease.component, "slot": lease.slot, "address": None if slot is None else slot.address}


def start(work: UnitOfWork, rules: Rules, document: ExecutionDocument) -> Reservation:
    """Record that a command runs. Its holder has confirmed the lease by that. A repeated report changes nothing."""
    _check_sender(work, document)
    current, known = _find_taken(work, document)
    if known.state == "taken":
        work.transaction.save_executions([msgspec.structs.replace(known, state="started", started_at=work.now)])
    if _find_present(work, current, document) is None or known.state == "ended":
        return current
    if current.run is not None and current.run.state == "waiting":
        current = work.change(current, run=RunState("running"))
    return renew_lease(work, rules, current)


def note_output(work: UnitOfWork, _rules: Rules, document: OutputDocument) -> Reservation:
    """Store the end of the output of a command that runs. An older report than the last one changes nothing."""
    _check_sender(work, document)
    current, known = _find_taken(work, document)
    if known.state != "ended" and document.bytes >= known.bytes:
        work.transaction.save_executions([msgspec.structs.replace(known, tail=document.tail, bytes=document.bytes)])
    return current


def finish(work: UnitOfWork, rules: Rules, document: ExitedDocument) -> Reservation:
    """Record how a command has ended on one lease, and end the lease or the reservation as its outcome demands. A
    second report about the same lease changes nothing.
    """
    _check_sender(work, document)
    current, known = _find_taken(work, document)
    if known.state == "ended":
        return current
    # The host knows that the lease was taken back, and the row why.
    is_late = is_at_limit(current) or (current.reason == LIMIT and current.token == document.token)
    why = "limit" if document.why == "revoked" and is_late else document.why
    outcome = Outcome(why, document.exit_code, document.signal)
    changes: dict[str, Any] = {"error": document.error, **outcome._asdict()}
    if document.bytes >= known.bytes:
        changes |= {"tail": document.tail, "bytes": document.bytes}
    work.transaction.save_executions([msgspec.structs.replace(known, state="ended", ended_at=work.now, **changes)])
    work.outcomes.append(outcome)
    lease = _find_present(work, current, document)
    if lease is not None:
        return _settle(work, rules, current, lease, outcome)
    if current.token == document.token and current.run is not None and current.run.why is None:
        # The reservation has ended before, for example by `cancel`: its row gets the outcome.
        return work.change(current, run=_describe(current.run.state, outcome)) if current.phase in ENDED else current
    return current


def _describe(state: Any, outcome: Outcome) -> RunState:
    return RunState(state, outcome.exit_code, outcome.signal, outcome.why)


def _settle(work: UnitOfWork, rules: Rules, current: Reservation, lease: Lease, outcome: Outcome) -> Reservation:
    """Change the reservation after a command has ended on `lease`, which it still holds."""
    on_exit = json.loads(work.transaction.load_commands([current.id])[current.id])["on_exit"]
    if outcome.why in {"revoked", "limit"} and lease.state == "revoking":
        if lease.kind == "elastic":
            return give_back(work, rules, current, [lease])
        # The leases of a gang are given back when the last one of its commands has ended: until then the others use
        # their slots. A reservation at its limit has ended then.
        if current.phase != "revoking" or any(each.state != "ended" for each in _list_present(work, current)):
            return current
        if is_at_limit(current):
            return end_reservation(work, rules, current, "expired", LIMIT, run=_describe("ended", outcome))
        return return_to_queue(work, rules, current, current.revoke_reason or "surrendered")
    if outcome.why in {"lost", "fenced", "revoked"}:
        # A host that has lost the contact, or ended a command too early, still has the lease: nothing would run on it.
        # A command that ended without an outcome is an interruption: `on_interruption` decides, not the restart
        # policy.
        if lease.kind == "elastic":
            return end_instances(work, rules, current, [lease], LOST, clean=False)
        if current.request.on_interruption == "requeue":
            return return_to_queue(work, rules, current, LOST, interruptions=current.interruptions + 1)
        return end_reservation(
            work, rules, current, "failed", LOST, clean=False, failed_at=work.now, run=_describe("ended", outcome)
        )
    note_confirmed(work, current)
    if is_success(outcome, on_exit):
        return _succeed(work, rules, current, lease, outcome)
    if lease.kind == "elastic":
        died = [lease.component] if lease.state == "held" else []
        current = count_restarts(current, died) if died else current
        return end_instances(work, rules, current, [lease], outcome.why, clean=False)
    return end_failed(
        work, rules, current, outcome.why, [lease.component], describe_outcome(outcome), run=_describe("ended", outcome)
    )


def _succeed(work: UnitOfWork, rules: Rules, current: Reservation, lease: Lease, outcome: Outcome) -> Reservation:
    """Release the reservation if all its essential instances have done their work. An elastic instance that has done
    its work is given back and not granted again.
    """
    if lease.kind == "elastic":
        return give_back(work, rules, current, [lease], lease.component)
    runs = {each.component: each for each in _list_present(work, current)}
    wanted = [each.name for each in list_instances(current.request, "essential")]
    if any((each := runs.get(name)) is None or each.state != "ended" for name in wanted):
        first = current.run is not None and current.run.why is None
        return work.change(current, run=_describe("running", outcome)) if first else current
    first_run = current.run if current.run is not None and current.run.why is not None else _describe("ended", outcome)
    run = msgspec.structs.replace(first_run, state="ended")
    return end_reservation(work, rules, current, "released", None, run=run, details=describe_outcome(outcome))


def _check_sender(work: UnitOfWork, document: ExecutionDocument) -> None:
    check_host(find_slot(work, document.slot), document.machine, document.run)


def _find_with_run(work: UnitOfWork, document: ExecutionDocument) -> Reservation:
    current = work.reservations.get(document.reservation)
    if current is None or current.run is None:
        wanted = f"a reservation with a command on {document.slot}"
        raise CommandRefused("reservation", wanted, document.reservation, "unknown")
    return current


def _find_lease(work: UnitOfWork, current: Reservation, document: ExecutionDocument) -> Lease:
    """Return the lease whose command a host may begin: it holds the lease, with this token, in the present epoch of its
    slot. Raises CommandRefused if it does not. A host gets the same fault for all reservations that it has no lease of.
    """
    here = [each for each in current.leases if each.slot == document.slot and each.state != "claimed"]
    if not here:
        wanted = f"a reservation with a command on {document.slot}"
        raise CommandRefused("reservation", wanted, document.reservation, "unknown")
    lease = next((each for each in here if each.component == document.component), None)
    if lease is None:
        raise CommandRefused("component", f"an instance of {current.id} on {document.slot}", document.component)
    if lease.token != document.token:  # promise: command-of-lease
        raise CommandRefused("token", "the token of this lease", document.token, "conflict")
    slot = work.slots[document.slot]
    if lease.epoch != slot.epoch or slot.state not in HOLDING or lease.state != "held" or current.phase != "leased":
        raise CommandRefused("reservation", "a lease that is held", f"{current.id} is {current.phase}", "conflict")
    return lease


def _find_present(work: UnitOfWork, current: Reservation, document: ExecutionDocument) -> Lease | None:
    """Return the lease of a report if the reservation still has it; else None."""
    slot = work.slots[document.slot]
    for each in current.leases if current.phase in {"leased", "revoking"} else ():
        named = each.component, each.token, each.slot, each.epoch
        if named == (document.component, document.token, document.slot, slot.epoch) and each.state != "claimed":
            return each
    return None


def _list_present(work: UnitOfWork, current: Reservation) -> list[Execution]:
    """Return the runs of the command on the essential leases that the reservation has now."""
    runs = work.transaction.load_executions([current.id])
    names = {each.component for each in current.leases if each.kind == "essential"}
    return [each for each in runs if each.token == current.token and each.component in names]


def _find_execution(work: UnitOfWork, document: ExecutionDocument) -> Execution | None:
    key = document.reservation, document.token, document.component
    runs: Iterable[Execution] = work.transaction.load_executions([document.reservation])
    return next((each for each in runs if each.key == key), None)


def _find_taken(work: UnitOfWork, document: ExecutionDocument) -> tuple[Reservation, Execution]:
    """Return the reservation and the run of its command that a report is about. Raises CommandRefused if the machine of
    the sender did not take the command. A new agent of the machine may report about a command of its predecessor.
    """
    current = _find_with_run(work, document)
    known = _find_execution(work, document)
    if known is None or (known.slot, known.machine) != (document.slot, document.machine):
        raise CommandRefused("token", f"a command that {document.slot} has taken", document.token, "unknown")
    return current, known


def describe_run(ports: Ports, name: str, principal: Principal | None) -> dict[str, Any]:
    """Return the command of a reservation, its state, and its runs with the end of their output, for the owner of the
    reservation or an operator. The values of the environment are hidden. Raises CommandRefused for another sender and
    for a reservation without a command.
    """
    row, command = _read_command(ports, name, principal)
    return {
        "reservation": name,
        "phase": row.phase,
        "reason": row.reason,
        **msgspec.to_builtins(row.run),
        "run": command | {"env": dict.fromkeys(command["env"], HIDDEN)},
        "executions": msgspec.to_builtins(ports.store.find_executions(name)),
    }


def copy_submission(ports: Ports, document: RerunDocument, principal: Principal | None) -> ReservationDocument:
    """Return the submission of a new reservation that asks for the same as an earlier one, with the same command. The
    sender has to be able to read the earlier command, and needs the same rights as to submit it itself. Raises
    CommandRefused.
    """
    row, command = _read_command(ports, document.reservation, principal)
    forbidden = find_account_fault(principal, row.request.account)
    forbidden = forbidden or find_run_fault(principal, trusts_unsigned=ports.is_own_stack)  # promise: right-to-rerun
    if forbidden is not None:
        raise CommandRefused.of(forbidden)
    fields = {name: value for name, value in msgspec.to_builtins(row.request).items() if value is not None}
    try:
        return read_document(
            ReservationDocument, {**fields, "id": document.id, "priority": row.priority, "run": command}
        )
    except InvalidInputError as error:
        # For example, limits of fields are lower than at the first submission.
        raise CommandRefused.of(error.faults[0]) from None


def _read_command(ports: Ports, name: str, principal: Principal | None) -> tuple[Reservation, dict[str, Any]]:
    """Return a reservation and its command. Raises CommandRefused if the sender may not read it or there is none."""
    unsigned = find_reader_fault(principal, trusts_unsigned=ports.is_own_stack)
    if unsigned is not None:
        raise CommandRefused.of(unsigned)
    row = next(iter(ports.store.find_reservations(ids=[name])), None)
    if (foreign := find_owner_fault(principal, name, row)) is not None:
        raise CommandRefused.of(foreign)
    text = None if row is None or row.run is None else ports.store.find_command(name)
    if row is None or text is None:
        raise CommandRefused("reservation", "a reservation with a command", name, "unknown")
    return row, json.loads(text)


HIDDEN: Final = "***"
"""What an answer shows in place of the value of a variable of the environment."""


RUN_COMMANDS: dict[str, Callable[[UnitOfWork, Rules, Any], Reservation]] = {
    "take": take,
    "started": start,
    "output": note_output,
    "exited": finish,
}
"""The verb of each message of a host about a command -> the function that carries it out."""
