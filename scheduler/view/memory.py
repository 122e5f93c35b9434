"""The ports to Redis in memory, for the simulator and for unit tests."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from leasehold.common.heartbeats import Heartbeat
from leasehold.common.names import DEFAULT_PREFIX
from scheduler.model.reservations import Reservation, is_over
from scheduler.model.slots import Slot
from scheduler.model.view import KINDS, Change, Gone, Kind, Row, View, count_rows, is_newer
from scheduler.ports import Heard, RefusedMessage, SetAside, ViewUnavailableError, check_reply_address
from scheduler.ports.view import MOST_KEPT, MOST_REFUSED, REFUSED_SECONDS
from scheduler.view.metric_table import REFUSED, find_label_values

KEPT_SECONDS = 600.0
"""Seconds for which ended reservations stay readable, and for which tombstones refuse older copies."""
DELTAS = 100_000
"""Number of the newest deltas that are kept. A reader that is further behind loads the whole view."""


class InMemoryRedis:
    """Rows, tombstones and deltas of one view. `clock` returns seconds. Several view caches may share one.

    `generation` is None while there is no valid view. `building` is the generation of a rebuild under way.
    `sequence` numbers the accepted changes without gaps.
    """

    def __init__(self, clock: Callable[[], float], kept_seconds: float = KEPT_SECONDS) -> None:
        self.guard = threading.RLock()
        self.generation: int | None = None
        self.building: int | None = None
        self.sequence = self._generations = 0
        self.rows: dict[Kind, dict[str, Row]] = {kind: {} for kind in KINDS.values()}
        self.report: dict[str, Any] = {}
        self._clock, self._kept_seconds = clock, kept_seconds
        self._deltas: deque[Change] = deque(maxlen=DELTAS)
        self._gone: dict[tuple[Kind, str], tuple[int, float]] = {}
        self._ended: dict[str, float] = {}

    def flush(self) -> None:
        """Delete everything, as FLUSHALL does."""
        with self.guard:
            self.generation, self.sequence, self.report = None, 0, {}
            self._deltas, self._gone, self._ended = deque(maxlen=DELTAS), {}, {}
            self.rows = {kind: {} for kind in KINDS.values()}

    def begin_generation(self, rows: Iterable[Row]) -> None:
        """Replace the contents by these rows, and by changes that are published while they are read."""
        report = self.report
        self.flush()
        self._generations += 1
        self.building = self._generations
        self.accept(rows)
        self.building = None
        self.generation, self.report = self._generations, report

    def accept(self, changes: Iterable[Change]) -> None:
        """Keep the newer copy of each row, append a delta for each new one, and drop expired rows."""
        for change in changes:
            taken = self._bury(change) if isinstance(change, Gone) else self._take(change)
            if taken:
                self.sequence += 1
                self._deltas.append(change)
        self._forget()

    def count_rows(self) -> dict[Kind, int]:
        """Return the number of rows of each kind, without ended reservations."""
        counted = {kind: len(rows) for kind, rows in self.rows.items()}
        return counted | {"reservations": counted["reservations"] - len(self._ended)}

    def deltas_after(self, sequence: int) -> list[Change] | None:
        """Return the changes accepted after this one, in order; None when some of them are not kept any more."""
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
        # Both are in the order of their times, because a later entry is always put last.
        before = self._clock() - self._kept_seconds
        while self._ended and self._ended[oldest := next(iter(self._ended))] <= before:
            del self._ended[oldest]
            self.rows["reservations"].pop(oldest, None)
        while self._gone and self._gone[first := next(iter(self._gone))][1] <= before:
            del self._gone[first]


class MemoryViewCache:
    """The ViewCache in memory. View caches that share a `redis` act as processes that share a Redis."""

    def __init__(self, redis: InMemoryRedis | None = None, clock: Callable[[], float] = time.time) -> None:
        self.redis = redis or InMemoryRedis(clock)
        self._view: View | None = None
        self._position: tuple[int | None, int] = (None, 0)

    def publish(self, changes: Sequence[Change]) -> bool:
        """Merge changed rows into the view; of two copies the newer stays. See ViewCache."""
        with self.redis.guard:
            if self.redis.generation is None and self.redis.building is None:
                return False
            self.redis.accept(changes)
            return True

    def catch_up(self) -> View | None:
        """Return this process's own copy, brought up to date with the changes since the last call. See ViewCache."""
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

    def load(self) -> View | None:
        """Read the whole view. See ViewCache."""
        with self.redis.guard:
            self._view = None if self.redis.generation is None else self._copy()
            return self._view

    def read_kept(self) -> dict[str, Reservation]:
        """Return the stored reservations, ended ones too, whether the view is valid or not. See ViewCache."""
        with self.redis.guard:
            rows = self.redis.rows["reservations"].values()
            return {row.id: row for row in rows if isinstance(row, Reservation)}

    def rebuild(self, rows: Iterable[Row]) -> View:
        """Replace the view by these rows from the database. See ViewCache."""
        with self.redis.guard:
            self.redis.begin_generation(rows)
            self._view = self._copy()
            return self._view

    def set_aside_wrong_keys(self) -> list[SetAside]:
        """See ViewCache.set_aside_wrong_keys: there are no keys."""
        return []

    def list_set_aside(self) -> list[SetAside]:
        """Return the keys that any process renamed and `forget_set_aside` has not removed. See ViewCache."""
        return []

    def forget_set_aside(self, records: Sequence[SetAside]) -> None:
        """Remove these entries from the list of renamed keys. See ViewCache."""

    def matches_copy(self) -> bool:
        """Return whether Redis stores as many rows of each kind as this process's copy has at the same moment."""
        with self.redis.guard:
            view = self.catch_up()
            return view is not None and count_rows(view) == self.redis.count_rows()

    def publish_time(self, now: float) -> None:
        """Publish cluster time. Nothing reads it here: all processes in memory share one clock. See ViewCache."""

    def write_report(self, report: Mapping[str, Any]) -> None:
        """Store the report of the last tick (waiting codes, wake_at, term, duration) for the CLI and the client."""
        self.redis.report = dict(report)

    def read_report(self) -> dict[str, Any]:
        """Return the last report, {} before the first. See ViewCache."""
        return dict(self.redis.report)

    def read_reservations(self, ids: Iterable[str]) -> dict[str, Reservation]:
        """Return those of these reservations that the view has. See ViewCache."""
        rows = self._valid_rows("reservations")
        return {id_: row for id_ in ids if isinstance(row := rows.get(id_), Reservation)}

    def read_slots(self, ids: Iterable[str]) -> dict[str, Slot]:
        """Return those of these slots that the view has. See ViewCache."""
        rows = self._valid_rows("slots")
        return {id_: row for id_ in ids if isinstance(row := rows.get(id_), Slot)}

    def _valid_rows(self, kind: str) -> dict[str, Row]:
        if self.redis.generation is None:
            raise ViewUnavailableError("there is no valid view")
        return self.redis.rows[kind]

    def _copy(self) -> View:
        self._position = (self.redis.generation, self.redis.sequence)
        return View(row for rows in self.redis.rows.values() for row in rows.values())


