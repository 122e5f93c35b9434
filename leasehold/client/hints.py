"""Subscriptions to notices on Redis channels. A notice is a hint to read a row again; only the row is reliable."""

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec
import redis

from leasehold.client.ports import Joined
from scheduler.protocol.redis_primary import count_left

if TYPE_CHECKING:
    from leasehold.client.transport import RequestTransport


class _Lease(msgspec.Struct):
    slot: str


class _Notice(msgspec.Struct):
    """The part of a notice that a subscription reads: the slots on which the reservation had leases when the notice was
    sent.
    """

    leases: list[_Lease] = []


_NOTICE: Final = msgspec.json.Decoder(_Notice)


class RedisHints:
    """A subscription to the notices on one Redis channel, for one thread. A notice reports that the row of a
    reservation or of a slot has changed. Notices may be lost.
    """

    def __init__(self, wire: "RequestTransport", channel: str) -> None:
        self._wire, self._name = wire, channel
        self._channel, self._left = wire.take_subscriber(), count_left(wire.redis)
        self._subscribed = False
        self.expected: frozenset[str] = frozenset()
        """The slots that the newest notice named. The next read of the reservation reads these slots in the same round
        trip.
        """

    def listen(self) -> None:
        """Subscribe to the channel. If Redis does not answer, do nothing; `wait` subscribes later."""
        if self._left != count_left(self._wire.redis):
            self._channel.close()
            self._channel, self._left = self._wire.take_subscriber(), count_left(self._wire.redis)
        try:
            self._channel.subscribe(self._name)
        except redis.RedisError:
            return
        self._subscribed = True

    def wait(self, seconds: float) -> bool:
        """Wait for a notice on the channel, for `seconds` at most. Return whether a notice arrived."""
        self.expected, until = frozenset(), time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._wire.is_closed:
            self._subscribed = self._subscribed and self._left == count_left(self._wire.redis)
            try:
                if not self._subscribed:
                    self.listen()
                message = self._channel.get_message(timeout=left) if self._subscribed else None
                # A kept connection may still have notices of the channel before.
                if message is not None and message["channel"] == self._name.encode():
                    self.expected = _list_slots(message["data"])
                    return True
            except redis.RedisError:
                self._wire.pause()
            if not self._subscribed:
                self._wire.pause()
        return False

    def note(self, seen: Joined) -> None:
        """Record the row that was read last (`seen`), so that only later changes are reported. Here: do nothing,
        because Redis sends a notice at each change, whichever row was read last.
        """

    def forget(self) -> None:
        """Drop the notices that have arrived so far. Call this before a read of the row, because the read shows the
        changes that these notices report.
        """
        with suppress(redis.RedisError):
            while self._subscribed and self._channel.get_message(timeout=0) is not None:
                pass

    def close(self) -> None:
        """End the subscription. Its connection to Redis is kept for the next one."""
        with suppress(redis.RedisError):
            if self._subscribed and self._left == count_left(self._wire.redis):
                self._channel.unsubscribe(self._name)  # type: ignore[no-untyped-call]
                self._wire.keep_subscriber(self._channel)
                return
        self._channel.close()


def _list_slots(notice: bytes) -> frozenset[str]:
    """Return the ids of the slots that a notice names. If the notice cannot be read, return an empty set: the notice is
    still a hint to read the row.
    """
    try:
        return frozenset(lease.slot for lease in _NOTICE.decode(notice).leases)
    except msgspec.DecodeError:
        return frozenset()
