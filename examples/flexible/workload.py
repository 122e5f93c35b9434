"""The workload of the study: analytic applications, drawn as the authors of the flexible heuristic drew theirs.

The figures are those of their published simulator (Pace, Venzano, Carra, Michiardi, arXiv 1611.09528), which reads
them from a trace. Where this module replaces the trace, the comment names a surrogate.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, log
from random import Random
from typing import Literal

from scheduler.model.command_schemas import ComponentDocument, ReservationDocument

SYSTEM = "analytics"
CORES, MEMORY_MIB = 32.0, 128.0 * 1024
"""Size of one machine."""
GIB = 1024.0

Class = Literal["elastic", "rigid", "interactive"]
Quantiles = tuple[tuple[float, float], ...]
"""(share, value) from share 0 on: linear between two of them, and the last value above the last one."""

MIXES: dict[str, dict[Class, float]] = {
    "batch": {"elastic": 0.8, "rigid": 0.2},
    "interactive": {"elastic": 0.64, "rigid": 0.16, "interactive": 0.2},
}
"""The share of applications of each class."""
TASKS: Quantiles = ((0, 1), (0.5, 1), (0.75, 3), (0.9, 25), (0.95, 100), (0.99, 500))
"""Surrogate: tasks of the jobs that were alive when the trace began, so that long jobs are more likely than in all."""
CPUS: Quantiles = ((0, 0), (0.25, 0.0045), (0.5, 0.0135), (0.75, 0.080), (0.9, 0.35), (0.95, 0.78), (0.99, 2.09))
MEMORY_GIB: Quantiles = ((0, 0), (0.25, 0.029), (0.5, 0.086), (0.75, 0.374), (0.9, 1.33), (0.95, 2.34), (0.99, 7.92))
ASKED = 0.7
"""Of what the trace's tasks ask for."""
MOST_CPUS, MOST_MEMORY_GIB = 6.4, 25.6
ELASTIC_PER_TASK = 10
RUN_TIMES = 30.0
MEDIAN_RUN, SIGMA_RUN = 200.0, 1.5
"""Surrogate for the trace's run times: lognormal."""
MOST_RUN = 9 * 86_400.0
SESSIONS: Quantiles = ((0, 0), (0.05, 30), (0.95, 50_430), (1, 50_460))
"""Seconds that an interactive application runs."""
BURST = 5
"""Machines for each application of a burst."""
SIGMA_ERROR = 0.5
SIZES = ("1D", "2D", "3D", "1D with error", "2D with error", "3D with error")
"""The meaning of `size`: T, T × instances, T × instances × cpus × memory; or an estimate of one of these."""


@dataclass(frozen=True)
class Application:
    """An application with `essential` and `elastic` instances of `cpus` and `memory_gib` each, for T =
    `run` seconds.
    """

    kind: Class
    essential: int
    elastic: int
    cpus: float
    memory_gib: float
    run: float
    error: float
    """The factor by which a guess at its size is wrong."""

    @property
    def instances(self) -> int:
        """All that it can use."""
        return self.essential + self.elastic

    def find_size(self, name: str) -> float:
        """Its size by one of SIZES."""
        factors = {"1D": 1.0, "2D": self.instances, "3D": self.instances * self.cpus * self.memory_gib}
        return self.run * factors[name[:2]] * (self.error if name.endswith("error") else 1.0)


@dataclass(frozen=True)
class Workload:
    """Applications in the order in which they come, and when, if the cluster were to be offered as much as it has."""

    applications: tuple[Application, ...]
    arrivals: tuple[float, ...]
    """Seconds at an offered load of 1."""
    left_out: int
    """How many were too big for the empty cluster."""


def draw_workload(seed: int, machines: int, applications: int, mix: str = "batch") -> Workload:
    """Draw applications that fit in the empty cluster, in Poisson bursts whose rate follows from their requests."""
    random = Random(f"{mix} {seed}")
    kept: list[Application] = []
    left_out = 0
    while len(kept) < applications:
        drawn = draw_application(random, MIXES[mix])
        if fits_empty_cluster(drawn, machines):
            kept.append(drawn)
        else:
            left_out += 1
    return Workload(tuple(kept), tuple(_draw_arrivals(random, kept, machines)), left_out)


