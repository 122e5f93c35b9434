"""Send requests as Celery tasks, and receive their answers on Redis lists.

Copies of a request with the same id are sent until its answer arrives (`exchange.py`). The intake worker carries the
request out once and gives every copy the same answer. So if Redis loses a message, or a worker ends before its commit
or its answer, the request is delayed and no reservation is lost (docs/reference/protocol.md, "Answers").
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn
from uuid import uuid4

import msgspec
import redis
from typing_extensions import override

from leasehold.client.describing import describe_silence
from leasehold.client.ports import Answered, Joined, Wire
from leasehold.client.redis import exchange
from leasehold.client.redis.cluster_time import ClientClock
from leasehold.client.redis.connection import explain_redis
from leasehold.client.redis.exchange import Pending, find_reason, read_retry
from leasehold.client.redis.lines import Commands, Line, Lines
from leasehold.client.redis.notices import ChannelNotices, Subscription
from leasehold.client.redis.reader import ViewReader
from leasehold.client.redis.transport import RequestTransport
from leasehold.errors import NotAnswered, Overloaded, Unavailable
from scheduler.protocol.heartbeats import Heartbeat, format_heartbeat
from scheduler.protocol.names import REPLY_WORD, RESERVATIONS

if TYPE_CHECKING:
    from leasehold.canaries import Probe

REQUESTS_IN_FLIGHT: Final = 8
"""The most requests of one call that wait for their answers at the same time."""
LONGEST_WAIT_SECONDS: Final = 0.5
"""The most seconds of one blocking read for the answer to one request. Late answers then arrive on one connection."""
LATE_SECONDS: Final = 0.1
"""The most seconds of one blocking read for late answers, so that it soon waits for further ones."""
MARGIN_SECONDS: Final = 5.0
"""Seconds by which Redis may exceed the time limit of a blocking command before the connection counts as lost."""
HEARTBEAT_SECONDS: Final = 86400
"""Seconds after which a heartbeat's key in Redis expires. All hosts use the same value, because the age of a heartbeat
is computed from it.
"""
PAUSE_SECONDS: Final = 0.2


class Deadline:
    """The time limit of one call. `extend`: it starts again with an answer."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.at = seconds, time.monotonic() + seconds

    def extend(self) -> None:
        """Begin the time limit again."""
        self.at = time.monotonic() + self.seconds

    @property
    def left(self) -> float:
        """Seconds until the limit, at least 0."""
        return max(self.at - time.monotonic(), 0.0)


