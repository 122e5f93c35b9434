"""One class for all our tasks: ids in every log line, arguments checked, durations measured, errors mapped.

A task that could not do its work says so in one line and is gone: what it should have done is a row in SQL,
and the periodic tick, `recover`, the sweep or the client's next try come back to it. So nothing here retries,
and nothing that comes from outside ends a worker.
"""

import inspect
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

import msgspec
import redis
from celery import Task
from celery.exceptions import SoftTimeLimitExceeded
from kombu.exceptions import OperationalError
from structlog.contextvars import bound_contextvars

from scheduler.model.validation import InvalidInputError
from scheduler.operations.tick import PlanTooLateError
from scheduler.ports import (
    CloudError,
    DeposedError,
    ForeignAddressError,
    StaleWriteError,
    StoreUnavailableError,
    ViewUnavailableError,
)
from tasks.requests import describe_arguments
from workers.logs import get_logger

log = get_logger(__name__)

DROPPED: Final[dict[type[Exception], tuple[str, str]]] = {
    StoreUnavailableError: ("store_unavailable", "The database cannot be used; this is done again later."),
    ViewUnavailableError: ("view_unavailable", "The view in Redis cannot be used; this is done again later."),
    redis.RedisError: ("redis_unavailable", "Redis cannot be used; this is done again later."),
    OperationalError: ("broker_unavailable", "The broker takes no message; this is done again later."),
    ConnectionError: ("broker_unavailable", "The broker takes no message; this is done again later."),
    CloudError: ("cloud_error", "AWS refused; this is done again later."),
    StaleWriteError: ("stale", "Somebody else changed the row meanwhile; this is done again later."),
    DeposedError: ("deposed", "Another scheduler leads now; nothing was written."),
    PlanTooLateError: ("plan_too_late", "The plan took too long to be trusted; nothing was written."),
    ForeignAddressError: ("foreign_address", "The answer was to go where no answers go; nothing was done."),
    InvalidInputError: ("invalid_input", "What the database or the configuration holds is not valid."),
    SoftTimeLimitExceeded: ("too_slow", "The task ran into its time limit and was stopped."),
}
"""What a task may run into, and what is said of it. Any other error is a fault of ours: Celery logs it whole."""


class ArgumentsError(Exception):
    """A message whose arguments are not those of the task; the message says what is wrong."""


class LeaseholdTask(Task):  # type: ignore[type-arg]
    """See the module."""

    abstract = True
    Request = "tasks.requests:ReadableRequest"

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        """Run the task; its result in a word, which the metric of its duration has as a label."""
        with bound_contextvars(task=self.name, task_id=self.request.id):
            started = time.monotonic()
            result = self._run_checked(args, kwargs)
            self._measure(result, time.monotonic() - started)
            return result

    def _run_checked(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        try:
            self._check(args, kwargs)
        except ArgumentsError as error:
            shown = describe_arguments([*args, kwargs] if kwargs else args)
            log.warning("A message was refused.", action="task.refused", error=str(error), arguments=shown)
            return "refused"
        try:
            return str(self.run(*args, **kwargs))
        except tuple(DROPPED) as error:
            result, sentence = next(said for kind, said in DROPPED.items() if isinstance(error, kind))
            log.warning(sentence, action=f"task.{result}", error=str(error))
            return result

    def _check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """The arguments are as many as the task takes, and of its types."""
        try:
            given = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentsError(str(error)) from None
        for name, value in given.arguments.items():
            try:
                msgspec.convert(value, self._signature.parameters[name].annotation)
            except msgspec.ValidationError as error:
                raise ArgumentsError(f"{name}: {error}") from None

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.run, eval_str=True)

    def _measure(self, result: str, seconds: float) -> None:
        from tasks.app import services  # noqa: PLC0415 - the app imports this module

        labels = {"task": self.name or "", "result": result.partition(":")[0]}
        # An engine that cannot be built was spoken of by the task itself.
        with suppress(*DROPPED):
            services.engine.meter.observe("leasehold_task_seconds", labels, seconds)
