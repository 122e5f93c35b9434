"""Intake of requests: each request is validated, committed, published and answered, and a tick is requested.

The id of a request and its answer are stored in the same transaction as the change. A repeated request therefore
changes nothing: its sender gets the stored answer, and the rows are published again. See docs/reference/consistency.md,
"Requests".
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

from scheduler.model.accounts import Account
from scheduler.model.command_schemas import (
    HOST_VERBS,
    OPERATOR_VERBS,
    SCHEMAS,
    ConfirmDocument,
    HostDocument,
    PriorityDocument,
    RegisterDocument,
    ReservationDocument,
)
from scheduler.model.principals import Principal
from scheduler.model.reservations import Reservation, usable_cores
from scheduler.model.rights import (
    find_account_fault,
    find_host_fault,
    find_owner_fault,
    find_place_fault,
    find_role_fault,
)
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
from scheduler.operations.commands.accounts import ACCOUNT_COMMANDS
from scheduler.operations.commands.hosts import HOST_COMMANDS
from scheduler.operations.commands.lease_commands import LEASE_COMMANDS, CommandRefused, raise_first
from scheduler.operations.commands.reports import REPORT_COMMANDS, Nobody
from scheduler.operations.commands.submit import (
    Answer,
    Item,
    add_notes,
    describe_answer,
    foresee,
    note_ignored,
    refuse,
    refuse_item,
    refuse_unservable,
    submit,
)
from scheduler.operations.ports import Ports, announce
from scheduler.operations.unit_of_work import ChangeSet, UnitOfWork
from scheduler.ports import StoredAnswer

COMMANDS: Final[dict[str, Callable[[UnitOfWork, Rules, Any], Reservation | Slot | Account | Nobody]]] = {
    **LEASE_COMMANDS,
    **REPORT_COMMANDS,
    **HOST_COMMANDS,
    **ACCOUNT_COMMANDS,
}
"""By verb: the function that carries out a document with this verb and returns the changed row. `submit` is not
included.
"""
MOST_ITEMS = 10_000
"""Maximum number of documents in one request."""
MOST_LIST_FAULTS = 1000
"""Approximate maximum number of faults in the answer to a list of documents. Each refused document has at least one
fault.
"""
TRUSTED = frozenset({"renew", "confirm"})
"""Verbs whose answer contains `ttl` and `cores`.

`ttl` is the number of seconds for which the holder has the lease at least, or None if the lease does not expire. The
holder counts these seconds from the sending of the command, so the holder's deadline is before the scheduler's. `cores`
has, by component, the number of CPUs of the slot that the component may use.
"""


def accept(
    ports: Ports, verb: str, document: object, *, operator: bool = False, principal: Principal | None = None
) -> Answer:
    """Carry out one request (one document, or a list of documents under `items`) and return its answer.

    Invalid input is reported in the answer and never raised: `{"ok": false, "errors": [{"index", "path", "expected",
    "got"}]}`. The answer to `items` has `results` by index; valid documents are accepted and invalid ones refused.

    `principal` is the verified sender, or None if the message was not signed. A repeated request gets the stored answer
    only if the same principal sends it.
    """
    answer = _accept(ports, verb, document, operator=operator, principal=principal)
    # A sender with an unknown name is refused before this, so there are only as many labels as principals.
    results = answer.get("results", [answer])
    accepted = sum(bool(each["ok"]) for each in results)
    role, name = ("unsigned", "") if principal is None else (principal.role, principal.name)
    for result, number in (("accepted", accepted), ("refused", len(results) - accepted)):
        if number:
            labels = {"role": role, "principal": name, "result": result}
            ports.meter.count("leasehold_requests_total", labels, number)
    return answer


def _accept(ports: Ports, verb: str, document: object, *, operator: bool, principal: Principal | None) -> Answer:
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
    items = [_read(verb, each, most, principal) for each in documents]
    is_single = "items" not in cast("Mapping[str, object]", document)
    if not any(isinstance(item, Document) for item in items):
        # If every document is invalid, each repetition of the request gets the same answer, so it is not stored.
        return _join([refuse_item(item, index) for index, item in enumerate(items)], single=is_single)
    rules = ports.rules()
    misfits: Mapping[str, Reason] = {}
    if verb == "submit":
        items = [refuse_unservable(item, rules) for item in items]
        misfits = foresee(ports.store, ports.known_slots, rules, items)
    is_operator = operator or verb in OPERATOR_VERBS or (principal is not None and principal.role == "operator")
    sender = None if principal is None else principal.name
    with ports.store.transaction() as transaction:
        known = transaction.find_answers([request]).get(request)  # promise: first-answer-again
        if known is not None and known.principal != sender:  # promise: answer-of-sender-only
            return refuse([Fault("request", "an id that no other principal has used", show(request))])
        if known is not None:
            answer, change_set = known.answer, None
        else:
            cause: Cause = "cloud" if verb in HOST_VERBS else "operator" if is_operator else "holder"
            work = UnitOfWork(transaction, cause, principal=principal)
            if verb == "submit":
                results, change_set = submit(work, rules, items, misfits, ports.admission)
            else:
                load_rows(work, rules, verb, [item for item in items if isinstance(item, Document)])
                results = [_answer(work, rules, verb, item, index) for index, item in enumerate(items)]
                change_set = work.flush()
            answer = _join(results, single=is_single)  # promise: list-by-index
            transaction.save_answers([StoredAnswer(request, work.now, answer, sender)])
    if change_set is None:
        _repeat(ports, answer)  # promise: repeat-answered-again
    else:
        if verb == "submit":
            ports.admission.note(change_set.rows)
        # A host that registers may have been silent, so a tick runs even if only its `last_seen` changed.
        announce(ports, change_set, kick=change_set.is_change or verb == "register")
    return answer


def _join(results: list[Answer], *, single: bool) -> Answer:
    return results[0] if single else {"ok": all(each["ok"] for each in results), "results": results}


def _repeat(ports: Ports, answer: Answer) -> None:
    """Publish the rows that a stored answer names, and request a tick, because the same request arrived again.

    The process that carried out the request first may have ended right after its commit.
    """
    results = answer.get("results", [answer])
    names = [each["reservation"] for each in results if each.get("reservation")]
    slots = [each["slot"] for each in results if each.get("slot")]
    rows: list[Row] = [*ports.store.find_reservations(ids=names, limit=len(names))] if names else []
    rows += ports.store.find_slots(ids=slots) if slots else []
    accounts = {each["account"] for each in results if each.get("account")}
    rows += [row for row in ports.store.find_accounts() if row.id in accounts] if accounts else []
    announce(ports, ChangeSet(rows=rows), kick=True)


def _open_envelope(verb: str, document: object) -> tuple[str, list[object]]:
    """Return the id of a request and its documents: those under `items`, or its only one. Raises InvalidInputError if
    the request is malformed.
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
        got = f"{len(items)} of them" if isinstance(items, list) else show(items)
        raise InvalidInputError([Fault("items", f"a list of 1 to {MOST_ITEMS} documents", got)])
    if content:
        name = next(iter(content))
        raise fault(name, "no other field beside items", "***" if name in {"key", "key_hash"} else content[name])
    return request, items