class LateAnswers:
    """The connection that waits for all answers which did not come soon."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._waiting: dict[str, asyncio.Future[bytes]] = {}
        self._task: asyncio.Task[None] | None = None

    async def wait(self, address: str, seconds: float) -> bytes | None:
        """Return the answer on this Redis list, or None after `seconds`. Raise RedisError."""
        found = self._waiting[address] = asyncio.get_running_loop().create_future()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._receive())
        try:
            async with asyncio.timeout(seconds):
                answer: bytes = await found
                return answer
        except TimeoutError:
            return None
        finally:
            self._waiting.pop(address, None)

    async def _receive(self) -> None:
        while self._waiting:
            try:
                commands = [("BLPOP", *self._waiting, str(LATE_SECONDS))]
                (reply,) = await self._line.ask(commands, LATE_SECONDS + MARGIN_SECONDS)
                if isinstance(reply, redis.RedisError):
                    raise reply
            except redis.RedisError as error:
                for each in self._waiting.values():
                    if not each.done():
                        each.set_exception(error)
                return
            if reply is not None:
                found = self._waiting.pop(reply[0].decode(), None)
                if found is not None and not found.done():
                    found.set_result(reply[1])


class RedisWire(Wire):
    """Sends requests to the workers and waits for their answers. `transport` writes the messages."""

    def __init__(self, transport: RequestTransport) -> None:
        self.transport = transport
        self.view = Lines(transport.view_url)
        self.has_one_redis = transport.url == transport.view_url
        self._broker = self.view if self.has_one_redis else Lines(transport.url)
        self._line = self.view.open()
        """The connection for reads and single commands."""
        self.late = LateAnswers(self.view.open())
        self.reader = ViewReader(self._line, transport.names, transport.view_url, self.view.note_view, self._refresh)
        self._subscription = Subscription(self.view)
        self.rows = ChannelNotices(self._subscription, transport.names.notice)
        self.hosts = ChannelNotices(self._subscription, transport.names.host)
        self._closed = asyncio.Event()

    @property
    @override
    def clock(self) -> ClientClock:
        return self.transport.clock

    @property
    @override
    def is_closed(self) -> bool:
        return self.transport.is_closed

    @override
    async def ask(
        self,
        verb: str,
        document: Mapping[str, Any],
        timeout: float,
        *,
        request: str | None = None,
        has_row: bool = False,
    ) -> Answered:
        name = str(request or document.get("request") or uuid4().hex)
        return await _Request(self, verb, document, name, Deadline(timeout), has_row=has_row).carry_out()

    @override
    async def ask_each(
        self, verb: str, documents: Iterable[Mapping[str, Any]], timeout: float
    ) -> AsyncIterator[dict[str, Any]]:
        deadline = Deadline(timeout)
        running: deque[asyncio.Task[Answered]] = deque()
        try:
            for document in documents:
                name = str(document.get("request") or uuid4().hex)
                request = _Request(self, verb, document, name, deadline, has_row=False)
                # Reservations are queued in the order in which their requests arrive.
                await request.send_first()
                running.append(asyncio.create_task(request.carry_out()))
                if len(running) >= REQUESTS_IN_FLIGHT:
                    yield (await running.popleft()).answer
            while running:
                yield (await running.popleft()).answer
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    @override
    async def send_heartbeat(
        self, slot: str, machine: str, version: str | None, above: int, run: str | None = None
    ) -> int:
        """A heartbeat is written under the key of the run of the agent, if the slot has one, and under the key of the
        slot, which workers of earlier versions read. It is signed if the principal of this client has the name of the
        slot. The result is 0 if it is not signed.
        """
        beat, signer = Heartbeat(machine, version), self.transport.signer
        try:
            await self.prepare()
            if signer is not None:
                beat = signer.sign_heartbeat(slot, beat, above)
            names, seconds = self.transport.names, str(HEARTBEAT_SECONDS)
            keys = [names.heartbeat(slot, each) for each in dict.fromkeys([run, None])]
            commands = [("SET", key, format_heartbeat(beat), "EX", seconds) for key in keys]
            await self.read(commands)
        except redis.RedisError as error:
            raise explain_redis(error, self.transport.view_url, "write heartbeats", "takes no heartbeat") from error
        return beat.counter or 0

    @override
    def make_probe(self) -> "Probe":
        from leasehold.canaries import Probe

        return Probe(self.transport)

    @override
    async def close(self) -> None:
        self.transport.close()
        self._closed.set()
        await self._subscription.close()
        await self.view.close()
        await self._broker.close()

    async def pause(self, seconds: float) -> None:
        """Wait for `seconds`. Return at once if the wire is closed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()

    async def prepare(self) -> None:
        """Read what the next message needs from Redis: cluster time, and the cluster's identity for a signature. Raise
        Unavailable if the identity cannot be read.
        """
        await self._refresh()
        signer = self.transport.signer
        if signer is not None and signer.is_due:
            try:
                (found,) = await self.read([("GET", self.transport.names.cluster)])
            except redis.RedisError as error:
                raise Unavailable(f"the cluster's identity cannot be read from Redis: {error}") from error
            signer.note_cluster(found)

    async def is_held(self, pending: Pending) -> bool:
        """Return whether the newest copy of a request probably still waits in the queue."""
        if not pending.may_be_held():
            return False
        try:
            length, taken = ("LLEN", RESERVATIONS), ("GET", self.transport.names.taken)
            if self.has_one_redis:
                waiting, found = await self.read([length, taken])
            else:
                (waiting,) = await self.push([length])
                (found,) = await self.read([taken])
            return bool(waiting) and found is not None and (pending.sent_at or 0.0) > float(found)
        except (redis.RedisError, ValueError, TypeError):
            # A request without an answer may be lost then, so it is sent again.
            return False

    async def push(self, commands: Commands) -> list[Any]:
        """Return the replies of the broker's Redis to these commands."""
        return await (self._line.ask(commands) if self.has_one_redis else self._broker.ask(commands, MARGIN_SECONDS))

    async def read(self, commands: Commands) -> list[Any]:
        """Return the replies to these commands. Raise RedisError if one is refused, or if the connection is lost
        twice.
        """
        try:
            replies = await self._line.ask(commands)
        except (redis.ConnectionError, redis.TimeoutError):
            replies = await self._line.ask(commands)
        if isinstance(replies[-1], redis.RedisError):
            raise replies[-1]
        return replies

    async def _refresh(self) -> None:
        if self.clock.is_due:
            await self.clock.refresh_by(self._line.ask)


