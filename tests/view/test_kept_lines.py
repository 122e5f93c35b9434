"""Connections to Redis that are kept between commands: what Redis or a fork does to them is not noticed by callers."""

import os
import socket
import threading
from collections.abc import Iterator
from typing import Any, Self

import pytest
import redis

from leasehold.common.kept_lines import FIRST_BYTES, MOST_KEPT, ask_line, close_lines
from scheduler.view.connection import ERRORS, Command, ask_whole, make_redis
from tests.system.processes import wait_for


@pytest.fixture
def client(redis_url: str, redis_client: redis.Redis) -> Iterator[redis.Redis]:
    """A client of the empty Redis of this test, with connections of its own."""
    redis_client.flushall()
    with make_redis(redis_url) as client:
        yield client


def ask(client: redis.Redis, *commands: Command) -> list[Any]:
    """Send commands on a kept connection."""
    return ask_line(client, commands, ERRORS)


def find_id(client: redis.Redis) -> int:
    """Return the number that Redis gave to the connection that is kept."""
    (found,) = ask(client, ("CLIENT", "ID"))
    return int(found)


def test_replies_are_those_of_redis(client: redis.Redis) -> None:
    long = "x" * (3 * FIRST_BYTES)
    *found, error, queued = ask(
        client,
        ("SET", "text", long),
        ("GET", "text"),
        ("GET", "missing"),
        ("RPUSH", "list", b"a\r\nb", 2, 0.5),
        ("LRANGE", "list", 0, -1),
        ("HGET", "list", "field"),
        ("PING",),
    )
    assert found == [b"OK", long.encode(), None, 3, [b"a\r\nb", b"2", b"0.5"]]
    assert isinstance(error, redis.ResponseError)
    assert queued == b"PONG"


def test_a_connection_is_kept_also_after_an_error_of_a_command(client: redis.Redis) -> None:
    first = find_id(client)
    ask(client, ("SET", "text", "x"), ("LPUSH", "text", "y"))
    assert find_id(client) == first


def test_a_connection_that_redis_closed_is_replaced_before_it_is_used(
    client: redis.Redis, redis_client: redis.Redis
) -> None:
    first = find_id(client)
    redis_client.execute_command("CLIENT KILL", "ID", first)  # type: ignore[no-untyped-call]
    assert ask(client, ("INCR", "count")) == [1]
    assert find_id(client) != first


def test_a_pool_that_was_disconnected_is_connected_again(client: redis.Redis) -> None:
    find_id(client)
    client.connection_pool.disconnect()
    assert ask(client, ("PING",)) == [b"PONG"]


def test_a_process_after_a_fork_opens_connections_of_its_own(client: redis.Redis) -> None:
    first = find_id(client)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, str(find_id(client)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as found:
        assert int(found.read()) != first
    os.waitpid(child, 0)
    assert find_id(client) == first


def test_closed_lines_are_given_to_their_pool(client: redis.Redis, redis_client: redis.Redis) -> None:
    first = find_id(client)
    close_lines(client)
    client.connection_pool.disconnect(inuse_connections=False)
    assert str(first) not in {each["id"] for each in redis_client.client_list()}


def test_the_connections_of_many_threads_are_not_all_kept(client: redis.Redis, redis_client: redis.Redis) -> None:
    count = 3 * MOST_KEPT
    threads = [threading.Thread(target=ask, args=(client, ("BLPOP", "gate", 30))) for _ in range(count)]
    for each in threads:
        each.start()
    wait_for(lambda: redis_client.info("clients")["blocked_clients"] == count, "blocked clients")
    redis_client.rpush("gate", *range(count))
    for each in threads:
        each.join()
    # The others are in the pool, where other commands find them.
    assert len(client.connection_pool._in_use_connections) == MOST_KEPT


class Ends:
    """A pool and its only connection, to which a test sends replies."""

    def __init__(self) -> None:
        self._sock, self.theirs = socket.socketpair()
        self.is_open = True

    @property
    def connection_pool(self) -> Self:
        """The pool, as a client has it."""
        return self

    def get_connection(self) -> Self:
        """Return the connection."""
        return self

    def release(self, connection: object) -> None:
        """Take the connection back."""

    def send_packed_command(self, parts: list[bytes], *, check_health: bool) -> None:
        """Send nothing: the test has sent the replies."""

    def disconnect(self) -> None:
        """Close the connection."""
        self.is_open = False

    def close(self) -> None:
        """Close both ends."""
        self._sock.close()
        self.theirs.close()


@pytest.fixture
def ends() -> Iterator[Any]:
    """A pool with a connection to the test."""
    ends = Ends()
    yield ends
    ends.close()


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"", redis.ConnectionError),
        (b"+OK\r\n$3\r\nab", redis.ConnectionError),
        (b"?what\r\n", redis.InvalidResponse),
        (b"$x\r\n", redis.InvalidResponse),
        (b"+OK\r\n+OK\r\n+more\r\n", redis.InvalidResponse),
        (b"+OK\r\n-LOADING Redis is loading\r\n", redis.ConnectionError),
    ],
)
def test_a_reply_that_is_not_whole_closes_its_connection(ends: Any, sent: bytes, error: type[Exception]) -> None:
    ends.theirs.sendall(sent)
    ends.theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(error):
        ask(ends, ("GET", "a"), ("GET", "b"))
    # Redis answers that it is loading, and the connection is whole.
    assert ends.is_open == sent.startswith(b"+OK\r\n-")


def test_a_reply_that_does_not_come_in_time_closes_its_connection(ends: Any) -> None:
    ends._sock.settimeout(0.01)
    with pytest.raises(redis.TimeoutError):
        ask(ends, ("GET", "a"))
    assert not ends.is_open


def test_a_transaction_returns_the_errors_of_its_commands_and_raises_its_own(client: redis.Redis) -> None:
    ok, error = ask_whole(client, [("SET", "text", "x"), ("LPUSH", "text", "y")])
    assert ok == b"OK"
    assert isinstance(error, redis.ResponseError)
    with pytest.raises(redis.ResponseError, match="wrong number of arguments"):
        ask_whole(client, [("SET", "text")])
    assert ask_whole(client, [("GET", "text")]) == [b"x"]
