"""The holders of the demo: they submit each job when it came, hold its lease while it ran, and release it."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

from leasehold.client import Client, ReservationFields
from leasehold.demo.stretch import Stretch
from leasehold.errors import LeaseholdError, Refused
from leasehold.results import Reservation
from scheduler.simulation.swf import Job

POLL_SECONDS = 0.1
THREADS = 4


@dataclass
class Progress:
    """What has become of each job; times are seconds since the start of the play."""

    submitted: dict[str, float] = field(default_factory=dict)
    leased: dict[str, float] = field(default_factory=dict)
    released: dict[str, float] = field(default_factory=dict)
    slots: dict[str, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    @property
    def waits(self) -> list[float]:
        """Seconds from submit to lease, as the holders saw them."""
        return [at - self.submitted[name] for name, at in self.leased.items()]


class Holders:
    """Plays a stretch through a client; `step` does what is due now and is called again and again."""

    def __init__(self, client: Client, stretch: Stretch) -> None:
        self._client, self._stretch = client, stretch
        self._jobs = {f"job-{job.number}": job for job in stretch.jobs}
        self._unsent = sorted(self._jobs, key=lambda name: self._jobs[name].submit_seconds, reverse=True)
        self._due: dict[str, tuple[float, int]] = {}
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="holder")
        self._guard = threading.Lock()
        self._started = monotonic()
        self.progress = Progress()

    @property
    def now(self) -> float:
        """Seconds since the start of the play."""
        return monotonic() - self._started

    @property
    def is_done(self) -> bool:
        """Whether every job was served, or given up after an error."""
        return len(self.progress.released) + len(self.progress.errors) >= len(self._jobs)

    def close(self) -> None:
        """Wait for what is under way."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def step(self) -> None:
        """Submit what has come, take up what was leased, release what has run."""
        self._submit_due()
        for row in self._client.list({"leased", "revoking"}):
            self._take_up(row)
        now = self.now
        for name in [name for name, (at, _) in self._due.items() if now >= at]:
            _, token = self._due.pop(name)
            self._pool.submit(self._guarded, name, partial(self._release, name, token))

    def _submit_due(self) -> None:
        now, due = self.now, []
        while self._unsent and now >= self._stretch.submit_after(self._jobs[self._unsent[-1]]):
            due.append(self._unsent.pop())
        for name in due:
            self.progress.submitted[name] = now
        if due:
            self._pool.submit(self._guarded, due[0], lambda: self._send(due))

    def _send(self, names: list[str]) -> None:
        for name, answer in zip(names, self._client.reserve_many(map(self._describe, names)), strict=True):
            if not answer.ok:
                raise Refused(answer.errors)
            assert answer.reservation == name  # noqa: S101 (answers come by index)

    def _describe(self, name: str) -> ReservationFields:
        job: Job = self._jobs[name]
        return {
            "id": name,
            "system": "x86_64-linux",
            "resources": {"cpus": job.processors},
            "account": f"user-{job.user}",
            "tags": {"job": str(job.number)},
        }

    def _take_up(self, row: Reservation) -> None:
        job = self._jobs.get(row.id)
        if job is None or row.id in self.progress.leased:
            return
        now = self.now
        self.progress.leased[row.id] = now
        self.progress.slots[row.id] = row.leases[0].slot
        self._due[row.id] = (now + self._stretch.run_for(job), row.token)
        self._pool.submit(self._guarded, row.id, lambda: self._client.renew(row.id, row.token))

    def _release(self, name: str, token: int) -> None:
        self._client.release(name, token)
        with self._guard:
            self.progress.released[name] = self.now

    def _guarded(self, name: str, act: Callable[[], object]) -> None:
        """What a job's holder could not do is told at the end; the others go on."""
        try:
            act()
        except LeaseholdError as error:
            with self._guard:
                self.progress.errors.append(f"{name}: {error}")
