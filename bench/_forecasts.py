"""Forecasts of starts on a workload log, compared with what came, and what they cost.

A log is played with the engine (`scheduler.simulation`). Each reservation that waits after the tick of its submission
gets a forecast. Those that wait for more than 60 s are compared with it: how many start within the 80 % interval, how
wide it is, and its pinball loss (the sum at 10 and 90 %). The baseline are the 10 and 90 % quantiles of the last 500
waits, with the same margins.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from resource import RUSAGE_SELF, getrusage
from statistics import median
from time import process_time
from typing import Final, NamedTuple

from msgspec.structs import replace as replace_fields

from bench._logs import SYSTEM, Log
from scheduler.foresight.forecaster import SHORT_WAIT, Forecaster
from scheduler.foresight.margins import Given, Margins, Outcome, Waits, find_loss
from scheduler.model.reservations import Component, Lease, Request, Reservation
from scheduler.model.rules import read_rules
from scheduler.model.run_times import RunTimes, list_classes
from scheduler.model.slots import Slot
from scheduler.model.view import Row, View
from scheduler.simulation.fleet import Fleet
from scheduler.simulation.trace import TracePlay
from scheduler.simulation.workload import RequestedTimes, Workload

WEEK: Final = 7 * 86_400.0
LEAST_A_WEEK: Final = 30
LAST_WAITS: Final = 500
INTERVAL: Final = 30.0
"""Seconds between two runs of the process."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A wait and the interval that was forecast for it, in seconds."""

    submitted_at: float
    seconds: float
    low: float
    high: float

    @property
    def is_hit(self) -> bool:
        return self.low <= self.seconds <= self.high

    @property
    def loss(self) -> float:
        """The sum of the pinball losses at 10 and 90 %."""
        return find_loss(0.1, self.low, self.seconds) + find_loss(0.9, self.high, self.seconds)


@dataclass(frozen=True)
class Quality:
    """How good intervals are."""

    count: int
    coverage: float
    width: float
    loss: float
    weeks: int
    near: float
    """The share of the weeks whose coverage is 70 to 90 %."""
    nearer: float
    """The share of the weeks whose coverage is 75 to 85 %."""


