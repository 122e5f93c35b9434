"""A workload: the jobs of a log as reservations for one system of a fleet."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import floor
from pathlib import Path

from scheduler.model.command_schemas import MOST_INSTANCES, ComponentDocument, ReservationDocument
from scheduler.simulation.swf import Job, TraceError, read_jobs

PROCESSOR = {"cpus": 1.0}
"""What each processor of a job asks for."""
ROUNDING = 1e-9
"""Of 100 processors a share of 0.29 is 29, though the product is a little less."""


@dataclass(frozen=True)
class Workload:
    """The jobs of one log in the order in which they came, and the lines of those that were left out."""

    path: Path
    jobs: tuple[Job, ...]
    skipped: tuple[str, ...]
    """Why, a line each: broken, or cancelled before they ran."""

    @property
    def begins_at(self) -> float:
        """When the first one came, in the log's seconds: where the virtual clock begins."""
        return self.jobs[0].submit_seconds if self.jobs else 0.0


def read_workload(path: Path, most_processors: int, *, limit: int | None = None, skip_bad: bool = False) -> Workload:
    """The first `limit` jobs of a log, those that are left out counted with them.

    A job that was cancelled before it ran is left out; a broken line, or one that asks for more than
    `most_processors` (more than the fleet could ever have), raises TraceError, or is left out with `skip_bad`.
    """
    skipped: list[str] = []
    jobs: list[Job] = []

    def skip(error: TraceError) -> None:
        skipped.append(str(error))

    found = read_jobs(
        path,
        when_left_out=lambda line: skipped.append(f"{path}:{line}: cancelled before it ran"),
        when_broken=skip if skip_bad else None,
        most_processors=min(most_processors, MOST_INSTANCES),
    )
    for job in found:
        if limit is not None and len(jobs) + len(skipped) >= limit:
            break
        jobs.append(job)
    ordered = sorted(jobs, key=lambda job: job.submit_seconds)
    return Workload(path, tuple(ordered), tuple(skipped[: limit - len(jobs)] if limit is not None else skipped))


def list_wishes(
    workload: Workload, system: str, elastic_share: float = 0.0
) -> Iterator[tuple[float, ReservationDocument]]:
    """Each job's submit in seconds from the first one, and what its producer asks for.

    `elastic_share` of its processors, rounded down, are an elastic component; one stays essential.
    """
    for number, job in enumerate(workload.jobs, start=1):
        yield job.submit_seconds - workload.begins_at, make_wish(job, f"job-{number}", system, elastic_share)


def make_wish(job: Job, name: str, system: str, elastic_share: float) -> ReservationDocument:
    """A job of n processors: n instances of one cpu each, all of them at once; its ttl is off."""
    elastic = min(floor(job.processors * elastic_share + ROUNDING), job.processors - 1)
    components = [_make_component("main", "essential", job.processors - elastic)]
    if elastic:
        components.append(_make_component("more", "elastic", elastic))
    return ReservationDocument(
        id=name,
        system=system,
        account=f"user-{job.user}" if job.user >= 0 else None,
        size=(job.requested_seconds or job.run_seconds) * job.processors,
        ttl=0.0,
        runtime=job.run_seconds,
        components=tuple(components),
    )


def _make_component(name: str, kind: str, count: int) -> ComponentDocument:
    return ComponentDocument.model_validate({"name": name, "kind": kind, "count": count, "resources": PROCESSOR})
