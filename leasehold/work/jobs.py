"""The jobs of a host: what is known of the command of each lease on it. Several threads work on them."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from leasehold.client.backoff import Backoff
from leasehold.client.models import LeaseKey
from leasehold.work.command import LeaseCommand
from leasehold.work.fence import Term
from leasehold.work.ports import Outcome, Why
from leasehold.work.records import Record, Records
from scheduler.model.validation import MOST_TEXT

RETRY_SECONDS: Final = 1.0
LONGEST_RETRY_SECONDS: Final = 30.0
IDLE_SECONDS: Final = 3600.0
"""Seconds for which a thread that waits for nothing in particular waits."""

Report = Callable[[Mapping[str, Any]], object]
State = Literal["wanted", "taken", "running", "ended", "done"]


@dataclass(frozen=True)
class LeaseState:
    """A lease with a command, as the scheduler has it. `revoke_by`: when it ends if it is being revoked, in cluster
    time.
    """

    key: LeaseKey
    is_revoking: bool = False
    revoke_by: float | None = None
    offline_timeout: float | None = None


@dataclass
class Job:
    """What is known of the command of one lease.

    A job is `wanted` until its command has been taken, `taken` until the guard was asked to start it, `running` until
    it has ended, `ended` until its outcome was reported, and `done` until the scheduler has ended the lease.
    """

    key: LeaseKey
    id: str
    state: State = "wanted"
    record: Record | None = None
    command: LeaseCommand | None = None
    term: Term = field(default_factory=Term)
    fence: float | None = None
    renewal_at: float | None = None
    report_start_at: float | None = None
    """When the start is to be reported; None: not, or not any more."""
    printed: tuple[str, int] | None = None
    """Output that is to be reported: its end, and the number of bytes."""
    revoke_by: float | None = None
    """When the lease ends if it is being revoked, in cluster time and on the boot clock."""
    revoke_at: float | None = None
    is_revoking: bool = False
    is_noticed: bool = False
    ending: Why | None = None
    """Why this agent ends the command."""
    is_to_kill: bool = False
    is_fence_moved: bool = False
    """Whether the new deadline is to be sent to the guard."""
    direct_at: float = 0.0
    """When this agent last killed the command itself."""
    outcome: Outcome | None = None
    retry: Backoff = field(default_factory=lambda: Backoff(RETRY_SECONDS, LONGEST_RETRY_SECONDS))
    retry_at: float = 0.0
    is_asked: bool = False
    """Whether a request about the job is under way."""
    is_alone: bool = False
    """Whether the last request about the job and others got no answer. It may be the reason: the next one is about it
    alone.
    """
    done_at: float = 0.0
    is_of_other_run: bool = False
    """Whether the command was started during an earlier run of the agent."""


class Jobs(dict[LeaseKey, Job]):
    """The jobs by lease. Whoever reads or changes one holds `lock`.

    `changed`: a command has ended for the scheduler, or the leases were read. `due`: a request may be due. `renewable`:
    the next renewal may be due. `report` is called with each event.
    """

    def __init__(self, records: Records, report: Report, clock: Callable[[], float]) -> None:
        super().__init__()
        self.records, self.report, self.clock = records, report, clock
        self.lock = threading.RLock()
        self.changed, self.due, self.renewable = (threading.Condition(self.lock) for _ in range(3))
        self.is_closed = False
        self._reported: set[tuple[LeaseKey, str]] = set()

    def list_live(self) -> list[Job]:
        """Return the jobs whose commands run, or are about to."""
        return [each for each in self.values() if each.state in {"taken", "running"} and each.ending != "fenced"]

    @property
    def running(self) -> int:
        """The number of commands that have not ended, or whose end was not reported."""
        with self.lock:
            return sum(each.state in {"taken", "running", "ended"} for each in self.values())

    def end(self, job: Job, outcome: Outcome) -> None:
        """Record how the command of a job has ended, so that it is reported to the scheduler."""
        if outcome.error is not None and len(outcome.error) > MOST_TEXT:
            # The reason stands at the end, behind a long path.
            part = MOST_TEXT // 2
            outcome = msgspec.structs.replace(outcome, error=f"{outcome.error[:part]}…{outcome.error[1 - part :]}")
        job.state, job.outcome, job.retry_at = "ended", outcome, 0.0
        job.printed = job.report_start_at = None
        job.retry.reset()
        if job.record is not None:
            job.record.outcome = outcome
            self.records.end(job.record)
            self.save(job.record)
        fields = msgspec.to_builtins(outcome).items()
        shown = {name: value for name, value in fields if value is not None and name not in {"tail", "bytes"}}
        self.report({"event": "command_ended", **name_lease(job.key), **shown})
        self.due.notify()

    def save(self, record: Record) -> None:
        """Write the record of a job. If that fails, for example because the disk is full, this agent goes on: a later
        one repeats reports that were answered, and finds what is left of a command by its tag.
        """
        try:
            self.records.save(record)
        except OSError as error:
            self.report({"event": "work_failed", "error": str(error)})

    def close(self) -> None:
        """Wake all threads that wait for a condition, so that they end."""
        with self.lock:
            self.is_closed = True
            for each in (self.changed, self.due, self.renewable):
                each.notify_all()

    def report_once(self, key: LeaseKey, event: str, **detail: object) -> None:
        """Report an event about a lease, and only once while the lease has a job."""
        with self.lock:
            if (key, event) in self._reported:
                return
            self._reported.add((key, event))
        self.report({"event": event, **name_lease(key), **detail})

    def forget_reports(self) -> None:
        """Forget which events were reported about leases that are gone."""
        self._reported = {each for each in self._reported if each[0] in self}


def name_lease(key: LeaseKey) -> dict[str, Any]:
    """Return the fields by which an event names a lease."""
    return {"reservation": key.reservation, "component": key.component}
