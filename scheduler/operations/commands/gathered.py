"""Gathered requests: many single requests of different senders are carried out in one transaction.

The answers are the same as if the requests were carried out one by one in this order, with one exception. Requests that
do not name the same rows may be carried out in another order. For example, if a reservation is submitted while another
one is released, the submission may exceed a limit on pending reservations although the release comes first.

If a joint transaction fails, its requests are carried out one by one, so that a broken row or a lost race affects only
the request that concerns it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from scheduler.model.command_schemas import ReservationDocument
from scheduler.model.principals import Principal
from scheduler.model.validation import Document
from scheduler.operations.commands.intake import Request, check_request, count_results, execute
from scheduler.operations.commands.submit import Answer
from scheduler.operations.paused_gc import PausedGC
from scheduler.operations.ports import Ports
from scheduler.ports import ConflictError, StaleWriteError
from scheduler.protocol.verbs import GATHERED

SEPARATE_SECONDS: Final = 5.0
"""If a joint transaction fails, its requests are tried one by one until this number of seconds after its begin. The
limit bounds the work on a database that does not answer. Requests that were not tried by then get the error of the
joint transaction, and their senders repeat them.
"""
MOST_TRIES: Final = 3
"""How many times a request is tried if another transaction changes its rows first."""


@dataclass(frozen=True)
class Message:
    """A request as it arrived: the verb, the document, and the verified sender. The sender is None if the request was
    not signed. `host`: the host that sent it, unproven; None: it is unknown.
    """

    verb: str
    document: object
    principal: Principal | None = None
    host: str | None = None


Outcome = Answer | Exception
"""The answer to a request, or the error because of which there is no answer."""


def accept_gathered(ports: Ports, messages: Sequence[Message]) -> list[Outcome]:
    """Carry out these requests in as few transactions as possible. Return the outcome of each, in their order."""
    with PausedGC():
        checked = [
            check_request(
                each.verb, each.document, principal=each.principal, host=each.host, trusts_unsigned=ports.is_own_stack
            )
            for each in messages
        ]
        outcomes: dict[int, Outcome] = {}
        for stage in _stages(checked):
            # Submissions lock the counter of insertions before any reservation: they have a transaction of their own.
            for is_submission in (True, False):
                part = {index: each for index, each in stage.items() if (each.verb == "submit") == is_submission}
                outcomes |= zip(part, _execute_together(ports, list(part.values())), strict=True)
        found = [outcomes[index] if isinstance(each, Request) else each for index, each in enumerate(checked)]
        for message, outcome in zip(messages, found, strict=True):
            if isinstance(outcome, dict):
                count_results(ports.meter, message.principal, outcome)
        return found


def _stages(checked: Iterable[Request | Answer]) -> Iterator[dict[int, Request]]:
    """Yield the valid requests by index, in groups. The requests of a group may be carried out in one transaction.

    In a group no two requests have the same id or name the same row. A request with a verb that is not in GATHERED is
    alone in its group. A submission is never in a group behind a report about a slot, because the report may change
    reservations that it does not name.
    """
    stage: dict[int, Request] = {}
    taken: set[tuple[str, Any]] = set()
    for index, request in enumerate(checked):
        if not isinstance(request, Request):
            continue
        names = {("request", request.id), *_list_rows(request)}
        is_alone = request.verb not in GATHERED
        if is_alone or not taken.isdisjoint({*names, ("verb", request.verb)}):
            yield stage
            stage, taken = {}, set()
        stage[index] = request
        taken |= names
        if any(kind == "slot" for kind, _ in names):
            taken.add(("verb", "submit"))
        if is_alone:
            yield stage
            stage, taken = {}, set()
    yield stage


def _list_rows(request: Request) -> Iterator[tuple[str, Any]]:
    """Yield the rows that a request names, each as (kind, id)."""
    for document in request.items:
        if isinstance(document, ReservationDocument):
            yield "reservation", document.id
        elif isinstance(document, Document):
            found = ((kind, getattr(document, kind, None)) for kind in ("reservation", "slot"))
            yield from ((kind, name) for kind, name in found if name is not None)


def _execute_together(ports: Ports, requests: Sequence[Request]) -> list[Outcome]:
    """Carry out requests in one transaction. If it fails, carry them out one by one, as far as time allows. Return the
    outcome of each request.
    """
    if not requests:
        return []
    began = monotonic()
    try:
        return [*execute(ports, requests)]  # promise: joint-as-single
    except Exception as error:  # noqa: BLE001 - no error of one request may stop the others
        failure = error
    if len(requests) == 1 and not _is_race(failure):
        return [failure]
    return [
        _execute_alone(ports, request) if monotonic() - began < SEPARATE_SECONDS else failure for request in requests
    ]


def _execute_alone(ports: Ports, request: Request) -> Outcome:
    for left in reversed(range(MOST_TRIES)):
        try:
            return execute(ports, [request])[0]
        except Exception as error:  # noqa: BLE001 - as above
            if not left or not _is_race(error):
                return error
    raise AssertionError("unreachable")


def _is_race(error: Exception) -> bool:
    """Return whether a transaction failed because another one changed its rows first, so that it may be repeated."""
    return isinstance(error, StaleWriteError | ConflictError)
