"""The holders of the demo submit each job at its time in the log, hold its lease while it runs, and release it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

from leasehold.client.client import Client
from leasehold.client.models import Reservation
from leasehold.client.reservation_fields import ReservationFields
from leasehold.demo.stretch import Stretch
from leasehold.errors import LeaseholdError
from scheduler.model.transitions import ENDED
from scheduler.simulation.workload import Job

POLL_SECONDS = 0.1
THREADS = 4


@dataclass
class Progress:
    """The progress of the demo's jobs, by the name of the job. All times are seconds since the demo began to play the
    jobs.
    """

    submitted: dict[str, float] = field(default_factory=dict)
    leased: dict[str, float] = field(default_factory=dict)
    released: dict[str, float] = field(default_factory=dict)
    slots: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """Name of each job that was refused, or that ended without a release by its holder -> the reason."""
    errors: list[str] = field(default_factory=list)
    """The messages of all errors of holders. A job with an error is tried again, so it may still be served."""

    @property
    def waits(self) -> list[float]:
        """The seconds from submission to lease of each leased job, as the holders measured them."""
        return [at - self.submitted[name] for name, at in self.leased.items()]

    def is_over(self, name: str) -> bool:
        """Return whether the job with this name was served or has failed."""
        return name in self.released or name in self.failed


class Holders:
    """Plays the jobs of a stretch (consecutive jobs of a workload log) through a client, in the role of the holders of
    their leases. The caller calls `step` repeatedly, and each step does the actions that are due.

    A job is busy from the confirmation of its lease until its release is answered. After an error the job is no longer
    busy, so the next step starts again from the job's row in the view. The threads that send requests only set, remove
    and append single elements of lists and dicts, which the interpreter does atomically.
    """

    def __init__(self, client: Client, stretch: Stretch) -> None:
        self._client, self._stretch = client, stretch
        self._jobs = {f"job-{job.number}": job for job in stretch.jobs}
        self._unsent = sorted(self._jobs, key=lambda name: self._jobs[name].submit_seconds, reverse=True)
        self._due: dict[str, tuple[float, int]] = {}
        self._busy: set[str] = set()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="holder")
        self._started = monotonic()
        self.progress = Progress()

    @property
    def now(self) -> float:
        """Seconds since the demo began to play the jobs."""
        return monotonic() - self._started

    @property
    def is_done(self) -> bool:
        return all(self.progress.is_over(name) for name in self._jobs)

    def close(self) -> None:
        """Wait for the requests that were already sent. Requests that still wait for a free thread are dropped."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def step(self) -> None:
        """Do the actions of the demo that are due now: submit jobs, confirm new leases, and release the leases of jobs
        that have run long enough.
        """
        now, due = self.now, []
        while self._unsent and now >= self._stretch.submit_after(self._jobs[self._unsent[-1]]):
            due.append(self._unsent.pop())
            self.progress.submitted.setdefault(due[-1], now)
        if due:
            self._pool.submit(self._send, due)
        for row in self._client.list():
            if row.id in self._jobs and row.id not in self._busy and not self.progress.is_over(row.id):
                self._look_at(row)
        now = self.now
        for name in [name for name, (at, _) in list(self._due.items()) if now >= at]:
            _, token = self._due.pop(name)
            self._pool.submit(self._guarded, name, partial(self._release, name, token))

    def _send(self, names: list[str]) -> None:
        try:
            answers = self._client.reserve_many(map(self._describe, names))
        except LeaseholdError as error:
            self.progress.errors.append(f"{names[0]} and later jobs were not submitted: {error}")
            # The next step sends these jobs again. A repeated id does not make a second reservation.
            self._unsent += reversed(names)
            return
        for name, answer in zip(names, answers, strict=True):
            if not answer.ok:
                self._give_up(name, "; ".join(map(str, answer.errors)))

    def _describe(self, name: str) -> ReservationFields:
        job: Job = self._jobs[name]
        return {
            "id": name,
            "system": "x86_64-linux",
            "resources": {"cpus": job.processors},
            "account": f"user-{job.user}",
            "tags": {"job": str(job.number)},
        }

    def _look_at(self, row: Reservation) -> None:
        """React to a job's reservation as the view shows it: confirm a new lease, or record an end that no answer
        reported.
        """
        now = self.now
        if row.phase in {"leased", "revoking"}:
            self.progress.leased.setdefault(row.id, now)
            self.progress.slots[row.id] = row.leases[0].slot
            self._busy.add(row.id)
            until = now + self._stretch.run_for(self._jobs[row.id])
            self._pool.submit(self._guarded, row.id, partial(self._take_up, row, until))
        elif row.phase == "released":
            # The release was committed, but its answer was lost.
            self.progress.released[row.id] = now
        elif row.phase in ENDED:
            self._give_up(row.id, f"{row.phase}: {row.reason}")

    def _take_up(self, row: Reservation, until: float) -> None:
        """Confirm the lease of a job by a renewal. The release of the lease becomes due at `until`, but only after the
        answer to the renewal, so that the release never overtakes the renewal.
        """
        self._client.renew(row.id, row.token)
        self._due[row.id] = (until, row.token)

    def _release(self, name: str, token: int) -> None:
        self._client.release(name, token)
        self.progress.released[name] = self.now

    def _give_up(self, name: str, reason: str) -> None:
        self.progress.failed[name] = reason
        self.progress.errors.append(f"{name}: {reason}")

    def _guarded(self, name: str, act: Callable[[], object]) -> None:
        """Run `act`, which sends a request for a job, and record its error. After an error the job is no longer busy,
        so the next step looks at the job's row again.
        """
        try:
            act()
        except LeaseholdError as error:
            self.progress.errors.append(f"a request for {name} failed: {error}")
            self._busy.discard(name)
