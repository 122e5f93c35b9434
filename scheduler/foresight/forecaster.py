"""Makes forecasts: sees the view from time to time, plays it forward, and compares its forecasts with what came."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import ceil, inf, isinf
from random import Random
from typing import Final

import msgspec

from scheduler.foresight.census import Census
from scheduler.foresight.margins import Given, Margins, MarginsRecord, Outcome, QualityRecord, Waits
from scheduler.foresight.play import Arrival, Draws, Expectations, Play
from scheduler.foresight.present import Kind, Lane, Present
from scheduler.model.budgets import NO_SPENDING, Spent
from scheduler.model.forecasts import Forecast
from scheduler.model.reservations import Reservation, is_on_hold
from scheduler.model.rules import Rules
from scheduler.model.run_times import Estimates
from scheduler.model.view import View

# Replays arrivals: the work that was submitted at the same hours of past days.
#
# Each day of a play repeats the arrivals of one past day, drawn at random. In the first day of a record there are none
# to repeat, so nothing arrives.


DAY: Final = 86_400.0
MOST_DAYS: Final = 28
MOST_ARRIVALS: Final = 100_000
"""The most arrivals in the record; the oldest are forgotten."""


class ArrivalRecord:
    """The arrivals of the last days, in the order of their times."""

    def __init__(self, most: int = MOST_ARRIVALS) -> None:
        self._most = most
        self._times: list[float] = []
        self._kinds: list[tuple[Kind, float]] = []
        self._since: float | None = None

    def __len__(self) -> int:
        return len(self._times)

    def translate(self, find: Callable[[Kind], Kind]) -> None:
        """Replace each kind of the record, because the rules have changed."""
        known = {kind: find(kind) for kind in {kind for kind, _ in self._kinds}}
        self._kinds = [(known[kind], rank) for kind, rank in self._kinds]

    def begin(self, now: float) -> None:
        """Note that arrivals are recorded from now on. After a clock that was set back the record begins again."""
        if self._since is None or (self._times and self._times[-1] > now):
            self._times.clear()
            self._kinds.clear()
            self._since = now

    def recall(self, past: Iterable[tuple[float, Kind, float]], since: float) -> None:
        """Put arrivals in the order of their times before the record. `since`: from then on none is missing."""
        known = zip(self._times, self._kinds, strict=True)
        every = [*((at, (kind, rank)) for at, kind, rank in past if at >= since), *known]
        self._times, self._kinds = [at for at, _ in every], [each for _, each in every]
        self._since = since if self._since is None else min(self._since, since)

    def add(self, at: float, kind: Kind, rank: float) -> None:
        """Record an arrival. It counts as late as the one before at least."""
        self._times.append(max(at, self._times[-1]) if self._times else at)
        self._kinds.append((kind, rank))
        if len(self._times) >= 2 * self._most:
            del self._times[: self._most], self._kinds[: self._most]
            self._since = self._times[0]

    def forget_old(self, now: float) -> None:
        """Forget what no play repeats any more."""
        gone = bisect_right(self._times, now - (MOST_DAYS + 1) * DAY)
        if gone > len(self._times) // 2:
            del self._times[:gone], self._kinds[:gone]
            self._since = max(self._since or 0.0, now - (MOST_DAYS + 1) * DAY)

    def replay(self, now: float, horizon: float, random: Random) -> Iterator[Arrival]:
        """Yield the arrivals of a play that begins now, up to the end of the day in which its horizon ends."""
        days = 0 if self._since is None else min(int((now - self._since) // DAY), MOST_DAYS)
        begin = now
        while days >= 1 and begin < now + horizon:
            back = ceil((begin - now) / DAY) + random.randint(1, days)
            first = bisect_right(self._times, begin - back * DAY)
            last = bisect_right(self._times, begin + DAY - back * DAY)
            for index in range(first, last):
                kind, rank = self._kinds[index]
                yield Arrival(self._times[index] + back * DAY, kind, rank)
            begin += DAY


HORIZON: Final = 14 * 86_400.0
PLAYS: Final = 32
SHORT_WAIT: Final = 60.0
"""Shorter waits are no outcomes, because they need no forecast."""
MOST_OPEN: Final = 20_000
"""The most forecasts whose outcomes are awaited."""
FIRST_PLACES: Final = 16
GROWTH: Final = 1.1
"""Forecasts are made for the first places of a lane, and then for places that lie a tenth apart. Between them they are
interpolated.
"""


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a forecaster: its outcomes, and the policy under which they came."""

    policy: str | None
    outcomes: MarginsRecord


@dataclass(slots=True)
class _Open:
    """A forecast that was made, and whose outcome is awaited."""

    as_of: float
    predicted: Waits
    given: Given | None


