"""The connections of a client to Redis, and the errors that the client raises if Redis fails."""

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import redis

from leasehold.errors import Unavailable
from scheduler.protocol.masking import mask_urls, show_url
from scheduler.protocol.redis_primary import open_redis

SOCKET_SECONDS: Final = 5.0
CONNECT_SECONDS: Final = 3.0


def make_redis(url: str) -> redis.Redis:
    """Return a Redis client whose answers are bytes and whose waits all have a time limit. It is safe for threads and
    after a fork.
    """
    return open_redis(url, socket_seconds=SOCKET_SECONDS, connect_seconds=CONNECT_SECONDS)


def ask_redis(client: redis.Redis, commands: Sequence[Sequence[str | bytes]]) -> list[Any]:
    """Send commands in one piece and return their replies as Redis sends them: bytes, int, list or None. If Redis
    refuses a command, the list ends with a ResponseError in place of the reply to this command; the replies to later
    commands are omitted. Raise another RedisError if the connection is lost.

    A pipeline of redis-py would take more than twice the CPU time: it builds an object for each command, and parses the
    reply to INFO.
    """
    connection: Any = client.connection_pool.get_connection()
    replies: list[Any] = []
    try:
        connection.send_packed_command(connection.pack_commands(commands))
        replies.extend(connection.read_response() for _ in commands)
    except redis.ResponseError as error:
        connection.disconnect()
        return [*replies, error]
    except BaseException:
        # A reply that comes later would be taken for that of the next command.
        connection.disconnect()
        raise
    finally:
        client.connection_pool.release(connection)
    return replies


def explain_redis(error: Exception, url: str, purpose: str, trouble: str = "cannot be reached") -> Unavailable:
    """Return the error that the client raises for an error of Redis. `purpose`: what was tried, such as "read the
    view"; the message contains it if Redis refuses the user. `trouble`: the words in the message about any other error.
    """
    user = urlsplit(url).username or "default"
    # kombu wraps the error of redis-py and keeps it as the cause.
    cause = error.__cause__ if isinstance(error.__cause__, redis.RedisError) else error
    if isinstance(cause, redis.exceptions.NoPermissionError):
        return Unavailable(f"user {user} may not {purpose}; Redis at {show_url(url)} answers: {mask_urls(str(cause))}")
    if isinstance(cause, redis.exceptions.AuthenticationError):
        return Unavailable(f"user {user} may not use Redis at {show_url(url)}: {mask_urls(str(cause))}")
    return Unavailable(f"Redis at {show_url(url)} {trouble}: {mask_urls(str(error))}")
