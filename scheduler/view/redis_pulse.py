"""Heartbeats on Redis: a key a host, whose age is what Redis has counted down of its time to live.

    <prefix>heartbeat:<slot>    string  the machine that wrote it; goes after KEPT_SECONDS
    <prefix>heartbeats:since    string  "<run id of the server> <its time>": heartbeats are kept here since then

Hosts write with one plain SET, so they need no script, and no clock but the server's has a say.
"""

from collections.abc import Mapping
from typing import Any, Final

import redis

from scheduler.ports import Heard
from scheduler.view.addresses import DEFAULT_PREFIX
from scheduler.view.connection import redis_errors

KEPT_SECONDS: Final = 86400
HOSTS_A_CALL: Final = 1000


class RedisPulse:
    """The Pulse on Redis."""

    def __init__(self, client: redis.Redis, prefix: str = DEFAULT_PREFIX) -> None:
        self._client, self._since = client, f"{prefix}heartbeats:since"
        self._start = f"{prefix}heartbeat:"

    @redis_errors()
    def listen(self, hosts: Mapping[str, str]) -> Heard:
        """See Pulse.listen. A server that was flushed or restarted keeps heartbeats only since then."""
        ages: dict[str, float] = {}
        slots = list(hosts)
        for start in range(0, len(slots), HOSTS_A_CALL):
            ages |= self._read({slot: hosts[slot] for slot in slots[start : start + HOSTS_A_CALL]})
        return Heard(ages, self._kept_for())

    def _read(self, hosts: Mapping[str, str]) -> dict[str, float]:
        with self._client.pipeline(transaction=False) as pipeline:
            for slot in hosts:
                pipeline.get(self._start + slot)
                pipeline.pttl(self._start + slot)
            answers: list[Any] = pipeline.execute()
        found = zip(hosts.items(), answers[::2], answers[1::2], strict=True)
        return {
            slot: KEPT_SECONDS - left / 1000
            for (slot, machine), said, left in found
            if said == machine.encode() and 0 < left <= KEPT_SECONDS * 1000
        }

    def _kept_for(self) -> float:
        with self._client.pipeline(transaction=True) as pipeline:
            pipeline.time()
            pipeline.info("server")
            pipeline.get(self._since)
            answers: tuple[tuple[int, int], dict[str, Any], bytes | None] = tuple(pipeline.execute())
        (seconds, microseconds), server, stored = answers
        now, run_id = seconds + microseconds / 1e6, str(server["run_id"])
        told, _, since = (stored or b"").decode().partition(" ")
        if told == run_id:
            return max(now - float(since), 0.0)
        self._client.set(self._since, f"{run_id} {now:.3f}")
        return 0.0
