"""Checks whether a part of an embedded stack works. A part works if it answers."""

import socket
from collections.abc import Callable
from urllib.error import URLError

import redis

from leasehold.client.transport import RequestTransport
from leasehold.common.loopback import open_local

Check = Callable[[], bool]


def answers_ping(wire: RequestTransport) -> bool:
    """Return whether the Redis of the stack answers a ping."""
    try:
        return bool(wire.redis.ping())
    except redis.RedisError:
        return False


def listens(host: str, port: int) -> bool:
    """Return whether a process accepts connections on this host and port."""
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def serves(url: str) -> bool:
    """Return whether a web server answers a request for `url` with status 200."""
    try:
        with open_local(url, 2) as answer:
            return bool(answer.status == 200)  # noqa: PLR2004 - HTTP status OK
    except (URLError, OSError):
        return False
