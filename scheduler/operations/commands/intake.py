"""Intake of requests: each request is validated, committed, published and answered, and a tick is requested.

The id of a request and its answer are stored in the same transaction as the change. A repeated request therefore
changes nothing: its sender gets the stored answer, and the rows that the answer names are published again. See
docs/reference/consistency.md, "Requests".
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, cast

from scheduler.model.accounts import Account
from scheduler.model.command_schemas import (
    SCHEMAS,
    ConfirmDocument,
    ExecutionDocument,
    HostDocument,
    PriorityDocument,
    RegisterDocument,
    RerunDocument,
    ReservationDocument,
    ReservationReader,
    TakeDocument,
)
from scheduler.model.principals import (
    Principal,
    find_account_fault,
    find_host_fault,
    find_owner_fault,
    find_place_fault,
    find_renewal_fault,
    find_report_fault,
    find_role_fault,
    find_run_fault,
)
from scheduler.model.reservations import Reservation, usable_cores
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import Cause
from scheduler.model.validation import (
    MOST_FAULTS,
    MOST_NAME,
    Document,
    Fault,
    InvalidInputError,
    fault,
    is_whole_text,
    read_document,
    show,
    suggest,
)
from scheduler.model.view import Row
from scheduler.model.waits import Reason
from scheduler.operations.change_set import ChangeSet
from scheduler.operations.commands.accounts import ACCOUNT_COMMANDS
from scheduler.operations.commands.lease_commands import LEASE_COMMANDS, CommandRefused
from scheduler.operations.commands.reports import REPORT_COMMANDS, UnknownReservation
from scheduler.operations.commands.runs import RUN_COMMANDS, copy_submission, describe_command
from scheduler.operations.commands.slot_commands import HOST_COMMANDS, SLOT_COMMANDS
from scheduler.operations.commands.submit import (
    Answer,
    Item,
    Submission,
    add_notes,
    describe_answer,
    foresee,
    refuse,
    refuse_item,
    refuse_unservable,
    submit,
)
from scheduler.operations.ports import Ports, announce
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.ports import Meter, StaleWriteError, StoredAnswer, StoredRules
from scheduler.protocol.verbs import HOST_VERBS, OPERATOR_VERBS, VERBS

COMMANDS: Final[dict[str, Callable[[UnitOfWork, Rules, Any], Reservation | Slot | Account | UnknownReservation]]] = {
    **LEASE_COMMANDS,
    **SLOT_COMMANDS,
    **REPORT_COMMANDS,
    **RUN_COMMANDS,
    **HOST_COMMANDS,
    **ACCOUNT_COMMANDS,
}
"""The verb of each command except `submit` -> the function that carries out a document with this verb and returns the
changed row.
"""
MOST_ITEMS = 10_000
"""Maximum number of documents in one request."""
MOST_LIST_FAULTS = 1000
"""About how many faults the answer to a list of documents contains at most. At least one fault of each refused document
is returned.
"""
TRUSTED = frozenset({"renew", "confirm"})
"""The verbs whose answer contains `ttl` and `cores`.

`ttl`: for how many seconds the lease is certainly valid; None if it does not expire. The holder counts these seconds
from the sending of the command, so the lease ends for the holder before it ends for the scheduler. `cores`: by
component, the number of CPUs of the slot that the component may use.
"""


@dataclass(frozen=True)
class Request:
    """One request after the check of its sender's role and of its documents. Its rows are not loaded yet."""

    id: str
    verb: str
    items: Sequence[Item]
    is_single: bool
    """Whether the request is one document, and not a list of documents under `items`."""
    cause: Cause
    principal: Principal | None
    """The verified sender; None: the request was not signed."""
    host: str | None = None
    """The host that sent the request, by the unproven header of its message; None: it is unknown."""

    @property
    def sender(self) -> str | None:
        """Return the name of the principal that sent the request; None: it was not signed."""
        return None if self.principal is None else self.principal.name


