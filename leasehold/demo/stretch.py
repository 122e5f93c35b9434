"""Which jobs of a log are played, and how fast."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import leasehold
from scheduler.simulation.swf import Job, TraceError, read_jobs

PLAY_SECONDS = 20.0
"""What the stretch is compressed to when no speed is given."""
SHORTEST_RUN = 0.2
"""Real seconds that a job holds its lease at least."""
STEPS = 200
"""Places in the log at which a stretch may begin, at the most."""


@dataclass(frozen=True)
class Stretch:
    """Consecutive jobs of a log and the factor by which their time is compressed."""

    jobs: tuple[Job, ...]
    speed: float

    @property
    def starts_at(self) -> float:
        """Submit time of the first job, in the log's seconds."""
        return self.jobs[0].submit_seconds

    @property
    def seconds(self) -> float:
        """From the first submit to the end of the last run if no job waited, in the log's seconds."""
        return _span(self.jobs)

    def submit_after(self, job: Job) -> float:
        """Real seconds from the start of the play to the job's submit."""
        return (job.submit_seconds - self.starts_at) / self.speed

    def run_for(self, job: Job) -> float:
        """Real seconds for which the job holds its lease."""
        return max(SHORTEST_RUN, job.run_seconds / self.speed)


def find_shipped_log() -> Path:
    """The log that ships with the product: beside the package in a wheel, in `examples/` of a checkout."""
    package = Path(leasehold.__file__).parent
    name = Path("examples") / "nasa-like.swf.gz"
    return next(path for path in (package / name, package.parent / name) if path.exists())


def choose_stretch(path: Path, count: int, speed: float | None) -> Stretch:
    """The busiest `count` consecutive jobs of a log: those that are over soonest after the first one came.

    Without a speed the stretch is compressed to PLAY_SECONDS. Raises TraceError for what is no log.
    """
    jobs = sorted(read_jobs(path), key=lambda job: job.submit_seconds)
    if not jobs:
        raise TraceError(path, 0, "at least one job that ran", "none")
    last = max(0, len(jobs) - count)
    starts = range(0, last + 1, max(1, last // STEPS))
    chosen = min((tuple(jobs[start : start + count]) for start in starts), key=_span)
    return Stretch(chosen, speed or max(1.0, _span(chosen) / PLAY_SECONDS))


def _span(jobs: Sequence[Job]) -> float:
    return max(job.submit_seconds + job.run_seconds for job in jobs) - jobs[0].submit_seconds
