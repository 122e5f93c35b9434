"""Watches over many reservations in one event loop. One connection receives all notices, which report that rows have
changed. One read fetches all rows that the watches request at about the same time.

A watch uses neither a thread nor a connection of its own, so thousands of waits can run at the same time.
"""

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

import redis
from redis.client import PubSub

from leasehold.client.models import Reservation
from leasehold.client.ports import Joined, Notices
from leasehold.client.transport import RequestTransport
from leasehold.errors import LeaseholdError
from scheduler.protocol.redis_primary import count_left

T = TypeVar("T")
_LOOK_SECONDS: Final = 0.1
"""Interval in seconds after which the thread that receives notices checks for new watches."""


class RedisNotices:
    """The receiver of notices on Redis channels for all watches of one event loop. A notice reports that the row of a
    reservation, or of a slot, has changed. The thread that receives notices starts with the first watch.
    """

    def __init__(self, wire: RequestTransport, channel_of: Callable[[str], str]) -> None:
        self._wire, self._channel_of = wire, channel_of
        self._loop: asyncio.AbstractEventLoop | None = None
        self._events: dict[str, set[asyncio.Event]] = {}
        """Channel name -> events to set when a notice arrives. Only the thread of the event loop uses this table."""
        self._wanted: frozenset[str] = frozenset()
        """The names of the watched channels, for the thread that receives notices."""
        self._is_wanted = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, name: str, event: asyncio.Event) -> None:
        """Set `event` at each notice about the reservation (or slot) `name`, until `remove` is called."""
        self._loop = asyncio.get_running_loop()
        self._events.setdefault(self._channel_of(name), set()).add(event)
        self._take_over()
        if self._thread is None:
            self._thread = threading.Thread(target=self._hear, name="leasehold-notices", daemon=True)
            self._thread.start()

    def remove(self, name: str, event: asyncio.Event) -> None:
        """No longer set `event` at notices about the reservation (or slot) `name`."""
        channel = self._channel_of(name)
        events = self._events.get(channel, set())
        events.discard(event)
        if not events:
            self._events.pop(channel, None)
        self._take_over()

    def note(self, name: str, seen: Joined) -> None:
        """Record the row that was read last (`seen`), so that only later changes are reported. Here: do nothing,
        because Redis sends a notice at each change, whichever row was read last.
        """

    def close(self) -> None:
        """End the thread that receives notices. The transport must be closed before."""
        self._is_wanted.set()
        if self._thread is not None:
            self._thread.join()

    def _take_over(self) -> None:
        self._wanted = frozenset(self._events)
        if self._wanted:
            self._is_wanted.set()
        elif not self._wire.is_closed:
            self._is_wanted.clear()

    def _hear(self) -> None:
        while not self._wire.is_closed:
            self._is_wanted.wait()
            channel = PubSub(self._wire.redis.connection_pool, ignore_subscribe_messages=True)
            try:
                self._listen(channel)
            except redis.RedisError:
                self._wire.pause()
            finally:
                channel.close()

    def _listen(self, connection: PubSub) -> None:
        """Receive notices, and set the events of the channels on which they arrive. Return when no channel is watched
        any more, the transport is closed, or other connections of the transport have left their server. Raise
        RedisError if Redis fails.
        """
        subscribed: frozenset[str] = frozenset()
        left = count_left(self._wire.redis)
        while (wanted := self._wanted) and not self._wire.is_closed and left == count_left(self._wire.redis):
            if new := wanted - subscribed:
                connection.subscribe(*new)
                # Earlier notices were missed, so these rows are read again.
                self._pass_on(new)
            if old := subscribed - wanted:
                connection.unsubscribe(*old)  # type: ignore[no-untyped-call]
            subscribed = wanted
            message = connection.get_message(timeout=_LOOK_SECONDS)
            if message is not None:
                self._pass_on({message["channel"].decode()})

    def _pass_on(self, channels: set[str] | frozenset[str]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._set, channels)

    def _set(self, channels: set[str] | frozenset[str]) -> None:
        for channel in channels:
            for event in self._events.get(channel, ()):
                event.set()