def accept(
    ports: Ports,
    verb: str,
    document: object,
    *,
    operator: bool = False,
    principal: Principal | None = None,
    host: str | None = None,
) -> Answer:
    """Carry out one request (one document, or a list of documents under `items`) and return its answer.

    Invalid input is reported in the answer and never raised: `{"ok": false, "errors": [{"index", "path", "expected",
    "got"}]}`. The answer to `items` has `results` by index; valid documents are accepted and invalid ones refused.

    `operator`: the request comes from an operator's tool on the host and needs no signature. `principal`: the verified
    sender, or None if the message was not signed. A repeated request gets the stored answer only if the same principal
    sends it. `host`: the host that sent the message; None: it is unknown.
    """
    request = check_request(
        verb, document, operator=operator, principal=principal, host=host, trusts_unsigned=ports.is_own_stack
    )
    answer = execute(ports, [request])[0] if isinstance(request, Request) else request
    count_results(ports.meter, principal, answer)
    return answer


def _copy_submission(ports: Ports, item: Item, principal: Principal | None) -> Item:
    if not isinstance(item, RerunDocument):
        return item
    try:
        return copy_submission(ports, item, principal)
    except CommandRefused as refusal:
        return InvalidInputError([refusal.fault])


def count_results(meter: Meter, principal: Principal | None, answer: Answer) -> None:
    """Count the accepted and refused documents of an answered request in the metrics by sender (None: unsigned)."""
    # A sender with an unknown name is refused before this, so there are only as many labels as principals.
    results = answer.get("results", [answer])
    accepted = sum(bool(each["ok"]) for each in results)
    role, name = ("unsigned", "") if principal is None else (principal.role, principal.name)
    for result, number in (("accepted", accepted), ("refused", len(results) - accepted)):
        if number:
            meter.count("leasehold_requests_total", {"role": role, "principal": name, "result": result}, number)


