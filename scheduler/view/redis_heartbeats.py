"""Heartbeats on Redis: one key for each host. Its age follows from its remaining time to live.

    <prefix>heartbeat:<slot>    string  see leasehold/common/heartbeats.py; expires after KEPT_SECONDS
    <prefix>heartbeats:since    string  "<run id of the server> <its time>": heartbeats are kept here since then

Hosts write with one plain SET, so they need no script, and only the server's clock matters.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import redis

from leasehold.common.heartbeats import Heartbeat, read_heartbeat
from leasehold.common.names import DEFAULT_PREFIX, RedisNames
from scheduler.ports import Heard
from scheduler.view.connection import redis_errors

KEPT_SECONDS: Final = 86400
HOSTS_A_CALL: Final = 1000


class RedisHeartbeats:
    """The Heartbeats port on Redis."""

    def __init__(self, client: redis.Redis, prefix: str = DEFAULT_PREFIX) -> None:
        self._client, self._since = client, f"{prefix}heartbeats:since"
        self._start = RedisNames(prefix).heartbeat_start

    @redis_errors()
    def listen(self, hosts: Mapping[str, str]) -> Heard:
        """See Heartbeats.listen. A server that was flushed or restarted keeps heartbeats only since then."""
        ages: dict[str, float] = {}
        versions: dict[str, str] = {}
        signed: dict[str, Heartbeat] = {}
        slots = list(hosts)
        for start in range(0, len(slots), HOSTS_A_CALL):
            for slot, beat, age in self._read({slot: hosts[slot] for slot in slots[start : start + HOSTS_A_CALL]}):
                ages[slot] = age
                if beat.version is not None:
                    versions[slot] = beat.version
                if beat.counter is not None:
                    signed[slot] = beat
        return Heard(ages, self._kept_for(), versions, signed)

    def _read(self, hosts: Mapping[str, str]) -> Iterator[tuple[str, Heartbeat, float]]:
        """Return (slot, heartbeat, age) of the slots whose own machine has sent one."""
        with self._client.pipeline(transaction=False) as pipeline:
            for slot in hosts:
                pipeline.get(self._start + slot)
                pipeline.pttl(self._start + slot)
            answers: list[Any] = pipeline.execute()
        found = zip(hosts.items(), answers[::2], answers[1::2], strict=True)
        for (slot, machine), value, left in found:
            beat = None if value is None else read_heartbeat(value)
            if beat is not None and beat.machine == machine and 0 < left <= KEPT_SECONDS * 1000:
                yield slot, beat, KEPT_SECONDS - left / 1000

    def _kept_for(self) -> float:
        with self._client.pipeline(transaction=True) as pipeline:
            pipeline.time()
            pipeline.info("server")
            pipeline.get(self._since)
            answers: tuple[tuple[int, int], dict[str, Any], bytes | None] = tuple(pipeline.execute())
        (seconds, microseconds), server, stored = answers
        now, run_id = seconds + microseconds / 1e6, str(server["run_id"])
        written, _, since = (stored or b"").decode(errors="replace").partition(" ")
        with suppress(ValueError):
            if written == run_id:
                return max(now - float(since), 0.0)
        self._client.set(self._since, f"{run_id} {now:.3f}")
        return 0.0
