"""Watching a reservation: its notice channel is a hint, its row in the view is what counts."""

import time
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

import redis
from redis.client import PubSub

from leasehold.client.models import Reservation
from leasehold.client.transport import RequestTransport
from leasehold.client.view_reader import Joined, ViewReader

POLL_SECONDS: Final = 2.0
"""How often the row is read when no notice hints at a change."""


class Hints:
    """One channel with hints that something changed; a hint may be lost. For one thread."""

    def __init__(self, wire: RequestTransport, channel: str) -> None:
        self._wire, self._name = wire, channel
        self._channel = PubSub(wire.redis.connection_pool, ignore_subscribe_messages=True)
        self._subscribed = False

    def listen(self) -> None:
        """Subscribe, if Redis is there; `wait` tries it again."""
        try:
            self._channel.subscribe(self._name)
        except redis.RedisError:
            return
        self._subscribed = True

    def wait(self, seconds: float) -> bool:
        """Return when a hint came (True), or after this number of seconds."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._wire.is_closed:
            try:
                if not self._subscribed:
                    self.listen()
                if self._subscribed and self._channel.get_message(timeout=left) is not None:
                    return True
            except redis.RedisError:
                self._wire.pause()
            if not self._subscribed:
                self._wire.pause()
        return False

    def forget(self) -> None:
        """Drop the hints that came until now: what is asked next knows more than they do."""
        with suppress(redis.RedisError):
            while self._subscribed and self._channel.get_message(timeout=0) is not None:
                pass

    def close(self) -> None:
        """Let go of the connection."""
        self._channel.close()


class Watch:
    """The present row of one reservation, again and again. To be used as a context, by one thread."""

    def __init__(self, wire: RequestTransport, reader: ViewReader, reservation: str) -> None:
        self._reader, self.reservation = reader, reservation
        self._hints = Hints(wire, wire.names.notice(reservation))

    def __enter__(self) -> Self:
        self._hints.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hints.close()

    def read(self) -> Reservation | None:
        """The row as it is now; None when a valid view has none. Raises Unavailable."""
        return self.read_joined().row

    def read_joined(self) -> Joined:
        """The same, with the slots of leases whose machine the view does not have. Raises Unavailable."""
        return self._reader.find_joined([self.reservation])[0]

    def wait_for_hint(self, seconds: float) -> None:
        """Return when a notice came, or after this number of seconds."""
        self._hints.wait(seconds)
