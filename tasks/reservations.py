"""The tasks of the queue `reservations`: requests of producers, holders and operators. Each verb has a task. The answer
is sent after the commit to the list in Redis that `reply_to` names.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec

from scheduler.model.command_schemas import SCHEMAS, RulesTable
from scheduler.model.principals import ROLES
from scheduler.model.validation import (
    After,
    Count,
    Document,
    Fault,
    InvalidInputError,
    Name,
    Text,
    expected,
    fault,
    read_document,
)
from scheduler.operations.commands.gathered import Message, accept_gathered
from scheduler.operations.commands.intake import check_question
from scheduler.operations.commands.lease_commands import CommandRefused
from scheduler.operations.commands.rule_requests import (
    MOST_VERSIONS,
    apply_request,
    describe_rules,
    preview_request,
)
from scheduler.operations.commands.submit import Answer
from scheduler.operations.explain import describe_conditions, explain
from scheduler.operations.notices import describe_row
from scheduler.operations.tick.heartbeat_intake import describe_host
from scheduler.protocol.names import GATHERED, RESERVATIONS, task_name
from tasks.answers import describe_answer, find_address, send_answer
from tasks.app import app
from tasks.base import LeaseholdTask, current_host, current_principal
from tasks.queues import APPLY, CONDITIONS, EXPLAIN, LEASES, PREVIEW, QUERY, RULES

MOST_QUERIED: Final = 1000


def _few(ids: list[str]) -> list[str]:
    if len(ids) > MOST_QUERIED:
        raise expected(f"at most {MOST_QUERIED} ids", got=len(ids))
    return ids


class Question(Document):
    """Base class of the documents of requests that only read and change nothing. A document is the JSON object with the
    fields of a request.
    """

    request: Text
    reply_to: Text


class QueryDocument(Question):
    """The document of a request for the rows of the reservations `ids` from the database, also of ended ones."""

    ids: Annotated[list[Name], After(_few)]


class ExplainDocument(Question):
    """The document of a request for the reason why a reservation waits, and for the change that would end the wait."""

    reservation: Name


class ConditionsDocument(Question):
    """The document of a request for the unusual conditions of the pool `pool` and its slots; None: of all pools and
    slots.
    """

    pool: Name | None = None


def _few_versions(count: int) -> int:
    if count > MOST_VERSIONS:
        raise expected(f"at most {MOST_VERSIONS} versions")
    return count


class RulesDocument(Question):
    """The document of a request for the rules in force, and for the newest `history` versions of the rules."""

    history: Annotated[Count, After(_few_versions)] = 0


class PreviewDocument(Question):
    """The document of a request for a preview: what would happen if `rules` became the rules in force."""

    rules: RulesTable


class LeasesDocument(Question):
    """The document of a request in which the host `machine` asks for its slot `slot` and the leases on this slot. The
    answer is read from the database.
    """

    slot: Name
    machine: Name
    run: Name | None = None


AnyQuestion = TypeVar("AnyQuestion", bound=Question)


class RequestTask(LeaseholdTask):
    """Base class of the tasks of the queue `reservations`. Each task has one argument, a document (the JSON object with
    the fields of a request), which `read_request` finds among the arguments of a message.
    """

    abstract = True
    roles = frozenset(ROLES)

    def answer_refused(self, args: Sequence[Any], kwargs: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Send `answer` to the sender of a refused request, if one of its arguments names an address for the answer."""
        named = (find_address(each) for each in (*args, kwargs, *kwargs.values()))
        if address := next(filter(None, named), None):
            self.services.ports.notifier.reply(address, answer)

    def read_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return the document of a request as the only argument for the task. Raises InvalidInputError if the arguments
        of the message contain no document.
        """
        return [read_request(args, kwargs, str(self.request.id or ""))], {}


class GatheredTask(RequestTask):
    """Base class of the tasks whose waiting requests a worker carries out together (tasks/gatherer.py)."""

    abstract = True
    Strategy = "tasks.gatherer:start_strategy"


class SearchTask(RequestTask):
    """Base class of the tasks of which a worker carries out few at the same time (tasks/gatherer.py)."""

    abstract = True
    Strategy = "tasks.gatherer:start_strategy"


def _register(verb: str) -> None:
    """Register the Celery task that carries out and answers the requests of one verb."""

    def carry_out(document: Any) -> str:
        address = find_address(document)
        answer = _accept(verb, document)
        send_answer(address, answer)  # promise: answer-after-commit
        return describe_answer(answer)

    carry_out.__doc__ = SCHEMAS[verb].__doc__
    base = GatheredTask if verb in GATHERED else RequestTask
    app.task(name=task_name(RESERVATIONS, verb), base=base)(carry_out)


for _verb in SCHEMAS:
    _register(_verb)


@app.task(name=QUERY, base=RequestTask)
def query(document: Any) -> str:
    """Answer with the rows of these reservations and the machines of their leases: `{"ok": true, "reservations":
    [row, …]}`.
    """
    return _answer("query", QueryDocument, document, _find_rows)


@app.task(name=EXPLAIN, base=SearchTask)
def explain_wait(document: Any) -> str:
    """Answer with the reason why a reservation waits and the smallest change that would end the wait, by
    `operations.explain`.
    """
    return _answer("explain", ExplainDocument, document, _explain)


@app.task(name=CONDITIONS, base=SearchTask)
def conditions(document: Any) -> str:
    """Answer with the unusual conditions of slots and pools, as sentences."""
    return _answer(
        "conditions", ConditionsDocument, document, lambda asked: describe_conditions(app.services.ports, asked.pool)
    )


@app.task(name=LEASES, base=RequestTask)
def leases(document: Any) -> str:
    """Answer a host's request with its slot and the leases on the slot, by `heartbeat_intake.describe_host`."""
    return _answer(
        "leases",
        LeasesDocument,
        document,
        lambda asked: describe_host(app.services.ports, asked.slot, asked.machine, asked.run),
    )


