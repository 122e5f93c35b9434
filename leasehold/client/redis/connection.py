"""The connections of a client to Redis, and the errors that the client raises if Redis fails."""

from typing import Final
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
