"""A client for asyncio whose requests use no thread while their answers come soon.

A thread for each request costs two changes of the thread and several waits for Python's global lock, which is a large
part of the time of a request over HTTP. Here the event loop itself sends the message and receives the answer, on a
connection that no thread uses.

In unusual cases the blocking client carries the request out in a thread: the view's Redis uses TLS or is not the
broker's Redis, the connection fails, a worker is overloaded, or no answer comes within RESEND_SECONDS.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast
from uuid import uuid4

from leasehold.client import exchange
from leasehold.client.async_client import AsyncClient
from leasehold.client.client import Client
from leasehold.client.describing import describe_request
from leasehold.client.exchange import Earlier, address_request, read_first_answer
from leasehold.client.ports import Joined
from leasehold.client.redis_line import LineError, RedisLine, can_open, open_line
from leasehold.client.transport import RequestTransport
from leasehold.client.view_reader import ViewReader
from leasehold.errors import Unavailable
from scheduler.protocol.names import RESERVATIONS, task_name

MOST_LINES: Final = 64
"""The most requests that wait for their answers in the event loop at the same time. Further requests use threads."""
MOST_KEPT: Final = 8
"""The most connections that are kept while no request uses them."""
MARGIN_SECONDS: Final = 1.0
"""Seconds by which Redis may exceed the time limit of a blocking command before the connection counts as lost."""


R = TypeVar("R")


class Limit(Protocol):
    """Awaits a read of Redis and returns its result. Raises Unavailable if Redis does not answer."""

    async def __call__(self, act: Awaitable[R], /) -> R:
        """Return the result of `act`."""


class Answered(NamedTuple):
    """The answer to a request. `joined`: the row of the request's reservation; None if the row was not requested or the
    view could not be read.
    """

    answer: dict[str, Any]
    joined: Joined | None = None


class LoopClient(AsyncClient):
    """An AsyncClient over Redis for one event loop, with the further method `exchange`, which needs no thread. `limit`:
    awaits a read of Redis, or raises Unavailable; None: the time limits of the connections count.
    """

    def __init__(self, *args: Any, limit: Limit | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._limit = limit
        self._wire = cast("RequestTransport", self._client._wire)
        self._rows_reader = cast("ViewReader", self._client._reader)
        pool = self._wire.redis.connection_pool
        self._options: Mapping[str, Any] = pool.connection_kwargs
        self._may_use_lines = self._wire.may_write and can_open(self._options, pool.connection_class)
        self._writer = self._wire.make_writer()
        self._idle: list[RedisLine] = []
        self._busy = 0

    async def close(self) -> None:
        """Close all connections and threads of the client, as `AsyncClient.close` does."""
        lines, self._idle, self._may_use_lines = self._idle, [], False
        for line in lines:
            line.close()
        await super().close()

    async def exchange(
        self, verb: str, document: Mapping[str, Any], seconds: float, request: str | None, *, has_row: bool
    ) -> Answered:
        """Send one request and return its answer, as `Client.ask` does. `seconds`: the time limit. `request`: the id of
        the request; None: a random one. `has_row`: whether to return also the row of the reservation as it is after the
        answer.

        Raise NotAnswered or Unavailable.
        """
        began, name = time.monotonic(), request or uuid4().hex
        found: Answered | Earlier | None = None
        if self._may_use_lines and self._busy < MOST_LINES:
            self._busy += 1
            try:
                found = await self._ask_on_line(verb, document, seconds, name, has_row=has_row)
            finally:
                self._busy -= 1
        if isinstance(found, Answered):
            return found
        spent = time.monotonic() - began
        return await self.run(partial(_ask, verb, document, seconds, name, found, spent, has_row))

    async def _ask_on_line(
        self, verb: str, document: Mapping[str, Any], seconds: float, request: str, *, has_row: bool
    ) -> Answered | Earlier | None:
        """Send one request on a connection of the event loop. Return one of three results.

        (1) The answer, if it comes soon. (2) An Earlier, if the request was sent and a thread must wait for the answer
        or send the request again. (3) None, if a thread must send the request, because the connection failed or Redis
        refused a command.
        """
        wait = min(seconds, exchange.RESEND_SECONDS)
        if wait <= 0:
            return None
        if self._wire.clock.is_due:
            await self._run(self._readers, self._wire.clock.refresh)
        address = self._wire.reply_address(request)
        sent_at, message = self._write(verb, address_request(document, request, address), seconds)
        reservation = document.get("id") if has_row else None
        row = self._rows_reader.list_commands(reservation) if isinstance(reservation, str) else []
        try:
            line = self._idle.pop() if self._idle else await open_line(self._options)
            commands = [("LPUSH", RESERVATIONS, message), ("BLPOP", address, f"{wait:.3f}"), *row]
            replies = await line.ask(commands, wait + MARGIN_SECONDS)
        except (LineError, TimeoutError, OSError):
            # Whether the message was sent is not known. A copy does no harm.
            return None
        if any(isinstance(reply, LineError) for reply in replies):
            # The server may be a replica now, which refuses to write.
            line.close()
        self._keep(line)
        answer = read_first_answer(replies, sent_at, wait)
        if not isinstance(answer, dict):
            return answer
        if not has_row or not answer.get("ok"):
            return Answered(answer)
        return Answered(answer, await self._take_row(answer, reservation, replies[2:]))

    async def _take_row(self, answer: Mapping[str, Any], expected: object, replies: list[Any]) -> Joined | None:
        try:
            found = self._rows_reader.read_row(replies) if answer.get("reservation") == expected else None
        except Unavailable:
            return None
        return found or await self.run(partial(_read_row, answer))

    def _write(self, verb: str, document: Mapping[str, Any], patience: float) -> tuple[float, str]:
        sent_at = self._wire.clock.now()
        headers = {"sent_at": sent_at, "patience": round(patience, 3)}
        task, shown = task_name(RESERVATIONS, verb), describe_request(document)
        return sent_at, self._writer.write(task, RESERVATIONS, document, shown, headers)

    async def _run(self, executor: Executor, act: Callable[[], R]) -> R:
        running = super()._run(executor, act)
        return await (running if self._limit is None or executor is not self._readers else self._limit(running))

    def _keep(self, line: RedisLine) -> None:
        self._idle = [each for each in self._idle if each.is_usable]
        if len(self._idle) < MOST_KEPT and line.is_usable and self._may_use_lines:
            self._idle.append(line)
        else:
            line.close()


def _ask(
    verb: str,
    document: Mapping[str, Any],
    seconds: float,
    request: str,
    earlier: Earlier | None,
    spent: float,
    has_row: bool,
    client: Client,
) -> Answered:
    """Send a request with the blocking client `client`, and return its answer. The caller is a thread. `has_row`:
    whether to return also the row of the reservation. `earlier`: the copy of the request that the event loop has sent;
    None: it has sent none. `spent`: the part of `seconds` that has passed.
    """
    wire = cast("RequestTransport", client._wire)
    answer = wire.resume(verb, document, seconds, request, earlier, spent)
    return Answered(answer, _read_row(answer, client) if has_row and answer.get("ok") else None)


def _read_row(answer: Mapping[str, Any], client: Client) -> Joined | None:
    reservation = answer.get("reservation")
    if not reservation:
        return None
    try:
        return client.watch(reservation).read_joined()
    except Unavailable:
        return None