def judge(judged: Sequence[Judged]) -> Quality:
    """Return how good these intervals are."""
    weeks: dict[int, list[bool]] = {}
    for each in judged:
        weeks.setdefault(int(each.submitted_at // WEEK), []).append(each.is_hit)
    shares = [sum(hits) / len(hits) for hits in weeks.values() if len(hits) >= LEAST_A_WEEK]
    count = max(1, len(judged))
    return Quality(
        len(judged),
        sum(each.is_hit for each in judged) / count,
        median([each.high - each.low for each in judged] or [0.0]),
        sum(each.loss for each in judged) / count,
        len(shares),
        sum(0.7 <= each <= 0.9 for each in shares) / max(1, len(shares)),
        sum(0.75 <= each <= 0.85 for each in shares) / max(1, len(shares)),
    )


class LastWaits:
    """The baseline: the quantiles of the last waits, with margins."""

    def __init__(self) -> None:
        self._last, self._ordered = deque[float](), list[float]()
        self._margins = Margins()
        self._open: dict[str, tuple[Waits, Given | None]] = {}

    def predict(self, name: str) -> tuple[float, float] | None:
        """Return the interval of a reservation that is submitted now; None: too little is known."""
        if not self._ordered:
            return None
        count = len(self._ordered)
        waits = Waits(*(self._ordered[min(count - 1, int(share * count))] for share in (0.1, 0.5, 0.9, 0.95)))
        given = self._margins.widen(waits) if self._margins.are_known else None
        self._open[name] = waits, given
        return None if given is None else (given.waits.low, given.waits.high)

    def note(self, name: str, seconds: float) -> None:
        """Count the wait of a reservation that has started."""
        known = self._open.pop(name, None)
        if seconds <= SHORT_WAIT:
            return
        if known is not None:
            self._margins.note(Outcome(known[0], seconds), known[1])
        self._last.append(seconds)
        insort(self._ordered, seconds)
        if len(self._last) > LAST_WAITS:
            del self._ordered[bisect_left(self._ordered, self._last.popleft())]


class ForecastPlay(TracePlay):
    """A run of a trace in which each reservation that waits gets a forecast at its submission."""

    def __init__(self, workload: Workload, fleet: Fleet, plays: int, requested_times: RequestedTimes | None) -> None:
        self.forecaster, self.baseline, self._plays = Forecaster(), LastWaits(), plays
        self._asked: dict[str, tuple[float, tuple[float, float] | None, tuple[float, float] | None]] = {}
        self.judged: list[Judged] = []
        self.judged_baseline: list[Judged] = []
        self.unknown = 0
        self.cpu_seconds = 0.0
        self._seen_sequence = 0
        super().__init__(workload, fleet, requested_times=requested_times)

    def _play_instant(self, now: float) -> None:
        super()._play_instant(now)
        began = process_time()
        view = self.cluster.ports.view_cache.load()
        if view is None:
            return
        for name in [each for each in self._asked if each not in view.by_phase["pending"]]:
            self._settle(name, view.reservations.get(name))
        new = [each for each in view.by_phase["pending"].values() if each.sequence > self._seen_sequence]
        if view.reservations:
            self._seen_sequence = max(self._seen_sequence, *(each.sequence for each in view.reservations.values()))
        self.forecaster.see(view, self.cluster.ports.rules(), "", now)
        if new:
            self.forecaster.play(self._plays, [each.id for each in new])
        for row in new:
            found = self.forecaster.answer(row)
            interval = None
            if not found.unknown:
                interval = found.low - now, found.high - now
            self._asked[row.id] = now, interval, self.baseline.predict(row.id)
        self.cpu_seconds += process_time() - began

    def _settle(self, name: str, row: Reservation | None) -> None:
        at, interval, other = self._asked.pop(name)
        if row is None or row.leased_at is None:
            return
        seconds = row.leased_at - at
        self.baseline.note(name, seconds)
        if seconds <= SHORT_WAIT:
            return
        self.unknown += interval is None
        if interval is not None and other is not None:
            self.judged.append(Judged(at, seconds, *interval))
            self.judged_baseline.append(Judged(at, seconds, *other))


class Played(NamedTuple):
    """The forecasts of a log, the baseline for the same waits, how many waits had no forecast, and the CPU seconds."""

    forecast: list[Judged]
    baseline: list[Judged]
    unknown: int
    cpu_seconds: float


def play_forecasts(log: Log, plays: int, requested_times: RequestedTimes | None) -> Played:
    """Play a log with forecasts of this number of plays."""
    found = ForecastPlay(log.read(), log.make_fleet({}), plays, requested_times)
    found.play()
    return Played(found.judged, found.judged_baseline, found.unknown, found.cpu_seconds)


class Cost(NamedTuple):
    """CPU seconds to count the view, for one play and for all answers, the memory beside the view, and the cores that
    one run in INTERVAL takes.
    """

    counted: float
    play: float
    answers: float
    mebibytes: float
    cores: float


def measure_cost(slots: int, waiting: int, plays: int) -> Cost:
    """Return what forecasts cost on a fleet in which each slot is leased and this many reservations wait."""
    pool = {"provider": "static", "system": SYSTEM, "max_slots": slots, "max_leases_per_slot": 1}
    rules = read_rules({"pools": {"hosts": pool}})
    random, now = Random(1), 1e9
    rows: list[Row] = []
    times: dict[str, RunTimes] = {}
    for number in range(slots + waiting):
        component = Component(name="main", count=1 if number < slots else random.choice((1, 1, 1, 2, 4, 8)))
        request = Request(system=SYSTEM, account=f"a{number % 50}", components=(component,))
        row = Reservation(id=f"r{number}", sequence=number, request=request, created_at=now - 60 + number / 1e4)
        if number < slots:
            lease = Lease(component="main", slot=f"hosts-{number}", epoch=1, token=1, assigned_at=now - 60)
            row = replace_fields(row, phase="leased", leased_at=now - 600 * random.random(), leases=(lease,))
            rows.append(Slot(id=f"hosts-{number}", pool="hosts", state="ready", epoch=1))
        rows.append(row)
        for name in list_classes(request, None):
            times.setdefault(name, RunTimes(id=name, seconds=tuple(random.expovariate(1e-3) for _ in range(30))))
    view, forecaster = View([*rows, *times.values()]), Forecaster()
    before = getrusage(RUSAGE_SELF).ru_maxrss
    began = process_time()
    forecaster.see(view, rules, "", now)
    forecaster.play(0)
    counted = process_time()
    forecaster.play(plays)
    played = process_time()
    for row in view.waiters.list()[0]:
        forecaster.answer(row)
    done = process_time()
    grown = (getrusage(RUSAGE_SELF).ru_maxrss - before) / 1024
    cores = (done - began) / INTERVAL
    return Cost(counted - began, (played - counted) / plays, done - played, grown, cores)
