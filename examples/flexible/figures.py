"""The figures of `examples.flexible`: the results of one run, and of ten runs with different seeds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from statistics import fmean, stdev

from examples.flexible.play import Ended, Play, Setting
from examples.flexible.workload import draw_workload
from scheduler.simulation.metrics import percentile

UNSETTLED = 0.2
"""The first and the last share of the applications run, but are not measured, because the cluster is still being filled
or already being emptied then. They are the same ones for every setting.
"""
STUDENT = (inf, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t for a two-sided interval of 95 %, by degrees of freedom (one less than there are seeds)."""
MEASURES = ("turnaround", "queuing", "slowdown")


@dataclass(frozen=True)
class Case:
    """One play: which workload at which load, and how it is scheduled."""

    study: str
    load: float
    setting: Setting
    seed: int
    machines: int
    applications: int
    mix: str = "batch"

    @property
    def name(self) -> str:
        """Its setting, as tables have it."""
        return f"{self.setting.elastic}, preemption" if self.setting.preemption else self.setting.elastic


@dataclass(frozen=True)
class Spread:
    """How one measure is spread over applications, in seconds (a slowdown has no unit)."""

    mean: float
    p50: float
    p95: float


@dataclass(frozen=True)
class Figures:
    """What one play came to, over the applications that are measured."""

    case: Case
    by_class: dict[str, dict[str, Spread]]
    """By class of applications, and over "all", each of MEASURES."""
    cpus: float
    memory: float
    """The shares of the cluster that were leased, over the time in which the measured applications came."""
    left_out: int
    ticks: int

    def mean(self, measure: str = "turnaround", kind: str = "all") -> float:
        """The mean of one measure."""
        return self.by_class[kind][measure].mean


def measure(case: Case) -> Figures:
    """Play one case to its end."""
    workload = draw_workload(case.seed, case.machines, case.applications, case.mix)
    play = Play(workload, case.machines, case.load, case.setting)
    play.play()
    edge = int(case.applications * UNSETTLED)
    measured = range(edge, case.applications - edge)
    kinds: dict[str, list[Ended]] = {"all": []}
    for number in measured:
        ended = play.ended[f"application-{number}"]
        kinds["all"].append(ended)
        kinds.setdefault(workload.applications[number].kind, []).append(ended)
    window = (workload.arrivals[measured[0]] / case.load, workload.arrivals[measured[-1]] / case.load)
    cpus, memory = (_average(play.shares, at, window) for at in (1, 2))
    by_class = {kind: {name: _spread(found, name) for name in MEASURES} for kind, found in kinds.items()}
    return Figures(case, by_class, cpus, memory, workload.left_out, play.ticks)


def _spread(ended: Iterable[Ended], name: str) -> Spread:
    values = sorted(float(getattr(each, name)) for each in ended)
    return Spread(fmean(values), percentile(values, 0.5), percentile(values, 0.95))


def _average(shares: Sequence[tuple[float, float, float]], at: int, window: tuple[float, float]) -> float:
    """The mean over this time of a value that stays as it is until the next entry."""
    begin, end = window
    total = 0.0
    for entry, following in zip(shares, [*shares[1:], (inf, 0.0, 0.0)], strict=True):
        total += entry[at] * max(0.0, min(end, following[0]) - max(begin, entry[0]))
    return total / (end - begin) if end > begin else 0.0


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, and half of its interval of 95 %."""

    mean: float
    half: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.half:.3f}" if self.half < inf else f"{self.mean:.3f}"


def estimate(values: Sequence[float]) -> Estimate:
    """Student's interval, for up to ten values; unknown for one."""
    if len(values) == 1:
        return Estimate(values[0], inf)
    student = STUDENT[min(len(values), len(STUDENT)) - 1]
    return Estimate(fmean(values), student * stdev(values) / sqrt(len(values)))


def compare(figures: Sequence[Figures], others: Sequence[Figures], *, kind: str = "all") -> Estimate:
    """The mean turnaround as a multiple of that of others, seed by seed on the same workload."""
    means = {each.case.seed: each.mean(kind=kind) for each in others if kind in each.by_class}
    pairs = [(each.mean(kind=kind), means[each.case.seed]) for each in figures if each.case.seed in means]
    return estimate([mean / other for mean, other in pairs])
