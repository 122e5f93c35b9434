"""Connections to Redis: clients with time limits, conversion of the client's errors, and Lua scripts from files."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files

import redis
from redis.backoff import ConstantBackoff
from redis.commands.core import Script
from redis.retry import Retry

from scheduler.ports import ViewUnavailableError


def make_redis(url: str, *, socket_seconds: float = 5.0, connect_seconds: float = 3.0) -> redis.Redis:
    """Return a Redis client with time limits, whose answers are bytes.

    Each command gets `socket_seconds`, and is tried once more on a new connection: a pooled connection fails once if
    Redis restarted while it was idle. So every Lua script of the scheduler must allow to be run twice.
    """
    return redis.Redis.from_url(
        url,
        socket_timeout=socket_seconds,
        socket_connect_timeout=connect_seconds,
        socket_keepalive=True,
        health_check_interval=10,
        retry=Retry(ConstantBackoff(0.05), 1),
        protocol=2,
        # A copy of the view has several megabytes.
        socket_read_size=1 << 20,
    )


@contextmanager
def redis_errors() -> Iterator[None]:
    """Convert errors of the Redis client into ViewUnavailableError. Use it as a decorator or around a block."""
    try:
        yield
    except redis.RedisError as error:
        raise ViewUnavailableError(f"Redis: {error}") from error


def load_script(client: redis.Redis, *names: str, package: str = "scheduler.view") -> Script:
    """Return a Lua script made of the files `NAME.lua` of this package, one after the other. Its first use sends it to
    Redis.
    """
    folder = files(package)
    return client.register_script("\n".join((folder / f"{name}.lua").read_text() for name in names))


class Ahead:
    """A connection of a client's pool on which a command is sent first and its answer is read later. Meanwhile Redis
    carries the command out, and the caller does other work.

    A thread that waits for the answer would do the same, but it waits for Python's interpreter lock after each part of
    the answer that arrives: loading a large view took nearly twice as long.
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
        """Wait for the answer to the command that was sent, and return it. Raises the error with which Redis answers,
        or that of a connection that is lost.
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
