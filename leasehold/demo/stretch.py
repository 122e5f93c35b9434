"""Choose the jobs of a workload log that the demo plays, how fast it plays them, and the rules of its stack: one pool
with up to three sizes of spot machines.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import leasehold
from scheduler.simulation.workload import Job, TraceError, read_jobs

PLAY_SECONDS = 20.0
"""The duration of the demo in seconds if no speed is given."""
SHORTEST_RUN = 0.2
"""The shortest time for which a job holds its lease, in real seconds (not those of the log)."""
STEPS = 200
"""Most positions in the log that are tried as the first job of the stretch."""


@dataclass(frozen=True)
class Stretch:
    """A stretch of a workload log: consecutive jobs that the demo plays. `speed`: how many times faster than in the
    log.
    """

    jobs: tuple[Job, ...]
    speed: float

    @property
    def starts_at(self) -> float:
        """The time at which the first job is submitted, in seconds of the log."""
        return self.jobs[0].submit_seconds

    @property
    def seconds(self) -> float:
        """Seconds in the log from the first submission of a job to the last end of a job, as if each job began when it
        was submitted.
        """
        return _span(self.jobs)

    def submit_after(self, job: Job) -> float:
        """Return the real seconds from the start of the demo to the submission of `job`."""
        return (job.submit_seconds - self.starts_at) / self.speed

    def run_for(self, job: Job) -> float:
        """Return the real seconds for which `job` holds its lease in the demo."""
        return max(SHORTEST_RUN, job.run_seconds / self.speed)


def find_shipped_log() -> Path:
    """Return the path of the workload log that ships with the product: in the installed package, or in `examples/` of a
    checkout.
    """
    package = Path(leasehold.__file__).parent
    name = Path("examples") / "nasa-like.swf.gz"
    return next(path for path in (package / name, package.parent / name) if path.exists())


def choose_stretch(path: Path, count: int, speed: float | None) -> Stretch:
    """Return the busiest `count` consecutive jobs of a log: those with the shortest time from the first submission to
    the last end.

    `speed` None: the jobs are compressed to PLAY_SECONDS. Raises TraceError if the file is no log or has no job.
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


IMAGE = "ami-0123456789abcdef0"
"""Id of a machine image. Any id will do, because the EC2 emulator does not check it."""
SIZES: tuple[tuple[str, int, float], ...] = (
    ("m6i.2xlarge", 8, 0.15),
    ("m6i.8xlarge", 32, 0.60),
    ("m6i.32xlarge", 128, 2.40),
)
"""The sizes of machines, smallest first: instance type, number of cpus, and price in dollars an hour."""


def describe_fleet(stretch: Stretch, max_slots: int) -> dict[str, Any]:
    """Return rules with one pool of at most `max_slots` machines. The offerings of the pool can hold every job of
    `stretch` (the jobs that the demo plays), and idle machines are drained after two seconds.
    """
    widest = max(job.processors for job in stretch.jobs)
    needed = [size for index, size in enumerate(SIZES) if index == 0 or SIZES[index - 1][1] < widest]
    offerings: list[dict[str, Any]] = [
        {"name": name, "market": "spot", "price": price, "resources": {"cpus": cpus}} for name, cpus, price in needed
    ]
    offerings[-1]["resources"]["cpus"] = max(offerings[-1]["resources"]["cpus"], widest)
    pool = {
        "system": "x86_64-linux",
        "max_slots": max_slots,
        "idle_scale_down": 2,
        "offerings": offerings,
        "ec2": {"image": IMAGE},
    }
    return {"scheduler": {"queue": "fifo"}, "pools": {"demo": pool}}
