"""A held lease in an event loop: its tasks and timers renew it, read its row after a notice, and end it by the local
clock. The lease for asyncio has the rules of `Lease`, and both are driven by the same code.
"""

import asyncio
import builtins
import inspect
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from typing_extensions import override

from leasehold.client import waiting
from leasehold.client.core.watch import AsyncWatch
from leasehold.client.held_lease import GOODBYE_SECONDS, HeldLease
from leasehold.client.lease_changes import Change
from leasehold.client.models import Answer, Reservation
from leasehold.client.ports import Answered
from leasehold.errors import CannotBeServed, LeaseholdError, NotAnswered, Refused, Unavailable
from scheduler.protocol.clock import read_monotonic


class LeaseClient(Protocol):
    """What a lease needs of its client."""

    def now(self) -> float:
        """Return cluster time."""

    def watch(self, reservation: str) -> AsyncWatch:
        """See CoreClient."""

    async def _submit(self, document: dict[str, Any], timeout: float | None, *, has_row: bool) -> Answered:
        """Submit a reservation."""

    async def _wait_with(
        self, watch: AsyncWatch, phase: str, timeout: float | None, *, renew: bool, wait_anyway: bool
    ) -> Reservation:
        """Wait as `CoreClient.wait` does, with a watch that has begun."""

    async def renew(self, reservation: str, token: int | None = None, *, timeout: float | None = None) -> Answer:
        """See Commands."""

    async def release(self, reservation: str, token: int | None = None, *, timeout: float | None = None) -> Answer:
        """See Commands."""

    async def cancel(self, reservation: str, *, reason: str | None = None, timeout: float | None = None) -> Answer:
        """See Commands."""

    async def surrender(
        self,
        reservation: str,
        token: int | None = None,
        *,
        component: str | None = None,
        want: int | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """See Commands."""


class DrivenLease(HeldLease):
    """A lease that an event loop enters, keeps and leaves. While it is held, it has three timers, and a task only while
    one of them is due: no thread and no waiting task a lease.
    """

    def __init__(
        self, core: LeaseClient, fields: Mapping[str, Any], wait: float | None, *, wait_anyway: bool = False
    ) -> None:
        super().__init__(fields, wait, core.now, wait_anyway=wait_anyway)
        self._core = core
        self._watch: AsyncWatch | None = None
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self._running: dict[Callable[[], None], asyncio.Task[None]] = {}

    async def _enter(self) -> None:
        if self._row is not None:
            raise RuntimeError(f"{self.id} was entered before: a lease is held once, so make another by client.lease()")
        # The subscription begins while the reservation is submitted.
        self._watch = self._core.watch(self.id)
        self._watch._begin()  # noqa: SLF001 - its own
        try:
            await self._submit()
            await self._take_safely(self._watch)
        except BaseException:
            self._watch._end()  # noqa: SLF001 - its own
            raise
        self._watch.hinted.act = self._look_soon
        self._plan(self._renew_soon, self._pause())
        self._plan_end()
        if self._watch.hinted.is_set():
            self._look_soon()
        else:
            self._plan(self._look_soon, waiting.POLL_SECONDS)

    async def _submit(self) -> None:
        asking = asyncio.ensure_future(self._core._submit(self._fields, None, has_row=False))  # noqa: SLF001 - its own
        try:
            await asyncio.shield(asking)
        except asyncio.CancelledError:
            # The request may still be accepted. Cancel the reservation after the answer.
            await asyncio.wait([asking], timeout=GOODBYE_SECONDS)
            await self._end_lease(None)
            raise

    async def _take_safely(self, watch: AsyncWatch) -> None:
        try:
            await self._take(watch)
        except CannotBeServed as error:
            await asyncio.shield(asyncio.ensure_future(self._cancel(f"{error.code}: {error.reason}")))
            raise
        except BaseException:
            # This includes Ctrl-C. Otherwise the reservation would be leased without a holder.
            await self._end_lease(None)
            raise

    async def _take(self, watch: AsyncWatch) -> None:
        """Wait until the reservation is leased, and confirm the lease with a first renewal. If the lease was taken back
        before the renewal, wait again.
        """
        until = None if self._wait is None else time.monotonic() + self._wait
        while self._row is None:
            left = None if until is None else max(until - time.monotonic(), 0.0)
            row = await self._core._wait_with(  # noqa: SLF001 - its own
                watch, "leased", left, renew=True, wait_anyway=self._wait_anyway
            )
            # A refusal means that the lease was taken back in between. Wait again until the timeout or the end.
            try:
                self._begin(row, await self._renew(row))
            except Refused as refused:
                if self._is_foreign(refused):
                    raise

    async def _leave(self) -> None:
        self._left.set()
        self._elastic.end()
        for timer in self._timers.values():
            timer.cancel()
        for task in self._running.values():
            task.cancel()
        try:
            await asyncio.gather(*self._running.values(), return_exceptions=True)
        finally:
            # Also if the leaving task is cancelled meanwhile.
            # Speed: their keys refer to the lease, which only the garbage collector could free then.
            self._timers.clear()
            self._running.clear()
            if self._watch is not None:
                self._watch.hinted.act = None
                self._watch._end()  # noqa: SLF001 - its own
            self._wake()
            await self._end_lease(self.token)

    async def _renew(self, row: Reservation) -> Answer:
        sent = read_monotonic()
        answer = await self._core.renew(row.id, row.token, timeout=self._patience())
        self._note_renewal(answer, sent)
        return answer

    def _plan(self, act: Callable[[], None], seconds: float) -> None:
        """Call `act` after `seconds`, and no longer at the time that was planned before."""
        if act in self._timers:
            self._timers[act].cancel()
        self._timers[act] = asyncio.get_running_loop().call_later(max(seconds, 0.0), act)

    def _start(self, act: Callable[[], None], work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if (act not in self._running or self._running[act].done()) and not self._is_done():
            self._running[act] = asyncio.get_running_loop().create_task(work())

    def _renew_soon(self) -> None:
        self._start(self._renew_soon, self._keep_renewed)

    async def _keep_renewed(self) -> None:
        try:
            if self._ttl is not None:
                answer = await self._renew(self.reservation)
                self._learn(answer.phase, answer.token, answer.deadline, None)
        except Refused as refused:
            self._lose(str(refused))
        except (NotAnswered, Unavailable):
            # Try again after the pause, until the lease has expired.
            pass
        if not self._is_done():
            self._plan(self._renew_soon, self._pause())

    def _look_soon(self) -> None:
        self._start(self._look_soon, self._look)

    async def _look(self) -> None:
        watch, is_first = self._watch, True
        while watch is not None and (is_first or watch.hinted.is_set()) and not self._is_done():
            is_first = False
            watch.hinted.clear()
            try:
                row, missing = await watch.read_joined()
            except Unavailable:
                row, missing = None, frozenset()
            self._note_row(row, missing)
        if not self._is_done():
            self._plan(self._look_soon, waiting.POLL_SECONDS)

    def _plan_end(self) -> None:
        """Lose the lease when it expires by the local clock, even if the stack does not answer."""
        left = self.seconds_left
        if left is not None and self._row is not None and not self._left.is_set() and not self._is_known_lost:
            if left > 0:
                self._plan(self._plan_end, left)
            else:
                self._lose("it could not be renewed in time")

    @override
    def _wake(self) -> None:
        if self._timers:
            self._plan_end()

    async def _end_lease(self, token: int | None) -> None:
        """Give the lease back in a task of its own, which completes even if the present task is cancelled. `token`: the
        fencing token of the lease; None: the lease was not taken yet.
        """
        await asyncio.shield(asyncio.ensure_future(self._give_back(token)))

    async def _give_back(self, token: int | None) -> None:
        """Release the lease. If the release is refused, because the token is stale or the reservation is not leased
        yet, cancel the reservation. Do nothing more if this process cannot prove to be the holder, or if no answer
        comes: the lease expires after its ttl.
        """
        try:
            await self._core.release(self.id, token, timeout=GOODBYE_SECONDS)
        except Refused as refused:
            if not self._is_foreign(refused):
                await self._cancel()
        except (NotAnswered, Unavailable):
            return

    async def _cancel(self, reason: str | None = None) -> None:
        """Cancel the reservation. If it was leased in the meantime, this ends the lease."""
        try:
            await self._core.cancel(self.id, reason=reason, timeout=GOODBYE_SECONDS)
        except LeaseholdError:
            # The reservation has already ended, or no worker answers and it expires after its ttl.
            return


class AsyncLost(asyncio.Event):
    """An event that is set when a lease is lost. `is_set` is also true if the lease has expired by the local clock and
    the event loop has not set the event yet.
    """

    def __init__(self, is_over: Callable[[], bool]) -> None:
        super().__init__()
        self._is_over = is_over

    def is_set(self) -> bool:
        """Return whether the lease is lost, as shown by an answer, by the row of its reservation, or by the clock of
        this process.
        """
        return super().is_set() or self._is_over()


class AsyncLease(DrivenLease):
    """A lease for use as `async with client.lease(...) as lease:`. Properties and events are those of `Lease`;
    `revoking` and `lost` are events of asyncio.

    The body must not block the event loop, because the lease is renewed on it. Callbacks are called on the loop. If a
    callback returns a coroutine, the coroutine runs as a task. If the task that enters the lease is cancelled while it
    waits, the reservation is cancelled before CancelledError continues.
    """

    revoking: asyncio.Event
    lost: AsyncLost
    _left: asyncio.Event

    def __init__(
        self, client: LeaseClient, fields: Mapping[str, Any], wait: float | None = None, *, wait_anyway: bool = False
    ) -> None:
        super().__init__(client, fields, wait, wait_anyway=wait_anyway)
        self.revoking = asyncio.Event()
        self.lost = AsyncLost(self._expiry.is_over)
        self._left = asyncio.Event()
        self._news = asyncio.Event()
        """Event that is set at the next change of the lease, and then replaced by a new one. So each waiting task waits
        for a change that it has not seen.
        """
        self._callbacks: set[asyncio.Future[Any]] = set()

    async def changes(self, timeout: float | None = None) -> AsyncIterator[Change]:
        """Yield the changes of the lease's instances as they happen: `async for change in lease.changes():`. The
        changes are those of `Lease.changes`. The iteration ends with the lease, or after `timeout` seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        number = 0
        while True:
            news = self._news
            changes, is_over = self._elastic.since(number)
            for change in changes:
                yield change
            number += len(changes)
            left = None if until is None else until - time.monotonic()
            if is_over or (left is not None and left <= 0):
                return
            await _wait(news, left)

    async def surrender(
        self, component: str | None = None, *, want: int | None = None, timeout: float | None = None
    ) -> Answer:
        """Give back the elastic instance whose name is `component`, or all instances of the component with this name.
        If `component` is None, give back all elastic instances that are being revoked.

        An instance that was not being revoked is not granted again; other instances of its component may be. `want`:
        the most instances of the component from now on, more or fewer than it has. If it has more, those with the
        highest index end. `component` None then means the only elastic component.

        Raise Refused, NotAnswered or Unavailable.
        """
        return await self._core.surrender(self.id, self.token, component=component, want=want, timeout=timeout)

    async def __aenter__(self) -> Self:
        await self._enter()
        return self

    async def __aexit__(
        self,
        kind: "builtins.type[BaseException] | None",
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._leave()

    @override
    def _wake(self) -> None:
        super()._wake()
        news, self._news = self._news, asyncio.Event()
        news.set()

    @override
    def _call(self, callback: Callable[[Any], object]) -> None:
        result = callback(self)
        if inspect.iscoroutine(result):
            task = asyncio.ensure_future(result)
            self._callbacks.add(task)
            task.add_done_callback(self._callbacks.discard)


async def _wait(event: asyncio.Event, seconds: float | None) -> None:
    """Return when the event is set or when `seconds` have passed. `seconds` None: wait without a limit."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
