"""The figures of a demo as the holders measured them, compared with the database and with the emulator's
log of calls.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

from leasehold.demo.holders import Progress
from leasehold.demo.stretch import Stretch
from scheduler.operations.costs import CostSum, add_up
from scheduler.ports import EventFilter, Store

LAUNCHING = frozenset({"RunInstances", "CreateFleet"})


@dataclass(frozen=True)
class Summary:
    """The figures of one demo. `differences`: the figures in which holders, database and emulator differ; `errors`: all
    errors of holders, including those of jobs that were served later.
    """

    jobs: int
    served: int
    speed: float
    seconds: float
    wait_p50: float
    wait_p95: float
    wait_max: float
    launches: int
    machines_by_type: dict[str, int]
    ec2_calls: dict[str, int]
    let_go: int
    left: int
    costs: CostSum
    """What the machines have cost, as the ledger has it."""
    differences: tuple[str, ...]
    errors: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """Whether all jobs were served, no machine is left, and holders, database and emulator agree."""
        return self.served == self.jobs and self.left == 0 and not self.differences


def summarise(
    progress: Progress, stretch: Stretch, store: Store, read_emulator: Callable[[str], dict[str, Any]], seconds: float
) -> Summary:
    """Return the figures of a demo that took `seconds`. `read_emulator` returns a page of the emulator's
    control API.
    """
    calls = read_emulator("calls")["calls"]
    instances = read_emulator("state")["instances"]
    events = Counter(event.name for event in _read_events(store))
    launched = sorted(
        {name for call in calls if call["action"] in LAUNCHING and call["code"] is None for name in call["instances"]}
    )
    alive = [each for each in instances if each.get("state") != "terminated"]
    phases = store.count_phases()
    compared = {
        "jobs served (holders, SQL)": (len(progress.released), phases["released"]),
        "machines launched (SQL, EC2)": (events["slot_booting"], len(launched)),
        "machines let go (SQL, EC2)": (events["slot_terminating"], len(launched) - len(alive)),
    }
    waits = progress.waits
    return Summary(
        jobs=len(stretch.jobs),
        served=len(progress.released),
        speed=stretch.speed,
        seconds=seconds,
        wait_p50=_quantile(waits, 50),
        wait_p95=_quantile(waits, 95),
        wait_max=max(waits, default=0.0),
        launches=len(launched),
        machines_by_type=dict(sorted(Counter(str(each.get("type") or "unknown") for each in instances).items())),
        ec2_calls=dict(sorted(Counter(call["action"] for call in calls).items())),
        let_go=len(launched) - len(alive),
        left=len(alive),
        costs=add_up(store.read_costs()),
        differences=tuple(f"{name}: {one} and {other}" for name, (one, other) in compared.items() if one != other),
        errors=tuple(progress.errors),
    )


def _quantile(values: Sequence[float], percent: int) -> float:
    if len(values) < 2:  # noqa: PLR2004 (two points make a quantile)
        return max(values, default=0.0)
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def _read_events(store: Store) -> Iterable[Any]:
    after = 0
    while events := store.read_events(EventFilter(after=after)):
        yield from events
        after = events[-1].number
