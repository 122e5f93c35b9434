"""Kicks, notices and replies on Redis."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import redis

from leasehold.common.names import DEFAULT_PREFIX, RedisNames
from scheduler.view.addresses import check_reply_address
from scheduler.view.connection import redis_errors

KICK_SECONDS = 2.0
"""Seconds for which one message serves all kicks. A tick that begins ends this time."""
REPLY_SECONDS = 60


class RedisNotifier:
    """The Notifier on Redis. `send_tick` sends one tick message; its errors are passed on.

    Notices go to the channel `<prefix>notice:<reservation>`, news for a host to `<prefix>host:<slot>`, replies to
    lists named `<prefix>reply:<word>`, all as JSON.
    """

    def __init__(
        self,
        client: redis.Redis,
        send_tick: Callable[[], None],
        prefix: str = DEFAULT_PREFIX,
        *,
        kick_seconds: float = KICK_SECONDS,
    ) -> None:
        self._client, self._send_tick = client, send_tick
        self._names, self._kick_ms = RedisNames(prefix), int(kick_seconds * 1000)
        self._flag = f"{prefix}kick"

    def kick(self) -> None:
        """See Notifier.kick. If the message cannot be sent, the flag is deleted, so that the next kick sends one."""
        if not self._raise_flag():
            return
        is_sent = False
        try:
            self._send_tick()
            is_sent = True
        finally:
            if not is_sent:
                self.hear()

    @redis_errors()
    def hear(self) -> None:
        """See Notifier.hear."""
        self._client.delete(self._flag)

    @redis_errors()
    def notify(self, reservation: str, notice: Mapping[str, Any]) -> None:
        """See Notifier.notify."""
        self._client.publish(self._names.notice(reservation), msgspec.json.encode(notice))

    @redis_errors()
    def push(self, news: Mapping[str, Mapping[str, Any]]) -> None:
        """See Notifier.push. One round trip for all hosts."""
        with self._client.pipeline(transaction=False) as pipeline:
            for slot, each in news.items():
                pipeline.publish(self._names.host(slot), msgspec.json.encode(each))
            pipeline.execute()

    @redis_errors()
    def reply(self, address: str, answer: Mapping[str, Any]) -> None:
        """See Notifier.reply."""
        check_reply_address(address, self._names.prefix)
        with self._client.pipeline(transaction=True) as both:
            both.rpush(address, msgspec.json.encode(answer))
            both.expire(address, REPLY_SECONDS)
            both.execute()

    @redis_errors()
    def _raise_flag(self) -> bool:
        return bool(self._client.set(self._flag, 1, nx=True, px=self._kick_ms))
