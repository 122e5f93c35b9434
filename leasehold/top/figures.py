"""The figures that `leasehold top` shows. The time of a refresh grows with the number of changes since the last
refresh, not with the length of the queue.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
import redis

from leasehold.client.redis.connection import explain_redis
from leasehold.client.redis.transport import RequestTransport
from leasehold.errors import LeaseholdError, Unavailable
from leasehold.top.counts import PoolCounts
from leasehold.top.follower import Follower
from scheduler.protocol.masking import show_url
from scheduler.protocol.report import read_head

if TYPE_CHECKING:
    from leasehold.client.client import Client

_CLOCK_SECONDS: Final = 1.0
"""Largest difference in seconds between the wall clock of a process and cluster time that is no problem."""


class Rates(msgspec.Struct):
    """How many reservations a second were submitted, leased, released, and ended in another way, since the previous
    refresh, which was `seconds` ago.
    """

    submitted: float
    leased: float
    released: float
    ended: float
    seconds: float


class Figures(msgspec.Struct):
    """The output of `leasehold top --json`. Times are cluster time in seconds since the epoch.

    `problems`: why figures are missing or old. `phases`: number of reservations by phase, without ended ones.
    `commands`: number of those with a command by its state. `waiting`: number of reservations by waiting code at the
    last tick, `longest_wait` the longest wait in seconds. `at_quota`: pools whose launches an EC2 quota holds back.
    `tick`: age and duration of the last tick in seconds, its number of decisions, the leader (`host:pid`) and the lag
    of the view. `queues`: messages that wait in each queue.
    `queue_lag`: age in seconds of the request that a worker took from its queue last, counted from the time at which
    the request was sent; None: no request waits. `rates` is None at the first refresh. `events`: the newest events,
    oldest first; None if the database cannot be read.
    """

    at: float
    url: str = ""
    problems: list[str] = []
    pools: dict[str, PoolCounts] = {}
    phases: dict[str, int] = {}
    commands: dict[str, int] = {}
    waiting: dict[str, int] = {}
    longest_wait: float = 0.0
    at_quota: list[str] = []
    tick: dict[str, Any] = {}
    rates: Rates | None = None
    queues: dict[str, int] = {}
    queue_lag: float | None = None
    processes: int | None = None
    clocks: list[dict[str, Any]] = []
    events: list[dict[str, Any]] | None = None


ReadEvents = Callable[[], Iterable[dict[str, Any]] | None]


class Reader:
    """Reads the figures of one stack again and again. `read_events` returns the newest events, or None if the database
    cannot be read.
    """

    def __init__(self, client: "Client", read_events: ReadEvents = lambda: None) -> None:
        self._client, self._read_events = client, read_events
        transport = client._wire  # noqa: SLF001 - the same connections, for reads that the client does not have
        if not isinstance(transport, RequestTransport):
            raise Unavailable("these figures are read from the Redis of the stack, and this client uses HTTP")
        self._redis, self._names, self._url = transport.redis, transport.names, transport.view_url
        self._read_taken = transport.read_taken
        self._shown_url = show_url(transport.url)
        self._follower = Follower(self._redis, self._names)
        self._refreshed: float | None = None

    @property
    def full_reads(self) -> int:
        return self._follower.reads

    def read(self) -> Figures:
        """Return the figures as of now. Raises Unavailable if Redis does not answer. Any other error is a sentence in
        `Figures.problems`, and the figures that could not be read are missing.
        """
        try:
            return self._read()
        except redis.RedisError as error:
            self._refreshed = None
            raise explain_redis(error, self._url, "read the view") from error

    def _read(self) -> Figures:
        head, now = read_head(self._redis, self._names), self._client.now()
        found = Figures(at=now, url=self._shown_url)
        self._fill_head(found, head)
        try:
            self._fill_counts(found)
        except LeaseholdError as error:
            self._refreshed = None
            found.problems.append(str(error))
        # Roles that only read rows may have no right to these keys.
        with suppress(LeaseholdError, redis.exceptions.NoPermissionError):
            found.queues = self._client.probe.queue_lengths()
            taken = self._read_taken()
            found.queue_lag = None if taken is None else max(found.at - taken, 0.0)
        with suppress(LeaseholdError):
            offsets = self._client.probe.clock_offsets()
            found.processes = len(offsets) or None
            found.clocks = [each._asdict() for each in offsets if abs(each.seconds) > _CLOCK_SECONDS]
        events = self._read_events()
        found.events = None if events is None else list(events)
        return found

    def _fill_head(self, found: Figures, head: dict[str, Any]) -> None:
        if not head:
            found.problems.append("there was no tick yet")
            return
        found.waiting, found.at_quota = dict(head.get("codes", {})), list(head.get("at_quota", ()))
        found.longest_wait = head.get("longest_wait", 0.0)
        found.tick = {
            "age": max(found.at - head["at"], 0.0),
            "seconds": head.get("seconds"),
            "decisions": head.get("decisions"),
            "leader": head.get("leader") or None,
            "term": head.get("term"),
            "view_lag": head.get("view_lag"),
        }

    def _fill_counts(self, found: Figures) -> None:
        counts = self._follower.refresh()
        happened, now = counts.take_happened(), time.monotonic()
        if self._refreshed is not None and self._follower.follows and now > self._refreshed:
            seconds = now - self._refreshed
            submitted, leased, released, ended = (round(each / seconds, 3) for each in happened)
            found.rates = Rates(submitted, leased, released, ended, round(seconds, 3))
        self._refreshed = now
        found.phases = {phase: count for phase, count in counts.phases.items() if count}
        found.commands = {state: count for state, count in sorted(counts.commands.items()) if count}
        found.pools = counts.list_pools()
        if not self._follower.follows:
            found.problems.append("this user of Redis may not read the changes: counts are read again now and then")
