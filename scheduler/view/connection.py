"""Connections to Redis: clients with time limits, conversion of the client's errors, Lua scripts from files, and
several commands in one round trip.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from typing import Any, Final, Protocol

import redis
from redis.commands.core import Script

from scheduler.ports import ViewUnavailableError
from scheduler.protocol.redis_primary import open_redis


def make_redis(url: str, *, socket_seconds: float = 5.0, connect_seconds: float = 3.0) -> redis.Redis:
    """Return a Redis client with time limits, whose answers are bytes.

    `connect_seconds`: the time limit of a connection's opening. `socket_seconds`: the time limit of each command. A
    command that fails is tried once more on a new connection, because a pooled connection fails once if Redis restarted
    while it was idle. So a Lua script of the scheduler may run twice, and must have the same effect as if it ran once.
    """
    # A copy of the view has several megabytes.
    return open_redis(url, socket_seconds=socket_seconds, connect_seconds=connect_seconds, socket_read_size=1 << 20)


@contextmanager
def redis_errors() -> Iterator[None]:
    """Convert errors of the Redis client, raised in the function or block, into ViewUnavailableError. Use it as a
    decorator or in a `with` statement.
    """
    try:
        yield
    except redis.RedisError as error:
        raise ViewUnavailableError(f"Redis: {error}") from error


def load_script(client: redis.Redis, *names: str, package: str = "scheduler.view") -> Script:
    """Return a Lua script that consists of the files `NAME.lua` of this package, in the order of `names`. When the
    script is first used, it is sent to Redis.
    """
    folder = files(package)
    return client.register_script("\n".join((folder / f"{name}.lua").read_text() for name in names))


class Ahead:
    """A connection of a client's pool on which a command is sent now and its answer is read later. Meanwhile Redis
    carries the command out, and the caller does other work.

    Speed: a thread that waits for the answer would have the same effect, but after each part of the answer it waits for
    Python's interpreter lock. With a thread, loading a large view took nearly twice as long.
    """

    def __init__(self, client: redis.Redis) -> None:
        """Take a connection. `close` returns it to the pool."""
        self._pool = client.connection_pool
        self._connection = self._pool.get_connection()
        self.is_awaited = False
        """Whether the answer to a command was not read yet."""

    def send(self, *command: bytes | str | int) -> None:
        """Send a command. Call `receive` before the next one."""
        self.is_awaited = True
        self._connection.send_command(*command)  # type: ignore[no-untyped-call]

    def receive(self) -> object:
        """Wait for the answer to the command that was sent, and return it. If Redis answers with an error, or the
        connection is lost, raise the error.
        """
        answer: object = self._connection.read_response()
        self.is_awaited = False
        return answer

    def close(self) -> None:
        """Return the connection to its pool. If an answer is awaited on it, the connection is closed, because the next
        command would get this answer.
        """
        if self.is_awaited:
            self._connection.disconnect()  # type: ignore[no-untyped-call]
        self._pool.release(self._connection)


Command = tuple[bytes | str | int | float, ...]
"""A command for Redis with its arguments."""


def name_script(script: Script, keys: Sequence[str], arguments: Sequence[bytes | str | int]) -> Command:
    """Return the Redis command that runs a Lua script with these keys and arguments. Redis must have the script
    already.
    """
    return ("EVALSHA", script.sha, len(keys), *keys, *arguments)


def ask(client: redis.Redis, commands: Sequence[Command]) -> list[Any]:
    """Send commands together and return their replies in order. If Redis refuses a command, the list has only the
    replies to earlier commands, although Redis may have carried out later ones. Raises RedisError if the connection is
    lost; nothing is tried again.

    Speed: a pipeline of redis-py takes more than twice the CPU time, and first sends a command that checks whether
    Redis has the scripts.
    """
    connection: Any = client.connection_pool.get_connection()
    replies: list[Any] = []
    try:
        connection.send_packed_command(connection.pack_commands(commands))
        with suppress(redis.ResponseError):
            replies.extend(connection.read_response() for _ in commands)
    finally:
        if len(replies) < len(commands):
            # A reply that comes later would be taken for that of the next command.
            connection.disconnect()
        client.connection_pool.release(connection)
    return replies


def run_script(client: redis.Redis, script: Script, keys: Sequence[str], arguments: Sequence[bytes | str | int]) -> Any:
    """Run a Lua script and return its result. The script may run twice, because a failed attempt is repeated, so two
    runs must have the same effect as one. Raises RedisError if the second attempt fails, too.
    """
    replies: list[Any] = []
    with suppress(redis.RedisError):
        replies = ask(client, [name_script(script, keys, arguments)])
    return replies[0] if replies else script(list(keys), list(arguments), client)


class Bundle:
    """Collects commands that change Redis and whose replies are not needed, and sends them in one round trip.

    In a `with bundle.open():` block, the commands of this thread are collected; the end of the block sends them in
    their order. Outside a block each command is sent at once.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._open = threading.local()

    @contextmanager
    def open(self) -> Iterator[None]:
        """Collect the commands of this thread, and send them at the end of the block. If the block raises, no command
        is sent. Raises the error of the first command that fails.
        """
        self._open.parts = []
        try:
            yield
            self.send()
        finally:
            del self._open.parts

    def send(self) -> None:
        """Send the commands that were collected so far. Call it before a command that is no part of the bundle and must
        come after them.
        """
        parts: list[tuple[Command, Callable[[], object]]] = getattr(self._open, "parts", [])
        done = 0
        if len(parts) > 1:
            with suppress(redis.RedisError):
                done = len(ask(self._client, [command for command, _ in parts]))
        rest = parts[done:]
        parts.clear()
        with redis_errors():
            for _, alone in rest:
                alone()

    def add(self, command: Command, alone: Callable[[], object]) -> None:
        """Collect a command in a block of `open`; outside such a block, call `alone`.

        `alone`: a function that does what the command does, in a round trip of its own, with all retries, and that
        raises its errors. It is also called if the command or an earlier one of the bundle fails. So the command may be
        carried out twice, and must have the same effect then.
        """
        parts: list[tuple[Command, Callable[[], object]]] | None = getattr(self._open, "parts", None)
        if parts is None:
            alone()
        else:
            parts.append((command, alone))


class EarlyRead(Protocol):
    """A read that a tick makes right after the take of the leader lock. The lock sends the commands of the read
    together with those of the take, which saves a round trip, and passes the replies to `keep_replies`.
    """

    def list_commands(self) -> Sequence[Command]:
        """Return the Redis commands of the read; an empty list if the read cannot be made now."""

    def keep_replies(self, replies: Sequence[Any] | None) -> None:
        """Keep the replies to the commands of `list_commands`, so that the next read need not send them. None: there
        are no replies; forget any that are kept.
        """


NO_READS: Final[Sequence[EarlyRead]] = ()
