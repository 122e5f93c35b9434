"""Watches over many reservations in one event loop. One connection receives all notices, which report that rows have
changed. One read fetches all rows that the watches request at about the same time.

A watch uses no connection of its own, so thousands of waits can run at the same time.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection
from types import TracebackType
from typing import Generic, Self, TypeVar

from leasehold.client.models import Reservation
from leasehold.client.ports import Joined, Notices

T = TypeVar("T")


class Gathered(Generic[T]):
    """Reads of reservations for one event loop. While one read runs, further requests are collected, and the next read
    answers all of them together. `find`: returns what was found for each of some ids, in their order; its second
    argument has the slots on which the reservations probably have leases.
    """

    def __init__(self, find: Callable[[list[str], Collection[str]], Awaitable[list[T]]]) -> None:
        self._find = find
        self._wanted: dict[str, list[asyncio.Future[T]]] = {}
        self._expected: set[str] = set()
        self._reading: asyncio.Task[None] | None = None

    async def read(self, reservation: str, expected: Collection[str] = ()) -> T:
        """Return what is found for a reservation now. Raise the errors of the read."""
        loop = asyncio.get_running_loop()
        found: asyncio.Future[T] = loop.create_future()
        self._wanted.setdefault(reservation, []).append(found)
        self._expected.update(expected)
        if self._reading is None or self._reading.done():
            self._reading = loop.create_task(self._read_wanted())
        return await found

    async def _read_wanted(self) -> None:
        while self._wanted:
            wanted, self._wanted = self._wanted, {}
            expected, self._expected = self._expected, set()
            try:
                found = await self._find(list(wanted), expected)
            except Exception as error:  # noqa: BLE001 - each reader gets it
                for future in itertools.chain(*wanted.values()):
                    if not future.done():
                        future.set_exception(error)
            else:
                for futures, each in zip(wanted.values(), found, strict=True):
                    for future in futures:
                        if not future.done():
                            future.set_result(each)


class AsyncWatch:
    """A watch that reports the present row of one reservation, for use in one task: `async with client.watch(id) as
    watch:`.
    """

    def __init__(self, notices: Notices, rows: Gathered[Joined], reservation: str) -> None:
        self._notices, self._rows, self.reservation = notices, rows, reservation
        self.hinted = Hint()

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _begin(self) -> None:
        """Begin the subscription."""
        self._notices.add(self.reservation, self.hinted)

    def _end(self) -> None:
        """End the subscription."""
        self._notices.remove(self.reservation, self.hinted)

    async def read(self) -> Reservation | None:
        """Return the present row of the reservation, or None if the view does not have it. Raise Unavailable if the
        view is not valid.
        """
        return (await self.read_joined()).row

    async def read_joined(self) -> Joined:
        """Return (1) the present row of the reservation, None if the view does not have it, and (2) the ids of the
        leased slots for which the view lacks the machine of the lease. Raise Unavailable if the view is not valid.
        """
        await self._notices.listen(self.reservation)
        found = await self._rows.read(self.reservation, self._notices.find_expected(self.reservation))
        self._notices.note(self.reservation, found)
        return found

    async def wait_for_hint(self, seconds: float) -> None:
        """Return when a notice that the reservation's row has changed arrives, or when `seconds` have passed."""
        await self.hinted.take(seconds)


class AsyncWatches:
    """A watch on several reservations, for use in one task: `async with client.watch_many(ids) as watches:`."""

    def __init__(self, notices: Notices, rows: Gathered[Joined], reservations: Collection[str]) -> None:
        self._notices, self._rows, self.reservations = notices, rows, tuple(dict.fromkeys(reservations))
        self._hinted = Hint()

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
        for name in self.reservations:
            await self._notices.listen(name)
        found = await asyncio.gather(*map(self._rows.read, self.reservations))
        for name, seen in zip(self.reservations, found, strict=True):
            self._notices.note(name, seen)
        return dict(zip(self.reservations, found, strict=True))

    async def wait_for_hint(self, seconds: float) -> None:
        """Return when a notice that the row of one of the reservations has changed arrives, or when `seconds` have
        passed.
        """
        await self._hinted.take(seconds)


class Hint:
    """A flag that notices set, and for which one task may wait. `act`: a function that is called then, too."""

    def __init__(self) -> None:
        self.act: Callable[[], object] | None = None
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def is_set(self) -> bool:
        """Return whether a notice has arrived since the last `take` or `clear`."""
        return self._is_set

    def set(self) -> None:
        """Record that a notice has arrived."""
        self._is_set = True
        self._wake()
        if self.act is not None:
            self.act()

    def clear(self) -> None:
        """Forget the notices that have arrived."""
        self._is_set = False

    async def take(self, seconds: float) -> bool:
        """Wait until a notice has arrived since the last call, for `seconds` at most. Return whether one has."""
        if not self._is_set:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(seconds, self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
        is_set, self._is_set = self._is_set, False
        return is_set

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
