"""A workload: the jobs of a log in the Standard Workload Format as reservations that request one system.

A log is text, plain or gzipped: comment lines that start with ``;``, then one job in each line, 18 numbers each, -1 for
unknown (Parallel Workloads Archive, version 2.2). An error is one line that names the file and line.
"""

import gzip
import io
import math
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from math import floor
from pathlib import Path
from typing import Final, Literal

from scheduler.model.command_schemas import MOST_INSTANCES, ComponentDocument, ReservationDocument
from scheduler.protocol.input_files import open_input

FIELDS = 18
CANCELLED = 5
BURSTS = frozenset({2.0, 3.0, 4.0})
"""The statuses of a burst: one part of the execution of a job that was checkpointed or swapped out. Beside its bursts
such a job has a line of its own, the summary, with the sum of their run times.
"""
NEVER_STARTED = "never started, because its run time is -1"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
GZIP_MAGIC = b"\x1f\x8b"
LONGEST_LINE = 65_536
SHOWN_CHARACTERS = 40
MOST_SECONDS = 1e10
"""The most seconds of a submit time, run time or requested time (317 years)."""
MOST_USER = 1e15
"""Ids of users are below this number: beyond it two of them may be the same number, or too long for an account."""


class TraceError(ValueError):
    """Raised for a job log that cannot be used. The message names the file and line, the expected contents and the
    contents found there.
    """

    def __init__(self, path: Path | str, line: int, expected: str, got: str) -> None:
        place = f"{path}:{line}" if line else f"{path}"
        super().__init__(f"{place}: expected {expected}, got {got}")
        self.path = Path(path)
        self.line = line
        self.expected = expected
        self.got = got


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a log: its submit time, run time, processors and owner.

    ``submit_seconds`` counts from the log's start. ``run_seconds`` is at least 1, because a run time below 1 s counts
    as 1. ``requested_seconds`` is the run time that the user requested; None if unknown. Ids that are unknown are -1.
    """

    number: int
    submit_seconds: float
    run_seconds: float
    processors: int
    requested_seconds: float | None
    user: int
    group: int
    application: int
    queue: int


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a job log, by file and number, for error messages."""

    path: Path
    line: int

    def error(self, expected: str, got: str) -> TraceError:
        """Return the error that this line of the job log contains `got` instead of `expected`."""
        return TraceError(self.path, self.line, expected, got)


def read_jobs(
    path: Path | str,
    when_left_out: Callable[[int, str], object] = lambda _line, _reason: None,
    when_broken: Callable[[TraceError], object] | None = None,
    most_processors: float = math.inf,
) -> Iterator[Job]:
    """Yield the jobs of a log in the order of its lines (by submit time in a correct log). Jobs that have only bursts
    come last.

    A job has as many processors as were allocated to it; if this number is unknown, as many as it requested. A job that
    never started is skipped, and so are bursts beside the summary of their job. Bursts without a summary are one job.
    ``when_left_out`` is called with the number of each skipped line and the reason. TraceError is raised at the first
    line that is no job or whose job has more than ``most_processors``, and at the end if there was no job. If
    ``when_broken`` is given, it is called with the error of a line instead, and the next line is read.
    """

    def report(error: TraceError) -> None:
        if when_broken is None or not error.line:
            raise error
        when_broken(error)

    for place, numbers, reason in _list_jobs(Path(path), report):
        if reason:
            when_left_out(place.line, reason)
            continue
        try:
            job = _make_job(place, numbers, most_processors)
        except TraceError as error:
            report(error)
        else:
            yield job


_Line = tuple[Place, list[float], str]
"""A line of a log, its numbers, and why it is no job of its own; "" if it is one."""