class Forecaster:
    """Makes forecasts for the reservations of one cluster. `seed`: the same seed and views give the same forecasts."""

    def __init__(self, seed: int = 0, horizon: float = HORIZON) -> None:
        self._random, self._horizon = Random(seed), horizon  # noqa: S311 - no secret
        self.margins = Margins()
        self.qualities = QualityRecord()
        self.arrivals = ArrivalRecord()
        self._census: Census | None = None
        self._policy: str | None = None
        self._draws = Draws({}, self._random)
        self._open: dict[str, _Open] = {}
        self._last_sequence: int | None = None
        self.lacks_past = True
        """Whether the arrivals before the first view are missing, see `recall`."""
        self._now = -inf
        self._present: Present | None = None
        self._places: dict[str, int] = {}
        self._starts: dict[int, list[float]] = {}
        self._lanes: dict[Lane, list[int]] = {}
        self._noted: dict[Lane, list[int]] = {}
        """Lane -> the places whose starts were noted."""
        self._expectations = Expectations(Estimates({}))
        self._view: View | None = None
        self._spending: Mapping[str, Spent] = NO_SPENDING
        self.plays = 0
        """How many plays of the present state have been made."""

    def see(
        self, view: View, rules: Rules, policy: str, now: float, spending: Mapping[str, Spent] = NO_SPENDING
    ) -> None:
        """Take a view: its arrivals, the outcomes of earlier forecasts, and the state from which plays begin.

        `policy`: what stands for the queue, pools and accounts of the rules. After it has changed, or the clock was set
        back, there are no forecasts until enough outcomes are known again. `spending`: what budgets have spent.
        """
        was_set_back = now < self._now
        if policy != self._policy or was_set_back:
            self._policy = policy
            self.margins, self.qualities = Margins(), QualityRecord()
            self._open.clear()
        if was_set_back:
            self.arrivals, self._last_sequence, self.lacks_past = ArrivalRecord(), None, True
        census = self._census
        if census is None or census.is_full or (rules is not census.rules and rules != census.rules):
            census = self._census = Census(rules)
            self.arrivals.translate(census.translate)
        self._now = now
        self.arrivals.begin(now)
        self._settle(view)
        rows, last = view.reservations.values(), self._last_sequence
        if last is None:
            self._last_sequence = max((each.sequence for each in rows), default=0)
        else:
            for row in sorted((each for each in rows if each.sequence > last), key=lambda each: each.sequence):
                self.arrivals.add(min(row.created_at, now), census.find_kind(view, row), census.find_rank(row))
                self._last_sequence = row.sequence
            self.arrivals.forget_old(now)
        self._view, self._present, self._spending = view, None, spending
        self._places, self._lanes, self._starts, self.plays = {}, {}, {}, 0
        self._noted = {}

    def recall(self, ended: Iterable[Reservation], since: float) -> None:
        """Take the arrivals before the view that was seen: of what waits or runs, and of reservations that have ended.
        `since`: all that were submitted since then are among them.
        """
        view, census = self._view, self._census
        if view is None or census is None:
            return
        self.lacks_past = False
        last = self._last_sequence or 0
        rows = {row.id: row for row in (*ended, *view.reservations.values()) if row.sequence <= last}
        past = sorted(rows.values(), key=lambda row: (row.created_at, row.sequence))
        self.arrivals.recall(
            ((row.created_at, census.find_kind_of_past(view, row), census.find_rank(row)) for row in past),
            since,
        )

    def play(self, plays: int = PLAYS, names: Iterable[str] | None = None) -> None:
        """Play the present state forward. `names`: the reservations that need forecasts; None: all."""
        present = self._present or self._count()
        if present is None:
            return
        if names is None:
            played = [numbers for lane, numbers in self._lanes.items() if lane not in present.unplayed]
            wanted = [number for numbers in played for number in _choose_places(numbers)]
        else:
            wanted = [self._places[each] for each in names if each in self._places]
        if not wanted:
            return
        self._noted.clear()
        for number in wanted:
            self._starts.setdefault(number, [])
        for _ in range(plays):
            play = Play(
                present,
                self._draws,
                self._expectations,
                self.arrivals.replay(present.now, self._horizon, self._random),
                self._horizon,
            )
            play.run(wanted)
            self.plays += 1
            for number in wanted:
                self._starts[number].append(play.starts[number] - present.now)

    def play_while(self, has_time: Callable[[], bool], most: int = PLAYS) -> None:
        """Play once, and then until there are `most` plays or `has_time` returns False. If nothing waits, nothing is
        played.
        """
        before = -1
        while before < self.plays < most and (before < 0 or has_time()):
            before = self.plays
            self.play(1)

    def answer(self, row: Reservation) -> Forecast:
        """Return the forecast for a pending reservation. The first one is compared with what comes."""
        at = self._now
        if is_on_hold(row):
            return Forecast(as_of=at, unknown="not_placed")
        number = self._places.get(row.id)
        present = self._present
        if number is None or present is None:
            return Forecast(as_of=at, unknown="not_yet")
        lane = present.waiting[number].kind.lane
        if lane in present.unplayed:
            return Forecast(as_of=at, unknown="not_played")
        if not lane.has_offers:
            return Forecast(as_of=at, unknown="not_placed")
        predicted = self._predict(present, number)
        if predicted is None:
            return Forecast(as_of=at, unknown="not_yet")
        if isinf(predicted.median):
            return Forecast(as_of=at, unknown="beyond")
        predicted = Waits(*(min(each, self._horizon) for each in predicted))
        given = self.margins.widen(predicted) if self.margins.are_known else None
        if row.id not in self._open and len(self._open) < MOST_OPEN:
            self._open[row.id] = _Open(at, predicted, given)
        if given is None:
            return Forecast(as_of=at, unknown="few_outcomes")
        low, median, high, late = (at + each for each in given.waits)
        return Forecast(as_of=at, low=low, median=median, high=high, late=late)

    def predict(self, row: Reservation) -> Waits | None:
        """Return what plays alone say of the wait of a pending reservation, without margins; None: it was not played,
        no slot can hold it, or plays do not know the rules of its queue.
        """
        number, present = self._places.get(row.id), self._present
        if number is None or present is None:
            return None
        lane = present.waiting[number].kind.lane
        return self._predict(present, number) if lane.has_offers and lane not in present.unplayed else None

    def dump(self) -> bytes:
        """Return what a forecaster has to know if it starts again: the outcomes under the present policy."""
        return msgspec.json.encode(_Record(policy=self._policy, outcomes=self.margins.dump()))

    def load(self, record: bytes) -> None:
        """Take what an earlier forecaster dumped. Other bytes count as nothing."""
        with suppress(msgspec.DecodeError, msgspec.ValidationError):
            known = msgspec.json.decode(record, type=_Record)
            self._policy = known.policy
            self.margins.load(known.outcomes)

    def _count(self) -> Present | None:
        view = self._view
        if view is None or self._census is None:
            return None
        present = self._present = self._census.count(view, self._now, self._spending)
        self._places = {each.name: number for number, each in enumerate(present.waiting)}
        for number, each in enumerate(present.waiting):
            self._lanes.setdefault(each.kind.lane, []).append(number)
        self._draws.take_rows(view.run_times)
        self._expectations = Expectations(Estimates(view.run_times))
        return present

    def _settle(self, view: View) -> None:
        """Count the outcomes of forecasts whose reservations have started, and forget those that have ended or wait on
        hold.
        """
        for name in list(self._open):
            row = view.reservations.get(name)
            if row is not None and row.phase == "pending" and not is_on_hold(row):
                continue
            known = self._open.pop(name)
            if row is not None and row.leased_at is not None and row.leased_at - row.created_at > SHORT_WAIT:
                seconds = max(0.0, row.leased_at - known.as_of)
                self.margins.note(Outcome(known.predicted, seconds), known.given)
                waits = None if known.given is None else known.given.waits
                self.qualities.note(row.request.pool or row.request.system or "", waits, seconds)

    def _predict(self, present: Present, number: int) -> Waits | None:
        """Return quantiles of the wait of a reservation; None: nothing was played."""
        if number in self._starts:
            return _find_waits(self._starts[number])
        lane = present.waiting[number].kind.lane
        numbers = self._lanes[lane]
        noted = self._noted.get(lane)
        if noted is None:
            noted = self._noted[lane] = [each for each in _choose_places(numbers) if each in self._starts]
        place = bisect_left(noted, number)
        if not 0 < place < len(noted):
            return None
        before, after = noted[place - 1], noted[place]
        left, right = _find_waits(self._starts[before]), _find_waits(self._starts[after])
        share = (number - before) / (after - before)
        return Waits(*(a if a == b else a + share * (b - a) for a, b in zip(left, right, strict=True)))


def _choose_places(numbers: list[int]) -> list[int]:
    """Return those of the waiting reservations of a lane for which plays note the start: the first ones, others a
    tenth apart, and the last one.
    """
    found, place = numbers[:FIRST_PLACES], float(FIRST_PLACES)
    while place < len(numbers):
        found.append(numbers[int(place)])
        place *= GROWTH
    if found[-1] != numbers[-1]:
        found.append(numbers[-1])
    return found


def _find_waits(starts: Iterable[float]) -> Waits:
    ordered = sorted(starts)
    return Waits(*(_find_quantile(ordered, share) for share in (0.1, 0.5, 0.9, 0.95)))


def _find_quantile(ordered: list[float], share: float) -> float:
    """Return a quantile of a few values, interpolated between two of them."""
    place = share * (len(ordered) + 1) - 1
    index = min(max(int(place), 0), len(ordered) - 1)
    left, right = ordered[index], ordered[min(ceil(max(place, 0.0)), len(ordered) - 1)]
    if isinf(right) or left == right:
        return right if 2 * (place - index) >= 1 else left
    return left + (right - left) * min(max(place - index, 0.0), 1.0)
