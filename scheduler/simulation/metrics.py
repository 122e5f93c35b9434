"""The metrics of a simulated workload trace, whose sums are updated at every event, and the bill: what the machines
cost, by pool, offering and market.
"""

from array import array
from collections.abc import Iterator, Sequence
from math import ceil, floor
from typing import Final, NamedTuple

import msgspec

from scheduler.model.reservations import LIMIT, Reservation
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import WITH_MACHINE
from scheduler.operations.ending_leases import held_of
from scheduler.simulation.cluster import SimulatedCluster
from scheduler.simulation.fleet import count_processors
from scheduler.simulation.market import find_type
from scheduler.simulation.price_walk import HOUR

_BILL_DIGITS: Final = 6
"""Decimals of the hours and dollars of a bill."""


class BillLine(msgspec.Struct, frozen=True):
    """One line of a bill: the hours of all machines of one offering, and what they cost at the price of each moment in
    the simulated market. If the market has no price for the type of a machine, the price at its launch counts.
    """

    pool: str
    offering: str
    market: str
    hours: float
    dollars: float


class Bill:
    """Adds up the costs of the machines that a simulation launches. A machine counts from the cloud's answer to its
    launch until its slot terminates or stops, that is, until the request for the end of the machine.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._open: dict[str, tuple[Slot, float]] = {}
        """Slot -> (its row when its present machine was launched, the time of the launch)."""
        self._sums: dict[tuple[str, str, str], tuple[float, float]] = {}

    def note_slot(self, slot: Slot | None, name: str) -> None:
        """Update the bill after the slot with the id `name` changed; `slot` is None if the slot was deleted."""
        now = self._cluster.event_queue.now
        known = self._open.get(name)
        has_machine = slot is not None and slot.state in WITH_MACHINE and slot.instance_id is not None
        is_same = known is not None and has_machine and slot is not None and slot.instance_id == known[0].instance_id
        if known is not None and not is_same:
            self._add(self._sums, *self._open.pop(name), now)
        if slot is not None and has_machine and not is_same and self._is_launched(slot):
            self._open[name] = slot, now

    def _is_launched(self, slot: Slot) -> bool:
        pool = self._cluster.ports.rules().pools.get(slot.pool)
        return pool is not None and pool.is_elastic

    def _add(self, sums: dict[tuple[str, str, str], tuple[float, float]], slot: Slot, since: float, now: float) -> None:
        market, kind = self._cluster.cloud.market, find_type(slot, self._cluster.ports.rules())
        hours, bought = (now - since) / HOUR, slot.market or ""
        dollars = market.sum_price(kind, bought, since, now) if market is not None and kind is not None else None
        key = slot.pool, slot.offering or "", bought
        before = sums.get(key, (0.0, 0.0))
        sums[key] = before[0] + hours, before[1] + (hours * (slot.price or 0.0) if dollars is None else dollars)

    def list_lines(self) -> tuple[BillLine, ...]:
        """Return the lines of the bill up to now, sorted by pool, offering and market."""
        sums, now = dict(self._sums), self._cluster.event_queue.now
        for slot, since in self._open.values():
            self._add(sums, slot, since, now)
        return tuple(
            BillLine(*key, round(hours, _BILL_DIGITS), round(dollars, _BILL_DIGITS))
            for key, (hours, dollars) in sorted(sums.items())
        )


SHORT_RUN = 10.0
"""The least seconds that count as the run time of a job when its slowdown is computed; otherwise very short jobs would
have a very large slowdown.
"""


MOST_BINS = 2048


class Curve(msgspec.Struct, frozen=True):
    """A value over the time of a simulation: the mean and the maximum in each of many bins of `width` seconds."""

    width: float
    means: tuple[float, ...]
    peaks: tuple[float, ...]


class CurveRecorder:
    """Records a value that is constant between changes, as a Curve. If there are too many bins, neighbouring bins are
    merged in pairs.
    """

    def __init__(self, width: float = 60.0, most_bins: int = MOST_BINS) -> None:
        self._width, self._most_bins = width, most_bins
        self._sums, self._peaks = array("d"), array("d")
        self._end = 0.0

    def add(self, value: float, begin: float, end: float) -> None:
        """Record that the value was `value` from `begin` until `end`. `begin` must be the `end` of the call before."""
        self._end = end
        while end > self._width * self._most_bins:
            self._double()
        first, last = int(begin / self._width), int(end / self._width)
        if last >= len(self._sums):
            missing = [0.0] * (last + 1 - len(self._sums))
            self._sums.extend(missing)
            self._peaks.extend(missing)
        if not value:
            return
        sums, peaks, width = self._sums, self._peaks, self._width
        for index in range(first, last + 1):
            inside = (end if index == last else (index + 1) * width) - max(begin, index * width)
            if inside > 0:
                sums[index] += value * inside
                peaks[index] = max(peaks[index], value)

    def _double(self) -> None:
        """Merge the bins of the curve in pairs, so that each bin covers twice the time."""
        sums, peaks = self._sums, self._peaks
        if len(sums) % 2:
            sums.append(0.0)
            peaks.append(0.0)
        pairs = range(0, len(sums), 2)
        self._sums = array("d", (sums[index] + sums[index + 1] for index in pairs))
        self._peaks = array("d", (max(peaks[index], peaks[index + 1]) for index in pairs))
        self._width *= 2

    def finish(self) -> Curve:
        """Return the curve recorded so far. Its last bin may cover less time than the others."""
        means = [each / self._width for each in self._sums]
        if means:
            inside = self._end - (len(means) - 1) * self._width
            means[-1] = self._sums[-1] / inside if inside > 0 else 0.0
        return Curve(self._width, tuple(means), tuple(self._peaks))


class Spread(msgspec.Struct, frozen=True):
    """The mean and the percentiles 50, 95 and 99 of some values."""

    mean: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0


class WidthWaits(msgspec.Struct, frozen=True):
    """The waits of the jobs with a number of instances from `least` to `most`: how many jobs, and the percentile 99 of
    their waits in seconds.
    """

    least: int
    most: int
    jobs: int
    p99: float


class Summary(msgspec.Struct, frozen=True, omit_defaults=True):
    """The results of a simulated workload trace. Times are seconds of the virtual clock, except `wall_seconds`. `cost`
    has the unit of the prices.

    `wait`: from the submit to the first lease of all essential components; `waits_by_width`: the same for jobs of each
    width, by powers of two. `turnaround`: from the submit to the end. `slowdown`: turnaround / run time, at least 1,
    where runs shorter than 10 s count as 10 s. `utilisation`: the leased share of the processors of all machines that
    are present (static hosts always are). `instance_hours` and `cost`: of launched machines, from the cloud's answer
    until they are terminated or the run ends. `grants`: elastic instances that were leased. `revocations`: elastic
    instances that were reclaimed or lost before their job's end. `left`: jobs that had not ended at the end of the run.
    `at_limit`: jobs that ended at the `max_runtime` that their account enforces; their run time is the `max_runtime`.
    `bill`: hours and dollars by offering, if the simulation has a market; then `cost` is the sum of these dollars.
    """

    jobs: int
    finished: int
    skipped: int
    left: int
    makespan: float
    wait: Spread
    turnaround: Spread
    slowdown: Spread
    utilisation: float
    instance_hours: float
    cost: float
    launches: int
    interruptions: int
    preemptions: int
    grants: int
    revocations: int
    ticks: int
    wall_seconds: float
    waits_by_width: tuple[WidthWaits, ...] = ()
    at_limit: int = 0
    bill: tuple[BillLine, ...] = ()


class Processors(NamedTuple):
    """The processors of a simulated fleet over the virtual clock. `leased`: those of leases. `present`: those of all
    present machines.
    """

    leased: Curve
    present: Curve


class _Machine(msgspec.Struct, frozen=True):
    """A machine that exists. `processors`: how many processors of jobs fit on it; `price`: its price per hour; `since`:
    from when it counts; `is_launched`: whether it was launched, and is no static host.
    """

    processors: int
    price: float
    since: float
    is_launched: bool

    def seconds_until(self, now: float) -> float:
        return now - self.since if self.is_launched else 0.0

    def cost_until(self, now: float) -> float:
        return self.price * self.seconds_until(now) / HOUR


class RunMetrics:
    """The metrics of a running simulation: sums that every change of a row updates. The time of an update does not grow
    with the number of jobs.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._now = 0.0
        self._leased = self._present = 0
        self._held: dict[str, int] = {}
        self._waiting: set[str] = set()
        self._machines: dict[str, _Machine] = {}
        """Slot -> the present machine of the slot."""
        self._first_lease: dict[str, float] = {}
        self._waits: list[float] = []
        self._widths: list[int] = []
        """The number of instances of each job that has ended, parallel to `_waits`."""
        self._turnarounds: list[float] = []
        self._slowdowns: list[float] = []
        self._leased_seconds = self._present_seconds = self._instance_seconds = self._cost = 0.0
        self._curves = [CurveRecorder() for _ in range(2)]
        self._at_limit = 0
        self.launches = self.interruptions = self.preemptions = self.grants = self.revocations = 0
        self.ended_at = 0.0
        """When the last job ended so far, in seconds on the virtual clock."""

    @property
    def finished(self) -> int:
        """Return the number of jobs that have ended so far."""
        return len(self._turnarounds)

    @property
    def all_wait(self) -> bool:
        return bool(self._waiting) and not self._held

    def advance(self, now: float) -> None:
        """Add the time since the last call, during which the state did not change, to all sums. `now`: virtual time."""
        begin, seconds = self._now, now - self._now
        if seconds <= 0:
            return
        self._now = now
        self._leased_seconds += self._leased * seconds
        self._present_seconds += self._present * seconds
        for curve, value in zip(self._curves, (self._leased, self._present), strict=True):
            curve.add(value, begin, now)

    def note_reservation(self, row: Reservation) -> None:
        """Update the metrics after the reservation of a job changed."""
        held = len(held_of(row))
        self._leased += held - self._held.get(row.id, 0)
        if held:
            self._held[row.id] = held
        else:
            self._held.pop(row.id, None)
        if row.phase == "pending":
            self._waiting.add(row.id)
            return
        self._waiting.discard(row.id)
        if row.phase == "leased":
            self._first_lease.setdefault(row.id, row.leased_at if row.leased_at is not None else self._now)
        elif row.finished_at is not None:
            begun = self._first_lease.pop(row.id, row.finished_at)
            turnaround, run = row.finished_at - row.created_at, row.request.runtime or 0.0
            if row.reason == LIMIT:
                self._at_limit += 1
                run = min(run, row.request.max_runtime or run)
            self._waits.append(begun - row.created_at)
            self._widths.append(row.request.instances)
            self._turnarounds.append(turnaround)
            self._slowdowns.append(max(1.0, turnaround / max(run, SHORT_RUN)))
            self.ended_at = max(self.ended_at, row.finished_at)

    def note_slot(self, slot: Slot | None, name: str) -> None:
        """Update the metrics after the slot with the id `name` changed; `slot` is None if the slot was deleted."""
        known = self._machines.get(name)
        pool = self._rules.pools.get(slot.pool) if slot is not None else None
        if slot is None or pool is None or slot.state not in WITH_MACHINE:
            if known is not None:
                del self._machines[name]
                self._present -= known.processors
                self._instance_seconds += known.seconds_until(self._now)
                self._cost += known.cost_until(self._now)
        elif known is None:
            resources = slot.resources if slot.resources is not None else pool.resources
            price = (slot.price or 0.0) if pool.is_elastic else 0.0
            self._machines[name] = _Machine(count_processors(pool, resources), price, self._now, pool.is_elastic)
            self._present += self._machines[name].processors

    def sum_up(
        self, *, jobs: int, skipped: int, ticks: int, wall_seconds: float, bill: tuple[BillLine, ...] = ()
    ) -> Summary:
        """Return the results of the simulation up to the present time of the virtual clock. The parameters are values
        of the result that are counted elsewhere: see Summary.
        """
        present = self._machines.values()
        cost = self._cost + sum(each.cost_until(self._now) for each in present)
        return Summary(
            jobs=jobs,
            finished=self.finished,
            skipped=skipped,
            left=jobs - skipped - self.finished,
            makespan=self.ended_at,
            wait=spread(self._waits),
            turnaround=spread(self._turnarounds),
            slowdown=spread(self._slowdowns),
            utilisation=self._leased_seconds / self._present_seconds if self._present_seconds else 0.0,
            instance_hours=(self._instance_seconds + sum(each.seconds_until(self._now) for each in present)) / HOUR,
            cost=sum(each.dollars for each in bill) if bill else cost,
            launches=self.launches,
            interruptions=self.interruptions,
            preemptions=self.preemptions,
            grants=self.grants,
            revocations=self.revocations,
            ticks=ticks,
            wall_seconds=wall_seconds,
            waits_by_width=tuple(_sort_by_width(self._widths, self._waits)),
            at_limit=self._at_limit,
            bill=bill,
        )

    def count_processors(self) -> Processors:
        return Processors(*(each.finish() for each in self._curves))


def _sort_by_width(widths: Sequence[int], waits: Sequence[float]) -> Iterator[WidthWaits]:
    found: dict[int, list[float]] = {}
    for width, wait in zip(widths, waits, strict=True):
        found.setdefault(width.bit_length(), []).append(wait)
    for bits, values in sorted(found.items()):
        yield WidthWaits(1 << bits - 1, (1 << bits) - 1, len(values), percentile(sorted(values), 0.99))


def spread(values: Sequence[float]) -> Spread:
    """Return the mean and the percentiles 50, 95 and 99 of these values; all are 0 if there are no values."""
    if not values:
        return Spread()
    ordered = sorted(values)
    return Spread(sum(ordered) / len(ordered), *(percentile(ordered, share) for share in (0.5, 0.95, 0.99)))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which the fraction `share` of the sorted values lies, by linear interpolation."""
    position = share * (len(ordered) - 1)
    low, high = ordered[floor(position)], ordered[ceil(position)]
    return low + (high - low) * (position - floor(position))
