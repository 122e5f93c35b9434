"""The base class of all tasks. It adds ids to log lines, checks the sender and the arguments, measures durations, and
turns known errors into results.

A task that fails with a known error logs one line and ends. Its work is recorded in SQL, so the periodic tick,
`recover`, the sweep or the client's next request does the work again. Therefore no task retries, and no message and no
failure of another service ends a worker.
"""

import inspect
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cached_property
from typing import Any, ClassVar, Final, NamedTuple, NoReturn, TypeVar, cast

import msgspec
import redis
from billiard.process import current_process
from celery import Task
from celery.exceptions import Reject, SoftTimeLimitExceeded
from kombu.exceptions import OperationalError
from structlog.contextvars import bound_contextvars

from scheduler.model.principals import Principal
from scheduler.model.validation import Fault, InvalidInputError, fault, is_whole_text
from scheduler.operations.tick.tick import PlanTooLateError
from scheduler.ports import (
    CloudError,
    DatabaseWentBackError,
    Defect,
    DeposedError,
    ForeignAddressError,
    ForeignClusterError,
    ForeignMachineError,
    StaleWriteError,
    StoreUnavailableError,
    ViewUnavailableError,
)
from scheduler.protocol.verbs import Role
from scheduler.view.redis_meter import gather_counts
from tasks.current import LeaseholdApp
from tasks.messages import report_refused
from tasks.requests import describe_arguments
from workers.access import SignatureError, is_signed
from workers.logs import get_logger
from workers.services import Services

log = get_logger(__name__)

DROPPED: Final[dict[type[Exception], tuple[str, str]]] = {
    ForeignMachineError: ("foreign_machine", "EC2 runs machines of another cluster; they are not touched."),
    DatabaseWentBackError: (
        "database_went_back",
        "The database is an older state; no task runs until it is restored.",
    ),
    StoreUnavailableError: ("store_unavailable", "The database is unavailable; the task is repeated later."),
    ViewUnavailableError: ("view_unavailable", "The view in Redis is unavailable; the task is repeated later."),
    redis.RedisError: ("redis_unavailable", "Redis is unavailable; the task is repeated later."),
    OperationalError: ("broker_unavailable", "The broker accepts no message; the task is repeated later."),
    ConnectionError: ("broker_unavailable", "The broker accepts no message; the task is repeated later."),
    CloudError: ("cloud_error", "AWS refused a call; the task is repeated later."),
    StaleWriteError: ("stale", "Another process changed the row meanwhile; the task is repeated later."),
    DeposedError: ("deposed", "Another scheduler leads now; nothing was written."),
    PlanTooLateError: ("plan_too_late", "The plan took longer than the lock allows; nothing was written."),
    ForeignAddressError: ("foreign_address", "The address for the answer is not allowed; nothing was done."),
    InvalidInputError: ("invalid_input", "The content of the database or the configuration is invalid."),
    SoftTimeLimitExceeded: ("too_slow", "The task exceeded its time limit and was stopped."),
}
"""Known error -> (result of the task, sentence for the log). Celery logs other errors with a traceback."""
MOST_SHOWN: Final = 10
"""The most faults that one log line lists."""


class UnansweredError(Exception):
    """Raised if a request is refused and its message has no address (`reply_to`) for the answer. `faults`: the reasons;
    `result`: the result of the task.
    """

    def __init__(self, faults: Sequence[Fault], result: str) -> None:
        self.faults, self.result = tuple(faults), result
        super().__init__("; ".join(map(str, faults)))


def _leave(error: ForeignClusterError) -> NoReturn:
    """End this worker because its queue belongs to another cluster. The message returns to the queue for a worker of
    that cluster.
    """
    log.error(
        "This worker belongs to another cluster than its queue; it ends.", action="worker.foreign", error=str(error)
    )
    # In a pool of processes the parent is the worker; in a pool of threads this process is.
    os.kill(getattr(current_process(), "_parent_pid", None) or os.getpid(), signal.SIGTERM)
    raise Reject(str(error), requeue=True) from None


_T = TypeVar("_T")


class Prepared(NamedTuple):
    """The verified sender (`principal`, None: not signed) and the checked arguments of a message."""

    principal: Principal | None
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    host: str | None
    """The host that sent the message, unproven; None: it is unknown."""


