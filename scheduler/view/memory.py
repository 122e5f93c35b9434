"""The ports to Redis implemented in memory, for the simulator and for unit tests."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from typing_extensions import override

from scheduler.model.history import Sample, find_place
from scheduler.model.reservations import Reservation, is_over
from scheduler.model.view import KINDS, Change, Gone, Kind, Row, View, as_published, count_rows, is_newer
from scheduler.model.waits import NO_WAITS, Waits
from scheduler.ports import Heard, RefusedMessage, SetAside, check_reply_address
from scheduler.ports.view import (
    MOST_KEPT,
    MOST_REFUSED,
    REFUSED_SECONDS,
    Heartbeats,
    LeaderLock,
    Meter,
    Notifier,
    ViewCache,
)
from scheduler.protocol.heartbeats import Heartbeat
from scheduler.protocol.names import DEFAULT_PREFIX
from scheduler.view.metric_table import REFUSED, find_label_values


class MemoryMeter(Meter):
    """The Meter port in memory: sums of counters by name and labels, and lists of the values observed in histograms."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
        self.observations: list[tuple[str, dict[str, str], float]] = []
        self.probed: dict[str, float] = {}
        self._refused: list[RefusedMessage] = []
        self._noted: dict[str, tuple[float, int]] = {}

    @override
    def count(self, name: str, labels: Mapping[str, str], amount: float = 1) -> None:
        find_label_values(name, "counter", labels)
        self.counts[name, tuple(sorted(labels.items()))] += amount  # type: ignore[assignment] # it adds floats, too

    @override
    def observe(self, name: str, labels: Mapping[str, str], *values: float) -> None:
        find_label_values(name, "histogram", labels)
        self.observations += [(name, dict(labels), value) for value in values]

    @override
    def note_probes(self, slots: Sequence[str], at: float) -> None:
        self.probed.update(dict.fromkeys(slots, at))

    @override
    def note_refused(self, refused: RefusedMessage) -> None:
        self.count(REFUSED, {"queue": refused.queue, "defect": refused.defect})
        begun, noted = self._noted.get(refused.defect, (refused.at, 0))
        if refused.at >= begun + REFUSED_SECONDS:
            begun, noted = refused.at, 0
        self._noted[refused.defect] = (begun, noted + 1)
        if noted < MOST_REFUSED:
            self.put_back_refused([refused])

    @override
    def take_refused(self) -> list[RefusedMessage]:
        taken, self._refused = self._refused, []
        return taken

    @override
    def put_back_refused(self, refused: Sequence[RefusedMessage]) -> None:
        self._refused = [*self._refused, *refused][-MOST_KEPT:]


KEPT_SECONDS = 600.0
"""Seconds for which the view keeps ended reservations, and tombstones that refuse older copies of deleted rows."""
DELTAS = 100_000
"""The most changes of rows that the view in memory keeps for its readers. A reader that is further behind loads the
whole view.
"""


