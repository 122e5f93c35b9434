"""Submissions: check the documents of new reservations, store the reservations, and make the answers. A document is the
request for one reservation.

An answer also has notes about fields of the document that have no effect.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import msgspec

from scheduler.model.accounts import Account
from scheduler.model.command_schemas import ReservationDocument
from scheduler.model.events import Event
from scheduler.model.forecasts import name_kind
from scheduler.model.principals import Principal, owns
from scheduler.model.reservations import Component, Request, Reservation
from scheduler.model.rules import Rules, expiry_of_pending
from scheduler.model.runs import WAITING, StoredCommand
from scheduler.model.slots import Slot
from scheduler.model.transitions import Cause
from scheduler.model.validation import Document, Fault, InvalidInputError, fault, show, suggest
from scheduler.model.waits import Reason
from scheduler.operations.admission import Admission, KnownSlots, find_excess, foresee_misfits
from scheduler.operations.change_set import ChangeSet
from scheduler.operations.commands.reports import UnknownReservation
from scheduler.ports import Store, Transaction

Answer = dict[str, Any]
_NONE: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})
Item = Document | InvalidInputError
"""One document of a request, or the error for which the document is refused."""


def refuse_unservable(items: Sequence[Item], rules: Rules) -> list[Item]:
    """Return, for each document, an error if it names an unknown pool or system, or exceeds a limit on a single
    reservation; else the document itself.

    An unknown pool counts as a typing error, and the reservation is refused. (A reservation whose pool is removed later
    waits.) Speed: documents that share their request object (`ReservationReader`) are checked once.
    """
    tested: dict[int, InvalidInputError | None] = {}
    found: list[Item] = []
    for item in items:
        if isinstance(item, ReservationDocument):
            if id(item.request) not in tested:
                tested[id(item.request)] = _refuse_unservable(item, rules)
            found.append(tested[id(item.request)] or item)
        else:
            found.append(item)
    return found


def _refuse_unservable(item: ReservationDocument, rules: Rules) -> InvalidInputError | None:
    known = rules.pools if item.pool is not None else rules.pools_of_system
    field, asked = ("pool", item.pool) if item.pool is not None else ("system", item.system)
    if asked not in known:
        choices = ", ".join(list(known)[:10]) or "none is configured"
        return fault(field, f"one of: {choices}{suggest(asked or '', known)}", asked)
    if item.run is not None and not rules.serving_pools(item.pool, item.system, needs_agent=True):
        return fault("run", "a pool whose hosts have agents (`agent = true`, or a static one)", f"{field} {asked}")
    excess = find_excess(item, rules.limits)
    return None if excess is None else InvalidInputError([excess])


def foresee(store: Store, known: KnownSlots, rules: Rules, items: Sequence[Item]) -> dict[str, Reason]:
    """Return, by reservation id, the waiting code and sentence of each new reservation that no slot could hold at
    present. Reservations that fit are missing.

    Of several equal documents only one is tested, because lists may be long. A kind of request that fitted is not
    tested again until the rules or the known slots change.
    """
    good = {item.id: item for item in reversed(items) if isinstance(item, ReservationDocument)}
    sharing: dict[int, list[str]] = {}
    for name, item in good.items():
        sharing.setdefault(id(item.request), []).append(name)
    alike: dict[Hashable, list[str]] = {}
    for found_names in sharing.values():
        item = good[found_names[0]]
        components = str(item.components) if item.components else ""
        resources, labels = tuple(item.resources.items()), tuple(item.labels.items())
        key = item.system, item.pool, resources, labels, components, item.run is None
        alike.setdefault(key, []).extend(found_names)
    fitting = known.fitting(rules)
    tested = {key: names[0] for key, names in alike.items() if key not in fitting}
    if not tested:
        return {}
    found = foresee_misfits(store, known, rules, [new_reservation(good[name], rules, 0.0) for name in tested.values()])
    fitting.update(key for key, name in tested.items() if name not in found)
    return {name: found[names[0]] for names in alike.values() if names[0] in found for name in names}


@dataclass(frozen=True)
class Submission:
    """One request that submits reservations: its documents (one for each reservation), the cause for events, and the
    verified sender (None: the request was not signed). `host`: the host that sent an unsigned request; None: it is
    unknown.
    """

    items: Sequence[Item]
    cause: Cause = "holder"
    principal: Principal | None = None
    host: str | None = None

    def new_rows(self, rules: Rules, now: float) -> dict[str, Reservation]:
        """Return, by id, the reservations that the documents describe. If an id occurs twice, the first document
        counts.
        """
        sender = None if self.principal is None else self.principal.name
        host = self.host if sender is None else None
        found: dict[str, Reservation] = {}
        sharing: dict[int, Reservation] = {}
        for item in self.items:
            if isinstance(item, ReservationDocument) and item.id not in found:
                alike = sharing.get(id(item.request))
                if alike is None:
                    alike = sharing[id(item.request)] = new_reservation(item, rules, now, sender, host)
                # Documents that share their request differ in these two fields only: see ReservationReader.
                found[item.id] = msgspec.structs.replace(alike, id=item.id, key_hash=item.key_hash)
        return found

    def list_commands(self) -> dict[str, str]:
        """Return, by id, the commands of the reservations as JSON texts. If an id occurs twice, the first document
        counts.
        """
        documents = {each.id: each for each in reversed(self.items) if isinstance(each, ReservationDocument)}
        return {name: each.run.text for name, each in documents.items() if each.run is not None}


def submit(
    transaction: Transaction,
    rules: Rules,
    submissions: Sequence[Submission],
    misfits: Mapping[str, Reason] | None = None,
    admission: Admission | None = None,
    newcomers: Mapping[str, Mapping[str, Any]] = _NONE,
) -> tuple[list[list[Answer]], ChangeSet]:
    """Store new reservations. Return two things: (1) for each submission the answers to its documents, in their order
    (a document is the request for one reservation); (2) the changes.

    No two submissions may name the same reservation. If the id of a document exists already, nothing is changed,
    whatever the phase of the stored reservation is. `misfits`: by id, the reason why no slot could hold a reservation
    at present; such reservations are stored as well, and their answers contain the reason. `admission` refuses
    reservations that exceed a limit on pending ones; None: no limit applies. `newcomers`: by kind (`name_kind`), the
    forecast that the answer for a new reservation contains as `eta`.
    """
    rows: dict[str, Reservation] = {}
    causes: dict[str, Cause] = {}
    now = transaction.now()
    for each in submissions:
        found = each.new_rows(rules, now)
        rows |= found
        causes |= dict.fromkeys(found, each.cause)
    commands = {name: text for each in reversed(submissions) for name, text in each.list_commands().items()}
    refused = admission.admit(transaction, rules.limits, list(rows.values())) if admission and rows else {}
    asked = [name for name in rows if name not in refused]
    inserted = transaction.insert_reservations([rows[name] for name in asked])
    events = [
        Event(
            at=now,
            name="reservation_submitted",
            cause=causes[row.id],
            reservation=row.id,
            principal=row.principal,
        )
        for row in inserted
    ]
    transaction.append_events(events)
    if texts := [StoredCommand(row.id, commands[row.id]) for row in inserted if row.id in commands]:
        transaction.save_commands(texts)
    present = {row.id: row for row in inserted}
    new = frozenset(present)
    stored: dict[str, str] = {}
    if repeated := rows.keys() - new - refused.keys():
        present |= transaction.load_reservations(repeated)
        if named := [name for name in repeated if name in present and present[name].run is not None]:
            stored = transaction.load_commands(named)
    warned = {
        name: reason
        for name, reason in (misfits or {}).items()
        if name in present and present[name].request == rows[name].request
    }
    results = [_answer_all(each, rules, present, refused, warned, new, newcomers, stored) for each in submissions]
    return results, ChangeSet(rows=list(inserted), events=events, is_change=bool(inserted))


def _answer_all(
    submission: Submission,
    rules: Rules,
    present: Mapping[str, Reservation],
    refused: Mapping[str, InvalidInputError],
    warned: Mapping[str, Reason],
    new: frozenset[str],
    newcomers: Mapping[str, Mapping[str, Any]],
    commands: Mapping[str, str],
) -> list[Answer]:
    """Return the answers to the documents of one submission, in their order. `present`: the stored reservations by id.
    `refused`: the errors by id. `warned`: by id, the reason why no slot could hold a reservation. `new`: the ids of the
    reservations that were inserted. `newcomers`: see `submit`. `commands`: by id, the stored commands of
    the reservations that existed before.

    A document is refused if another principal submitted the stored reservation with its id. If the reservation existed
    before, the answer has notes about the fields in which the document differs; the stored values stay.
    """
    results: list[Answer] = []
    answered: set[str] = set()
    noted: dict[int, dict[str, str]] = {}
    """Identity (`id()`) of a request object, which several documents may share -> notes about the fields of the request
    that have no effect in its queue.
    """
    for index, item in enumerate(submission.items):
        if not isinstance(item, ReservationDocument) or item.id in refused:
            results.append(refuse_item(refused[item.id] if isinstance(item, ReservationDocument) else item, index))
            continue
        row = present[item.id]
        if item.id not in new and not owns(submission.principal, row):
            results.append(
                refuse([Fault("id", "an id that no other principal has used", show(item.id), "conflict")], index)
            )
            continue
        answer = describe_answer(row)
        if row.phase == "pending" and row.id in warned:
            code, detail = warned[row.id]
            answer["waiting"] = {"code": code, "detail": detail}
        elif newcomers and item.id in new and (eta := newcomers.get(name_kind(row.request, row.priority))):
            answer["eta"] = eta
        # Of several documents with the same id the first one is stored.
        if item.id not in new or item.id in answered:
            notes = _note_ignored(rules, row, item) | dict(_list_differences(item, row, commands.get(row.id)))
        else:
            if id(item.request) not in noted:
                noted[id(item.request)] = _note_ignored(rules, row, item)
            notes = noted[id(item.request)]
        answered.add(item.id)
        add_notes(answer, notes)
        results.append(answer)
    return results


def new_reservation(
    item: ReservationDocument, rules: Rules, now: float, principal: str | None = None, sender: str | None = None
) -> Reservation:
    """Return the pending reservation that a submitted document describes, created now by this principal (None: the
    request was not signed, and `sender` is its host if that is known). Stores nothing.
    """
    request = item.request
    return Reservation(
        id=item.id,
        priority=item.priority,
        request=request,
        created_at=now,
        changed_at=now,
        expires_at=expiry_of_pending(request, rules, now),
        principal=principal,
        key_hash=item.key_hash,
        instances=request.instances,
        sender=sender,
        run=None if item.run is None else WAITING,
    )


def _note_ignored(rules: Rules, row: Reservation, item: ReservationDocument) -> dict[str, str]:
    """Return notes (field -> sentence) about fields of a document that have no effect, because the order of the
    reservation's queue does not use them.
    """
    asked = row.request
    # In each queue the account decides whether a max_runtime is enforced.
    account = item.account if item.max_runtime is None else None
    return rules.list_ignored(asked.pool, asked.system, priority=item.priority, account=account)


def add_notes(answer: Answer, notes: Mapping[str, str]) -> None:
    """Add `notes` to the answer to an accepted request. `notes`: field of the request -> why it has no effect. In the
    answer each note is a dict with `path` and `text`.
    """
    if notes:
        answer["notes"] = [{"path": path, "text": text} for path, text in notes.items()]


def _list_differences(item: ReservationDocument, row: Reservation, command: str | None) -> Iterator[tuple[str, str]]:
    """Yield (field, sentence) for each field in which a submission differs from the stored reservation with its id. A
    missing field counts as its default. `command`: the stored command; None: the reservation has none.
    """
    asked, first = item.request, row.request
    for name in Request.__struct_fields__:
        if (value := getattr(first, name)) == getattr(asked, name):
            continue
        field = name
        if name == "components" and _is_plain(asked.components) and _is_plain(first.components):
            # The document named `resources`, not `components`.
            field, value = "resources", first.components[0].resources
        yield (
            field,
            f"{row.id} exists already and keeps the values of its first request, in which this field is {_show(value)}",
        )
    if item.priority != row.priority:
        text = f"{row.id} exists already and its priority stays {row.priority:g}; the verb `priority` changes it"
        yield "priority", text
    if (None if item.run is None else item.run.text) != command and (command is not None or row.run is None):
        yield "run", f"{row.id} exists already and keeps the command of its first request, or has none as that one"
    if row.key_hash is not None and item.key_hash != row.key_hash:
        yield "key_hash", f"{row.id} exists already and keeps the key of its first request"


def _is_plain(components: tuple[Component, ...]) -> bool:
    """Return whether these components are those of a document without `components`: one component with the name
    `main`.
    """
    return len(components) == 1 and components[0] == Component(name="main", resources=components[0].resources)


def _show(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "not set" if value is None else show(msgspec.to_builtins(value))


def describe_answer(row: Reservation | Slot | Account | UnknownReservation) -> Answer:
    """Return the answer to a command that was carried out. `row`: the reservation, slot or account after the command.
    It is an UnknownReservation if a report named a reservation that the database does not have.
    """
    if isinstance(row, Account):
        return {"ok": True, "account": row.id, "balance": row.balance}
    if isinstance(row, Slot):
        return {"ok": True, "slot": row.id, "state": row.state, "cordoned": row.cordoned}
    if isinstance(row, UnknownReservation):
        return {"ok": True, "reservation": row.id, **dict.fromkeys(("phase", "expires_at", "token", "deadline"))}
    return {
        "ok": True,
        "reservation": row.id,
        "phase": row.phase,
        "expires_at": row.expires_at,
        "token": row.token or None,
        "deadline": row.revoke_by,
    }


def refuse_item(item: Item, index: int) -> Answer:
    """Return the answer that refuses one document of a list, with its faults. `index`: the position of the document in
    the list.
    """
    return refuse(item.faults if isinstance(item, InvalidInputError) else (), index)


def refuse(faults: Sequence[Fault], index: int = 0) -> Answer:
    return {"ok": False, "errors": [{"index": index, **msgspec.to_builtins(each)} for each in faults]}
