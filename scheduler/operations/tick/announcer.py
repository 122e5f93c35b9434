"""The announcement of the chunks of a plan: each is announced in a thread while the next one is written."""

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from types import TracebackType
from typing import Self

from scheduler.operations.ports import Ports, announce
from scheduler.operations.unit_of_work import ChangeSet


class Announcer:
    """Announces committed chunks one after the other, in the order of their commits. Use it as a context manager: at
    its end, all announcements have ended.

    Speed: a thread announces a chunk while the caller writes the next one, because most of both is waiting for Redis
    and for the database. The last chunk, which is the only one of most plans, needs no thread.
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._executor: ThreadPoolExecutor | None = None
        self._running: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # The error of the caller is raised, not that of an announcement.
            with suppress(*([] if error is None else [Exception])):
                self._wait()
        finally:
            if self._executor is not None:
                self._executor.shutdown()

    def announce(self, change_set: ChangeSet, *, is_last: bool) -> None:
        """Announce a committed chunk, as soon as the one before it is announced. Raises the error of an earlier
        announcement. `is_last`: no other chunk follows; return when it is announced.
        """
        self._wait()
        # A simulation has no Redis to wait for, and its steps have one order.
        if is_last or not self._ports.is_observed:
            announce(self._ports, change_set, kick=False)
            return
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="leasehold-announce")
        # In a copy of the context, so that metrics are collected and log lines have the id of the task.
        self._running = self._executor.submit(copy_context().run, announce, self._ports, change_set, kick=False)

    def _wait(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.result()
