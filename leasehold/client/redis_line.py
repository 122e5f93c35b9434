"""One connection to Redis for an event loop. It sends several commands in one piece and returns their replies
together, so that the event loop wakes up once and no thread is needed.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from redis.connection import SSLConnection

from leasehold.client.redis_connection import CONNECT_SECONDS

_END: Final = b"\r\n"
_MOST_BUFFER: Final = 64 * 1024 * 1024


class LineError(Exception):
    """Raised if Redis closes the connection, sends an unexpected reply, or refuses the user."""


class RedisLine(asyncio.Protocol):
    """One connection to Redis, which carries out one `ask` at a time. Open it with `open_line`."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._replies: list[Any] = []
        self._wanted = 0
        self._done: asyncio.Future[list[Any]] | None = None

    @property
    def is_usable(self) -> bool:
        """Whether the connection is open and no command waits for its reply."""
        return self._transport is not None and not self._transport.is_closing() and self._done is None

    async def ask(self, commands: Sequence[Sequence[str | bytes]], seconds: float) -> list[Any]:
        """Send commands and return their replies: bytes, int, list or None, and a LineError in place of the reply to a
        command that Redis refused. Raise LineError if the connection is lost, and TimeoutError if the replies are not
        complete after `seconds`. After an exception the connection cannot be used again.
        """
        if not self.is_usable or self._transport is None:
            raise LineError("the connection to Redis is closed")
        self._wanted, self._replies = len(commands), []
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(b"".join(map(_pack, commands)))
        try:
            async with asyncio.timeout(seconds):
                return await self._done
        except BaseException:
            # A reply that comes later would be taken for that of the next command.
            self.close()
            raise
        finally:
            self._done = None

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport of the new connection. asyncio calls this method."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for the type checker
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Read the replies that are complete in the data received so far. asyncio calls this method for each piece of
        data.
        """
        self._buffer += data
        try:
            position = self._read_replies()
        except (ValueError, IndexError, RecursionError) as error:
            self._fail(f"Redis sent data that is no reply: {error}")
            return
        del self._buffer[:position]
        if len(self._buffer) > _MOST_BUFFER or (self._buffer and not self._wanted):
            self._fail("Redis sent more data than the replies to the commands")

    def connection_lost(self, exc: Exception | None) -> None:
        """Let a waiting `ask` raise LineError, because the connection is closed. asyncio calls this method."""
        self._fail(f"Redis closed the connection: {exc or 'end of stream'}")

    def _read_replies(self) -> int:
        position = 0
        while len(self._replies) < self._wanted:
            found = _read_reply(self._buffer, position)
            if found is None:
                return position
            reply, position = found
            self._replies.append(reply)
        if self._done is not None and not self._done.done():
            self._done.set_result(self._replies)
        self._wanted = 0
        return position

    def _fail(self, reason: str) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(LineError(reason))
        self.close()


async def open_line(options: Mapping[str, Any]) -> RedisLine:
    """Return a new connection with the options of a redis-py pool (`connection_kwargs`). Raise OSError, LineError or
    TimeoutError.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CONNECT_SECONDS):
        if "path" in options:
            _, line = await loop.create_unix_connection(RedisLine, options["path"])
        else:
            _, line = await loop.create_connection(RedisLine, options["host"], options["port"])
        for reply in await line.ask(_list_greeting(options), CONNECT_SECONDS):
            if isinstance(reply, LineError):
                line.close()
                raise reply
    return line


def can_open(options: Mapping[str, Any], connection_class: type) -> bool:
    """Return whether `open_line` can open a connection with these options. `connection_class`: the class of redis-py
    that would open it. The result is False for TLS, because only redis-py reads the many options of certificates.
    """
    has_place = "path" in options or ("host" in options and "port" in options)
    return has_place and not issubclass(connection_class, SSLConnection)


def _list_greeting(options: Mapping[str, Any]) -> list[tuple[str, ...]]:
    commands: list[tuple[str, ...]] = []
    if password := options.get("password"):
        user = options.get("username")
        commands.append(("AUTH", user, password) if user else ("AUTH", password))
    return [*commands, ("SELECT", str(options.get("db") or 0))]


def _pack(command: Sequence[str | bytes]) -> bytes:
    parts = [each.encode() if isinstance(each, str) else each for each in command]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(each), each) for each in parts)


def _read_reply(buffer: bytearray, start: int) -> tuple[Any, int] | None:
    """Return the reply that begins at this position, and the position after it; None if it is not complete."""
    end = buffer.find(_END, start)
    if end < 0:
        return None
    kind, text, after = buffer[start : start + 1], bytes(buffer[start + 1 : end]), end + 2
    match bytes(kind):
        case b"+":
            return text, after
        case b"-":
            return LineError(text.decode(errors="replace")), after
        case b":":
            return int(text), after
        case b"$":
            return _read_bulk(buffer, int(text), after)
        case b"*":
            return _read_array(buffer, int(text), after)
    raise ValueError(f"{bytes(kind)!r}")


def _read_bulk(buffer: bytearray, size: int, start: int) -> tuple[Any, int] | None:
    if size < 0:
        return None, start
    end = start + size
    return (bytes(buffer[start:end]), end + 2) if len(buffer) >= end + 2 else None


def _read_array(buffer: bytearray, size: int, start: int) -> tuple[Any, int] | None:
    if size < 0:
        return None, start
    replies = []
    for _ in range(size):
        found = _read_reply(buffer, start)
        if found is None:
            return None
        reply, start = found
        replies.append(reply)
    return replies, start