class InMemoryRedis:
    """What Redis would hold for one view: rows, tombstones and the newest changes. MemoryViewCaches may share one, as
    processes share a Redis.

    `generation`: the id of the view's contents; None while the view is not valid. `building`: the generation of a
    rebuild that is under way. `sequence`: the number of the last accepted change; numbers have no gaps. `clock`: a
    function that returns seconds.
    """

    def __init__(self, clock: Callable[[], float], kept_seconds: float = KEPT_SECONDS) -> None:
        self.guard = threading.RLock()
        self.generation: int | None = None
        self.building: int | None = None
        self.sequence = self._generations = 0
        self.rows: dict[Kind, dict[str, Row]] = {kind: {} for kind in KINDS.values()}
        self.report: dict[str, Any] = {}
        self.history: dict[int, Sample] = {}
        self._clock, self._kept_seconds = clock, kept_seconds
        self._deltas: deque[Change] = deque(maxlen=DELTAS)
        self._gone: dict[tuple[Kind, str], tuple[int, float]] = {}
        self._ended: dict[str, float] = {}

    def flush(self) -> None:
        """Delete all contents of the view, as FLUSHALL does in Redis."""
        with self.guard:
            self.generation, self.sequence, self.report, self.history = None, 0, {}, {}
            self._deltas, self._gone, self._ended = deque(maxlen=DELTAS), {}, {}
            self.rows = {kind: {} for kind in KINDS.values()}

    def begin_generation(self, rows: Iterable[Row]) -> None:
        """Replace the contents of the view by these rows, and by changes that are published while the rows are read."""
        report, history = self.report, self.history
        self.flush()
        self._generations += 1
        self.building = self._generations
        self.accept(rows)
        self.building = None
        self.generation, self.report, self.history = self._generations, report, history

    def accept(self, changes: Iterable[Change]) -> None:
        """Store each change that is newer than the stored copy of its row, and keep it for the readers that follow the
        changes. Delete the ended reservations and tombstones that are older than `kept_seconds`.
        """
        for each in changes:
            change = as_published(each)
            taken = self._bury(change) if isinstance(change, Gone) else self._take(change)
            if taken:
                self.sequence += 1
                self._deltas.append(change)
        self._forget()

    def count_rows(self) -> dict[Kind, int]:
        """Return the number of rows of each kind in the view, without ended reservations."""
        counted = {kind: len(rows) for kind, rows in self.rows.items()}
        return counted | {"reservations": counted["reservations"] - len(self._ended)}

    def deltas_after(self, sequence: int) -> list[Change] | None:
        """Return the changes of rows that follow the change with the number `sequence`, oldest first; None if some of
        them are no longer kept.
        """
        missing = self.sequence - sequence
        if not 0 <= missing <= len(self._deltas):
            return None
        return list(islice(reversed(self._deltas), missing))[::-1]

    def _take(self, row: Row) -> bool:
        kind = KINDS[type(row)]
        buried, _ = self._gone.get((kind, row.id), (0, 0.0))
        if buried > row.version or not is_newer(row, self.rows[kind].get(row.id)):
            return False
        self.rows[kind][row.id] = row
        if isinstance(row, Reservation):
            self._ended.pop(row.id, None)
            if is_over(row):
                self._ended[row.id] = self._clock()
        return True

    def _bury(self, gone: Gone) -> bool:
        known = self.rows[gone.kind].get(gone.id)
        buried = self._gone.get((gone.kind, gone.id), (0, 0.0))
        if (known is not None and known.version >= gone.version) or buried[0] >= gone.version:
            return False
        self.rows[gone.kind].pop(gone.id, None)
        if gone.kind == "reservations":
            self._ended.pop(gone.id, None)
        self._gone.pop((gone.kind, gone.id), None)
        self._gone[gone.kind, gone.id] = (gone.version, self._clock())
        return True

    def _forget(self) -> None:
        # `_ended` and `_gone` are in the order of their times: a later entry is always put last.
        before = self._clock() - self._kept_seconds
        while self._ended and self._ended[oldest := next(iter(self._ended))] <= before:
            del self._ended[oldest]
            self.rows["reservations"].pop(oldest, None)
        while self._gone and self._gone[first := next(iter(self._gone))][1] <= before:
            del self._gone[first]


