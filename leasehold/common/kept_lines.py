"""Connections to Redis that are kept from one command to the next, and used without redis-py's pool and parser.

Speed: after a pause of some milliseconds, redis-py takes 0.2 ms of CPU time for one round trip, and 0.3 ms for a
pipeline: most of it is its pool, its metrics and its parser. A kept connection takes half of that or less.
"""

import os
import select
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from leasehold.common.redis_protocol import Part, pack, read_reply

MOST_KEPT: Final = 4
"""The most connections that are kept for one pool of redis-py while no command uses them."""
FIRST_BYTES: Final = 1 << 16
"""The most bytes that the first read of a reply takes from the connection. A longer reply is read in parts of
MORE_BYTES.
"""
MORE_BYTES: Final = 1 << 20
_KEPT: Final[WeakKeyDictionary[Any, "list[_Line]"]] = WeakKeyDictionary()
"""Pool of redis-py -> the open connections of this pool that are kept and that no command uses."""


class LineErrors(NamedTuple):
    """The exceptions that a command on a kept connection raises or returns; the caller names those of redis-py. `lost`:
    the connection is lost. `late`: a reply does not come in time. `wrong`: the received bytes are no reply. `refused`:
    returns the exception for the text of an error that Redis sends.
    """

    lost: type[Exception]
    late: type[Exception]
    wrong: type[Exception]
    refused: Callable[[str], Exception]


class _Line:
    """One kept connection of a pool of redis-py. It is used by one thread at a time, and only by the process that
    opened it.
    """

    def __init__(self, pool: Any) -> None:
        self._connection = pool.get_connection()
        self._socket = self._connection._sock  # noqa: SLF001 - redis-py's own reader is most of a round trip
        self._pid = os.getpid()
        self._arrived = select.poll()
        self._arrived.register(self._socket, select.POLLIN)

    @property
    def is_usable(self) -> bool:
        """Whether the connection is open, belongs to this process, and has no unread bytes. A kept connection may
        become unusable: Redis may close it, and a client may disconnect all connections of its pool.
        """
        is_open = self._pid == os.getpid() and self._connection._sock is self._socket  # noqa: SLF001 - as above
        return is_open and not self._arrived.poll(0)

    def ask(self, commands: Sequence[Sequence[Part]], errors: LineErrors) -> list[Any]:
        """Send commands and return their replies, as `ask_line` does. After an exception, the connection cannot be used
        again.
        """
        self._connection.send_packed_command([pack(commands)], check_health=False)
        replies: list[Any] = []
        buffer, position = b"", 0
        while len(replies) < len(commands):
            try:
                found = read_reply(buffer, position, errors.refused)
            except (ValueError, RecursionError) as error:
                raise errors.wrong(f"Redis sent no reply: {error}") from error
            if found is None:
                received = self._receive(MORE_BYTES if buffer else FIRST_BYTES, errors)
                buffer, position = buffer[position:] + received, 0
            else:
                reply, position = found
                replies.append(reply)
        if position < len(buffer):
            raise errors.wrong("Redis sent more than the replies")
        return replies

    def _receive(self, size: int, errors: LineErrors) -> bytes:
        try:
            received: bytes = self._socket.recv(size)
        except TimeoutError as error:
            raise errors.late("Timeout reading from socket") from error
        except OSError as error:
            raise errors.lost(f"Error while reading from socket: {error}") from error
        if not received:
            raise errors.lost("Connection closed by server.")
        return received

    def close(self, pool: Any) -> None:
        """Close the connection and give it back to its pool, which may open it again."""
        self._connection.disconnect()
        pool.release(self._connection)

    def release(self, pool: Any) -> None:
        """Give the connection back to its pool, without closing it."""
        pool.release(self._connection)


def ask_line(client: Any, commands: Sequence[Sequence[Part]], errors: LineErrors) -> list[Any]:
    """Send commands to the Redis of a redis-py client, in one piece, and return their replies as Redis sends them:
    bytes, int, list or None, and an exception in place of the reply to a command that Redis refused.

    Raises an exception of `errors` if the connection is lost, or if Redis is not ready to serve. Then no command is
    sent again.
    """
    pool = client.connection_pool
    line = _take(pool)
    is_whole = False
    try:
        replies = line.ask(commands, errors)
        is_whole = True
    finally:
        if is_whole:
            _keep(pool, line)
        else:
            # A reply that comes later would be taken for that of the next command.
            line.close(pool)
    for reply in replies:
        if isinstance(reply, errors.lost):  # for example while Redis loads its data
            raise reply
    return replies


def close_lines(client: Any) -> None:
    """Give all connections that are kept for this redis-py client back to the client's pool."""
    pool = client.connection_pool
    with suppress(IndexError):
        while kept := _KEPT.get(pool):
            kept.pop().release(pool)


def _take(pool: Any) -> _Line:
    kept = _KEPT.get(pool, [])
    with suppress(IndexError):
        while kept:
            line = kept.pop()
            if line.is_usable:
                return line
            line.close(pool)
    return _Line(pool)


def _keep(pool: Any, line: _Line) -> None:
    kept = _KEPT.setdefault(pool, [])
    if len(kept) < MOST_KEPT:
        kept.append(line)
    else:
        line.release(pool)