def check_request(
    verb: str,
    document: object,
    *,
    operator: bool = False,
    principal: Principal | None = None,
    host: str | None = None,
    trusts_unsigned: bool = False,
) -> Request | Answer:
    """Check the verb, the documents and the role of a request's sender (`principal`; None: unsigned), without the
    database. Return the checked request, or the answer that refuses it. `trusts_unsigned`: see `find_run_fault`.
    """
    forbidden = find_role_fault(principal, verb) if verb in SCHEMAS else None
    if forbidden is not None:
        return refuse([forbidden])
    try:
        request, documents = _open_envelope(verb, document)
    except InvalidInputError as error:
        return refuse(error.faults)
    # In a long list, only some faults of each document are reported: finding faults takes time, and the answer is
    # stored.
    most = max(1, min(MOST_FAULTS, MOST_LIST_FAULTS // len(documents)))
    is_single = "items" not in cast("Mapping[str, object]", document)
    reader = ReservationReader().read if verb == "submit" and not is_single else partial(read_document, SCHEMAS[verb])
    items = [_read(reader, each, most, principal, trusts_unsigned=trusts_unsigned) for each in documents]
    if not any(isinstance(item, Document) for item in items):
        # If every document is invalid, each repetition of the request gets the same answer, so it is not stored.
        return _join([refuse_item(item, index) for index, item in enumerate(items)], single=is_single)
    is_operator = operator or verb in OPERATOR_VERBS or (principal is not None and principal.role == "operator")
    cause: Cause = "cloud" if verb in HOST_VERBS else "operator" if is_operator else "holder"
    return Request(request, verb, items, is_single, cause, principal, host)


def execute(ports: Ports, requests: Sequence[Request]) -> list[Answer]:
    """Carry out requests in one transaction, in this order, and return their answers. Changed rows are published
    afterwards.

    Either all requests are submissions or none is, because a submission first locks the counter of new reservations. No
    two requests may have the same id or name the same row, so that each change of a row has one sender. Raises
    StaleWriteError if the rules change twice meanwhile.
    """
    # The answer to the first copy of a request is found by its id, whatever became of the earlier reservation.
    requests = [
        replace(each, verb="submit", items=[_copy_submission(ports, item, each.principal) for item in each.items])
        if each.verb == "rerun"
        else each
        for each in requests
    ]
    # The transaction compares the version of the rules, so they need no statement of their own before it.
    kept = ports.rules_cache
    if kept is not None:
        with suppress(_RulesChangedError):
            return _execute(ports, requests, kept)
    return _execute(ports, requests, ports.stored_rules())


class _RulesChangedError(StaleWriteError):
    """Raised in a transaction if the rules in force are not those with which its requests were checked. The requests
    are then checked again.
    """


def _execute(ports: Ports, requests: Sequence[Request], stored: StoredRules) -> list[Answer]:
    """Carry out requests that were checked under the rules `stored`, in one transaction. Return their answers. Raises
    _RulesChangedError if other rules are in force.
    """
    rules = stored.rules
    misfits: Mapping[str, Reason] = {}
    newcomers: Mapping[str, Mapping[str, Any]] = {}
    if is_submission := requests[0].verb == "submit":
        requests = [replace(each, items=refuse_unservable(each.items, rules)) for each in requests]
        newcomers = ports.newcomers.list_known(ports.forecasts)
        misfits = foresee(ports.store, ports.known_slots, rules, [item for each in requests for item in each.items])
    heard = _hear_registered(ports, requests) if requests[0].verb == "register" else {}
    with ports.store.transaction() as transaction:
        if transaction.rules_version() != stored.version:
            raise _RulesChangedError("the rules changed while a request was tested")
        keeping = [each.id for each in requests if VERBS[each.verb].keeps_answer]
        known = transaction.find_answers(keeping) if keeping else {}  # promise: first-answer-again
        new = [each for each in requests if each.id not in known]
        answers: dict[str, Answer] = {}
        change_set: ChangeSet | None = None
        if new:
            if is_submission:
                submissions = [Submission(each.items, each.cause, each.principal, each.host) for each in new]
                results, change_set = submit(transaction, rules, submissions, misfits, ports.admission, newcomers)
            else:
                work = UnitOfWork(transaction, new[0].cause, principal=new[0].principal)
                work.heard = heard
                results, change_set = _command_all(work, rules, new)
            answers = {  # promise: list-by-index
                each.id: _join(found, single=each.is_single) for each, found in zip(new, results, strict=True)
            }
            now = transaction.now()
            kept = [each for each in new if VERBS[each.verb].keeps_answer]
            if kept:
                transaction.save_answers([StoredAnswer(each.id, now, answers[each.id], each.sender) for each in kept])
    if change_set is not None:
        if is_submission:
            ports.admission.note(change_set.rows)
        # A host that registers may have been silent, so a tick runs even if only its `last_seen` changed.
        announce(ports, change_set, kick=change_set.is_change or any(each.verb == "register" for each in new))
        # A check makes a launched machine ready whose agent has registered.
        if booted := [
            each.id
            for each in change_set.slots.values()
            if each.state in {"booting", "binding"} and each.machine is not None
        ]:
            ports.dispatcher.send_checks(booted)
    repeated = [each for each in requests if each.id in known and known[each.id].principal == each.sender]
    _repeat(ports, [known[each.id].answer for each in repeated])  # promise: repeat-answered-again
    answers |= {each.id: _answer_again(each, known[each.id]) for each in requests if each.id in known}
    return [answers[each.id] for each in requests]


def _hear_registered(ports: Ports, requests: Sequence[Request]) -> dict[str, float]:
    """Return the time of the last heartbeat of each slot whose host registers by another run of its agent than the slot
    has. It is read before the transaction, which must not wait for Redis.
    """
    items = [item for each in requests for item in each.items if isinstance(item, RegisterDocument)]
    wanted = {item.slot: item.run for item in items}
    known = [slot for slot in ports.store.find_slots(ids=sorted(wanted)) if slot.run != wanted[slot.id]]
    if not known:
        return {}
    hosts = {slot.id: slot.machine for slot in known if slot.machine is not None}
    heard = ports.heartbeats.listen(hosts, {slot.id: slot.run for slot in known if slot.run is not None})
    now = ports.store.now()
    return {name: now - age for name, age in heard.ages.items()}


def _answer_again(request: Request, stored: StoredAnswer) -> Answer:
    """Return the stored answer to a repeated request, or a refusal if another principal has used its id."""
    if stored.principal != request.sender:  # promise: answer-of-sender-only
        return refuse([Fault("request", "an id that no other principal has used", show(request.id), "conflict")])
    return stored.answer


def _command_all(work: UnitOfWork, rules: Rules, requests: Sequence[Request]) -> tuple[list[list[Answer]], ChangeSet]:
    """Carry out the commands of all these requests. Return two things: for each request the answers to its documents,
    and the changes.
    """
    load_rows(work, rules, [(r.verb, item) for r in requests for item in r.items if isinstance(item, Document)])
    results = []
    for each in requests:
        work.cause, work.principal = each.cause, each.principal
        results.append([_answer(work, rules, each.verb, item, index) for index, item in enumerate(each.items)])
    return results, work.flush()


def _join(results: list[Answer], *, single: bool) -> Answer:
    return results[0] if single else {"ok": all(each["ok"] for each in results), "results": results}


def _repeat(ports: Ports, answers: Sequence[Answer]) -> None:
    """Publish the current rows of the reservations, slots and accounts that these stored answers name, and request a
    tick. Called for requests that arrived again: the process that carried out the first copy of a request may have
    ended after its commit and before it published the rows.
    """
    if not answers:
        return
    results = [result for answer in answers for result in answer.get("results", [answer])]
    names = [each["reservation"] for each in results if each.get("reservation")]
    slots = [each["slot"] for each in results if each.get("slot")]
    rows: list[Row] = [*ports.store.find_reservations(ids=names, limit=len(names))] if names else []
    rows += ports.store.find_slots(ids=slots) if slots else []
    accounts = {each["account"] for each in results if each.get("account")}
    rows += [row for row in ports.store.find_accounts() if row.id in accounts] if accounts else []
    announce(ports, ChangeSet(rows=rows), kick=True)


def _open_envelope(verb: str, document: object) -> tuple[str, list[object]]:
    """Return the id of a request and its documents: the list under `items`, or the request itself as the only one.
    Raises InvalidInputError if the request is malformed.
    """
    if verb not in SCHEMAS:
        raise InvalidInputError([Fault("verb", f"a known verb{suggest(verb, SCHEMAS)}", show(verb))])
    if not isinstance(document, Mapping):
        raise InvalidInputError([Fault(".", "a table", show(document))])
    request = document.get("request")
    if not is_whole_text(request, MOST_NAME):
        raise fault("request", f"an id of 1 to {MOST_NAME} whole characters", request)
    content = {name: value for name, value in document.items() if name not in {"request", "reply_to", "items"}}
    if "items" not in document:
        return request, [content]
    items = document["items"]
    if not isinstance(items, list) or not 0 < len(items) <= MOST_ITEMS:
        # A table in place of the list may have a command.
        got = (
            f"{len(items)} of them"
            if isinstance(items, list)
            else "a table"
            if isinstance(items, dict)
            else show(items)
        )
        raise InvalidInputError([Fault("items", f"a list of 1 to {MOST_ITEMS} documents", got)])
    if content:
        name = next(iter(content))
        hidden = name in {"key", "key_hash", "run"}
        raise fault(name, "no other field beside items", "***" if hidden else content[name])
    return request, items


def _read(
    reader: Callable[..., Document], item: object, most: int, principal: Principal | None, *, trusts_unsigned: bool
) -> Item:
    """Check one document of a request with the `reader` of its verb. Return the document, or an error with at most
    `most` faults.

    A producer may submit reservations for its own accounts only, and a command only with the right `run`; otherwise
    the error is returned. `trusts_unsigned`: see `find_run_fault`.
    """
    try:
        document = reader(item, most=most)
    except InvalidInputError as error:
        return error
    if not isinstance(document, ReservationDocument):
        return document
    found = find_account_fault(principal, document.account)
    if found is None and document.run is not None:
        found = find_run_fault(principal, trusts_unsigned=trusts_unsigned)  # promise: right-to-run
    return document if found is None else InvalidInputError([found])


def load_rows(work: UnitOfWork, rules: Rules, commands: Sequence[tuple[str, Document]]) -> None:
    """Lock and read the rows that these documents name. `commands`: pairs of a verb and a document. Call it once in a
    transaction.
    """
    named, verbs = [document for _, document in commands], {verb for verb, _ in commands}
    if "forget_account" in verbs:
        work.count_submitted()
    is_report = not verbs.isdisjoint(REPORT_COMMANDS)
    work.load(
        reservations=_list_named(named, "reservation"),
        slots=_list_named(named, "slot"),
        accounts=_list_named(named, "account"),
        holders=is_report,
        payers=rules.has_quota and is_report,
    )


def _list_named(documents: Iterable[Document], field: str) -> list[str]:
    return [name for document in documents if (name := getattr(document, field, None))]


def carry_out(
    work: UnitOfWork, rules: Rules, verb: str, document: Document
) -> Reservation | Slot | Account | UnknownReservation:
    """Carry out one document whose rows are loaded, and return the row that it changed.

    Raises CommandRefused if the sender lacks the right, or if the command cannot be carried out; then nothing was
    changed.
    """
    _check_rights(work, document)  # promise: rights-of-principal
    return COMMANDS[verb](work, rules, document)


def _check_rights(work: UnitOfWork, document: Document) -> None:
    """Raise CommandRefused if the sender may not act on the reservation or slot that the document names. The sender's
    role was checked before.
    """
    principal, name = work.principal, getattr(document, "reservation", None)
    if isinstance(document, ExecutionDocument):
        _refuse_for(find_report_fault(principal, document.slot, document.machine))
        return
    if principal is None:
        return
    if name is not None:
        current = work.reservations.get(name)
        if principal.role == "host":
            _refuse_for(find_renewal_fault(principal, name, current))
            return
        _refuse_for(find_owner_fault(principal, name, current))
        if isinstance(document, ConfirmDocument) and current is not None:
            _refuse_for(find_place_fault(principal, current, document.slot))
    elif isinstance(document, HostDocument | RegisterDocument):
        _refuse_for(find_host_fault(principal, document.slot, document.machine))


def check_question(
    principal: Principal | None, verb: str, *, slot: str | None = None, machine: str | None = None
) -> None:
    """Raise CommandRefused unless this sender may send this question (a request that only reads). `slot`: the slot that
    the question is about, and `machine` that of its host; None: it is about no single slot.
    """
    _refuse_for(find_role_fault(principal, verb))
    if slot is not None:
        _refuse_for(find_host_fault(principal, slot, machine or ""))


def _refuse_for(fault: Fault | None) -> None:
    """Raise CommandRefused for a fault. If `fault` is None, return."""
    if fault is not None:
        raise CommandRefused.of(fault)


def _answer(work: UnitOfWork, rules: Rules, verb: str, item: Item, index: int) -> Answer:
    if isinstance(item, InvalidInputError):
        return refuse(item.faults, index)
    try:
        row = carry_out(work, rules, verb, item)
    except CommandRefused as refusal:
        return refuse([refusal.fault], index)
    answer = describe_answer(row)
    if isinstance(item, TakeDocument) and isinstance(row, Reservation):
        answer |= describe_command(work, rules, item, row)
    if verb in TRUSTED and isinstance(row, Reservation):
        answer["ttl"] = None if row.expires_at is None else row.expires_at - work.now
        cores = {lease.component: usable for lease in row.leases if (usable := usable_cores(lease)) is not None}
        answer |= {"cores": cores} if cores else {}
    if isinstance(item, PriorityDocument) and isinstance(row, Reservation):
        add_notes(
            answer, rules.list_ignored(row.request.pool, row.request.system, priority=item.priority, account=None)
        )
    if verb == "register" and isinstance(row, Slot):
        answer["offline_timeout"] = rules.pools[row.pool].offline_timeout
        answer["heartbeat"] = row.heartbeat
        answer |= {} if row.run is None else {"run": row.run}
    return answer
