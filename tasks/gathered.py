"""Carries out gathered requests: requests about one reservation each that were sent together to a process of the pool.
Each request is checked alone, all are committed together, and each is answered.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from billiard.einfo import ExceptionInfo
from billiard.exceptions import SoftTimeLimitExceeded
from structlog.contextvars import bound_contextvars

from scheduler.operations.commands.gathered import Message, accept_gathered
from scheduler.operations.commands.submit import Answer
from scheduler.ports import ViewUnavailableError
from scheduler.protocol.names import RESERVATIONS, TASK_PREFIX
from scheduler.view.redis_meter import gather_counts
from tasks.answers import describe_answer, find_address, send_answer
from tasks.base import Prepared
from tasks.current import find_app, find_services
from tasks.messages import read_json
from workers.logs import get_logger

log = get_logger(__name__)
_Body = tuple[list[Any], dict[str, Any], object]
Result = tuple[int, Any, float]
"""What Celery expects as the result of a task: (0, the result as text, seconds), or (1, the error, seconds) if the task
failed.
"""


class Entry(NamedTuple):
    """A request as the worker's main process took it from the queue: name of the task, id, headers, and body of the
    message.
    """

    task: str
    id: str
    headers: dict[str, Any]
    body: str | bytes


def run_gathered(entries: Sequence[Entry]) -> list[Result]:
    """Carry out these requests and answer each sender. Return the Celery results of the requests, in their order."""
    with gather_counts():
        cases = [_Case(entry) for entry in entries]
        try:
            _run(cases)
        except SoftTimeLimitExceeded as error:
            for case in cases:
                case.end_with(error)
        for case in cases:
            case.measure()
    return [case.result for case in cases]


def _run(cases: Sequence["_Case"]) -> None:
    for case in cases:
        case.prepare()
    open_cases = [case for case in cases if case.is_open]
    outcomes = accept_gathered(find_services().ports, [case.message for case in open_cases]) if open_cases else []
    for case, outcome in zip(open_cases, outcomes, strict=True):
        case.outcome = outcome
    answers = [(case.address, case.outcome) for case in open_cases if case.address and isinstance(case.outcome, dict)]
    unwritable: Collection[str] | ViewUnavailableError
    try:
        unwritable = find_services().ports.notifier.reply_to_all(answers)  # promise: answers-after-commit
    except ViewUnavailableError as error:
        unwritable = error
    for case in open_cases:
        case.finish(unwritable)


@dataclass
class _Case:
    """One of the gathered requests, with everything that belongs to it: its message, its outcome (the answer or an
    error), and its result for Celery.
    """

    entry: Entry

    def __post_init__(self) -> None:
        self._task: Any = find_app().tasks[self.entry.task]
        self._started = time.monotonic()
        self._result: str | ExceptionInfo | None = None
        self.message = Message("", None)
        self.address: str | None = None
        self.outcome: Answer | Exception | None = None

    @property
    def is_open(self) -> bool:
        """Whether the request has no result yet."""
        return self._result is None

    @property
    def result(self) -> Result:
        """The result of the request, as Celery expects it."""
        seconds = time.monotonic() - self._started
        if isinstance(self._result, ExceptionInfo):
            return 1, self._result, seconds
        return 0, repr(self._result), seconds

    def prepare(self) -> None:
        """Verify the sender and read the document. If the request is refused, this makes its result; else the request
        stays open.
        """
        self._attempt(self._prepare)

    def _prepare(self) -> str | None:
        args, kwargs, _ = cast("_Body", read_json(self.entry.body))
        prepared: Prepared | str = self._task.prepare(args, kwargs)
        if isinstance(prepared, str):
            return prepared
        self._task.ensure_membership()
        (document,) = prepared.args
        self.address = find_address(document)
        verb = self.entry.task.removeprefix(f"{TASK_PREFIX}.{RESERVATIONS}.")
        self.message = Message(verb, document, prepared.principal, prepared.host)
        return None

    def finish(self, unwritable: Collection[str] | ViewUnavailableError) -> None:
        """Make the result of the request from its outcome. `unwritable`: the addresses at which no answer could be
        written, or the error because of which no answer at all was written.
        """
        self._attempt(lambda: self._finish(unwritable))

    def _finish(self, unwritable: Collection[str] | ViewUnavailableError) -> str:
        if not isinstance(self.outcome, dict):
            raise self.outcome or AssertionError("a request has no outcome")
        if self.address is None:
            send_answer(None, self.outcome)
        elif isinstance(unwritable, ViewUnavailableError):
            raise unwritable
        elif self.address in unwritable:
            raise ViewUnavailableError(f"Redis: {self.address} is not the list for the answers to a request")
        return describe_answer(self.outcome)

    def end_with(self, error: Exception) -> None:
        """Make this error the result of the request, unless the request already has a result."""

        def fail() -> str:
            raise error

        if self.is_open:
            self._attempt(fail)

    def measure(self) -> None:
        """Record in the metrics the time from the creation of this object until now as the duration of the request.
        Record nothing if the request has no result or failed with an unknown error.
        """
        if isinstance(self._result, str):
            self._task.measure(self._result, time.monotonic() - self._started)

    def _attempt(self, act: Callable[[], str | None]) -> None:
        """Call `act` while this message is the current request of its task, and store the returned text as the result.
        If `act` returns None, the request stays open. If `act` raises an error that the task knows, store the task's
        result for this error (`LeaseholdTask.settle`). After any other error, log the error and record a failed task.
        """
        with self._acting():
            try:
                self._result = self._task.settle(act)
            except Exception:
                self._result = ExceptionInfo(internal=True)
                log.exception("A request failed.", action="task.failed")

    @contextmanager
    def _acting(self) -> Iterator[None]:
        """Make this message the current request of its task, for log lines and metrics."""
        with bound_contextvars(task=self.entry.task, task_id=self.entry.id):
            self._task.push_request(**self.entry.headers)
            try:
                yield
            finally:
                self._task.pop_request()
