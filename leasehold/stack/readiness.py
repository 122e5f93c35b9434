"""Whether a stack works: every queue is consumed, every page answers. Asked, not guessed from logs."""

import secrets
import socket
from collections.abc import Callable, Iterable
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

import redis

from leasehold.wire import Wire

QUEUES: Final = ("reservations", "ticks", "launch", "health", "terminate")
Check = Callable[[], bool]


class Canaries:
    """One canary a queue: a worker that consumes it, and reaches Redis, answers. Sent once, answered when it can."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._run = secrets.token_hex(8)
        self._silent = set(QUEUES)

    def send(self, queues: Iterable[str] = QUEUES) -> None:
        """Send them. Raises Unavailable."""
        for queue in queues:
            self._wire.send_canary(queue, self._address(queue))

    def answered(self, queue: str) -> bool:
        """Whether the worker of this queue has answered; False, too, while Redis cannot be asked."""
        if queue in self._silent:
            try:
                if self._wire.redis.lpop(self._address(queue)) is not None:
                    self._silent.discard(queue)
            except redis.RedisError:
                return False
        return queue not in self._silent

    def _address(self, queue: str) -> str:
        return self._wire.reply_address(f"canary-{queue}-{self._run}")


def list_silent(wire: Wire, seconds: float) -> list[str]:
    """The queues whose workers do not answer a canary within this time. Raises Unavailable."""
    canaries = Canaries(wire)
    canaries.send()
    pauses = max(int(seconds / 0.2), 1)
    for _ in range(pauses):
        if all(canaries.answered(queue) for queue in QUEUES):
            break
        wire.pause()
    return [queue for queue in QUEUES if not canaries.answered(queue)]


def answers_ping(wire: Wire) -> bool:
    """Whether Redis answers."""
    try:
        return bool(wire.redis.ping())
    except redis.RedisError:
        return False


def listens(host: str, port: int) -> bool:
    """Whether somebody accepts connections there."""
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def serves(url: str) -> bool:
    """Whether this page is served."""
    try:
        with urlopen(url, timeout=2) as answer:  # noqa: S310 - our own emulator
            return bool(answer.status == 200)  # noqa: PLR2004 - HTTP's word for yes
    except (URLError, OSError):
        return False
