"""A workload: the jobs of a log as reservations that request one system."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import floor
from pathlib import Path

from scheduler.model.command_schemas import MOST_INSTANCES, ComponentDocument, ReservationDocument
from scheduler.simulation.swf import Job, read_jobs

PROCESSOR = {"cpus": 1.0}
"""The resources that a reservation requests for each processor of a job."""
ROUNDING = 1e-9
"""A small number that is added before a number of processors is rounded down. For example, a share of 0.29 of 100
processors is 29, although the float product is a little less.
"""


@dataclass(frozen=True)
class Workload:
    """The jobs of one log in the order of their submits, and the lines of the log that were skipped."""

    path: Path
    jobs: tuple[Job, ...]
    skipped: tuple[str, ...]
    """One text for each skipped line of the log: what is wrong with the line, or why it is no job of its own."""

    @property
    def begins_at(self) -> float:
        """Return the submit time of the first job, in seconds of the log. At this time the virtual clock is 0."""
        return self.jobs[0].submit_seconds if self.jobs else 0.0


def read_workload(path: Path, most_processors: int, *, limit: int | None = None, skip_bad: bool = False) -> Workload:
    """Read the first `limit` jobs of a log (default: all); skipped jobs count too.

    A job that never started is skipped, and so are the parts of a job that counts once. A broken line, or a job with
    more than `most_processors` (the most that the fleet could ever have), raises TraceError; with `skip_bad` it is
    skipped.
    """
    skipped: list[str] = []
    jobs: list[Job] = []
    found = read_jobs(
        path,
        when_left_out=lambda line, reason: skipped.append(f"{path}:{line}: {reason}"),
        when_broken=(lambda error: skipped.append(str(error))) if skip_bad else None,
        most_processors=min(most_processors, MOST_INSTANCES),
    )
    for job in found:
        if limit is not None and len(jobs) + len(skipped) >= limit:
            break
        jobs.append(job)
    ordered = sorted(jobs, key=lambda job: job.submit_seconds)
    return Workload(path, tuple(ordered), tuple(skipped[: limit - len(jobs)] if limit is not None else skipped))


def list_submissions(
    workload: Workload, system: str, elastic_share: float = 0.0
) -> Iterator[tuple[float, ReservationDocument]]:
    """Yield for each job its submit time, in seconds from the first job's submit, and its reservation document.

    `elastic_share`: the share of a job's processors that become an elastic component. The number of elastic processors
    is rounded down, and at least one processor stays essential.
    """
    for number, job in enumerate(workload.jobs, start=1):
        yield job.submit_seconds - workload.begins_at, make_reservation(job, f"job-{number}", system, elastic_share)


def make_reservation(job: Job, name: str, system: str, elastic_share: float) -> ReservationDocument:
    """Return the reservation document of a job with n processors: n instances of one cpu each, without a ttl. `name`:
    the id of the reservation.

    `elastic_share`: the share of the instances that are elastic; the scheduler may grant or reclaim them while the job
    runs.
    """
    elastic = min(floor(job.processors * elastic_share + ROUNDING), job.processors - 1)
    components = [_make_component("main", "essential", job.processors - elastic)]
    if elastic:
        components.append(_make_component("more", "elastic", elastic))
    return ReservationDocument.model_validate(
        {
            "id": name,
            "system": system,
            "account": f"user-{job.user}" if job.user >= 0 else None,
            "size": (job.requested_seconds or job.run_seconds) * job.processors,
            "ttl": 0.0,
            "runtime": job.run_seconds,
            "components": tuple(components),
        }
    )


@lru_cache(maxsize=4096)  # a log has few different numbers of processors; documents never change
def _make_component(name: str, kind: str, count: int) -> ComponentDocument:
    return ComponentDocument.model_validate({"name": name, "kind": kind, "count": count, "resources": PROCESSOR})
