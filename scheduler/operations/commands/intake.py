"""Intake: requests are accepted when they are committed, then published, kicked for, and answered.

A request id and its answer are a row written with the change: a repeat changes nothing, whatever came in
between; it is answered again, published and kicked for again. docs/reference/consistency.md, "Requests".
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, cast

import msgspec

from scheduler.model.accounts import Account
from scheduler.model.command_schemas import HOST_VERBS, OPERATOR_VERBS, WISHES, PriorityDocument, ReservationDocument
from scheduler.model.decisions import Reason
from scheduler.model.events import Event
from scheduler.model.principals import Principal
from scheduler.model.reservations import Reservation, usable_cores
from scheduler.model.rights import find_account_fault, find_role_fault, owns
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
from scheduler.operations.admission import Admission, find_excess, foresee_misfits
from scheduler.operations.commands.lease_commands import CommandRefused
from scheduler.operations.commands.notes import Note, list_notes, note_ignored, note_submitted
from scheduler.operations.commands.registry import Subject, load_rows, say
from scheduler.operations.commands.reports import Nobody
from scheduler.operations.ports import Ports, announce
from scheduler.operations.unit_of_work import ChangeSet, UnitOfWork
from scheduler.policy.cycle.deadlines import expiry_of_pending
from scheduler.ports import StoredAnswer

Answer = dict[str, Any]
Word = Document | InvalidInputError
"""One document of a request, or why it is none."""
_OURS = ("request", "reply_to", "items")
MOST_ITEMS = 10_000
"""Documents in one list."""
MOST_LIST_FAULTS = 1000
"""Faults that the answer to a list names, though at least one for each document that is refused."""


def accept(
    ports: Ports, verb: str, document: object, *, operator: bool = False, principal: Principal | None = None
) -> Answer:
    """Carry out one request (a document, or a list of them under `items`) and give its answer.

    Bad input is answered, never raised: `{"ok": false, "errors": [{"index", "path", "expected", "got"}]}`;
    for `items` one answer with `results` by index: good ones are accepted, bad ones refused.

    `principal`: the verified sender; None: the message was not signed. A copy of a request gets the stored answer only
    if the same principal sent it.
    """
    answer = _accept(ports, verb, document, operator=operator, principal=principal)
    _count_requests(ports, answer, principal)
    return answer


def _accept(ports: Ports, verb: str, document: object, *, operator: bool, principal: Principal | None) -> Answer:
    forbidden = find_role_fault(principal, verb) if verb in WISHES else None
    if forbidden is not None:
        return _refuse([forbidden])
    try:
        request, items = _open_envelope(verb, document)
    except InvalidInputError as error:
        return _refuse(error.faults)
    # Of a long list each document names some of its faults only: finding them takes time, and an answer is stored.
    most = max(1, min(MOST_FAULTS, MOST_LIST_FAULTS // len(items)))
    words = [_find_payable(_read(verb, item, most), principal) for item in items]
    is_single = "items" not in cast("Mapping[str, object]", document)
    if not any(isinstance(word, Document) for word in words):
        # The same whenever it is asked again: there is nothing to write for it.
        return _join([_refuse_word(word, index) for index, word in enumerate(words)], single=is_single)
    rules = ports.rules()
    misfits: Mapping[str, Reason] = {}
    if verb == "submit":
        words = [_check_limits(_find_served(word, rules), rules) for word in words]
        misfits = _foresee(ports, rules, words)
    cause = _find_cause(verb, operator=operator or (principal is not None and principal.role == "operator"))
    sender = None if principal is None else principal.name
    with ports.store.transaction() as transaction:
        known = transaction.find_answers([request]).get(request)  # promise: first-answer-again
        if known is not None and known.principal != sender:  # promise: answer-of-sender-only
            return _refuse([Fault("request", "an id that no other principal has used", show(request))])
        if known is not None:
            answer, change_set = known.answer, None
        else:
            work = UnitOfWork(transaction, cause, principal=principal)
            if verb == "submit":
                results, change_set = submit(work, rules, words, misfits, ports.admission)
            else:
                results, change_set = _carry_out(work, rules, verb, words)
            answer = _join(results, single=is_single)  # promise: list-by-index
            transaction.save_answers([StoredAnswer(request, work.now, answer, sender)])
    if change_set is None:
        _repeat(ports, answer)  # promise: repeat-answered-again
    else:
        if verb == "submit":
            ports.admission.note(change_set.rows)
        # A host that registers may have been silent: then it is no mark of time like any other.
        announce(ports, change_set, kick=change_set.is_change or verb == "register")
    return answer


def _count_requests(ports: Ports, answer: Answer, principal: Principal | None) -> None:
    """Count the documents of a request by result; an unknown principal never gets here, so that labels are bounded."""
    results = answer.get("results", [answer])
    accepted = sum(bool(each["ok"]) for each in results)
    sender = ("unsigned", "") if principal is None else (principal.role, principal.name)
    for result, number in (("accepted", accepted), ("refused", len(results) - accepted)):
        if number:
            labels = {"role": sender[0], "principal": sender[1], "result": result}
            ports.meter.count("leasehold_requests_total", labels, number)


def _find_cause(verb: str, *, operator: bool) -> Cause:
    if verb in HOST_VERBS:
        return "cloud"
    return "operator" if operator or verb in OPERATOR_VERBS else "holder"


def _join(results: list[Answer], *, single: bool) -> Answer:
    return results[0] if single else {"ok": all(each["ok"] for each in results), "results": results}


def _repeat(ports: Ports, answer: Answer) -> None:
    """Publish and kick once more: whoever answered first may have died right after its commit."""
    results = answer.get("results", [answer])
    names = [each["reservation"] for each in results if each.get("reservation")]
    slots = [each["slot"] for each in results if each.get("slot")]
    rows: list[Row] = [*ports.store.find_reservations(ids=names, limit=len(names))] if names else []
    rows += ports.store.find_slots(ids=slots) if slots else []
    accounts = {each["account"] for each in results if each.get("account")}
    rows += [row for row in ports.store.find_accounts() if row.id in accounts] if accounts else []
    announce(ports, ChangeSet(rows=rows), kick=True)


def _open_envelope(verb: str, document: object) -> tuple[str, list[object]]:
    """The request id and the documents in it; raises InvalidInputError."""
    if verb not in WISHES:
        raise InvalidInputError([Fault("verb", f"a known verb{suggest(verb, WISHES)}", show(verb))])
    if not isinstance(document, Mapping):
        raise InvalidInputError([Fault(".", "a table", show(document))])
    request = document.get("request")
    if not is_whole_text(request, MOST_NAME):
        raise fault("request", f"an id of 1 to {MOST_NAME} whole characters", request)
    content = {name: value for name, value in document.items() if name not in _OURS}
    if "items" not in document:
        return request, [content]
    items = document["items"]
    if not isinstance(items, list) or not 0 < len(items) <= MOST_ITEMS:
        got = f"{len(items)} of them" if isinstance(items, list) else show(items)
        raise InvalidInputError([Fault("items", f"a list of 1 to {MOST_ITEMS} documents", got)])
    if content:
        name = next(iter(content))
        raise fault(name, "nothing beside items", "***" if name in {"key", "key_hash"} else content[name])
    return request, items


def _read(verb: str, item: object, most: int) -> Word:
    try:
        return read_document(WISHES[verb], item, most=most)
    except InvalidInputError as error:
        return error


def _find_payable(word: Word, principal: Principal | None) -> Word:
    """A producer submits for its own accounts alone."""
    fault_ = find_account_fault(principal, word.account) if isinstance(word, ReservationDocument) else None
    return word if fault_ is None else InvalidInputError([fault_])


def _find_served(word: Word, rules: Rules) -> Word:
    """Refuse an unknown pool, which is a typing error. A reservation whose pool is removed later waits."""
    if not isinstance(word, ReservationDocument):
        return word
    known = rules.pools if word.pool is not None else rules.pools_of_system
    field, asked = ("pool", word.pool) if word.pool is not None else ("system", word.system)
    if asked not in known:
        choices = ", ".join(list(known)[:10]) or "none is configured"
        return fault(field, f"one of: {choices}{suggest(asked or '', known)}", asked)
    return word


def _check_limits(word: Word, rules: Rules) -> Word:
    """Refuse a reservation that asks for more than one may."""
    excess = find_excess(word, rules.limits) if isinstance(word, ReservationDocument) else None
    return word if excess is None else InvalidInputError([excess])


def _foresee(ports: Ports, rules: Rules, words: Sequence[Word]) -> dict[str, Reason]:
    """Return what to report for requests that no slot could hold. Of alike requests one is tested: lists are long."""
    good = {word.id: word for word in reversed(words) if isinstance(word, ReservationDocument)}
    alike: dict[Hashable, list[str]] = {}
    for name, word in good.items():
        alike.setdefault(_kind_of(word), []).append(name)
    rows = [new_reservation(good[names[0]], rules, 0.0) for names in alike.values()]
    told = foresee_misfits(ports.store, ports.known_slots, rules, rows)
    return {name: told[names[0]] for names in alike.values() if names[0] in told for name in names}


def _kind_of(word: ReservationDocument) -> Hashable:
    """What decides where it fits."""
    components = str(word.components) if word.components else ""
    return word.system, word.pool, tuple(word.resources.items()), tuple(word.labels.items()), components


def _carry_out(work: UnitOfWork, rules: Rules, verb: str, words: Sequence[Word]) -> tuple[list[Answer], ChangeSet]:
    good = [word for word in words if isinstance(word, Document)]
    load_rows(work, rules, verb, good)
    results = [_say(work, rules, verb, word, index) for index, word in enumerate(words)]
    return results, work.flush()


def _say(work: UnitOfWork, rules: Rules, verb: str, word: Word, index: int) -> Answer:
    if isinstance(word, InvalidInputError):
        return _refuse(word.faults, index)
    try:
        row = say(work, rules, verb, word)
    except CommandRefused as refusal:
        return _refuse([refusal.fault], index)
    answer = describe_answer(row)
    if verb in TRUSTED and isinstance(row, Reservation):
        answer["ttl"] = None if row.expires_at is None else row.expires_at - work.now
        cores = {lease.component: usable for lease in row.leases if (usable := usable_cores(lease)) is not None}
        answer |= {"cores": cores} if cores else {}
    if isinstance(word, PriorityDocument) and isinstance(row, Reservation):
        _add_notes(answer, list_notes(note_ignored(rules, row, word.priority, None)))
    if verb == "register" and isinstance(row, Slot):
        answer["offline_timeout"] = rules.pools[row.pool].offline_timeout
        answer["heartbeat"] = row.heartbeat
    return answer


TRUSTED = frozenset({"renew", "confirm"})
"""Commands whose answer contains `ttl`, for how many seconds from now at least the lease is its holder's; None = until
it is revoked. A holder counts them from the time when it sent the command, so its time ends before ours. It also
contains how many cpus of its slot each component may use: `cores`.
"""


def submit(
    work: UnitOfWork,
    rules: Rules,
    words: Sequence[Word],
    misfits: Mapping[str, Reason] | None = None,
    admission: Admission | None = None,
) -> tuple[list[Answer], ChangeSet]:
    """Store what producers ask for; an id that is known already, in any phase, changes nothing.

    `misfits`: by id what is reported for requests that no slot could hold at present; they are stored all the same.
    `admission`: refuses what exceeds a limit on pending reservations; None = nothing is limited.
    """
    good = [word for word in words if isinstance(word, ReservationDocument)]
    rows = {word.id: new_reservation(word, rules, work.now, work.sender) for word in reversed(good)}
    order = dict.fromkeys(word.id for word in good)
    if admission is not None and good:
        refused = admission.admit(work.transaction, rules.limits, [rows[name] for name in order])
        words = [refused.get(word.id, word) if isinstance(word, ReservationDocument) else word for word in words]
        good = [word for word in good if word.id not in refused]
        order = dict.fromkeys(word.id for word in good)
    inserted = work.transaction.insert_reservations([rows[name] for name in order])
    events = [
        work.sign(Event(at=work.now, name="reservation_submitted", cause=work.cause, reservation=row.id))
        for row in inserted
    ]
    work.transaction.append_events(events)
    present = {row.id: row for row in inserted}
    # Of several documents with one id the first one is stored.
    first = {id(word) for word in {word.id: word for word in reversed(good)}.values() if word.id in present}
    present |= work.transaction.load_reservations(order.keys() - present.keys())
    alike = {name for name, row in present.items() if row.request == rows[name].request}
    warned = {name: told for name, told in (misfits or {}).items() if name in alike}
    results = [
        _answer_submitted(work, rules, word, present[word.id], warned, index, is_known=id(word) not in first)
        if isinstance(word, ReservationDocument)
        else _refuse_word(word, index)
        for index, word in enumerate(words)
    ]
    return results, ChangeSet(rows=list(inserted), events=events, is_change=bool(inserted))


def _answer_submitted(
    work: UnitOfWork,
    rules: Rules,
    word: ReservationDocument,
    row: Reservation,
    warned: Mapping[str, Reason],
    index: int,
    *,
    is_known: bool,
) -> Answer:
    """The answer about the row with this id, unless another principal submitted it."""
    if not owns(work.principal, row):
        return _refuse([Fault("id", "an id that no other principal has used", show(word.id))], index)
    answer = describe_answer(row)
    if row.phase == "pending" and row.id in warned:
        code, detail = warned[row.id]
        answer["waiting"] = {"code": code, "detail": detail}
    _add_notes(answer, note_submitted(rules, word, row, is_known=is_known))
    return answer


def _add_notes(answer: Answer, notes: list[Note]) -> None:
    if notes:
        answer["notes"] = notes


def new_reservation(word: ReservationDocument, rules: Rules, now: float, principal: str | None = None) -> Reservation:
    """A pending reservation, created now by this principal."""
    request = word.to_request()
    return Reservation(
        id=word.id,
        priority=word.priority,
        request=request,
        created_at=now,
        changed_at=now,
        expires_at=expiry_of_pending(request, rules, now),
        principal=principal,
        key_hash=word.key_hash,
        instances=request.instances,
    )


def describe_answer(row: Subject) -> Answer:
    """Return the answer to a command that was carried out: the reservation (or slot, or account) as it is now."""
    if isinstance(row, Account):
        return {"ok": True, "account": row.id, "balance": row.balance}
    if isinstance(row, Slot):
        return {"ok": True, "slot": row.id, "state": row.state, "cordoned": row.cordoned}
    if isinstance(row, Nobody):
        return {"ok": True, "reservation": row.id, **dict.fromkeys(("phase", "expires_at", "token", "deadline"))}
    return {
        "ok": True,
        "reservation": row.id,
        "phase": row.phase,
        "expires_at": row.expires_at,
        "token": row.token or None,
        "deadline": row.revoke_by,
    }


def _refuse_word(word: Word, index: int) -> Answer:
    return _refuse(word.faults if isinstance(word, InvalidInputError) else (), index)


def _refuse(faults: Sequence[Fault], index: int = 0) -> Answer:
    return {"ok": False, "errors": [{"index": index, **msgspec.to_builtins(each)} for each in faults]}
