"""Watch one reservation. A notice on its channel is a hint to read its row again; only the row is reliable."""

import time
from contextlib import suppress
from types import TracebackType
from typing import Final, Self, cast

import msgspec
import redis
from redis.client import PubSub

from leasehold.client.models import Reservation
from leasehold.client.transport import RequestTransport
from leasehold.client.view_reader import Joined, ViewReader

POLL_SECONDS: Final = 2.0
"""Seconds between two reads of a watched row if no notice arrives."""


class _Lease(msgspec.Struct):
    slot: str


class _Notice(msgspec.Struct):
    """What a watch reads of a notice: the slots on which the reservation had leases when the notice was sent."""

    leases: list[_Lease] = []


_NOTICE: Final = msgspec.json.Decoder(_Notice)


class Hints:
    """A subscription to the notices on one Redis channel, for one thread. Notices may be lost."""

    def __init__(self, wire: RequestTransport, channel: str) -> None:
        self._wire, self._name = wire, channel
        self._channel = PubSub(wire.redis.connection_pool, ignore_subscribe_messages=True)
        self._subscribed = False

    def listen(self) -> None:
        """Subscribe to the channel. If Redis does not answer, `wait` tries again."""
        try:
            self._channel.subscribe(self._name)
        except redis.RedisError:
            return
        self._subscribed = True

    def wait(self, seconds: float) -> bytes | None:
        """Wait for a notice on the channel, for `seconds` at most. Return the notice as JSON; None if none arrived."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._wire.is_closed:
            try:
                if not self._subscribed:
                    self.listen()
                message = self._channel.get_message(timeout=left) if self._subscribed else None
                if message is not None:
                    return cast("bytes", message["data"])
            except redis.RedisError:
                self._wire.pause()
            if not self._subscribed:
                self._wire.pause()
        return None

    def forget(self) -> None:
        """Drop the notices that have arrived so far. Call it before a read of the row, which shows their changes."""
        with suppress(redis.RedisError):
            while self._subscribed and self._channel.get_message(timeout=0) is not None:
                pass

    def close(self) -> None:
        """Close the connection to Redis."""
        self._channel.close()


class Watch:
    """A watch that reports the present row of one reservation. Use it as a context manager in one thread."""

    def __init__(self, wire: RequestTransport, reader: ViewReader, reservation: str) -> None:
        self._reader, self.reservation = reader, reservation
        self._hints = Hints(wire, wire.names.notice(reservation))
        self._expected: frozenset[str] = frozenset()
        """Slots that the newest notice named. The next read of the row reads them, too."""

    def __enter__(self) -> Self:
        self._hints.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hints.close()

    def read(self) -> Reservation | None:
        """Return the present row of the reservation, or None if the view does not have it. Raise Unavailable if the
        view is not valid.
        """
        return self.read_joined().row

    def read_joined(self) -> Joined:
        """Return the present row of the reservation, and the ids of the leased slots for which the
        view lacks the machine of the lease. Raise Unavailable if the view is not valid.
        """
        return self._reader.find_joined([self.reservation], self._expected)[0]

    def wait_for_hint(self, seconds: float) -> None:
        """Return when a notice about the reservation arrives, or after `seconds`."""
        notice = self._hints.wait(seconds)
        self._expected = frozenset() if notice is None else _list_slots(notice)


def _list_slots(notice: bytes) -> frozenset[str]:
    """Return the slots that a notice names; an empty set if it cannot be read, because a notice is only a hint."""
    try:
        return frozenset(lease.slot for lease in _NOTICE.decode(notice).leases)
    except msgspec.DecodeError:
        return frozenset()