class MemoryViewCache(ViewCache):
    """The ViewCache port in memory. Objects that share one `redis` act like processes that share one Redis."""

    def __init__(self, redis: InMemoryRedis | None = None, clock: Callable[[], float] = time.time) -> None:
        self.redis = redis or InMemoryRedis(clock)
        self._view: View | None = None
        self._position: tuple[int | None, int] = (None, 0)

    @override
    def publish(self, changes: Sequence[Change]) -> bool:
        with self.redis.guard:
            if self.redis.generation is None and self.redis.building is None:
                return False
            self.redis.accept(changes)
            return True

    @override
    def catch_up(self) -> View | None:
        with self.redis.guard:
            generation, sequence = self._position
            deltas = self.redis.deltas_after(sequence)
            if self._view is None or deltas is None or generation != self.redis.generation:
                self._view = None
                return None
            for change in deltas:
                self._view.apply(change)
            self._position = (generation, self.redis.sequence)
            return self._view

    @override
    def load(self) -> View | None:
        with self.redis.guard:
            self._view = None if self.redis.generation is None else self._copy()
            return self._view

    @override
    def read_kept(self) -> dict[str, Reservation]:
        with self.redis.guard:
            return {row.id: row for row in self.redis.rows["reservations"].values() if isinstance(row, Reservation)}

    @override
    def rebuild(self, rows: Iterable[Row]) -> View:
        with self.redis.guard:
            self.redis.begin_generation(rows)
            self._view = self._copy()
            return self._view

    @override
    def set_aside_wrong_keys(self) -> list[SetAside]:
        # A view in memory has no Redis keys.
        return []

    @override
    def list_set_aside(self) -> list[SetAside]:
        # Of wrong contents.
        return []

    @override
    def forget_set_aside(self, records: Sequence[SetAside]) -> None:
        # A view in memory has no such list.
        pass

    @override
    def matches_copy(self) -> bool:
        with self.redis.guard:
            return (view := self.catch_up()) is not None and count_rows(view) == self.redis.count_rows()

    @override
    def publish_time(self, now: float) -> None:
        # All processes in memory share one clock.
        pass

    @override
    def write_report(self, report: Mapping[str, Any], waits: Waits = NO_WAITS) -> None:
        self.redis.report = {**report, "waiting": {name: list(reason) for name, reason in waits.items()}}

    @override
    def read_report(self) -> dict[str, Any]:
        return dict(self.redis.report)

    @override
    def write_sample(self, sample: Sample) -> None:
        self.redis.history[find_place(sample.at)] = sample

    @override
    def read_history(self) -> list[Sample]:
        return list(self.redis.history.values())

    def _copy(self) -> View:
        self._position = (self.redis.generation, self.redis.sequence)
        return View(row for rows in self.redis.rows.values() for row in rows.values())


@dataclass
class LockHolder:
    """The state of a leader lock in memory: which process has it (`holder`), until when (`until`), and whether a `take`
    was refused since the last `take` that succeeded (`again`).
    """

    holder: object | None = None
    until: float = 0.0
    again: bool = False


class MemoryLeaderLock(LeaderLock):
    """The LeaderLock port in memory, for one thread. `clock` measures `lock_seconds`. Objects with the same
    `lock_holder` act like processes that share one lock. `hear`: the method of the notifier that a successful `take`
    calls.
    """

    def __init__(
        self,
        lock_holder: LockHolder | None = None,
        lock_seconds: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
        hear: Callable[[], None] = lambda: None,
    ) -> None:
        self.lock_holder, self._hear = lock_holder or LockHolder(), hear
        self._lock_seconds, self._clock = lock_seconds, clock
        self._me = object()

    @override
    def take(self) -> bool:
        if self._holder() is not None:
            self.lock_holder.again = True
            return False
        self.lock_holder.holder, self.lock_holder.again = self._me, False
        self.lock_holder.until = self._clock() + self._lock_seconds
        self._hear()
        return True

    @override
    def renew(self) -> bool:
        if self._holder() is not self._me:
            return False
        self.lock_holder.until = self._clock() + self._lock_seconds
        return True

    @override
    def release(self) -> bool:
        if self._holder() not in (self._me, None):
            return False
        self.lock_holder.holder, self.lock_holder.until = None, 0.0
        return self.lock_holder.again

    @override
    def seconds_until_free(self) -> float:
        return self.lock_holder.until - self._clock() if self._holder() is not None else 0.0

    @override
    def seconds_left(self) -> float:
        return self.lock_holder.until - self._clock() if self._holder() is self._me else 0.0

    def _holder(self) -> object | None:
        return self.lock_holder.holder if self._clock() < self.lock_holder.until else None


