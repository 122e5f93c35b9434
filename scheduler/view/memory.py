"""Belief in memory: board, lock, bell, pulse and meter of the simulator and of unit tests."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from leasehold.common.heartbeats import Heartbeat
from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from scheduler.model.view import Change, Row, View, count_rows
from scheduler.ports import Heard, RefusedMessage, SetAside, ViewUnavailableError
from scheduler.ports.meter import MOST_KEPT, MOST_REFUSED, REFUSED_SECONDS
from scheduler.view.addresses import DEFAULT_PREFIX, check_reply_address
from scheduler.view.in_memory_redis import InMemoryRedis
from scheduler.view.metric_table import REFUSED, find_label_values


class MemoryViewCache:
    """The Board in memory. Boards that share a `shelf` are processes that share a Redis."""

    def __init__(self, shelf: InMemoryRedis | None = None, clock: Callable[[], float] = time.time) -> None:
        self.shelf = shelf or InMemoryRedis(clock)
        self._view: View | None = None
        self._position: tuple[int | None, int] = (None, 0)

    def publish(self, changes: Sequence[Change]) -> bool:
        """See Board.publish."""
        with self.shelf.guard:
            if self.shelf.generation is None and self.shelf.building is None:
                return False
            self.shelf.accept(changes)
            return True

    def catch_up(self) -> View | None:
        """See Board.catch_up."""
        with self.shelf.guard:
            generation, sequence = self._position
            deltas = self.shelf.deltas_after(sequence)
            if self._view is None or deltas is None or generation != self.shelf.generation:
                self._view = None
                return None
            for change in deltas:
                self._view.apply(change)
            self._position = (generation, self.shelf.sequence)
            return self._view

    def load(self) -> View | None:
        """See Board.load."""
        with self.shelf.guard:
            self._view = None if self.shelf.generation is None else self._copy()
            return self._view

    def read_kept(self) -> dict[str, Reservation]:
        """See Board.read_kept."""
        with self.shelf.guard:
            rows = self.shelf.rows["reservations"].values()
            return {row.id: row for row in rows if isinstance(row, Reservation)}

    def rebuild(self, rows: Iterable[Row]) -> View:
        """See Board.rebuild."""
        with self.shelf.guard:
            self.shelf.begin_generation(rows)
            self._view = self._copy()
            return self._view

    def set_aside_wrong_keys(self) -> list[SetAside]:
        """See Board.set_aside_wrong_keys: there are no keys."""
        return []

    def list_set_aside(self) -> list[SetAside]:
        """See Board.list_set_aside."""
        return []

    def forget_set_aside(self, records: Sequence[SetAside]) -> None:
        """See Board.forget_set_aside."""

    def matches_copy(self) -> bool:
        """See Board.matches_copy."""
        with self.shelf.guard:
            view = self.catch_up()
            return view is not None and count_rows(view) == self.shelf.count_rows()

    def publish_time(self, now: float) -> None:
        """See Board.publish_time. Nothing reads it here: all processes in memory share one clock."""

    def write_report(self, report: Mapping[str, Any]) -> None:
        """See Board.write_report."""
        self.shelf.report = dict(report)

    def read_report(self) -> dict[str, Any]:
        """See Board.read_report."""
        return dict(self.shelf.report)

    def read_reservations(self, ids: Iterable[str]) -> dict[str, Reservation]:
        """See Board.read_reservations."""
        rows = self._valid_rows("reservations")
        return {id_: row for id_ in ids if isinstance(row := rows.get(id_), Reservation)}

    def read_slots(self, ids: Iterable[str]) -> dict[str, Slot]:
        """See Board.read_slots."""
        rows = self._valid_rows("slots")
        return {id_: row for id_ in ids if isinstance(row := rows.get(id_), Slot)}

    def _valid_rows(self, kind: str) -> dict[str, Row]:
        if self.shelf.generation is None:
            raise ViewUnavailableError("there is no valid view")
        return self.shelf.rows[kind]

    def _copy(self) -> View:
        self._position = (self.shelf.generation, self.shelf.sequence)
        return View(row for rows in self.shelf.rows.values() for row in rows.values())


class LockHolder:
    """What the locks of several processes contend for: who holds it until when, and the mark `again`."""

    def __init__(self) -> None:
        self.holder: object | None = None
        self.until = 0.0
        self.again = False


class MemoryLeaderLock:
    """The Lock in memory; `clock` is the one by which `lock_seconds` pass. Not for use by several threads."""

    def __init__(
        self,
        seat: LockHolder | None = None,
        lock_seconds: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seat = seat or LockHolder()
        self._lock_seconds, self._clock = lock_seconds, clock
        self._me = object()

    def take(self) -> bool:
        """See Lock.take."""
        if self._holder() is not None:
            self.seat.again = True
            return False
        self.seat.holder, self.seat.again = self._me, False
        self.seat.until = self._clock() + self._lock_seconds
        return True

    def renew(self) -> bool:
        """See Lock.renew."""
        if self._holder() is not self._me:
            return False
        self.seat.until = self._clock() + self._lock_seconds
        return True

    def release(self) -> bool:
        """See Lock.release."""
        if self._holder() not in (self._me, None):
            return False
        self.seat.holder, self.seat.until = None, 0.0
        return self.seat.again

    def seconds_until_free(self) -> float:
        """See Lock.seconds_until_free."""
        return self.seat.until - self._clock() if self._holder() is not None else 0.0

    def seconds_left(self) -> float:
        """See Lock.seconds_left."""
        return self.seat.until - self._clock() if self._holder() is self._me else 0.0

    def _holder(self) -> object | None:
        return self.seat.holder if self._clock() < self.seat.until else None


class MemoryHeartbeats:
    """The Pulse in memory. `beat` is what a host does; `forget` is what a flush does.

    `kept_since`: since when heartbeats are kept; in a scenario there was never a time without.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, kept_since: float = float("-inf")) -> None:
        self._clock, self._kept_since = clock, kept_since
        self._beats: dict[str, tuple[Heartbeat, float]] = {}

    def forget(self) -> None:
        """Lose all heartbeats."""
        self._beats, self._kept_since = {}, self._clock()

    def beat(self, slot: str, machine: str, version: str | None = None) -> None:
        """This machine is alive, and knows this version of its slot."""
        self.put(slot, Heartbeat(machine, version))

    def put(self, slot: str, beat: Heartbeat) -> None:
        """This heartbeat arrives now."""
        self._beats[slot] = (beat, self._clock())

    def listen(self, hosts: Mapping[str, str]) -> Heard:
        """See Pulse.listen."""
        now = self._clock()
        found = {slot: each for slot, each in self._beats.items() if hosts.get(slot) == each[0].machine}
        ages = {slot: now - at for slot, (_, at) in found.items()}
        versions = {slot: beat.version for slot, (beat, _) in found.items() if beat.version is not None}
        signed = {slot: beat for slot, (beat, _) in found.items() if beat.counter is not None}
        return Heard(ages, now - self._kept_since, versions, signed)


