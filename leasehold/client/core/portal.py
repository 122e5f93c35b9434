"""One event loop in one daemon thread, in which the blocking clients of a process run their coroutines. It starts with
the first call, and starts again after a fork.
"""

import asyncio
import os
import threading
from asyncio.events import _get_running_loop
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final, Generic, TypeVar

R = TypeVar("R")
_left_behind: Final[list[asyncio.AbstractEventLoop]] = []
"""The loops of parent processes. They are kept, because closing one would change the parent's set of sockets."""


class _Call(Generic[R]):
    """One call of a coroutine from another thread."""

    def __init__(self, work: Coroutine[Any, Any, R]) -> None:
        self.work = work
        self.task: asyncio.Task[R] | None = None
        # Speed: a bare lock takes half the time of a Future. Each call has its own, so a signal handler may call too.
        self.latch = threading.Lock()
        self.latch.acquire()

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self.task = loop.create_task(self.work)
        self.task.add_done_callback(lambda _: self.latch.release())

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class Portal:
    """The event loop of the blocking clients of this process. Safe for threads and after a fork. `loop`: a loop that
    runs already; None: a loop of its own.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._guard = threading.RLock()
        self._loop = loop
        self._calls: deque[_Call[Any]] = deque()
        """The calls that have not begun."""
        self._waker: int | None = None
        """The thread that wakes the loop, which then begins all these calls. None: none does."""
        self._spawned: set[asyncio.Task[object]] = set()
        if loop is None and hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._leave_behind)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop. What was made for another loop belongs to a parent process."""
        if self._loop is None:
            with self._guard:
                if self._loop is None:
                    self._loop = self._start()
        return self._loop

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run the coroutine on the loop and return its result. After KeyboardInterrupt the coroutine is cancelled, and
        the call ends when it has ended.
        """
        loop, call = self.loop, _Call(work)
        if _get_running_loop() is loop:
            # The garbage collector ended an object or a generator of the caller in this thread: waiting would stop all.
            self._begin(loop, work)
            raise RuntimeError("a call on the clients' event loop cannot wait: it is carried out without a result")
        try:
            self._calls.append(call)
            # Speed: a call that is made while another thread wakes the loop begins together with that one's. A signal
            # handler of the waking thread wakes the loop itself.
            if self._waker in {None, me := threading.get_ident()}:
                self._waker = me
                loop.call_soon_threadsafe(self._begin_calls, loop)
            call.latch.acquire()
        except BaseException:
            # Ctrl-C: the coroutine gives back what it holds. A second one ends this wait.
            loop.call_soon_threadsafe(self._begin_calls, loop)
            loop.call_soon_threadsafe(call.cancel)
            call.latch.acquire()
            raise
        assert call.task is not None  # noqa: S101 - for the type checker
        return call.task.result()

    def _begin_calls(self, loop: asyncio.AbstractEventLoop) -> None:
        self._waker = None
        while self._calls:
            self._calls.popleft().begin(loop)

    def spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Run the coroutine on the loop, if it has been started, and do not wait for its end."""
        if self._loop is None:
            work.close()
            return
        self._loop.call_soon_threadsafe(self._begin, self._loop, work)

    def _begin(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, object]) -> None:
        task = loop.create_task(work)
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)

    @staticmethod
    def _start() -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="leasehold-loop", daemon=True).start()
        return loop

    def _leave_behind(self) -> None:
        if self._loop is not None:
            _left_behind.append(self._loop)
        self._guard, self._loop, self._waker = threading.RLock(), None, None
        self._calls.clear()


PORTAL: Final = Portal()