class Gathered(Generic[T]):
    """Reads of reservations for one event loop. While one read runs, further requests are collected, and the next read
    answers all of them together. `find`: a coroutine function that returns what was found for each of some ids, in
    their order.
    """

    def __init__(self, find: Callable[[list[str]], Coroutine[Any, Any, list[T]]]) -> None:
        self._find = find
        self._wanted: dict[str, asyncio.Future[T]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def read(self, reservation: str) -> T:
        """Return what is found for a reservation now. Raise the errors of the read."""
        found = self._wanted.get(reservation)
        if found is None:
            found = self._wanted[reservation] = asyncio.get_running_loop().create_future()
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read_wanted())
        return await asyncio.shield(found)

    async def _read_wanted(self) -> None:
        while self._wanted:
            wanted, self._wanted = self._wanted, {}
            try:
                found = await self._find(list(wanted))
            except LeaseholdError as error:
                for future in wanted.values():
                    future.set_exception(error)
                    # Retrieve the error: if every reader was cancelled, asyncio would warn that it was never retrieved.
                    future.exception()
            else:
                for future, each in zip(wanted.values(), found, strict=True):
                    future.set_result(each)


class AsyncWatch:
    """A watch that reports the present row of one reservation, for use in one task: `async with client.watch(id) as
    watch:`.
    """

    def __init__(self, notices: Notices, rows: Gathered[Joined], reservation: str) -> None:
        self._notices, self._rows, self.reservation = notices, rows, reservation
        self._hinted = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._notices.add(self.reservation, self._hinted)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._notices.remove(self.reservation, self._hinted)

    async def read(self) -> Reservation | None:
        """Return the present row of the reservation, or None if the view does not have it. Raise Unavailable if the
        view is not valid.
        """
        return (await self.read_joined()).row

    async def read_joined(self) -> Joined:
        """Return (1) the present row of the reservation, None if the view does not have it, and (2) the ids of the
        leased slots for which the view lacks the machine of the lease. Raise Unavailable if the view is not valid.
        """
        found = await self._rows.read(self.reservation)
        self._notices.note(self.reservation, found)
        return found

    async def wait_for_hint(self, seconds: float) -> None:
        """Return when a notice that the reservation's row has changed arrives, or when `seconds` have passed."""
        await _wait(self._hinted, seconds)


class AsyncWatches:
    """A watch on several reservations, for use in one task: `async with client.watch_many(ids) as watches:`."""

    def __init__(self, notices: Notices, rows: Gathered[Joined], reservations: Collection[str]) -> None:
        self._notices, self._rows, self.reservations = notices, rows, tuple(dict.fromkeys(reservations))
        self._hinted = asyncio.Event()

    async def __aenter__(self) -> Self:
        for each in self.reservations:
            self._notices.add(each, self._hinted)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self.reservations:
            self._notices.remove(each, self._hinted)

    async def read_joined(self) -> dict[str, Joined]:
        """Return a dict: reservation id -> Joined. A Joined has the present row of the reservation (None: the view does
        not have it) and the ids of the leased slots whose machine the view does not have. Raise Unavailable if the view
        is not valid.
        """
        found = await asyncio.gather(*map(self._rows.read, self.reservations))
        for name, seen in zip(self.reservations, found, strict=True):
            self._notices.note(name, seen)
        return dict(zip(self.reservations, found, strict=True))

    async def wait_for_hint(self, seconds: float) -> None:
        """Return when a notice that the row of one of the reservations has changed arrives, or when `seconds` have
        passed.
        """
        await _wait(self._hinted, seconds)


async def _wait(hinted: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await hinted.wait()
    except TimeoutError:
        return
    finally:
        hinted.clear()