def _read(verb: str, item: object, most: int, principal: Principal | None) -> Item:
    """Check one document of a request against the schema of its verb. Return the document, or the error with its
    faults.

    A producer may submit reservations for its own accounts only.
    """
    try:
        document = read_document(SCHEMAS[verb], item, most=most)
    except InvalidInputError as error:
        return error
    found = find_account_fault(principal, document.account) if isinstance(document, ReservationDocument) else None
    return document if found is None else InvalidInputError([found])


def load_rows(work: UnitOfWork, rules: Rules, verb: str, documents: Iterable[Document]) -> None:
    """Lock and read the rows that these documents of one verb name. Call it once in a transaction."""
    named = list(documents)
    if verb == "forget_account":
        work.count_submitted()
    work.load(
        reservations=_list_named(named, "reservation"),
        slots=_list_named(named, "slot"),
        accounts=_list_named(named, "account"),
        holders=verb in REPORT_COMMANDS,
        payers=rules.has_quota and verb in REPORT_COMMANDS,
    )


def _list_named(documents: Iterable[Document], field: str) -> list[str]:
    return [name for document in documents if (name := getattr(document, field, None))]


def carry_out(work: UnitOfWork, rules: Rules, verb: str, document: Document) -> Reservation | Slot | Account | Nobody:
    """Carry out one document whose rows are loaded, and return the row that it changed.

    Raises CommandRefused if the sender has no right to it, or the command cannot be carried out. Then nothing was
    changed.
    """
    _check_rights(work, document)  # promise: rights-of-principal
    return COMMANDS[verb](work, rules, document)


def _check_rights(work: UnitOfWork, document: Document) -> None:
    """Raise CommandRefused if the sender may not act on the reservation or slot that the document names. The sender's
    role was checked before.
    """
    principal, name = work.principal, getattr(document, "reservation", None)
    if principal is None:
        return
    if name is not None:
        current = work.reservations.get(name)
        raise_first([find_owner_fault(principal, name, current)])
        if isinstance(document, ConfirmDocument) and current is not None:
            raise_first([find_place_fault(principal, current, document.slot)])
    elif isinstance(document, HostDocument | RegisterDocument):
        raise_first([find_host_fault(principal, document.slot)])


def check_question(principal: Principal | None, verb: str, *, slot: str | None = None) -> None:
    """Raise CommandRefused unless this sender may ask this question (a verb that changes nothing). `slot`: the slot
    that the question is about, if any.
    """
    raise_first([find_role_fault(principal, verb), None if slot is None else find_host_fault(principal, slot)])


def _answer(work: UnitOfWork, rules: Rules, verb: str, item: Item, index: int) -> Answer:
    if isinstance(item, InvalidInputError):
        return refuse(item.faults, index)
    try:
        row = carry_out(work, rules, verb, item)
    except CommandRefused as refusal:
        return refuse([refusal.fault], index)
    answer = describe_answer(row)
    if verb in TRUSTED and isinstance(row, Reservation):
        answer["ttl"] = None if row.expires_at is None else row.expires_at - work.now
        cores = {lease.component: usable for lease in row.leases if (usable := usable_cores(lease)) is not None}
        answer |= {"cores": cores} if cores else {}
    if isinstance(item, PriorityDocument) and isinstance(row, Reservation):
        add_notes(answer, note_ignored(rules, row, item.priority, None))
    if verb == "register" and isinstance(row, Slot):
        answer["offline_timeout"] = rules.pools[row.pool].offline_timeout
        answer["heartbeat"] = row.heartbeat
    return answer