class MemoryNotifier:
    """The Bell in memory. Notices are kept as (reservation, notice), news as (slot, news), replies by address.

    `kicks` counts the asks, `ticks_sent` the messages that were sent for them.
    """

    def __init__(
        self,
        send_tick: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        kick_seconds: float = 2.0,
    ) -> None:
        self.kicks = 0
        self.ticks_sent = 0
        self.notices: list[tuple[str, dict[str, Any]]] = []
        self.news: list[tuple[str, dict[str, Any]]] = []
        self.replies: dict[str, list[dict[str, Any]]] = {}
        self._send_tick, self._clock, self._kick_seconds = send_tick, clock, kick_seconds
        self._flag_until = float("-inf")

    @property
    def is_rung(self) -> bool:
        """Whether a tick was asked for and none has begun since (for `kick_seconds` at most)."""
        return self._clock() < self._flag_until

    def kick(self) -> None:
        """See Bell.kick."""
        self.kicks += 1
        if self.is_rung:
            return
        if self._send_tick is not None:
            self._send_tick()
        self.ticks_sent += 1
        self._flag_until = self._clock() + self._kick_seconds

    def hear(self) -> None:
        """See Bell.hear."""
        self._flag_until = float("-inf")

    def notify(self, reservation: str, notice: Mapping[str, Any]) -> None:
        """See Bell.notify."""
        self.notices.append((reservation, dict(notice)))

    def push(self, news: Mapping[str, Mapping[str, Any]]) -> None:
        """See Bell.push."""
        self.news += [(slot, dict(each)) for slot, each in news.items()]

    def reply(self, address: str, answer: Mapping[str, Any]) -> None:
        """See Bell.reply."""
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
        """See Meter.count."""
        find_label_values(name, "counter", labels)
        # Counter's type speaks of ints; it adds whatever it is given.
        self.counts[name, tuple(sorted(labels.items()))] += amount  # type: ignore[assignment]

    def observe(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """See Meter.observe."""
        self.observe_all(name, labels, [value])

    def observe_all(self, name: str, labels: Mapping[str, str], values: Sequence[float]) -> None:
        """See Meter.observe_all."""
        find_label_values(name, "histogram", labels)
        self.observations += [(name, dict(labels), value) for value in values]

    def note_probes(self, slots: Sequence[str], at: float) -> None:
        """See Meter.note_probes."""
        self.probed.update(dict.fromkeys(slots, at))

    def note_refused(self, refused: RefusedMessage) -> None:
        """See Meter.note_refused; the minute is that of the messages' own times."""
        self.count(REFUSED, {"queue": refused.queue, "defect": refused.defect})
        begun, noted = self._noted.get(refused.defect, (refused.at, 0))
        if refused.at >= begun + REFUSED_SECONDS:
            begun, noted = refused.at, 0
        self._noted[refused.defect] = (begun, noted + 1)
        if noted < MOST_REFUSED:
            self.put_back_refused([refused])

    def take_refused(self) -> list[RefusedMessage]:
        """See Meter.take_refused."""
        taken, self._refused = self._refused, []
        return taken

    def put_back_refused(self, refused: Sequence[RefusedMessage]) -> None:
        """See Meter.put_back_refused."""
        self._refused = [*self._refused, *refused][-MOST_KEPT:]
