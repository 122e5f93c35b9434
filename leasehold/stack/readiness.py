"""Checks whether the parts of an embedded stack work: each part must answer."""

import socket
from collections.abc import Callable
from urllib.error import URLError
from urllib.request import urlopen

import redis

from leasehold.client.transport import RequestTransport

Check = Callable[[], bool]


def answers_ping(wire: RequestTransport) -> bool:
    """Return whether Redis answers."""
    try:
        return bool(wire.redis.ping())
    except redis.RedisError:
        return False


def listens(host: str, port: int) -> bool:
    """Return whether a process accepts connections at this address."""
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def serves(url: str) -> bool:
    """Return whether a web server answers a request for this page with status 200."""
    try:
        with urlopen(url, timeout=2) as answer:  # noqa: S310 - our own emulator
            return bool(answer.status == 200)  # noqa: PLR2004 - HTTP status OK
    except (URLError, OSError):
        return False
