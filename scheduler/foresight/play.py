"""Plays the present state forward once: which waiting work starts when, with run times drawn at random.

The rules are those of the plan, on counts: work starts in queue order where it fits. The first work that has waited
longer than the starvation guard gets a planned start, and later work may use its slots only if it is expected to end
before (`policy/queueing`). Later arrivals are those of past days.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import ceil, floor, inf
from random import Random
from typing import Final, NamedTuple

from scheduler.foresight.present import SLACK, Held, Kind, Lane, Offers, Present, find_gain, find_use
from scheduler.model.run_times import Estimates, RunTimes
from scheduler.policy.queueing.starvation_guard import LEAST_DELAY, MOST_DELAY, QUANTILE

# Draws the run times of work at random, from the run times of its classes.
#
# Each class has few run times, so a draw mixes them with those of the class's parents: the more run times the class
# has, the more often one of them is drawn. Work that states an `expected_runtime` draws ratios of run time and
# expectation.


OF_PARENTS: Final = 4.0
"""A class with this number of run times is asked in half of the draws, its parents in the other half."""
BLOCK: Final = 5
OF_LAST: Final = 0.5
"""In this share of the plays a class draws from its last run times, else from others that followed each other."""
BOOT_SECONDS: Final = 120.0
"""How long a machine takes to come if none has been seen."""
UNKNOWN_SECONDS: Final = 3600.0
"""The mean run time of work without any known run time."""


class _Known(NamedTuple):
    row: RunTimes
    seconds: list[float]
    ratios: list[float]


class _Block(NamedTuple):
    """From what a class draws during one play. `is_own`: from its own run times, not from those of its parents."""

    is_own: bool
    seconds: list[float]
    ratios: list[float]


class Draws:
    """Draws run times. `run_times`: the rows of the view by class."""

    def __init__(self, run_times: Mapping[str, RunTimes], random: Random) -> None:
        self._run_times, self._random = run_times, random
        self._sorted: dict[str, _Known] = {}
        self._blocks: dict[str, _Block] = {}

    def take_rows(self, run_times: Mapping[str, RunTimes]) -> None:
        """Draw from these rows from now on."""
        self._run_times = run_times
        if len(self._sorted) > 2 * len(run_times) + 100:
            self._sorted.clear()

    def draw(self, kind: Kind, elapsed: float) -> float:
        """Return a run time of work of this kind that has run for `elapsed` seconds: longer than that, and at most its
        limit.
        """
        stated = kind.request.expected_runtime
        unit = stated or 1.0
        found = self._draw(kind.classes, elapsed / unit, has_unit=stated is not None)
        if found is not None and found > 1 and stated is not None:
            # The ratio may come from much shorter work, so it is no reason to run longer than any work has run.
            other = self._draw(kind.classes, elapsed, has_unit=False)
            found = min(found, max(1.0, (other or 0.0) / stated))
        if found is None:
            found = (elapsed + self._random.expovariate(1 / (stated or max(UNKNOWN_SECONDS, elapsed)))) / unit
        return max(elapsed + 1.0, min(found * unit, kind.most))

    def _draw(self, classes: tuple[str, ...], elapsed: float, *, has_unit: bool) -> float | None:
        last = None
        for name in classes:
            known = self._find(name)
            if known is None:
                continue
            block = self._blocks.get(name) or self._choose_block(name, known.row)
            values = block.ratios if has_unit else block.seconds
            if not values or values[-1] <= elapsed:
                values = known.ratios if has_unit else known.seconds
            longer = len(values) - bisect_right(values, elapsed) if elapsed > 0 else len(values)
            if longer:
                last = values[len(values) - longer + int(self._random.random() * longer)]
                if block.is_own:
                    return last
        return last

    def _choose_block(self, name: str, row: RunTimes) -> _Block:
        random, seconds, ratios = self._random.random, row.seconds, row.ratios
        is_own = random() < len(seconds) / (len(seconds) + OF_PARENTS)
        share = 1.0 if random() < OF_LAST else random()
        found = self._blocks[name] = _Block(is_own, _cut(seconds, share), _cut(ratios, share))
        return found

    def _find(self, name: str) -> _Known | None:
        row = self._run_times.get(name)
        if row is None:
            return None
        known = self._sorted.get(name)
        if known is None or known.row is not row:
            known = self._sorted[name] = _Known(row, sorted(row.seconds), sorted(row.ratios))
        return known

    def begin(self) -> None:
        """Begin a play. Within one play the run times of a class are alike, as those of a burst of work are."""
        self._blocks.clear()

    def draw_boot(self, seconds: Sequence[float]) -> float:
        """Return one of the times that machines took to come."""
        return seconds[int(self._random.random() * len(seconds))] if seconds else BOOT_SECONDS


def _cut(values: Sequence[float], share: float) -> list[float]:
    """Return values that follow each other, in order. `share`: where they stand; 1: they are the last ones."""
    last = max(0, len(values) - BLOCK)
    first = min(last, int(share * (last + 1)))
    return sorted(values[first : first + BLOCK])


MOST_LENT: Final = 40
"""How many reservations of a lane are tried, at each time, for slots that are kept for a planned start."""
MOMENT: Final = 1e-3
MOST_STARTS: Final = 10_000
"""A play ends when this much work has started, plus 1.25 times what waited when it began."""
MANY_RUN: Final = 500
SAME_SECONDS: Final = 300.0
"""If more work than MANY_RUN runs, its expected ends are listed again after this time only."""


class Arrival(NamedTuple):
    """Work that is submitted at the time `at`. `rank`: its rank in the queue."""

    at: float
    kind: Kind
    rank: float


class _Entry(NamedTuple):
    rank: float
    created_at: float
    number: int
    """The number of the waiting reservation; below 0: a later arrival."""
    kind: Kind


class _Run:
    """Work that runs in a play."""

    __slots__ = ("began", "expected", "held", "kind")

    def __init__(self, kind: Kind, began: float, held: list[Held], expected: float = 0.0) -> None:
        self.kind, self.began, self.held = kind, began, held
        self.expected = expected
        """When the plan expects its end; in the past: to be asked again."""


class Expectations:
    """When the plan expects work to end, kept over the plays of one present state."""

    def __init__(self, estimates: Estimates) -> None:
        self._estimates, self._of_new = estimates, dict[Kind, float]()

    def of_new(self, kind: Kind) -> float:
        """Return the run time that the plan expects of work that starts now; infinity: it is not known."""
        found = self._of_new.get(kind)
        if found is None:
            found = self._of_new[kind] = self._find(kind, 0.0)
        return found

    def find_end(self, kind: Kind, began: float, now: float) -> float:
        """Return when the plan expects the end of work that runs since `began`; infinity: it is not known."""
        elapsed, end = now - began, -inf
        while end <= now:
            seconds = self._find(kind, elapsed)
            if seconds == inf:
                return inf
            elapsed, end = max(seconds, elapsed + MOMENT), began + seconds
        return end

    def _find(self, kind: Kind, elapsed: float) -> float:
        found = self._estimates.find_run_time(kind.request, kind.principal, elapsed, QUANTILE)
        seconds = inf if found is None else found
        return kind.most if elapsed < kind.most < seconds else seconds


class Play:
    """One play. `starts`: when each waiting reservation started, by its number in `present.waiting`; infinity: not
    within the horizon.
    """

    def __init__(
        self, present: Present, draws: Draws, expectations: Expectations, arrivals: Iterator[Arrival], horizon: float
    ) -> None:
        draws.begin()
        self._now, self._end = present.now, present.now + horizon
        self._draws, self._expectations, self._arrivals = draws, expectations, arrivals
        self._room = present.room.copy()
        self._count = 0
        self.starts = [inf] * len(present.waiting)
        self._lanes = defaultdict[Lane, deque[_Entry]](deque)
        self._planned: dict[int, float] = {}
        for number, each in enumerate(present.waiting):
            self._queue(_Entry(each.rank, each.created_at, number, each.kind))
            if each.planned_start is not None:
                self._planned[number] = each.planned_start
        self._ends: list[tuple[float, int, _Run]] = []
        for row in present.running:
            run = _Run(row.kind, row.leased_at, list(row.held), row.ends_by if row.ends_by < inf else 0.0)
            seconds = draws.draw(row.kind, self._now - row.leased_at)
            self._count += 1
            self._ends.append((min(row.leased_at + seconds, row.ends_by), self._count, run))
        heapify(self._ends)
        self._coming = [(each.at, each.group, each.slots) for each in present.coming]
        heapify(self._coming)
        self._ordered: dict[int, int] = {}
        """Group -> slots on the way."""
        for _, group, slots in self._coming:
            self._ordered[group] = self._ordered.get(group, 0) + slots
        self._launchable = {each.group: each.slots for each in present.launchable}
        self._caps = list(present.caps)
        self._costs = {each.group: each.costs for each in present.launchable}
        self._boots = {each.group: each.boot_seconds for each in present.launchable}
        self._counts: dict[Offers, tuple[int, int]] = {}
        self._gangs: dict[Lane, tuple[int, bool]] = {}
        self._wake = inf
        self._wanted = set[int]()
        self._most_starts = MOST_STARTS + len(present.waiting) * 5 // 4
        self._openings: dict[Offers, tuple[float, list[tuple[float, float]]]] = {}
        """Offers -> until when the openings hold, and these."""
        self.started = 0
        """How much work has started."""

    def run(self, wanted: Iterable[int]) -> None:
        """Play until all these reservations have started, or until the horizon."""
        self._wanted = set(wanted)
        following = next(self._arrivals, None)
        while True:
            self._start_all()
            if not self._wanted or self.started > self._most_starts:
                return
            at = min(self._ends[0][0] if self._ends else inf, self._wake)
            if following is not None and following.at < at:
                at = following.at
            if self._coming and self._coming[0][0] < at:
                at = self._coming[0][0]
            if at > self._end:
                return
            self._now = max(self._now, at)
            while self._ends and self._ends[0][0] <= at:
                self._room.give_back(heappop(self._ends)[2].held)
            while self._coming and self._coming[0][0] <= at:
                _, group, slots = heappop(self._coming)
                self._ordered[group] -= slots
                self._room.add_slots(group, slots)
            while following is not None and following.at <= at:
                self._count += 1
                self._queue(_Entry(following.rank, following.at, -self._count, following.kind))
                following = next(self._arrivals, None)

    def _queue(self, entry: _Entry) -> None:
        lane = entry.kind.lane
        line = self._lanes[lane]
        if line and entry < line[-1]:
            self._lanes[lane] = deque(sorted([*line, entry]))
        else:
            line.append(entry)

    def _fit(self, offers: Offers) -> int:
        known, changes = self._counts.get(offers), self._room.changes
        if known is not None and known[0] == changes:
            return known[1]
        found = self._room.count(offers)
        self._counts[offers] = changes, found
        return found

    def _fits(self, lane: Lane) -> bool:
        """Return whether work of the lane fits now."""
        parts = lane.parts
        if len(parts) == 1:
            return self._fit(parts[0].offers) >= parts[0].width
        known, changes = self._gangs.get(lane), self._room.changes
        if known is not None and known[0] == changes:
            return known[1]
        found = all(self._fit(part.offers) >= part.width for part in parts)
        if found:
            # Parts that fit alone may ask for the same slots.
            trial = self._room.copy()
            found = all(trial.count(part.offers) >= part.width and trial.take(*part) for part in parts)
        self._gangs[lane] = changes, found
        return found

    def _start_all(self) -> None:
        """Start in queue order what can start now."""
        self._wake = inf
        heads = [(line[0], lane) for lane, line in self._lanes.items() if line]
        if not self._launchable and not any(self._fits(lane) for _, lane in heads):
            # Nothing can start, and nothing has to be kept.
            due = min((e.created_at + lane.guard for e, lane in heads if lane.guard), default=inf) + MOMENT
            self._wake = due if due > self._now else inf
            return
        order = [(self._rank(entry), lane.number, lane) for entry, lane in heads]
        heapify(order)
        kept: list[_Kept] = []
        blocked = set[str]()
        while order:
            _, _, lane = order[0]
            line = self._lanes[lane]
            entry = line[0]
            fits = lane.queue not in blocked and self._fits(lane)
            if fits and all(each.leaves_room(lane, self._fit) for each in kept):
                line.popleft()
                self._start(entry)
                heappop(order)
                if line:
                    heappush(order, (self._rank(line[0]), lane.number, lane))
                continue
            heappop(order)
            if self._launchable:
                self._launch(lane, line)
            if not lane.backfill:
                blocked.add(lane.queue)
            elif before := [each for each in kept if each.concerns(lane)]:
                if fits:
                    self._lend(lane, line, before)
            elif lane.guard:
                kept.extend(self._protect(entry, lane))

    def _protect(self, entry: _Entry, lane: Lane) -> list["_Kept"]:
        """Return what is kept for work that waits: something if it has waited for too long."""
        due = entry.created_at + lane.guard
        if self._now > due:
            return self._keep(entry, lane)
        self._wake = min(self._wake, due + MOMENT)
        return []

    def _rank(self, entry: _Entry) -> _Entry:
        """Return the entry with its present rank."""
        lane = entry.kind.lane
        if not lane.size:
            return entry
        return entry._replace(rank=max(0.0, lane.size - lane.decay * (self._now - entry.created_at)))

    def _start(self, entry: _Entry) -> None:
        kind, lane = entry.kind, entry.kind.lane
        run = _Run(kind, self._now, [held for part in lane.parts for held in self._room.take(*part)])
        self._count += 1
        heappush(self._ends, (self._now + self._draws.draw(kind, 0.0), self._count, run))
        self.started += 1
        if entry.number >= 0:
            self.starts[entry.number] = self._now
            self._wanted.discard(entry.number)

    def _keep(self, entry: _Entry, lane: Lane) -> list["_Kept"]:
        """Plan the start of protected work, and keep the slots that it needs then."""
        now, planned = self._now, self._planned.get(entry.number)
        is_late = planned is not None and now - planned > max(LEAST_DELAY, MOST_DELAY * (now - entry.created_at))
        kept = [_Kept(part.offers, -inf, inf) for part in lane.parts]
        if lane.is_strict or is_late:
            return kept
        plans = [self._plan(each, lane, now) for each in kept]
        shadow = max(at for at, _ in plans)
        if not now < shadow < inf:
            # Infinity: it is not known. Now: parts have room in sum, but not each on slots of its own.
            return kept
        if len(kept) > 1:
            plans = [self._plan(each, lane, shadow) for each in kept]
        for each, (_, later) in zip(kept, plans, strict=True):
            each.limit(lane, shadow, later)
        self._planned.setdefault(entry.number, shadow)
        self._wake = min(self._wake, shadow + MOMENT)
        return kept

    def _plan(self, kept: "_Kept", lane: Lane, least: float) -> tuple[float, float]:
        """Return when work of the lane is expected to have room on these slots, not before `least` (infinity: it is not
        known), and for how many more instances there is room then.
        """
        wanted, fit, openings = kept.find_use(lane), self._fit(kept.offers), self._list_openings(kept.offers)
        later, shadow = 0.0, least if fit >= wanted else inf
        for place in range(bisect_left(openings, (self._now,)), len(openings)):
            at, gives = openings[place]
            if at > shadow:
                break
            later += gives
            if shadow == inf and fit + later >= wanted:
                shadow = max(at, least)
        return shadow, later

    def _list_openings(self, offers: Offers) -> list[tuple[float, float]]:
        """Return when what runs or is on the way is expected to give room, and for how many instances: in the order of
        time. The first ones may be over.
        """
        now = self._now
        if len(self._ends) > MANY_RUN:
            known = self._openings.get(offers)
            if known is not None and known[0] > now:
                return known[1]
        groups = dict(offers)
        found: list[tuple[float, float]] = [
            (at, float(slots * self._room.count_empty(group, groups[group])))
            for at, group, slots in self._coming
            if group in groups
        ]
        for _, _, run in self._ends:
            gives = 0.0
            for group, amounts, _, slots in run.held:
                asked = groups.get(group)
                if asked is not None:
                    gives += slots * find_gain(amounts, asked)
            if gives:
                if run.expected <= now:
                    run.expected = self._expectations.find_end(run.kind, run.began, now)
                found.append((run.expected, gives))
        found.sort()
        self._openings[offers] = now + SAME_SECONDS, found
        return found

    def _lend(self, lane: Lane, line: deque[_Entry], kept: list["_Kept"]) -> None:
        """Start work of a lane that is expected to end before the planned starts."""
        shadow = min(each.shadow for each in kept)
        if shadow <= self._now:
            return
        tried = 0
        most, of_new = shadow - self._now, self._expectations.of_new
        while tried < min(MOST_LENT, len(line)) and self._fits(lane):
            entry = line[tried]
            if of_new(entry.kind) > most:
                tried += 1
                continue
            del line[tried]
            for each in kept:
                each.lend(lane, self._fit)
            self._start(entry)

    def _launch(self, lane: Lane, line: deque[_Entry]) -> None:
        """Order slots for the work of a lane that waits."""
        trial = self._room.copy() if len(lane.parts) > 1 else None
        if trial is not None:
            # The parts of a gang need their room at the same time, also on the slots that are on the way.
            for group, slots in self._ordered.items():
                trial.add_slots(group, slots)
        for part in lane.parts:
            fit, wanted = (trial.count if trial else self._fit)(part.offers), len(line) * part.width
            for group, amounts in part.offers:
                each = self._room.count_empty(group, amounts)
                if not each:
                    continue
                wanted -= 0 if trial else self._ordered.get(group, 0) * each
                left = (floor(self._caps[number] / cost + SLACK) for number, cost in self._costs.get(group, ()))
                slots = min(self._launchable.get(group, 0), ceil((wanted - fit) / each), *left)
                if slots > 0:
                    self._launchable[group] -= slots
                    for number, cost in self._costs[group]:
                        self._caps[number] -= slots * cost
                    seconds = self._draws.draw_boot(self._boots[group])
                    self._ordered[group] = self._ordered.get(group, 0) + slots
                    heappush(self._coming, (self._now + seconds, group, slots))
                    wanted -= slots * each
                    if trial:
                        trial.add_slots(group, slots)
            if trial:
                trial.take(part.offers, min(len(line) * part.width, trial.count(part.offers)))


class _Kept:
    """What is kept for protected work: `count` of its instances until `shadow`. Infinite: all."""

    def __init__(self, offers: Offers, shadow: float, count: float) -> None:
        self.offers, self.shadow, self._count = offers, shadow, count
        self._groups = dict(offers)
        self._uses: dict[Lane, float] = {}

    def limit(self, lane: Lane, shadow: float, later: float) -> None:
        """Keep until `shadow` only what the lane needs beside `later` more instances."""
        self.shadow, self._count = shadow, max(0.0, self.find_use(lane) - later)

    def concerns(self, lane: Lane) -> bool:
        return self.find_use(lane) > 0

    def leaves_room(self, lane: Lane, fit: Callable[[Offers], int]) -> bool:
        """Return whether work of the lane may start beside what is kept."""
        use = self.find_use(lane)
        return not use or fit(self.offers) - use >= self._count

    def lend(self, lane: Lane, fit: Callable[[Offers], int]) -> None:
        """Note that work of the lane uses what is kept until the planned start."""
        self._count = max(0.0, min(self._count, fit(self.offers) - self.find_use(lane)))

    def find_use(self, lane: Lane) -> float:
        """Return for how many of the kept instances work of the lane takes the room."""
        found = self._uses.get(lane)
        if found is None:
            found = self._uses[lane] = sum(part.width * self._find_share(part.offers) for part in lane.parts)
        return found

    def _find_share(self, offers: Offers) -> float:
        shares = [find_use(amounts, self._groups[group]) for group, amounts in offers if group in self._groups]
        return max(shares, default=0.0)
