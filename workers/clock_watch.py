"""Compare the clocks of all processes and of the database with cluster time, for the metrics and the doctor."""

import socket
from collections.abc import Iterable, Iterator
from typing import cast

import redis
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family

from leasehold.common.clock import ProcessOffset, read_offsets
from leasehold.common.names import RedisNames
from scheduler.view.connection import redis_errors
from scheduler.view.redis_clock import RedisClock


class ClockWatch:
    """Reads the offsets that all processes wrote about their wall clocks, and adds that of this process."""

    def __init__(self, client: redis.Redis, prefix: str, clock: RedisClock, process: str = "metrics") -> None:
        self._client, self._prefix, self._clock, self._process = client, prefix, clock, process

    @redis_errors()
    def read(self) -> list[ProcessOffset]:
        """Return the offsets of the live processes of all hosts. Raises ViewUnavailableError without Redis."""
        stored = cast("dict[bytes, bytes]", self._client.hgetall(RedisNames(self._prefix).clocks))
        found = read_offsets(stored, self._clock.now())
        return [*found, ProcessOffset(self._process, socket.gethostname(), -self._clock.offset)]


def measure_clocks(offsets: Iterable[ProcessOffset]) -> Iterator[Family]:
    """Yield how far each process' wall clock is ahead of cluster time."""
    about = "Seconds by which the wall clock of a process is ahead of cluster time"
    family = GaugeMetricFamily("leasehold_clock_offset_seconds", about, labels=["process", "host"])
    for each in offsets:
        family.add_metric([each.process, each.host], each.seconds)
    yield family


def measure_reference(offset: float) -> Iterator[Family]:
    """Yield how far the clock of the database is ahead. `offset`: cluster time minus the clock of the database."""
    about = (
        "Seconds by which the clock of the database is ahead of cluster time: the sum of the jumps that were corrected"
    )
    yield GaugeMetricFamily("leasehold_clock_reference_offset_seconds", about, 0.0 - offset)
