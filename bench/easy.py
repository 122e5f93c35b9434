"""The waits of a workload log under EASY backfill, the peer of the starvation guard: `python -m bench.easy LOG`.

The queue is first in, first out. The first job that does not fit gets a shadow time: when, by the estimates of the
running jobs, enough processors are free for it. A later job may start now if it fits and either ends before the shadow
time by its own estimate, or uses only processors that the first job leaves free at that time. Source: Mu'alem and
Feitelson, "Utilization, Predictability, Workloads, and User Runtime Estimates in Scheduling the IBM SP2 with
Backfilling", 2001. Estimates are the run times that users requested, or the real ones.
"""

import argparse
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from statistics import mean

from scheduler.simulation.metrics import percentile
from scheduler.simulation.workload import Job, read_workload


@dataclass(frozen=True, slots=True, order=True)
class Running:
    """A running job: when it ends by its estimate, in seconds, and its processors."""

    expected_end: float
    number: int
    processors: int


class Easy:
    """A machine with this number of processors, under EASY backfill. Times are seconds."""

    def __init__(self, processors: int, *, are_known: bool = False) -> None:
        self._free, self._are_known = processors, are_known
        self._running: list[Running] = []
        self._ends: list[tuple[float, int, Running]] = []
        self._queue: list[Job] = []
        self.waits: list[float] = []

    def play(self, jobs: Sequence[Job]) -> None:
        """Play jobs, sorted by submission, until all have started."""
        left = list(reversed(jobs))
        while left or self._queue:
            now = min(
                left[-1].submit_seconds if left else float("inf"), self._ends[0][0] if self._ends else float("inf")
            )
            while self._ends and self._ends[0][0] <= now:
                *_, ended = heappop(self._ends)
                self._running.remove(ended)
                self._free += ended.processors
            while left and left[-1].submit_seconds <= now:
                self._queue.append(left.pop())
            self._start_all(now)

    def _start_all(self, now: float) -> None:
        while self._queue and self._queue[0].processors <= self._free:
            self._start(self._queue.pop(0), now)
        if not self._queue:
            return
        shadow, extra = self._find_shadow(self._queue[0], now)
        waiting = self._queue[:1]
        for job in self._queue[1:]:
            ends_before = now + self._estimate(job) <= shadow
            if job.processors <= (self._free if ends_before else min(self._free, extra)):
                extra -= 0 if ends_before else job.processors
                self._start(job, now)
            else:
                waiting.append(job)
        self._queue = waiting

    def _find_shadow(self, job: Job, now: float) -> tuple[float, int]:
        """Return the shadow time of a job that does not fit, and the processors that it leaves free at that time."""
        free, shadow = self._free, None
        for each in self._running:  # in order of their expected ends
            if shadow is not None and each.expected_end > shadow:
                break
            free += each.processors
            if shadow is None and free >= job.processors:
                shadow = max(each.expected_end, now)
        assert shadow is not None, f"job {job.number} needs {job.processors} processors, and there are {free}"
        return shadow, free - job.processors

    def _estimate(self, job: Job) -> float:
        return job.run_seconds if self._are_known else (job.requested_seconds or job.run_seconds)

    def _start(self, job: Job, now: float) -> None:
        self.waits.append(now - job.submit_seconds)
        self._free -= job.processors
        running = Running(now + self._estimate(job), job.number, job.processors)
        insort(self._running, running)
        heappush(self._ends, (now + job.run_seconds, job.number, running))


def measure(jobs: Sequence[Job], processors: int, *, are_known: bool) -> tuple[float, float]:
    """Return the mean and the percentile 99 of the waits in seconds. `are_known`: estimates are the real run times."""
    easy = Easy(processors, are_known=are_known)
    easy.play(sorted(jobs, key=lambda each: (each.submit_seconds, each.number)))
    return mean(easy.waits), percentile(sorted(easy.waits), 0.99)


def main() -> None:
    """Print both figures of a log."""
    parser = argparse.ArgumentParser(prog="python -m bench.easy", description=__doc__.partition("\n")[0])
    parser.add_argument("log", type=Path)
    parser.add_argument("--processors", type=int, default=100)
    parser.add_argument("--limit", type=int, help="number of jobs to play, from the first one; default: all")
    given = parser.parse_args()
    jobs = read_workload(given.log, given.processors, limit=given.limit, skip_bad=True).jobs
    for name, are_known in (("requested times", False), ("real run times", True)):
        found = measure(jobs, given.processors, are_known=are_known)
        print(f"{name:<16} mean {found[0]:>9,.0f} s   p99 {found[1]:>9,.0f} s   ({len(jobs):,} jobs)")


if __name__ == "__main__":
    main()