@app.task(name=RULES, base=RequestTask)
def rules(document: Any) -> str:
    """Answer with the rules in force and their history, by `rule_requests.describe_rules`."""
    return _answer(
        "rules",
        RulesDocument,
        document,
        lambda asked: describe_rules(app.services.ports, current_principal(), asked.history),
    )


@app.task(name=PREVIEW, base=SearchTask)
def preview(document: Any) -> str:
    """Answer with what would happen if other rules were in force, by `rule_requests.preview_request`."""
    return _answer("preview", PreviewDocument, document, lambda asked: preview_request(app.services.ports, asked.rules))


@app.task(name=APPLY, base=RequestTask)
def apply(document: Any) -> str:
    """Put the rules of a request in force, by `rule_requests.apply_request`, and answer the request."""
    address = find_address(document)
    answer = apply_request(app.services.ports, document, current_principal())
    send_answer(address, answer)  # promise: answer-after-commit
    return describe_answer(answer)


def _find_rows(asked: QueryDocument) -> Answer:
    store = app.services.ports.store
    rows = store.find_reservations(ids=asked.ids, limit=MOST_QUERIED)
    names = sorted({lease.slot for row in rows for lease in row.leases})
    slots = {slot.id: slot for slot in store.find_slots(ids=names)} if names else {}
    return {"reservations": [describe_row(row, slots) for row in rows]}


def _explain(asked: ExplainDocument) -> Answer:
    found = explain(app.services.ports, asked.reservation)
    if not found:
        raise fault("reservation", "a known reservation", asked.reservation, "unknown")
    return found


def _answer(verb: str, model: type[AnyQuestion], document: object, act: Callable[[AnyQuestion], Answer]) -> str:
    """Answer a request that only reads: call `act` with the checked document and send its result to the document's
    address. Such a request may be repeated.
    """
    address = find_address(document)
    try:
        question = read_document(model, document)
        check_question(current_principal(), verb, slot=getattr(question, "slot", None))
        answer: Answer = {"ok": True, **act(question)}
    except InvalidInputError as error:
        answer = {"ok": False, "errors": [{"index": 0, **msgspec.to_builtins(each)} for each in error.faults]}
    except CommandRefused as refusal:
        answer = {"ok": False, "errors": [{"index": 0, **msgspec.to_builtins(refusal.fault)}]}
    send_answer(address, answer)
    return describe_answer(answer)


def _accept(verb: str, document: object) -> Answer:
    (outcome,) = accept_gathered(app.services.ports, [Message(verb, document, current_principal(), current_host())])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


NAME = "document"
"""Name of the keyword argument that contains a whole document. No document has a field of this name."""


def read_request(arguments: Sequence[Any], named: Mapping[str, Any], message: str) -> Any:
    """Return the document of a message. If the document has no field `request`, the id of the message (`message`)
    becomes the value of this field.

    The document is the only positional argument, or the keyword argument `document`, or the keyword arguments are the
    fields of the document. Raises InvalidInputError for other arguments.
    """
    document = _find_document(arguments, named)
    if isinstance(document, Mapping) and "request" not in document:
        return {**document, "request": message}
    return document


def _find_document(arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    if arguments and named:
        raise fault("kwargs", "no keyword arguments beside a positional one", list(named))
    if len(arguments) > 1:
        raise InvalidInputError([Fault("args", "one document", f"{len(arguments)} arguments")])
    if arguments:
        return arguments[0]
    if NAME not in named:
        if not named:
            raise InvalidInputError([Fault("args", "one document", "no arguments")])
        return dict(named)
    if len(named) > 1:
        raise fault("kwargs", f"no keyword argument beside {NAME}", [name for name in named if name != NAME])
    return named[NAME]