@dataclass
class LockHolder:
    """The state of a lock that several processes share: its holder, until when, and the mark `again`."""

    holder: object | None = None
    until: float = 0.0
    again: bool = False


class MemoryLeaderLock:
    """The LeaderLock in memory. `clock` measures `lock_seconds`. Not thread-safe."""

    def __init__(
        self,
        lock_holder: LockHolder | None = None,
        lock_seconds: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lock_holder = lock_holder or LockHolder()
        self._lock_seconds, self._clock = lock_seconds, clock
        self._me = object()

    def take(self) -> bool:
        """Take the lock for its whole time. See LeaderLock."""
        if self._holder() is not None:
            self.lock_holder.again = True
            return False
        self.lock_holder.holder, self.lock_holder.again = self._me, False
        self.lock_holder.until = self._clock() + self._lock_seconds
        return True

    def renew(self) -> bool:
        """Extend the lock to its whole time. See LeaderLock."""
        if self._holder() is not self._me:
            return False
        self.lock_holder.until = self._clock() + self._lock_seconds
        return True

    def release(self) -> bool:
        """Release the lock if this process has it. See LeaderLock."""
        if self._holder() not in (self._me, None):
            return False
        self.lock_holder.holder, self.lock_holder.until = None, 0.0
        return self.lock_holder.again

    def seconds_until_free(self) -> float:
        """Return after how many seconds the lock runs out unless it is renewed; 0 when no process has it."""
        return self.lock_holder.until - self._clock() if self._holder() is not None else 0.0

    def seconds_left(self) -> float:
        """Return how many seconds of the lock's time are left since the last successful take or renewal *began*."""
        return self.lock_holder.until - self._clock() if self._holder() is self._me else 0.0

    def _holder(self) -> object | None:
        return self.lock_holder.holder if self._clock() < self.lock_holder.until else None


class MemoryHeartbeats:
    """The Heartbeats port in memory. `beat` acts as a host, `forget` as a flush of Redis.

    `kept_since`: the time from which heartbeats are kept; default: they were always kept.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, kept_since: float = float("-inf")) -> None:
        self._clock, self._kept_since = clock, kept_since
        self._beats: dict[str, tuple[Heartbeat, float]] = {}

    def forget(self) -> None:
        """Delete all heartbeats."""
        self._beats, self._kept_since = {}, self._clock()

    def beat(self, slot: str, machine: str, version: str | None = None) -> None:
        """Store a heartbeat of this machine now. `version`: the version of its slot that it knows."""
        self.put(slot, Heartbeat(machine, version))

    def put(self, slot: str, beat: Heartbeat) -> None:
        """Store this heartbeat as one that arrives now."""
        self._beats[slot] = (beat, self._clock())

    def listen(self, hosts: Mapping[str, str]) -> Heard:
        """Return the heartbeats of these slots, each from the machine that it is given with. See Heartbeats."""
        now = self._clock()
        found = {slot: each for slot, each in self._beats.items() if hosts.get(slot) == each[0].machine}
        ages = {slot: now - at for slot, (_, at) in found.items()}
        versions = {slot: beat.version for slot, (beat, _) in found.items() if beat.version is not None}
        signed = {slot: beat for slot, (beat, _) in found.items() if beat.counter is not None}
        return Heard(ages, now - self._kept_since, versions, signed)


class MemoryNotifier:
    """The Notifier in memory. Notices are kept as (reservation, notice), news as (slot, news), replies by address.

    `kicks` counts the calls of `kick`, `ticks_sent` the messages that they sent.
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
        """Return whether a tick was requested and none has begun since, within `kick_seconds`."""
        return self._clock() < self._flag_until

    def kick(self) -> None:
        """Request a tick. See Notifier."""
        self.kicks += 1
        if self.is_rung:
            return
        if self._send_tick is not None:
            self._send_tick()
        self.ticks_sent += 1
        self._flag_until = self._clock() + self._kick_seconds

    def hear(self) -> None:
        """Note that a tick has begun. See Notifier."""
        self._flag_until = float("-inf")

    def notify(self, reservation: str, notice: Mapping[str, Any]) -> None:
        """Publish a notice on this reservation's channel. See Notifier."""
        self.notices.append((reservation, dict(notice)))

    def push(self, news: Mapping[str, Mapping[str, Any]]) -> None:
        """Send a hint to each of these slots' hosts that the slot changed, so the host should ask for it."""
        self.news += [(slot, dict(each)) for slot, each in news.items()]

    def reply(self, address: str, answer: Mapping[str, Any]) -> None:
        """Write an answer to the reply address, where it is kept for a minute. See Notifier."""
        check_reply_address(address, DEFAULT_PREFIX)
        self.replies.setdefault(address, []).append(dict(answer))


class MemoryMeter:
    """The Meter in memory: sums by name and labels, observations in a list."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
        self.observations: list[tuple[str, dict[str, str], float]] = []
        self.probed: dict[str, float] = {}
        self._refused: list[RefusedMessage] = []
        self._noted: dict[str, tuple[float, int]] = {}

    def count(self, name: str, labels: Mapping[str, str], amount: float = 1) -> None:
        """Add `amount` to a counter. See Meter."""
        find_label_values(name, "counter", labels)
        self.counts[name, tuple(sorted(labels.items()))] += amount  # type: ignore[assignment] # it adds floats, too

    def observe(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """Add one observation to a histogram. See Meter."""
        self.observe_all(name, labels, [value])

    def observe_all(self, name: str, labels: Mapping[str, str], values: Sequence[float]) -> None:
        """Add many observations to a histogram at once. See Meter."""
        find_label_values(name, "histogram", labels)
        self.observations += [(name, dict(labels), value) for value in values]

    def note_probes(self, slots: Sequence[str], at: float) -> None:
        """Note that the machines of these slots answered at that time, or that EC2 reported them. See Meter."""
        self.probed.update(dict.fromkeys(slots, at))

    def note_refused(self, refused: RefusedMessage) -> None:
        """Count a refused message. Keep it for `take_refused` unless too many with its defect were kept. See Meter."""
        self.count(REFUSED, {"queue": refused.queue, "defect": refused.defect})
        begun, noted = self._noted.get(refused.defect, (refused.at, 0))
        if refused.at >= begun + REFUSED_SECONDS:
            begun, noted = refused.at, 0
        self._noted[refused.defect] = (begun, noted + 1)
        if noted < MOST_REFUSED:
            self.put_back_refused([refused])

    def take_refused(self) -> list[RefusedMessage]:
        """Return and remove the refused messages that were kept, oldest first. See Meter."""
        taken, self._refused = self._refused, []
        return taken

    def put_back_refused(self, refused: Sequence[RefusedMessage]) -> None:
        """Keep these messages again. See Meter."""
        self._refused = [*self._refused, *refused][-MOST_KEPT:]