def draw_application(random: Random, mix: dict[Class, float]) -> Application:
    """One application of a class of the mix."""
    [kind] = random.choices(list(mix), list(mix.values()))
    tasks = round(interpolate(TASKS, random.random()))
    essential, elastic = _count_instances(random, kind, tasks)
    return Application(
        kind,
        essential,
        elastic,
        cpus=_draw_until(lambda: ASKED * interpolate(CPUS, random.random()), MOST_CPUS),
        memory_gib=_draw_until(lambda: ASKED * interpolate(MEMORY_GIB, random.random()), MOST_MEMORY_GIB),
        run=_draw_run(random, kind),
        error=random.lognormvariate(0, SIGMA_ERROR),
    )


def _count_instances(random: Random, kind: Class, tasks: int) -> tuple[int, int]:
    match kind:
        case "elastic":
            return max(1, random.randint(0, 4)), ELASTIC_PER_TASK * tasks
        case "rigid":
            return tasks, 0
        case "interactive":
            return 1, tasks - 1


def _draw_run(random: Random, kind: Class) -> float:
    if kind == "interactive":
        return _draw_until(lambda: interpolate(SESSIONS, random.random()), inf)
    return _draw_until(lambda: RUN_TIMES * random.lognormvariate(log(MEDIAN_RUN), SIGMA_RUN), MOST_RUN)


def _draw_until(draw: Callable[[], float], most: float) -> float:
    """Once more while it is nothing, or too much."""
    while not 0 < (value := draw()) < most:
        pass
    return value


def interpolate(quantiles: Quantiles, share: float) -> float:
    """The value below which that share of all values lies."""
    after = bisect_right(quantiles, share, key=lambda each: each[0])
    if after == len(quantiles):
        return quantiles[-1][1]
    (low, least), (high, most) = quantiles[after - 1], quantiles[after]
    return least + (most - least) * (share - low) / (high - low)


def fits_empty_cluster(application: Application, machines: int) -> bool:
    """Return whether all its instances, which are equal, fit on this number of empty machines at once."""
    each = min(CORES // application.cpus, MEMORY_MIB // (application.memory_gib * GIB))
    return application.instances <= machines * each


def _draw_arrivals(random: Random, applications: Sequence[Application], machines: int) -> Iterator[float]:
    """Bursts of one application for each BURST machines, with exponential gaps: on average there comes, from one burst
    to the next, as much work as the cluster does in that time, of the resource of which most is asked.
    """
    cpus = sum(each.run * each.instances * each.cpus for each in applications) / (machines * CORES)
    memory = sum(each.run * each.instances * each.memory_gib for each in applications) / (machines * MEMORY_MIB / GIB)
    burst = max(1, machines // BURST)
    gap = max(cpus, memory) * burst / len(applications)
    now = 0.0
    for number in range(len(applications)):
        if number and number % burst == 0:
            now += random.expovariate(1 / gap)
        yield now


def list_submissions(workload: Workload, load: float, size: str) -> Iterator[tuple[float, ReservationDocument]]:
    """When each application comes at that offered load, and what its producer asks for."""
    for number, (application, arrival) in enumerate(zip(workload.applications, workload.arrivals, strict=True)):
        yield arrival / load, make_reservation(application, f"application-{number}", size)


def make_reservation(application: Application, name: str, size: str) -> ReservationDocument:
    """The reservation of one application; interactive ones go first where priorities count."""
    resources = {"cpus": application.cpus, "memory_mib": application.memory_gib * GIB}
    counts = {"essential": application.essential, "elastic": application.elastic}
    components = [
        ComponentDocument.model_validate({"name": kind, "kind": kind, "count": count, "resources": resources})
        for kind, count in counts.items()
        if count
    ]
    return ReservationDocument(
        id=name,
        system=SYSTEM,
        size=application.find_size(size),
        priority=2.0 if application.kind == "interactive" else 1.0,
        ttl=0.0,
        runtime=application.run,
        components=tuple(components),
    )
