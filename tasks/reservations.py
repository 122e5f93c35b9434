"""The tasks of the queue `reservations`: requests of producers, holders and operators. Each verb has a task. The answer
is sent after the commit to the list in Redis that `reply_to` names.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from scheduler.model.command_schemas import MOST_QUERIED, QUESTION_SCHEMAS, ExplainDocument, QueryDocument
from scheduler.model.principals import ROLES
from scheduler.model.validation import (
    Fault,
    InvalidInputError,
    fault,
    read_document,
)
from scheduler.operations.change_set import describe_row
from scheduler.operations.commands.gathered import Message, accept_gathered
from scheduler.operations.commands.intake import check_question
from scheduler.operations.commands.lease_commands import CommandRefused
from scheduler.operations.commands.rule_requests import (
    apply_request,
    describe_rules,
    preview_request,
)
from scheduler.operations.commands.runs import describe_run
from scheduler.operations.commands.submit import Answer
from scheduler.operations.explain import describe_conditions, explain
from scheduler.operations.tick.heartbeat_intake import describe_host
from scheduler.protocol.names import RESERVATIONS, task_name
from scheduler.protocol.verbs import VERBS, Verb
from tasks.answers import describe_answer, find_address, send_answer
from tasks.app import app
from tasks.base import LeaseholdTask, current_host, current_principal


class RequestTask(LeaseholdTask):
    """Base class of the tasks of the queue `reservations`. Each task has one argument, a document (the JSON object with
    the fields of a request), which `read_request` finds among the arguments of a message.
    """

    abstract = True
    roles = frozenset(ROLES)

    def answer_refused(self, args: Sequence[Any], kwargs: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Send `answer` to the sender of a refused request, if one of its arguments names an address for the answer."""
        if address := next(filter(None, map(find_address, (*args, kwargs, *kwargs.values()))), None):
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


QUESTIONS: Final[Mapping[str, Callable[[Any], Answer]]] = {
    "leases": lambda asked: describe_host(app.services.ports, asked.slot, asked.machine, asked.run),
    "command": lambda asked: describe_run(app.services.ports, asked.reservation, current_principal()),
    "query": _find_rows,
    "explain": _explain,
    "conditions": lambda asked: describe_conditions(app.services.ports, asked.pool),
    "rules": lambda asked: describe_rules(app.services.ports, current_principal(), asked.history),
    "preview": lambda asked: preview_request(app.services.ports, asked.rules),
}
"""Verb of a question (a request that only reads) -> the function that answers its document."""


def _answer(verb: str, document: object) -> Answer:
    """Return the answer to a question. Such a request may be repeated."""
    try:
        question = read_document(QUESTION_SCHEMAS[verb], document)
        check_question(
            current_principal(), verb, slot=getattr(question, "slot", None), machine=getattr(question, "machine", None)
        )
        return {"ok": True, **QUESTIONS[verb](question)}
    except InvalidInputError as error:
        return {"ok": False, "errors": [{"index": 0, **msgspec.to_builtins(each)} for each in error.faults]}
    except CommandRefused as refusal:
        return {"ok": False, "errors": [{"index": 0, **msgspec.to_builtins(refusal.fault)}]}


def _accept(verb: str, document: object) -> Answer:
    (outcome,) = accept_gathered(app.services.ports, [Message(verb, document, current_principal(), current_host())])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _register(verb: Verb) -> None:
    """Register the Celery task that carries out and answers the requests of one verb."""
    acts: Mapping[str, Callable[[Any], Answer]] = {
        "rows": partial(_accept, verb.name),
        "rules": lambda document: apply_request(app.services.ports, document, current_principal()),
        "nothing": partial(_answer, verb.name),
    }

    def carry_out(document: Any) -> str:
        address = find_address(document)
        answer = acts[verb.changes](document)
        send_answer(address, answer)  # promise: answer-after-commit
        return describe_answer(answer)

    app.task(
        name=task_name(RESERVATIONS, verb.name),
        base=GatheredTask if verb.is_gathered else SearchTask if verb.is_search else RequestTask,
    )(carry_out)


for _verb in VERBS.values():
    _register(_verb)


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
