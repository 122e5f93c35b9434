"""The jobs of a host: what is known of the command of each lease on it. Several threads work on them.

Each has a fence: the time until which a host may run the command without a further answer of the scheduler. A host
counts from the time at which it sent the last request that was answered, because the scheduler carried it out later
than that. Times are seconds on the boot clock, which runs while the machine sleeps (`guard.read_boot_clock`).

A new agent finds what an earlier one has begun in files. `guard/` has the socket of the guard. `leases/ID/` has the
record of one lease, the output and the outcome of its command, and the files that the command itself reads. A record is
written before a command is asked for, so that a lease without a record has no command here. What is left of a command
whose guard is dead or stopped is its process group, its cgroup, and the processes that have its tag.
"""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Literal, NamedTuple

import msgspec

from leasehold.client.backoff import Backoff
from leasehold.client.models import LeaseKey
from leasehold.private_files import make_private_folder
from leasehold.work import guard
from leasehold.work.command import LeaseCommand, Outcome, Why
from leasehold.work.guard_client import Exited, NotStarted

RECORD: Final = "lease.json"
NOTICE: Final = "notice.json"
PEERS: Final = "peers.json"
KEPT: Final = 20
"""Folders of ended commands that stay, for people who look for their output."""


class Record(msgspec.Struct, kw_only=True):
    """What is known of the command of a lease. It contains neither arguments nor environment."""

    reservation: str
    component: str
    token: int
    run: str
    """The run of the agent that asked for the command."""
    tag: str
    is_started: bool = False
    """Whether the guard was asked to start the command. Nothing of the command can run otherwise."""
    pid: int = 0
    begun: int | None = None
    cgroup: str | None = None
    after: list[str] | None = None
    """The program that ends what the command leaves outside of its processes, such as a container; None: none."""
    stop_signal: str = "TERM"
    grace: float = 0.0
    offline_timeout: float | None = None
    devices: dict[str, list[str]] = {}
    """Resource -> the ids of the devices that the command has."""
    notices: str | None = None
    """Folder of the files that the command reads; None: the folder of the lease."""
    outcome: Outcome | None = None
    is_reported: bool = False

    @property
    def key(self) -> LeaseKey:
        return LeaseKey(self.reservation, self.component, self.token)


def make_lease_id(key: LeaseKey) -> str:
    """Return a short name that no other lease has."""
    return hashlib.sha256(f"{key.reservation}/{key.component}/{key.token}".encode()).hexdigest()[:16]


