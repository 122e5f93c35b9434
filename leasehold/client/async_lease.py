"""A lease for asyncio. It has the rules of `Lease`, with tasks of the event loop in place of threads."""

import asyncio
import builtins
import inspect
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from leasehold.client import watch as watching
from leasehold.client.held_lease import GOODBYE_SECONDS, HeldLease
from leasehold.client.lease_changes import Change
from leasehold.client.models import Answer, Reservation
from leasehold.errors import CannotBeServed, LeaseholdError, NotAnswered, Refused, Unavailable
from scheduler.protocol.clock import read_monotonic

if TYPE_CHECKING:
    from leasehold.client.async_client import AsyncClient


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


class AsyncLease(HeldLease):
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
        self, client: "AsyncClient", fields: Mapping[str, Any], wait: float | None = None, *, wait_anyway: bool = False
    ) -> None:
        super().__init__(fields, wait, client.now, wait_anyway=wait_anyway)
        self._client = client
        self.revoking = asyncio.Event()
        self.lost = AsyncLost(self._is_overdue)
        self._left = asyncio.Event()
        self._news = asyncio.Event()
        """Event that is set at the next change of the lease, and then replaced by a new one. So each waiting task waits
        for a change that it has not seen.
        """
        self._tasks: set[asyncio.Task[Any]] = set()
        self._callbacks: set[asyncio.Future[Any]] = set()

    async def changes(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - the iteration ends then; nothing is raised
    ) -> AsyncIterator[Change]:
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
        self,
        component: str | None = None,
        *,
        want: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as in Lease
    ) -> Answer:
        """Give back the elastic instance whose name is `component`, or all instances of the component with this name.
        If `component` is None, give back all elastic instances that are being revoked.

        An instance that was not being revoked is not granted again; other instances of its component may be. `want`:
        the most instances of the component from now on, more or fewer than it has. If it has more, those with the
        highest index end. `component` None then means the only elastic component.

        Raise Refused, NotAnswered or Unavailable.
        """
        return await self._client.surrender(self.id, self.token, component=component, want=want, timeout=timeout)

    async def __aenter__(self) -> Self:
        asking = asyncio.ensure_future(self._client.reserve(**self._fields))
        try:
            await asyncio.shield(asking)
        except asyncio.CancelledError:
            # The request may still be accepted. Cancel the reservation after the answer.
            await asyncio.wait([asking])
            await self._end_lease(None)
            raise
        try:
            await self._take()
        except CannotBeServed as error:
            await asyncio.shield(asyncio.ensure_future(self._cancel(f"{error.code}: {error.reason}")))
            raise
        except BaseException:
            await self._end_lease(None)
            raise
        for work in (self._keep_renewed(), self._keep_watch(), self._keep_time()):
            self._begin_task(work)
        return self

    async def __aexit__(
        self,
        kind: "builtins.type[BaseException] | None",
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._left.set()
        self._elastic.end()
        self._wake()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._end_lease(self.token)

    async def _take(self) -> None:
        """Wait until the reservation is leased, and confirm the lease with a first renewal. If the lease was taken back
        before the renewal, wait again.
        """
        until = None if self._wait is None else time.monotonic() + self._wait
        while self._row is None:
            left = None if until is None else max(until - time.monotonic(), 0.0)
            row = await self._client.wait(self.id, "leased", left, renew=True, wait_anyway=self._wait_anyway)
            try:
                answer = await self._renew(row)
            except Refused as refused:
                if self._is_foreign(refused):
                    raise
                continue
            self._begin(row, answer)

    async def _renew(self, row: Reservation) -> Answer:
        sent = read_monotonic()
        answer = await self._client.renew(row.id, row.token, timeout=self._patience())
        self._note_renewal(answer, sent)
        return answer

    async def _keep_renewed(self) -> None:
        while not self._is_done():
            await asyncio.sleep(self._pause())
            try:
                if self._ttl is not None:
                    answer = await self._renew(self.reservation)
                    self._learn(answer.phase, answer.token, answer.deadline, None)
            except Refused as refused:
                self._lose(str(refused))
            except (NotAnswered, Unavailable):
                # Try again after the pause, until the lease has expired.
                continue

    async def _keep_watch(self) -> None:
        async with self._client.watch(self.id) as watch:
            while not self._is_done():
                try:
                    row, missing = await watch.read_joined()
                except Unavailable:
                    row, missing = None, frozenset()
                self._note_row(row, missing)
                if not self._is_done():
                    await watch.wait_for_hint(watching.POLL_SECONDS)

    async def _keep_time(self) -> None:
        """Set `lost` when the lease expires by the local clock, even if the stack does not answer."""
        while not self._is_done():
            news, left = self._news, self.seconds_left
            if left is None or left > 0:
                await _wait(news, left)
        self._lose("it could not be renewed in time")

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _call(self, callback: Callable[[Any], object]) -> None:
        result = callback(self)
        if inspect.iscoroutine(result):
            task = asyncio.ensure_future(result)
            self._callbacks.add(task)
            task.add_done_callback(self._callbacks.discard)

    def _begin_task(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(asyncio.create_task(work))

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
            await self._client.release(self.id, token, timeout=GOODBYE_SECONDS)
        except Refused as refused:
            if not self._is_foreign(refused):
                await self._cancel()
        except (NotAnswered, Unavailable):
            return

    async def _cancel(self, reason: str | None = None) -> None:
        """Cancel the reservation. If it was leased in the meantime, this ends the lease."""
        try:
            await self._client.cancel(self.id, reason=reason, timeout=GOODBYE_SECONDS)
        except LeaseholdError:
            # The reservation has already ended, or no worker answers and it expires after its ttl.
            return


async def _wait(event: asyncio.Event, seconds: float | None) -> None:
    """Return when the event is set or when `seconds` have passed. `seconds` None: wait without a limit."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