class LeaseholdTask(Task):  # type: ignore[type-arg]
    """Base class of all tasks: checks the sender and the arguments of a message, runs the task, and measures its
    duration. A known error becomes one log line and a result.
    """

    abstract = True
    Request = "tasks.requests:ReadableRequest"
    needs_membership = True
    """Whether the task is refused while database and Redis belong to different clusters."""
    roles: ClassVar[frozenset[Role]] = frozenset({"worker"})
    """Roles of principals whose messages the task accepts if `access.mode` is `signed`."""

    @property
    def services(self) -> Services:
        """The services of the task's application."""
        return cast("LeaseholdApp", self.app).services

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        """Run the task and return its result, a text. The part of the result before a colon becomes a label of the
        metric of task durations.
        """
        with bound_contextvars(task=self.name, task_id=self.request.id):
            started = time.monotonic()
            with gather_counts():
                prepared = self.prepare(args, kwargs)
                result = prepared if isinstance(prepared, str) else self.settle(lambda: self._run(prepared))
                self.measure(result, time.monotonic() - started)
            return result

    def answer_refused(self, args: Sequence[Any], kwargs: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Send `answer` to the sender of a refused message, if the message has an address. This base class sends
        nothing. The arguments of the message are unchecked.
        """

    def verify(self) -> Principal | None:
        """Return the principal that sent the message; None for an unsigned message, if `access.mode` allows it.

        Raises UnprovenError for a missing or wrong signature, and StoreUnavailableError if the database cannot be
        reached.
        """
        return verify_sender(self.services, vars(self.request), self.name or "", self.roles)

    def prepare(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "Prepared | str":
        """Verify the sender of the message and check the arguments. Return both as Prepared. If the message is refused,
        return the task's result, a text.
        """
        try:
            principal = self.verify()
        except UnprovenError as error:
            log.warning("A message was refused.", action="task.refused", error=str(error), why=error.reason)
            self._report("signature", [error.fault])
            self._answer(args, kwargs, [error.fault])
            return "refused"
        except tuple(DROPPED) as error:
            return self._drop(error)
        try:
            # Celery's header `origin` is NAME@HOST.
            host = self.request.origin.partition("@")[2] if isinstance(self.request.origin, str) else None
            host = host if is_whole_text(host, MOST_HOST) else None
            return Prepared(principal, *self.read_arguments(args, kwargs), host)
        except InvalidInputError as error:
            shown = describe_arguments([*args, kwargs] if kwargs else args)
            # promise: bad-message-refused
            log.warning("A message was refused.", action="task.refused", error=str(error), arguments=shown)
            self._report("arguments", error.faults)
            self._answer(args, kwargs, error.faults)
            return "refused"

    def _answer(self, args: Sequence[Any], kwargs: Mapping[str, Any], faults: Sequence[Fault]) -> None:
        with suppress(*DROPPED):
            errors = [{"index": 0, **msgspec.to_builtins(each)} for each in faults]
            self.answer_refused(args, kwargs, {"ok": False, "errors": errors})

    def _run(self, prepared: "Prepared") -> str:
        with acting_for(prepared.principal, prepared.host):
            self.ensure_membership()
            return str(self.run(*prepared.args, **prepared.kwargs))

    def ensure_membership(self) -> None:
        """Check that database and Redis belong to one cluster, if the task needs this (`needs_membership`). Raises
        ForeignClusterError if they belong to different clusters.
        """
        if self.needs_membership and not self.request.called_directly:
            self.services.ensure_membership()

    def settle(self, act: Callable[[], _T]) -> _T | str:
        """Call `act` and return its result. If `act` raises a known error, log the error and return the task's result
        for this error (DROPPED).

        Raises Reject if this worker belongs to another cluster than its queue.
        """
        try:
            return act()
        except UnansweredError as error:
            errors = [str(each) for each in error.faults[:MOST_SHOWN]]
            log.warning(
                "A request without an address for its answer was refused.", action="request.refused", errors=errors
            )
            self._report("document", error.faults)
            return error.result
        except ForeignClusterError as error:
            if isinstance(error, ForeignMachineError):
                return self._drop(error)
            _leave(error)
        except tuple(DROPPED) as error:
            return self._drop(error)

    def _drop(self, error: Exception) -> str:
        result, sentence = next(entry for kind, entry in DROPPED.items() if isinstance(error, kind))
        log.warning(sentence, action=f"task.{result}", error=str(error))
        if isinstance(error, ForeignAddressError):
            self._report("address", [Fault("reply_to", "the address of a list for answers", "another address")])
        return result

    def read_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return the arguments for the task. Raises InvalidInputError if their number or types are wrong."""
        try:
            given = self._signature.bind(*args, **kwargs)
        except TypeError:
            wanted = f"the arguments ({', '.join(self._signature.parameters)})"
            raise InvalidInputError(
                [Fault("args", wanted, f"{len(args)} positional and {len(kwargs)} keyword arguments")]
            ) from None
        for name, value in given.arguments.items():
            wanted = self._signature.parameters[name].annotation
            try:
                msgspec.convert(value, wanted)
            except msgspec.ValidationError:
                raise fault(name, inspect.formatannotation(wanted), value) from None
        return args, kwargs

    def _report(self, defect: Defect, faults: Sequence[Fault]) -> None:
        _, queue, *_ = (*(self.name or "").split("."), "")
        report_refused(self.services, queue, defect, faults, task=self.name or "", message=str(self.request.id or ""))

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.run, eval_str=True)

    def measure(self, result: str, seconds: float) -> None:
        """Record the duration of the task in the metrics. The part of the result before a colon is a label."""
        labels = {"task": self.name or "", "result": result.partition(":")[0]}
        # If the ports cannot be built, the task itself has logged it.
        with suppress(*DROPPED):
            self.services.ports.meter.observe("leasehold_task_seconds", labels, seconds)