class Records:
    """The records of one slot in the folder `root`."""

    def __init__(self, root: Path) -> None:
        self.guard_folder = root / "guard"
        self._leases = root / "leases"
        make_private_folder(root)
        self._leases.mkdir(mode=0o700, exist_ok=True)

    def folder(self, key: LeaseKey) -> Path:
        return self._leases / make_lease_id(key)

    def load(self) -> list[Record]:
        """Return all records that can be read."""
        found = []
        for path in self._leases.glob(f"*/{RECORD}"):
            try:
                found.append(msgspec.json.decode(path.read_bytes(), type=Record))
            except (OSError, msgspec.MsgspecError):
                continue
        return found

    def begin(self, key: LeaseKey, run: str) -> Record:
        """Write the record of a lease whose command will be asked for, and return it. Raises OSError."""
        record = Record(reservation=key.reservation, component=key.component, token=key.token, run=run, tag=token_hex())
        self.folder(key).mkdir(mode=0o700, exist_ok=True)
        self.save(record)
        return record

    def save(self, record: Record) -> None:
        """Write a record. Raises OSError."""
        write_file(self.folder(record.key) / RECORD, msgspec.json.encode(record))

    def read_outcome(self, key: LeaseKey) -> Exited | NotStarted | None:
        """Return what the guard has written about the end of a command; None: nothing."""
        try:
            data = (self.folder(key) / guard.OUTCOME).read_bytes()
            return msgspec.json.decode(data, type=Exited | NotStarted)
        except (OSError, msgspec.MsgspecError):
            return None

    def make_notices(self, record: Record, user: str | None) -> Path:
        """Return the folder of the files that the command reads. Another user gets a folder of its own, which only its
        group may read, because the state of the agent is private. Raises OSError.
        """
        if user is None:
            return self.folder(record.key)
        import pwd  # noqa: PLC0415 - missing on Windows, where no host runs

        try:
            group = pwd.getpwnam(user).pw_gid
        except KeyError:
            # The guard reports that there is no such user.
            return self.folder(record.key)
        record.notices = tempfile.mkdtemp(prefix="leasehold-notices-")
        os.chown(record.notices, -1, group)
        Path(record.notices).chmod(0o750)
        return Path(record.notices)

    def write_notice(self, record: Record, notice: Mapping[str, Any]) -> None:
        """Replace the notice of a command. Raises OSError."""
        self._write_shared(record, NOTICE, json.dumps(notice))

    def write_peers(self, record: Record, text: str) -> None:
        """Write the list of the leases of the command's reservation. Raises OSError."""
        self._write_shared(record, PEERS, text)

    def _write_shared(self, record: Record, name: str, text: str) -> None:
        folder = self.folder(record.key) if record.notices is None else Path(record.notices)
        write_file(folder / name, text.encode(), 0o600 if record.notices is None else 0o640, folder.stat().st_gid)

    def end(self, record: Record) -> None:
        """Remove the files of an ended command that are of no further use."""
        if record.notices is not None:
            shutil.rmtree(record.notices, ignore_errors=True)

    def prune(self, needed: set[LeaseKey]) -> None:
        """Remove the folders of ended commands, except those of the last KEPT ones and of the leases `needed`."""
        names = {make_lease_id(key) for key in needed}
        found = sorted(self._list_ended(names), reverse=True)
        for _, folder in found[KEPT:]:
            shutil.rmtree(folder, ignore_errors=True)

    def _list_ended(self, needed: set[str]) -> Iterator[tuple[float, Path]]:
        for folder in self._leases.iterdir():
            if folder.name not in needed:
                yield folder.stat().st_mtime, folder


def write_file(path: Path, data: bytes, mode: int = 0o600, group: int | None = None) -> None:
    """Replace a file in one step, so that a reader never sees a part of it. Raises OSError."""
    draft = path.with_name(f".{path.name}")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        if group is not None and mode != 0o600:  # noqa: PLR2004 - readable by this user only
            os.fchmod(descriptor, mode)
            os.fchown(descriptor, -1, group)
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
    draft.replace(path)


_PASSES: Final = 25
_PAUSE_SECONDS: Final = 0.04


def end_remains(record: Record, *, is_own: bool) -> int:
    """Kill the processes of a command. Return how many resist after about a second. `is_own`: whether the command was
    started during this run of the agent. On a system without /proc the process group may belong to others later.
    """
    left = 0
    for _ in range(_PASSES):
        found = list(find_remains(record))
        left = len(found)
        if record.cgroup is not None and guard.kill_cgroup(record.cgroup):
            left = max(left, 1)
        for each in found:
            guard.kill(each)
        if not _SEES_PROCESSES and record.pid and is_own:
            left = int(guard.kill_group(record.pid))
        if not left:
            break
        time.sleep(_PAUSE_SECONDS)
    if record.after is not None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(record.after, capture_output=True, timeout=guard.AFTER_SECONDS, check=False)  # noqa: S603 - ours
    if record.cgroup is not None and not left:
        guard.remove_cgroup(record.cgroup)
    return left


_SEES_PROCESSES: Final = bool(guard.list_processes())


def find_remains(record: Record) -> Iterator[guard.Process]:
    """Yield the running processes of a command."""
    processes = guard.list_processes()
    leader = processes.get(record.pid)
    # The id of a group stays taken while the group has members; without any, another process may have it.
    begun = record.begun if record.pid and (leader is None or leader.started == record.begun) else None
    for process in processes.values():
        is_in_group = begun is not None and record.pid in {process.group, process.session} and process.started >= begun
        if is_in_group or guard.has_tag(process.pid, record.tag):
            yield process


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