class _Parts:
    """Finds the lines of a log that are jobs. A job with bursts counts once: by its summary, else by all its bursts."""

    def __init__(self) -> None:
        self._whole: set[float] = set()
        """The numbers of the jobs with a line that is no burst."""
        self._held: dict[float, list[tuple[Place, list[float]]]] = {}
        """The bursts by the number of their job, unless its summary stood before them."""

    def take(self, place: Place, numbers: list[float]) -> Iterator[_Line]:
        """Yield this line unless it depends on a later line."""
        number, run_seconds, status = numbers[0], numbers[3], numbers[10]
        if status in BURSTS:
            if number in self._whole:
                yield place, numbers, _describe_part(number)
            else:
                self._held.setdefault(number, []).append((place, numbers))
        elif status == CANCELLED and run_seconds <= 0:
            yield place, numbers, "cancelled before it ran"
        elif run_seconds == -1:
            yield place, numbers, NEVER_STARTED
        else:
            self._whole.add(number)
            yield place, numbers, ""

    def finish(self) -> Iterator[_Line]:
        """Yield the lines that were held back, at the end of the log."""
        for number, bursts in self._held.items():
            for place, numbers in bursts:
                if number in self._whole:
                    yield place, numbers, _describe_part(number)
                elif all(each[3] == -1 for _, each in bursts):
                    yield place, numbers, NEVER_STARTED
                else:
                    self._whole.add(number)
                    # Only the first burst has a submit time.
                    yield place, [*numbers[:3], sum(max(each[3], 0.0) for _, each in bursts), *numbers[4:]], ""


def _list_jobs(path: Path, report: Callable[[TraceError], object]) -> Iterator[_Line]:
    """Yield the lines of a log that are no comments; bursts without a summary become one line. Broken lines are
    reported.
    """
    found = 0
    parts = _Parts()
    lines = _read_lines(path)
    while True:
        try:
            place, text = next(lines)
            if text.startswith(b";"):
                continue
            found += 1
            numbers = _parse(place, text)
        except StopIteration:
            break
        except TraceError as error:
            report(error)
        else:
            yield from parts.take(place, numbers)
    yield from parts.finish()
    if not found:
        raise TraceError(path, 0, "at least one job", "none")


def _describe_part(number: float) -> str:
    return f"a part of job {number:g}, which counts once"


def _read_lines(path: Path) -> Iterator[tuple[Place, bytes]]:
    """Yield the lines of a job log that are not blank, each with its place. An error of the file or of its compression
    is raised as a TraceError.
    """
    line = 0
    try:
        with _open(path) as file:
            while text := file.readline(LONGEST_LINE):
                line += 1
                if line == 1:
                    text = text.removeprefix(BYTE_ORDER_MARK)
                if text.strip():
                    yield Place(path, line), text.strip()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(path, line + 1, "a whole gzip file", "one that is cut off or damaged") from error
    except OSError as error:
        raise TraceError(path, line, "a readable workload log", (error.strerror or str(error)).lower()) from error


@contextmanager
def _open(path: Path) -> Iterator[io.BufferedIOBase]:
    """Open a job log, through gzip if its first bytes are those of gzip, whatever the name of the file."""
    with open(path, "rb", opener=open_input) as file:
        if file.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC):
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield unpacked
        else:
            yield file


def _parse(place: Place, line: bytes) -> list[float]:
    """Split a line of a job log into its 18 numbers, and return them. Raises TraceError if the line has other
    contents.
    """
    if not (line.isascii() and line.replace(b"\t", b" ").decode("ascii").isprintable()):
        raise place.error("text", "binary data")
    fields = line.decode("ascii").split()
    if len(fields) != FIELDS:
        raise place.error(f"{FIELDS} fields", str(len(fields)))
    numbers = []
    for position, field in enumerate(fields, start=1):
        try:
            number = float(field)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise place.error(f"a number in field {position}", f'"{field[:SHOWN_CHARACTERS]}"')
        numbers.append(number)
    return numbers


