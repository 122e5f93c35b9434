"""The waits of a workload log under the starvation guard, and under EASY backfill, its peer."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Final

from bench._logs import Log
from bench.easy import measure
from scheduler.model.events import Event
from scheduler.simulation.fleet import Fleet
from scheduler.simulation.metrics import percentile
from scheduler.simulation.trace import TracePlay
from scheduler.simulation.workload import RequestedTimes, Workload

LEAST_JOBS: Final = 20
"""The fewest jobs with which an account is compared."""


@dataclass(frozen=True, slots=True)
class Waits:
    """The mean and the percentile 99 of waits, and the percentile 95 of each account with enough jobs, in seconds."""

    mean: float
    p99: float
    accounts: Mapping[int, float]
    """By the user of the log."""


class _WaitsPlay(TracePlay):
    """A run of a trace that notes when each job starts for the first time."""

    def __init__(self, workload: Workload, fleet: Fleet, requested_times: RequestedTimes | None) -> None:
        self.started_at: dict[str, float] = {}
        super().__init__(workload, fleet, requested_times=requested_times)

    def _note(self, event: Event) -> None:
        super()._note(event)
        if event.name == "reservation_leased" and event.reservation is not None:
            self.started_at.setdefault(event.reservation, event.at)


def play_guard(log: Log, guard: str, requested_times: RequestedTimes | None = None) -> Waits:
    """Play a log with this `guard`, `strict` or `shadow`."""
    workload = log.read()
    play = _WaitsPlay(workload, log.make_fleet({"guard": guard}), requested_times)
    play.play()
    waits: list[float] = []
    by_user: dict[int, list[float]] = {}
    for number, job in enumerate(workload.jobs, 1):
        seconds = play.started_at[f"job-{number}"] - (job.submit_seconds - workload.begins_at)
        waits.append(seconds)
        by_user.setdefault(job.user, []).append(seconds)
    accounts = {user: percentile(sorted(each), 0.95) for user, each in by_user.items() if len(each) >= LEAST_JOBS}
    return Waits(mean(waits), percentile(sorted(waits), 0.99), accounts)


def play_easy(log: Log) -> Waits:
    """Play a log under EASY backfill with the times that users requested."""
    return Waits(*measure(log.read().jobs, log.hosts, are_known=False), {})


def find_worst(strict: Waits, shadow: Waits) -> tuple[float, float]:
    """Return by how many seconds, and by what factor, the percentile 95 of the account that `shadow` treats worst is
    above that under `strict`. Below 0 and 1: that of each account is better.
    """
    pairs = [(strict.accounts[user], seconds) for user, seconds in shadow.accounts.items()]
    # A second is added, because many accounts do not wait at all.
    return max(after - before for before, after in pairs), max((after + 1) / (before + 1) for before, after in pairs)