class _Request:
    """One request that is sent until its answer arrives."""

    def __init__(
        self, wire: RedisWire, verb: str, document: Mapping[str, Any], name: str, deadline: Deadline, *, has_row: bool
    ) -> None:
        self._wire, self._verb, self._deadline = wire, verb, deadline
        self._address = wire.transport.reply_address(name if REPLY_WORD.fullmatch(name) else uuid4().hex)
        self._pending = Pending({**document, "request": name, "reply_to": self._address})
        self._reservation = document.get("id") if has_row else None
        self._trouble: Unavailable | None = None
        self._failures, self._was_sent = 0, False

    async def carry_out(self) -> Answered:
        """Return the answer. Raise NotAnswered or Unavailable."""
        while True:
            try:
                answered = await self._try_once()
            except redis.RedisError as error:
                await self._note_trouble(explain_redis(error, self._wire.transport.view_url, "take answers"))
            except Unavailable as error:
                await self._note_trouble(error)
            else:
                if answered is not None:
                    self._deadline.extend()
                    return answered
            if self._wire.is_closed or (self._was_sent and self._deadline.left <= 0):
                self._give_up()

    async def send_first(self) -> None:
        """Send the request and do not wait for its answer. If that fails, `carry_out` sends it."""
        with suppress(redis.RedisError, Unavailable):
            await self._send(alone=True)

    async def _try_once(self) -> Answered | None:
        """Send the request if it is due, and wait for its answer for some time."""
        if self._wire.is_closed:
            self._give_up()
        pending, replies = self._pending, list[Any]()
        if pending.due <= time.monotonic():
            if await self._wire.is_held(pending):
                pending.hold()
            else:
                replies = await self._send()
        if not replies:
            wait = min(self._deadline.at, max(pending.due, time.monotonic() + 0.05)) - time.monotonic()
            replies = await self._wait(max(wait, 0.01))
        if replies[0] is None:
            return None
        self._trouble, self._failures = None, 0
        answer: dict[str, Any] = msgspec.json.decode(replies[0][1])
        if (seconds := read_retry(answer)) is not None:
            pending.note_shed(seconds)
            return None
        return Answered(answer, self._read_row(answer, replies[1:]))

    async def _send(self, *, alone: bool = False) -> list[Any]:
        """Send the request. If one Redis has everything, wait for its answer and read its row in the same round trip,
        and return the replies to both; else return [].
        """
        wire, patience = self._wire, self._deadline.left
        await wire.prepare()
        began = time.monotonic()
        sent_at, message = wire.transport.write_request(self._verb, self._pending.document, patience)
        commands: list[tuple[str, ...]] = [("LPUSH", RESERVATIONS, message)]
        wait = min(patience, LONGEST_WAIT_SECONDS, exchange.RESEND_SECONDS)
        is_joined = wire.has_one_redis and wait > 0 and not alone and wire.view.has_free
        if is_joined:
            commands.append(("BLPOP", self._address, f"{wait:.3f}"))
            if isinstance(self._reservation, str):
                commands += wire.reader.list_commands(self._reservation)
        # After an error, whether the message was sent is not known. A copy does no harm.
        try:
            replies = await (wire.view.ask(commands, wait + MARGIN_SECONDS) if is_joined else wire.push(commands))
            if isinstance(replies[0], redis.RedisError):
                raise replies[0]
        except redis.RedisError as error:
            purpose = f"send to the queue {RESERVATIONS}"
            raise explain_redis(error, wire.transport.url, purpose, "takes no message") from error
        self._pending.note_sent(sent_at, began)
        self._was_sent = True
        if len(replies) > 1 and isinstance(replies[1], redis.RedisError):
            raise replies[1]
        return replies[1:]

    async def _wait(self, seconds: float) -> list[Any]:
        wire, wait = self._wire, min(seconds, LONGEST_WAIT_SECONDS)
        if not wire.view.has_free:
            found = await wire.late.wait(self._address, seconds)
            return [None if found is None else (self._address, found)]
        replies = await wire.view.ask([("BLPOP", self._address, f"{wait:.3f}")], wait + MARGIN_SECONDS)
        if isinstance(replies[0], redis.RedisError):
            raise replies[0]
        return replies

    def _read_row(self, answer: Mapping[str, Any], replies: list[Any]) -> Joined | None:
        if not replies or not answer.get("ok") or answer.get("reservation") != self._reservation:
            return None
        try:
            return self._wire.reader.read_row(replies)
        except Unavailable:
            return None

    async def _note_trouble(self, error: Unavailable) -> None:
        if self._wire.is_closed:
            self._give_up()
        self._trouble = error
        if self._deadline.left <= 0:
            raise error
        # The first failure is often that of a connection which the server has closed.
        if self._failures:
            await self._wire.pause(min(PAUSE_SECONDS, self._deadline.left))
        self._failures += 1

    def _give_up(self) -> NoReturn:
        if self._wire.is_closed:
            raise Unavailable("the client was closed while it waited for an answer")
        if self._trouble is not None:
            raise self._trouble
        reason = find_reason(self._pending)
        # A copy that was sent after the last such answer may still be carried out.
        kind = Overloaded if self._pending.times_shed and self._pending.sent_at is None else NotAnswered
        raise kind(describe_silence(self._verb, self._pending.document, self._deadline.seconds, reason), reason)