def _make_job(place: Place, numbers: list[float], most_processors: float) -> Job:
    submit_seconds, run_seconds = numbers[1], _known(place, "run time", numbers[3])
    allocated, requested = numbers[4], numbers[7]
    processors = requested if allocated == -1 else allocated
    if processors < 1 or processors != int(processors):
        raise place.error("a whole number of processors >= 1", f"{processors:g}")
    if processors > most_processors:
        raise place.error(
            f"at most {most_processors:g} processors, the most that the fleet could ever have", str(int(processors))
        )
    if submit_seconds < 0:
        raise place.error("a submit time >= 0", f"{submit_seconds:g}")
    if submit_seconds > MOST_SECONDS:
        raise place.error(f"a submit time of at most {MOST_SECONDS:.0e} s", f"{submit_seconds:g}")
    if numbers[11] >= MOST_USER:
        raise place.error(f"a user below {MOST_USER:.0e}", f"{numbers[11]:g}")
    return Job(
        number=int(numbers[0]),
        submit_seconds=submit_seconds,
        run_seconds=max(1.0, run_seconds or 0.0),
        processors=int(processors),
        requested_seconds=_known(place, "requested time", numbers[8]),
        user=int(numbers[11]),
        group=int(numbers[12]),
        application=int(numbers[13]),
        queue=int(numbers[14]),
    )


def _known(place: Place, name: str, seconds: float) -> float | None:
    """Return `seconds`, a duration in a job log, or None for -1 (unknown). Raises TraceError for any other negative
    number. `name`: the name of the duration in the message.
    """
    if seconds < 0 and seconds != -1:
        raise place.error(f"a {name} >= 0, or -1 for unknown", f"{seconds:g}")
    if seconds > MOST_SECONDS:
        raise place.error(f"a {name} of at most {MOST_SECONDS:.0e} s", f"{seconds:g}")
    return None if seconds < 0 else seconds


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


RequestedTimes = Literal["expected", "limit"]
"""What the requested time of a job becomes: its `expected_runtime`, or its `max_runtime`, which its account enforces.
"""
UNKNOWN_USER: Final = "user-unknown"
"""The account of jobs without a user, if requested times are limits."""


def list_submissions(
    workload: Workload, system: str, elastic_share: float = 0.0, requested_times: RequestedTimes | None = None
) -> Iterator[tuple[float, ReservationDocument]]:
    """Yield for each job its submit time, in seconds from the first job's submit, and its reservation document.

    `elastic_share`: the share of a job's processors that become an elastic component. The number of elastic processors
    is rounded down, and at least one processor stays essential. `requested_times`: see `make_reservation`.
    """
    for number, job in enumerate(workload.jobs, start=1):
        document = make_reservation(job, f"job-{number}", system, elastic_share, requested_times)
        yield job.submit_seconds - workload.begins_at, document


def list_enforcing_accounts(workload: Workload) -> dict[str, dict[str, bool]]:
    """Return the accounts of the workload as rules by which they enforce the `max_runtime` of their jobs."""
    return {name: {"enforce_max_runtime": True} for name in sorted({_name_account(job) for job in workload.jobs})}


def _name_account(job: Job) -> str:
    return f"user-{job.user}" if job.user >= 0 else UNKNOWN_USER


def make_reservation(
    job: Job, name: str, system: str, elastic_share: float, requested_times: RequestedTimes | None = None
) -> ReservationDocument:
    """Return the reservation document of a job with n processors: n instances of one cpu each, without a ttl. `name`:
    the id of the reservation.

    `elastic_share`: the share of the instances that are elastic; the scheduler may grant or reclaim them while the job
    runs. `requested_times`: what the requested time becomes (None: it decides the `size` alone).
    """
    asked = job.requested_seconds or None
    elastic = min(floor(job.processors * elastic_share + ROUNDING), job.processors - 1)
    components = [_make_component("main", "essential", job.processors - elastic)]
    if elastic:
        components.append(_make_component("more", "elastic", elastic))
    return ReservationDocument.model_validate(
        {
            "id": name,
            "system": system,
            "account": _name_account(job) if job.user >= 0 or requested_times == "limit" else None,
            "size": (job.requested_seconds or job.run_seconds) * job.processors,
            "ttl": 0.0,
            "runtime": job.run_seconds,
            "expected_runtime": asked if requested_times == "expected" else None,
            "max_runtime": asked if requested_times == "limit" else None,
            "components": tuple(components),
        }
    )


@lru_cache(maxsize=4096)  # a log has few different numbers of processors; documents never change
def _make_component(name: str, kind: str, count: int) -> ComponentDocument:
    return ComponentDocument.model_validate({"name": name, "kind": kind, "count": count, "resources": PROCESSOR})