class MemoryHeartbeats(Heartbeats):
    """The Heartbeats port in memory. `kept_since`: the time since which heartbeats are kept (default: always)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, kept_since: float = float("-inf")) -> None:
        self._clock, self._kept_since = clock, kept_since
        self._beats: dict[tuple[str, str | None], tuple[Heartbeat, float]] = {}

    def forget(self) -> None:
        """Delete all heartbeats, as a flush of Redis does. New heartbeats are kept from now on."""
        self._beats, self._kept_since = {}, self._clock()

    def beat(self, slot: str, machine: str, version: str | None = None, run: str | None = None) -> None:
        self.put(slot, Heartbeat(machine, version))
        if run is not None:
            self.put(slot, Heartbeat(machine, version), run)

    def put(self, slot: str, beat: Heartbeat, run: str | None = None) -> None:
        """Store this heartbeat for the slot, as if it arrived now. `run`: the run of the agent whose key it is."""
        self._beats[slot, run] = (beat, self._clock())

    @override
    def listen(self, hosts: Mapping[str, str], runs: Mapping[str, str] | None = None) -> Heard:
        now = self._clock()
        places = [(slot, run) for slot in hosts for run in dict.fromkeys([(runs or {}).get(slot), None])]
        found = [(place[0], *self._beats[place]) for place in places if place in self._beats]
        return Heard.of(hosts, ((slot, beat, now - at) for slot, beat, at in found), now - self._kept_since)


class MemoryNotifier(Notifier):
    """The Notifier port in memory, which records what is sent. `notices`: pairs (reservation, notice); `news`: pairs
    (slot, hint); `replies`: reply address -> the answers. `kicks`: the number of calls of `kick`; `ticks_sent`: the
    number of messages that these calls sent.
    """

    def __init__(
        self,
        send_tick: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        kick_seconds: float = 2.0,
    ) -> None:
        self.kicks = self.ticks_sent = 0
        self.notices: list[tuple[str, dict[str, Any]]] = []
        self.news: list[tuple[str, dict[str, Any]]] = []
        self.replies: dict[str, list[dict[str, Any]]] = {}
        self._send_tick, self._clock, self._kick_seconds = send_tick, clock, kick_seconds
        self._flag_until = float("-inf")

    @property
    def is_rung(self) -> bool:
        """Whether a tick was requested in the last `kick_seconds` and no tick has begun since."""
        return self._clock() < self._flag_until

    @override
    def kick(self) -> None:
        self.kicks += 1
        if self.is_rung:
            return
        if self._send_tick is not None:
            self._send_tick()
        self.ticks_sent += 1
        self._flag_until = self._clock() + self._kick_seconds

    @override
    def hear(self) -> None:
        self._flag_until = float("-inf")

    @override
    def await_kick(self, seconds: float) -> bool:
        return False

    @override
    def notify(self, notices: Mapping[str, Mapping[str, Any]]) -> None:
        # Record it in `notices`.
        self.notices += [(reservation, dict(each)) for reservation, each in notices.items()]

    @override
    def push(self, news: Mapping[str, Mapping[str, Any]]) -> None:
        """Send a hint to the host of each of these slots, because the slot has changed. Here: record it in `news`. See
        Notifier.
        """
        self.news += [(slot, dict(each)) for slot, each in news.items()]

    @override
    def reply(self, address: str, answer: Mapping[str, Any]) -> None:
        # Record it in `replies`.
        check_reply_address(address, DEFAULT_PREFIX)
        self.replies.setdefault(address, []).append(dict(answer))

    @override
    def reply_to_all(self, answers: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
        # No answer can fail.
        for address, answer in answers:
            self.reply(address, answer)
        return []
