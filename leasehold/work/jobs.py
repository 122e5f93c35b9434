"""The jobs of a host: what is known of the command of each lease on it. Several threads work on them.

Each has a fence: the time until which a host may run the command without a further answer of the scheduler. A host
counts from the time at which it sent the last request that was answered, because the scheduler carried it out later
than that. Times are seconds on the boot clock, which runs while the machine sleeps (`guard.read_boot_clock`).
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, Literal, NamedTuple

import msgspec

from leasehold.client.backoff import Backoff
from leasehold.client.models import LeaseKey
from leasehold.work.command import LeaseCommand
from leasehold.work.ports import Outcome, Why
from leasehold.work.records import Record, Records

MARGIN_SECONDS: Final = 2.0
"""Seconds before the end of a lease at which its command is killed: the time that the end takes, and the difference
between the rates of two clocks.
"""
MOST_MARGIN: Final = 0.2
"""The margin is at most this part of the time that a lease has."""
RENEWALS: Final = 3
"""Renewals in the time that a lease has, so that some may get no answer."""
SHORTEST_RENEWAL: Final = 0.3


class Term(NamedTuple):
    """How long a host may rely on an answer, in seconds. `ttl`: until the lease expires; `offline_timeout`: until the
    host counts as offline. None: without end.
    """

    ttl: float | None = None
    offline_timeout: float | None = None

    @property
    def seconds(self) -> float:
        return min(inf if each is None else each for each in self)


def find_fence(sent_at: float, term: Term) -> float | None:
    """Return the deadline of a command after an answer to a request that was sent at `sent_at`. None: none."""
    return None if term.seconds == inf else sent_at + term.seconds - find_margin(term)


def find_margin(term: Term) -> float:
    return min(MARGIN_SECONDS, max(term.seconds, 0.0) * MOST_MARGIN)


def find_renewal(sent_at: float, term: Term) -> float | None:
    """Return when the next renewal is due after one that was sent at `sent_at`. None: never."""
    return None if term.seconds == inf else sent_at + max(term.seconds / RENEWALS, SHORTEST_RENEWAL)


def move_fence(present: float | None, sent_at: float, term: Term) -> float | None:
    """Return the deadline after a further answer: a late answer to an older request does not move it back."""
    found = find_fence(sent_at, term)
    return None if found is None or present is None else max(found, present)


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
        job.state, job.outcome, job.retry_at = "ended", outcome, 0.0
        job.printed = job.report_start_at = None
        job.retry.reset()
        if job.record is not None:
            job.record.outcome = outcome
            self.records.end(job.record)
            self.records.save(job.record)
        fields = msgspec.to_builtins(outcome).items()
        shown = {name: value for name, value in fields if value is not None and name not in {"tail", "bytes"}}
        self.report({"event": "command_ended", **name_lease(job.key), **shown})
        self.due.notify()

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
