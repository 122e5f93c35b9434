"""Subscriptions to notices on Redis channels. A notice is a hint to read a row again; only the row is reliable."""

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import redis
from redis.client import PubSub

from leasehold.client.ports import Joined

if TYPE_CHECKING:
    from leasehold.client.transport import RequestTransport


class RedisHints:
    """A subscription to the notices on one Redis channel, for one thread. Notices may be lost."""

    def __init__(self, wire: "RequestTransport", channel: str) -> None:
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

    def wait(self, seconds: float) -> bool:
        """Wait for a notice on the channel, for `seconds` at most. Return whether a notice arrived."""
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

    def note(self, seen: Joined) -> None:
        """Do nothing: a notice arrives at each change, whatever was read before."""

    def forget(self) -> None:
        """Drop the notices that have arrived so far. Call it before a read of the row, which shows their changes."""
        with suppress(redis.RedisError):
            while self._subscribed and self._channel.get_message(timeout=0) is not None:
                pass

    def close(self) -> None:
        """Close the connection to Redis."""
        self._channel.close()
