"""Connections to Redis for one event loop. A line sends several commands in one piece and returns their replies
together.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import redis
from redis.asyncio.connection import ConnectionPool

from leasehold.client.redis.connection import CONNECT_SECONDS, SOCKET_SECONDS
from scheduler.protocol.redis_primary import CHECK_SECONDS, NO_VIEW_SECONDS, REPLICA

MOST_LINES: Final = 8
"""The most connections on which requests are sent and wait for their answers."""
Commands = Sequence[Sequence[str | bytes]]


class Lines:
    """The connections to the primary behind one URL. After a failover the URL leads to another server; then the
    connections are opened again (scheduler/protocol/redis_primary.py).

    `on_left`: functions that are called when the connections leave their server.
    """

    def __init__(self, url: str) -> None:
        self._maker = ConnectionPool.from_url(
            url,
            socket_timeout=None,
            socket_connect_timeout=CONNECT_SECONDS,
            socket_keepalive=True,
            protocol=2,
            # Half a character in an id becomes "?", which no id has.
            encoding_errors="replace",
        )
        self.left, self.may_check, self.is_closed = 0, True, False
        self.on_left: list[Callable[[], None]] = []
        self._valid_at = time.monotonic()
        self._all: list[Line] = []
        self._free: asyncio.LifoQueue[Line] = asyncio.LifoQueue()

    def open(self) -> "Line":
        """Return a further line, for a use of its own. It connects when it is first used."""
        line = Line(self)
        self._all.append(line)
        return line

    def connect(self) -> Any:
        """Return a further connection of redis-py, which the caller opens and closes."""
        return self._maker.make_connection()  # type: ignore[no-untyped-call]

    @property
    def has_free(self) -> bool:
        """Whether a request can have a line at once."""
        return not self._free.empty() or len(self._all) < MOST_LINES

    async def ask(self, commands: Commands, seconds: float) -> list[Any]:
        """Send commands on a free line, as `Line.ask` does. Wait for a free line if there is none."""
        line = self.open() if self._free.empty() and len(self._all) < MOST_LINES else await self._free.get()
        try:
            return await line.ask(commands, seconds)
        finally:
            self._free.put_nowait(line)

    def leave(self) -> None:
        """Open all connections again at their next use, because their server is no primary."""
        self.left += 1
        for act in self.on_left:
            act()

    def note_view(self, is_valid: bool) -> None:
        """Record whether the server has a valid view. If there was none for NO_VIEW_SECONDS, leave the server."""
        now = time.monotonic()
        if is_valid:
            self._valid_at = now
        elif now - self._valid_at >= NO_VIEW_SECONDS:
            self._valid_at = now
            self.leave()

    async def close(self) -> None:
        """Close all lines. What waits for a reply gets a ConnectionError."""
        self.is_closed = True
        for line in self._all:
            await line.close()


class Line:
    """One connection to Redis, which carries out one list of commands after the other."""

    def __init__(self, lines: Lines) -> None:
        self._lines, self._connection = lines, lines.connect()
        self._turn = asyncio.Lock()
        self._left, self._checked_at = lines.left, float("-inf")

    async def ask(self, commands: Commands, seconds: float = SOCKET_SECONDS) -> list[Any]:
        """Send commands in one piece and return their replies: bytes, int, list or None. If Redis refuses a command,
        the list ends with a ResponseError in place of its reply. Raise another RedisError if the connection is lost, or
        if the replies are not complete after `seconds`. Commands for a replica are sent to the primary instead.
        """
        async with self._turn:
            if self._lines.is_closed:
                raise redis.ConnectionError("the client is closed")
            if self._left != self._lines.left:
                await self.close()
            while True:
                self._left = self._lines.left
                is_checked = self._lines.may_check and time.monotonic() - self._checked_at >= CHECK_SECONDS
                try:
                    async with asyncio.timeout(seconds):
                        # Every user may send HELLO, unlike INFO. Without arguments it changes nothing.
                        replies = await self._exchange([("HELLO",), *commands] if is_checked else commands)
                except TimeoutError as error:
                    raise redis.TimeoutError("no reply of Redis") from error
                if not is_checked:
                    return replies
                self._checked_at = time.monotonic()
                if not isinstance(replies[0], list) or REPLICA not in replies[0]:
                    return replies[1:]
                await self.close()
                self._lines.leave()

    async def _exchange(self, commands: Commands) -> list[Any]:
        connection, replies = self._connection, list[Any]()
        is_complete = False
        try:
            await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
            for command in commands:
                try:
                    replies.append(await connection.read_response())
                except redis.ResponseError as error:
                    replies.append(error)
                    if command[0] != "HELLO":
                        return replies
                    self._lines.may_check = False
            is_complete = True
        finally:
            # A reply that comes later would be taken for that of the next command.
            if not is_complete:
                await self.close()
        return replies

    async def close(self) -> None:
        """Close the connection. The next use opens it again."""
        await self._connection.disconnect(nowait=True)