_CURRENT: Final[ContextVar[Principal | None]] = ContextVar("principal", default=None)
_HOST: Final[ContextVar[str | None]] = ContextVar("host", default=None)
MOST_HOST: Final = 255
"""The most characters of the name of a host."""
_WANTED: Final = (
    "a valid signature of a known principal of this cluster, at most an hour old"
    " (`leasehold principals add NAME --role ROLE` adds one)"
)
"""The expected value in every fault about a signature. All such faults have the same text, so that a sender does not
learn which principals exist.
"""


class UnprovenError(Exception):
    """Raised if a message is refused because its sender is not proven or lacks the role. `fault` is sent to the sender,
    and `reason` is only logged.
    """

    def __init__(self, fault: Fault, reason: str) -> None:
        self.fault, self.reason = fault, reason
        super().__init__(str(fault))


def current_principal() -> Principal | None:
    """Return the verified sender of the message that this task carries out; None if the message was not signed."""
    return _CURRENT.get()


def current_host() -> str | None:
    """Return the host that sent the message that this task carries out, unproven; None if it is unknown."""
    return _HOST.get()


@contextmanager
def acting_for(principal: Principal | None, host: str | None = None) -> Iterator[None]:
    """Let `current_principal` and `current_host` return these for the `with` block. Only `tasks.base` calls it,
    after it verified the signature.
    """
    token, host_token = _CURRENT.set(principal), _HOST.set(host)
    try:
        yield
    finally:
        _CURRENT.reset(token)
        _HOST.reset(host_token)


def verify_sender(
    services: Services, headers: Mapping[str, Any], task: str, roles: frozenset[Role]
) -> Principal | None:
    """Return the principal that sent a message for this task; None for an unsigned one, if `access.mode` accepts it.

    Raises UnprovenError for a wrong signature in every mode, and for a role that is not in `roles` in mode `signed`.
    Raises StoreUnavailableError if the database cannot be reached.
    """
    mode = services.settings.access.mode
    _, queue, *_ = (*task.split("."), "")
    if not is_signed(headers):
        if mode == "signed":
            raise UnprovenError(Fault("signature", _WANTED, "none", "forbidden"), "the message is not signed")
        if mode == "warn":
            services.meter.count("leasehold_unsigned_messages_total", {"queue": queue})
        return None
    try:
        found = services.access.verify(headers, queue=queue, task=task, message_id=str(headers.get("id") or ""))
    except SignatureError as error:
        raise UnprovenError(Fault("signature", _WANTED, "another signature", "forbidden"), str(error)) from None
    if mode == "signed" and found.role not in roles:
        raise UnprovenError(
            Fault("principal", f"a principal of the role {' or '.join(sorted(roles))}", found.role, "forbidden"),
            f"the principal {found.name} has the role {found.role}, which may not send this message",
        )
    return found
