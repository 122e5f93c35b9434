"""The runner: it runs the commands of the leases on one host, and reports what becomes of them.

One thread serves the guard: it starts, stops and kills commands, and moves their deadlines. Others send the requests to
the scheduler, so that no deadline waits for an answer: one renews the leases, and REPORTERS send the rest, so that a
slow answer about one lease delays no other one. All work on the jobs, one for each lease that has a command.
"""

import contextlib
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from leasehold.client.backoff import Backoff
from leasehold.client.models import LeaseKey
from leasehold.errors import LeaseholdError, Refused
from leasehold.work.command import (
    HostIdentity,
    LeaseCommand,
    Signer,
    WrongCommand,
    format_peers,
    make_environment,
    make_program,
    read_command,
)
from leasehold.work.devices import Devices, NoDevice
from leasehold.work.fence import Term, find_fence, find_renewal, move_fence
from leasehold.work.guard import read_boot_clock
from leasehold.work.guard_client import (
    Ended,
    Exited,
    GuardClient,
    GuardEvent,
    GuardLost,
    Known,
    NotStarted,
    Pong,
    Printed,
    Started,
    UnknownCommand,
)
from leasehold.work.ports import CommandsPort, Outcome, Renewed, Taken, Why
from leasehold.work.ports import Printed as PrintedReport
from leasehold.work.records import NOTICE, PEERS, Record, Records, make_lease_id
from leasehold.work.remains import end_remains

OUTPUT_SECONDS: Final = 1.0
"""Seconds between two reports of output; each has the output of all commands."""
PING_SECONDS: Final = 5.0
SILENT_SECONDS: Final = 30.0
"""Seconds without an answer after which the guard is killed with its commands."""
AFTER_FENCE_SECONDS: Final = 1.0
"""Seconds after a deadline at which the agent ends a command that the guard has not ended."""
NOTICE_MARGIN_SECONDS: Final = 1.0
"""Seconds before the end of a notice at which a command is killed."""
START_SECONDS: Final = 0.1
"""Seconds after which a start is reported. A command that has ended by then needs no such report, and starts that
follow each other share one.
"""
REPORTERS: Final = 4
"""Threads that send requests other than renewals."""
BATCH: Final = 50
"""The most leases of one request."""
RETRY_SECONDS: Final = 1.0
LONGEST_RETRY_SECONDS: Final = 30.0
UNKNOWN_LOSS_SECONDS: Final = 300.0
"""Seconds after which a command that an unknown agent has taken counts as lost, if its pool has no offline timeout."""
IDLE_SECONDS: Final = 3600.0

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


class Runner:
    """Runs the commands of the leases on one host. `look` may be called from any thread.

    `folder`: where the files of this slot are kept. `cgroup`: a delegated folder of cgroup v2; None: none. `note_start`
    is called with the reservation, the component and the process id of each command that starts.
    """

    def __init__(  # noqa: PLR0913 - what a host has
        self,
        port: CommandsPort,
        signer: Signer | None,
        host: HostIdentity,
        folder: Path,
        report: Report,
        *,
        cgroup: Path | None = None,
        devices: Devices | None = None,
        note_start: Callable[[str, str, int], object] = lambda *_: None,
        clock: Callable[[], float] = read_boot_clock,
    ) -> None:
        self._port, self._signer, self._host, self._report = port, signer, host, report
        self._records = Records(folder)
        self._guard = GuardClient(self._records.guard_folder)
        self._cgroup, self._note_start, self._clock = cgroup, note_start, clock
        self._devices = devices or Devices()
        self._lock = threading.RLock()
        self._changed, self._due, self._renewable = (threading.Condition(self._lock) for _ in range(3))
        """Whether a command has ended for the scheduler, a report is due, or a lease has a command to renew it for."""
        self._jobs: dict[LeaseKey, Job] = {}
        self._reported: set[tuple[LeaseKey, str]] = set()
        self._is_closed = False
        self._ping, self._pinged_at, self._answered_at = 0, 0.0, 0.0
        self._connect_at, self._connect_retry = 0.0, Backoff(RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        self._output_at, self._is_printing = 0.0, False
        self._begun_at = clock()
        self._error: Exception | None = None
        self._stored: dict[LeaseKey, Record] = {}
        """Records of an earlier agent whose commands were not started."""
        self._turn_to_wait = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(each,), name="leasehold-work", daemon=True)
            for each in (self._serve_guard, self._send_renewals, *[self._send_reports] * REPORTERS)
        ]

    def start(self) -> None:
        """Take over what an earlier agent has begun, and begin to work."""
        for record in self._records.load():
            if record.outcome is None and not record.is_started:
                self._stored[record.key] = record
                continue
            job = Job(
                record.key, make_lease_id(record.key), record=record, is_of_other_run=record.run != self._host.run
            )
            job.term = Term(None, record.offline_timeout)
            job.outcome, job.state = record.outcome, "running"
            if record.outcome is None:
                # It may have been reported already; then the report changes nothing.
                job.report_start_at = job.renewal_at = self._clock()
            else:
                job.state, job.done_at = "done" if record.is_reported else "ended", self._clock()
            self._jobs[job.key] = job
        for thread in self._threads:
            thread.start()

    def _run(self, serve: Callable[[], None]) -> None:
        try:
            serve()
        except Exception as error:  # noqa: BLE001 - any error, such as a closed output: see `look`
            self._error = error

    def close(self) -> None:
        """Stop to work. Commands that still run end at their deadlines, unless another agent takes them over."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            for each in (self._changed, self._due, self._renewable):
                each.notify_all()
        self._guard.wake()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self._guard.close()

    def finish(self, seconds: float) -> bool:
        """Wait until all commands have ended and their ends were reported, for `seconds` at most. Return whether they
        have.
        """
        with self._lock:
            return self._changed.wait_for(lambda: not self.running, seconds)

    @property
    def running(self) -> int:
        """The number of commands that have not ended, or whose end was not reported."""
        with self._lock:
            return sum(each.state in {"taken", "running", "ended"} for each in self._jobs.values())

    def look(self, leases: Iterable[LeaseState], asked_at: float) -> None:
        """Take the leases with a command that the scheduler has for this host. `asked_at`: the time on the boot clock
        at which they were asked for. Raises the error that ended a thread of the runner, if there was one.
        """
        if self._error is not None:
            raise self._error
        present = {each.key: each for each in leases}
        # The clocks are read before the lock is taken, because cluster time may have to be asked for.
        ends = {each.key: each.revoke_by for each in present.values() if each.revoke_by is not None}
        shift = self._clock() - self._port.now() if ends else 0.0
        with self._lock:
            for key, lease in present.items():
                self._see(key, lease)
            for key, end in ends.items():
                if job := self._jobs.get(key):
                    job.revoke_at = end + shift
            for key, job in list(self._jobs.items()):
                if key not in present:
                    self._miss(job, asked_at)
            self._reported = {each for each in self._reported if each[0] in self._jobs}
            with contextlib.suppress(OSError):
                self._records.prune(set(self._jobs))
            self._changed.notify_all()
            self._due.notify()
        self._guard.wake()

    def expect(self, keys: Sequence[LeaseKey]) -> bool:
        """Take the commands of these leases before the leases are asked for, because a hint has named them. Return
        whether one is new. A hint may be forged: it makes this runner ask, and only a verified answer makes it start a
        command. Call `look` soon.
        """
        with self._lock:
            room = BATCH - sum(each.state == "wanted" for each in self._jobs.values())
            new = [key for key in keys if key not in self._jobs][: max(room, 0)]
            for key in new:
                self._see(key, LeaseState(key))
            self._due.notify()
            return bool(new)

    def _see(self, key: LeaseKey, lease: LeaseState) -> None:
        job = self._jobs.get(key)
        if job is None:
            if lease.is_revoking:
                return
            if self._signer is None:
                why = "the agent has no key of a principal with the role host, and the id of its cluster"
                self._report_once(key, "not_run", why=why)
                return
            job = self._jobs[key] = Job(key, make_lease_id(key), record=self._stored.pop(key, None))
        job.is_revoking, job.revoke_by = lease.is_revoking, lease.revoke_by
        job.term = job.term._replace(offline_timeout=lease.offline_timeout)

    def _miss(self, job: Job, asked_at: float) -> None:
        """React to a lease that the scheduler no longer has."""
        if job.state == "running":
            job.ending, job.is_to_kill = job.ending or "revoked", True
        elif job.state in {"wanted", "taken"} or (job.state == "done" and asked_at > job.done_at):
            del self._jobs[job.key]

    # The thread of the guard

    def _serve_guard(self) -> None:
        while True:
            with self._lock:
                if self._is_closed:
                    return
            try:
                self._turn()
            except GuardLost as error:
                self._guard.disconnect()
                self._report({"event": "guard_lost", "error": str(error)})
                with self._lock:
                    self._connect_at = self._clock() + self._connect_retry.take()
            except OSError as error:
                # For example a full disk, on which no record can be written.
                self._report({"event": "work_failed", "error": str(error)})
                self._guard.wait(RETRY_SECONDS)

    def _turn(self) -> None:
        """Wait for events of the guard, and do what is due."""
        with self._lock:
            is_needed = any(each.state in {"taken", "running"} for each in self._jobs.values())
        if is_needed and not self._guard.is_connected and self._connect_at <= self._clock():
            self._connect()
        events = self._guard.wait(self._find_pause())
        with self._lock:
            for event in events:
                self._take_event(event)
            for job in list(self._jobs.values()):
                self._work_on(job)
        if self._guard.is_connected and is_needed:
            self._watch_guard()

    def _find_pause(self) -> float:
        with self._lock:
            now, times = self._clock(), [IDLE_SECONDS]
            live = [each for each in self._jobs.values() if each.state in {"taken", "running"}]
            if live:
                times.append(PING_SECONDS)
                if not self._guard.is_connected:
                    times.append(self._connect_at - now)
            ends = [max(each.fence, each.direct_at) + AFTER_FENCE_SECONDS for each in live if each.fence is not None]
            times += [each - now for each in ends]
            return max(min(times), 0.01)

    def _connect(self) -> None:
        """Connect to the guard, start one if none runs, and compare its commands with the jobs."""
        try:
            listed = self._guard.connect()
        except GuardLost:
            # A guard that accepts no connection or answers none is of no use; its keeper ends its commands.
            self._guard.kill_guard()
            raise
        known = {each.id: each for each in listed.read()}
        self._answered_at = self._pinged_at = time.monotonic()
        with self._lock:
            self._connect_retry.reset()
            jobs = {each.id: each for each in self._jobs.values()}
            for job in jobs.values():
                if job.state == "running":
                    self._take_back(job, known.get(job.id))
            for id_, found in known.items():
                job_ = jobs.get(id_)
                if job_ is None or job_.state in {"wanted", "ended", "done"}:
                    self._guard.send({"do": "kill" if found.outcome is None else "ack", "id": id_})

    def _take_back(self, job: Job, known: Known | None) -> None:
        """Compare a job that was started with what the guard has of it. If the guard does not have it, end what is left
        of the command.
        """
        record = job.record
        if record is None:
            return
        if known is not None:
            record.pid, record.begun = known.pid, known.begun
            if known.outcome is not None:
                self._take_end(job, known.outcome)
            else:
                self._report({"event": "taken_back", **_name(job.key), "pid": known.pid})
                job.is_fence_moved = job.fence is not None
            return
        is_of_this_boot = record.run.partition("-")[0] == self._host.run.partition("-")[0]
        left = end_remains(record, is_own=not job.is_of_other_run) if is_of_this_boot else 0
        found = self._records.read_outcome(job.key)
        if found is not None:
            self._take_end(job, found)
        else:
            why = "the guard of the host ended" if is_of_this_boot else "the host was started again"
            self._end_job(job, Outcome(why="lost", error=_describe_left(why, left)))

    def _watch_guard(self) -> None:
        """Ping the guard. Raise GuardLost if it has not answered for long, and kill it."""
        # The time for which the machine sleeps does not count.
        now = time.monotonic()
        if now - self._pinged_at < PING_SECONDS:
            return
        if self._answered_at < self._pinged_at and now - self._answered_at >= SILENT_SECONDS:
            self._guard.kill_guard()
            raise GuardLost(f"the guard has not answered for {SILENT_SECONDS:.0f} s, and was killed")
        self._ping += 1
        self._pinged_at = now
        self._guard.send({"do": "ping", "number": self._ping})

    def _take_event(self, event: GuardEvent) -> None:
        self._answered_at = time.monotonic()
        if isinstance(event, Pong):
            return
        id_ = getattr(event, "id", None)
        job = next((each for each in self._jobs.values() if each.id == id_), None)
        if job is None or job.record is None:
            if isinstance(event, Ended):
                self._guard.send({"do": "ack", "id": event.id})
            return
        match event:
            case Started():
                self._note_started(job, event)
            case Printed():
                job.printed = event.tail, event.bytes
                self._due.notify()
            case Exited() | NotStarted():
                self._take_end(job, event)
            case Known(outcome=outcome) if outcome is not None:
                self._take_end(job, outcome)
            case UnknownCommand() if job.state == "running":
                self._take_back(job, None)
            case _:
                pass

    def _note_started(self, job: Job, event: Started) -> None:
        if job.record is not None:
            job.record.pid, job.record.begun = event.pid, event.begun
            self._records.save(job.record)
        job.report_start_at = self._clock() + START_SECONDS
        self._note_start(job.key.reservation, job.key.component, event.pid)
        self._report({"event": "command_started", **_name(job.key), "pid": event.pid})
        self._due.notify()

    def _take_end(self, job: Job, found: Exited | NotStarted) -> None:
        if job.state == "running":
            self._end_job(job, _judge(found, job.ending))
        self._guard_send({"do": "ack", "id": job.id})

    def _guard_send(self, request: Mapping[str, Any]) -> None:
        if self._guard.is_connected:
            self._guard.send(request)

    def _end_job(self, job: Job, outcome: Outcome) -> None:
        job.state, job.outcome, job.retry_at = "ended", outcome, 0.0
        job.printed = job.report_start_at = None
        job.retry.reset()
        if job.record is not None:
            job.record.outcome = outcome
            self._records.end(job.record)
            self._records.save(job.record)
        shown = {name: value for name, value in msgspec.to_builtins(outcome).items() if name not in {"tail", "bytes"}}
        self._report({"event": "command_ended", **_name(job.key), **{k: v for k, v in shown.items() if v is not None}})
        self._due.notify()

    def _work_on(self, job: Job) -> None:
        """Do what is due for one job: start it, give notice, kill it."""
        if job.state == "taken" and self._guard.is_connected:
            self._start_command(job)
        elif job.state == "running":
            self._end_in_time(job)

    def _start_command(self, job: Job) -> None:
        record, command = job.record, job.command
        if record is None or command is None:
            return
        job.command = None
        try:
            request = self._make_request(job, record, command)
        except (WrongCommand, NoDevice, OSError) as error:
            job.state = "running"
            self._end_job(job, Outcome(why="not_started", error=str(error)))
            return
        # Before the request: after a crash of the agent it is looked for, and not started again.
        record.is_started = True
        self._records.save(record)
        job.state = "running"
        self._guard.send(request)

    def _make_request(self, job: Job, record: Record, command: LeaseCommand) -> dict[str, Any]:
        folder = self._records.make_notices(record, command.user)
        others = [each.record for each in self._jobs.values() if each.state == "running" and each is not job]
        record.devices = self._devices.choose(command.resources, [each.devices for each in others if each])
        paths = str(folder / NOTICE), str(folder / PEERS)
        environment = make_environment(command, record.tag, *paths, record.devices)
        program = make_program(command, f"leasehold-{job.id}", environment, str(folder))
        self._records.write_peers(record, format_peers(command))
        self._write_notice(job, record, "held")
        record.cgroup = None if self._cgroup is None else str(self._cgroup / f"leasehold-{job.id}" / "run")
        record.after = program.after
        record.stop_signal, record.grace = command.stop_signal, command.grace
        record.offline_timeout = command.offline_timeout
        return {
            "do": "start",
            "id": job.id,
            "argv": program.argv,
            "after": program.after,
            "env": environment,
            "cwd": None if command.image else command.cwd,
            "user": None if command.image else command.user,
            "folder": str(self._records.folder(job.key).absolute()),
            "cgroup": record.cgroup,
            "deadline": job.fence,
        }

    def _write_notice(self, job: Job, record: Record, state: str) -> None:
        self._records.write_notice(record, {"state": state, "revoke_by": job.revoke_by})

    def _end_in_time(self, job: Job) -> None:
        now, record = self._clock(), job.record
        if record is None:
            return
        if job.is_fence_moved:
            job.is_fence_moved = False
            self._guard_send({"do": "deadline", "id": job.id, "deadline": job.fence})
        if job.is_revoking and not job.is_noticed:
            job.is_noticed = True
            self._give_notice(job, record)
        if job.is_to_kill:
            job.is_to_kill = False
            self._guard_send({"do": "kill", "id": job.id})
        is_late = bool(job.direct_at) or (job.fence is not None and now >= job.fence + AFTER_FENCE_SECONDS)
        if is_late and now >= job.direct_at + AFTER_FENCE_SECONDS:
            # The guard should have ended it: it is stopped, or was killed.
            job.direct_at, job.ending = now, job.ending or "fenced"
            self._end_directly(job, record)

    def _give_notice(self, job: Job, record: Record) -> None:
        """Write the notice, then send the stop signal; the guard kills the command when the grace is over."""
        job.ending = job.ending or "revoked"
        try:
            self._write_notice(job, record, "revoking")
        except OSError as error:
            self._report({"event": "notice_failed", **_name(job.key), "error": str(error)})
        left = float("inf") if job.revoke_at is None else job.revoke_at - self._clock() - NOTICE_MARGIN_SECONDS
        grace = min(record.grace, left)
        if grace > 0:
            number = int(signal.Signals[f"SIG{record.stop_signal}"])
            self._guard_send({"do": "stop", "id": job.id, "signal": number, "grace": grace})
        else:
            job.is_to_kill = True

    def _end_directly(self, job: Job, record: Record) -> None:
        left = end_remains(record, is_own=not job.is_of_other_run)
        if self._guard.is_connected and time.monotonic() - self._answered_at < PING_SECONDS + AFTER_FENCE_SECONDS:
            # The guard reports the end, unless it does not answer.
            return
        self._guard.kill_guard()
        self._end_job(job, Outcome(why="fenced", error=_describe_left("the guard of the host did not answer", left)))

    # The threads of the requests

    def _send_renewals(self) -> None:
        while True:
            with self._lock:
                while not (live := self._find_renewable()) and not self._is_closed:
                    times = [
                        each.renewal_at - self._clock() for each in self._list_live() if each.renewal_at is not None
                    ]
                    self._renewable.wait(max(min(times, default=IDLE_SECONDS), 0.01))
                if self._is_closed:
                    return
            self._renew(live)

    def _list_live(self) -> list[Job]:
        return [each for each in self._jobs.values() if each.state in {"taken", "running"} and each.ending != "fenced"]

    def _find_renewable(self) -> list[Job]:
        """Return all leases with running commands if the renewal of one is due; else []."""
        now, live = self._clock(), self._list_live()
        return live if any(each.renewal_at is not None and each.renewal_at <= now for each in live) else []

    def _send_reports(self) -> None:
        while True:
            # One thread waits for the next request, the others for their turn to wait.
            with self._turn_to_wait:
                request = self._await_report()
            if request is None:
                return
            request()

    def _await_report(self) -> Callable[[], None] | None:
        """Return the next request when it is due; None if the runner is closed."""
        with self._lock:
            while not self._is_closed:
                request, pause = self._find_report()
                if request is not None:
                    return request
                self._due.wait(pause)
        return None

    def _find_report(self) -> tuple[Callable[[], None] | None, float]:
        """Return the next request that is due; None and the pause until one is."""
        now, jobs = self._clock(), [each for each in self._jobs.values() if not each.is_asked]
        due = [each for each in jobs if each.retry_at <= now]
        started = [each for each in jobs if each.state == "running" and each.report_start_at is not None]
        kinds: list[tuple[Callable[[list[Job]], None], list[Job]]] = [
            (self._report_ends, [each for each in due if each.state == "ended"]),
            (self._take, [each for each in due if each.state == "wanted" and not each.is_revoking]),
            (self._report_starts, [each for each in started if max(each.report_start_at or 0.0, each.retry_at) <= now]),
        ]
        for request, found in kinds:
            if found:
                alone = [each for each in found if each.is_alone]
                return self._ask_about(alone[:1] or found[:BATCH], request), 0.0
        printed = [each for each in self._list_live() if each.printed is not None]
        if printed and self._output_at <= now and not self._is_printing:
            self._is_printing = True
            return (lambda: self._report_output(printed)), 0.0
        times = [IDLE_SECONDS, *(each.retry_at - now for each in jobs if each.retry_at > now)]
        times += [(each.report_start_at or 0.0) - now for each in started]
        times += [self._output_at - now] if printed and not self._is_printing else []
        return None, max(min(times), 0.01)

    def _ask_about(self, jobs: list[Job], request: Callable[[list[Job]], None]) -> Callable[[], None]:
        """Return a call of `request` for these jobs, about which no other request is sent until it has returned."""
        for each in jobs:
            each.is_asked = True

        def ask() -> None:
            try:
                request(jobs)
            finally:
                with self._lock:
                    for each in jobs:
                        each.is_asked = False
                    self._due.notify()

        return ask

    def _take(self, jobs: Sequence[Job]) -> None:
        """Ask for the commands of leases, and verify the answers."""
        if self._signer is None:
            return
        with self._lock:
            wanted = [each for each in jobs if each.state == "wanted" and self._begin_record(each)]
        nonces, sent_at = {each.key: secrets.token_hex(16) for each in wanted}, self._clock()
        if not nonces:
            return
        try:
            answers = self._port.take(nonces)
        except Refused as error:
            answers = dict.fromkeys(nonces, error)
        except LeaseholdError:
            self._put_off(wanted, is_silent=True)
            return
        for job in wanted:
            self._take_answer(job, answers[job.key], self._signer, nonces[job.key], sent_at)
        self._guard.wake()

    def _begin_record(self, job: Job) -> bool:
        """Write the record of a job. Return whether it has one."""
        if job.record is None:
            try:
                job.record = self._records.begin(job.key, self._host.run)
            except OSError as error:
                self._report_once(job.key, "not_run", why=f"no record can be written: {error}")
                self._put_off([job])
        return job.record is not None

    def _take_answer(self, job: Job, answer: Taken | Refused, signer: Signer, nonce: str, sent_at: float) -> None:
        if isinstance(answer, Refused):
            self._take_refusal(job, answer)
            return
        try:
            command = read_command(answer, signer, self._host, job.key, nonce)
        except WrongCommand as error:
            self._report_once(job.key, "wrong_command", why=str(error))
            self._put_off([job])
            return
        with self._lock:
            if self._jobs.get(job.key) is not job:
                return
            job.state, job.command = "taken", command
            if job.record is not None:
                job.record.run = self._host.run
            job.term = Term(command.ttl, command.offline_timeout)
            job.fence, job.renewal_at = find_fence(sent_at, job.term), find_renewal(sent_at, job.term)
            job.is_alone = False
            job.retry.reset()
            self._renewable.notify()

    def _take_refusal(self, job: Job, error: Refused) -> None:
        """React to a refused `take`. If another agent has taken the command, it is lost: at once if it can be one of
        this slot's earlier agents that has started nothing, else when its fence is over.
        """
        with self._lock:
            if not any(each.path == "run" and each.code == "conflict" for each in error.errors):
                self._report_once(job.key, "not_run", why=str(error))
                self._put_off([job])
                return
            record = job.record
            wait = job.term.offline_timeout or UNKNOWN_LOSS_SECONDS
            is_known = record is not None and record.run != self._host.run
            if is_known or self._clock() >= self._begun_at + wait:
                why = "an earlier agent of the host took the command, and did not start it"
                self._end_job(job, Outcome(why="lost", error=why))
            else:
                self._put_off([job])

    def _put_off(self, jobs: Sequence[Job], *, is_silent: bool = False) -> None:
        """Repeat the requests about jobs later. `is_silent`: a request about all of them got no answer."""
        with self._lock:
            for job in jobs:
                job.retry_at = self._clock() + job.retry.take()
                job.is_alone = is_silent and (job.is_alone or len(jobs) > 1)

    def _report_starts(self, jobs: Sequence[Job]) -> None:
        answered = self._report_to(jobs, lambda: self._port.started([each.key for each in jobs]))
        with self._lock:
            for job in answered:
                job.report_start_at = None

    def _report_ends(self, jobs: Sequence[Job]) -> None:
        outcomes = {each.key: each.outcome for each in jobs if each.outcome is not None}
        answered = self._report_to(jobs, lambda: self._port.exited(outcomes))
        with self._lock:
            for job in answered:
                job.state, job.done_at = "done", self._clock()
                if job.record is not None:
                    job.record.is_reported = True
                    try:
                        self._records.save(job.record)
                    except OSError as error:
                        # A later agent reports it again, which changes nothing.
                        self._report({"event": "work_failed", "error": str(error)})
            self._changed.notify_all()

    def _report_to(self, jobs: Sequence[Job], request: Callable[[], Mapping[LeaseKey, Refused]]) -> Sequence[Job]:
        """Send a request about jobs. Return those that were answered; a refusal is an answer too."""
        try:
            refused = request()
        except Refused as error:
            refused = {each.key: error for each in jobs}
        except LeaseholdError:
            self._put_off(jobs, is_silent=True)
            return ()
        for key, refusal in refused.items():
            self._report_once(key, "refused", why=str(refusal))
        with self._lock:
            for job in jobs:
                job.is_alone = False
                job.retry.reset()
        return jobs

    def _report_output(self, jobs: Sequence[Job]) -> None:
        with self._lock:
            self._output_at = self._clock() + OUTPUT_SECONDS
            reports = [PrintedReport(job.key, *job.printed) for job in jobs if job.printed is not None]
            for job in jobs:
                job.printed = None
        pause = 0.0
        try:
            self._port.output(reports)
        except LeaseholdError:
            # The next report has a newer end.
            pause = RETRY_SECONDS * 5
        with self._lock:
            self._is_printing = False
            self._output_at = max(self._output_at, self._clock() + pause)
            self._due.notify()

    def _renew(self, jobs: Sequence[Job]) -> None:
        """Renew the leases of all running commands in one request."""
        sent_at = self._clock()
        try:
            answers = self._port.renew([each.key for each in jobs])
        except LeaseholdError:
            answers = {}
        with self._lock:
            for job in jobs:
                self._take_renewal(job, answers.get(job.key), sent_at)
        self._guard.wake()

    def _take_renewal(self, job: Job, answer: Renewed | Refused | None, sent_at: float) -> None:
        if job.state not in {"taken", "running"}:
            return
        if isinstance(answer, Renewed):
            job.term = job.term._replace(ttl=answer.ttl)
            job.fence = move_fence(job.fence, sent_at, job.term) if job.fence else find_fence(sent_at, job.term)
            job.renewal_at = find_renewal(sent_at, job.term)
            job.is_fence_moved = True
            return
        job.renewal_at = self._clock() + RETRY_SECONDS
        if answer is not None and any(each.path in {"token", "reservation"} for each in answer.errors):
            # The lease has ended: another holder may have the slot.
            job.ending, job.is_to_kill, job.renewal_at = job.ending or "revoked", True, None

    def _report_once(self, key: LeaseKey, event: str, **detail: object) -> None:
        with self._lock:
            if (key, event) in self._reported:
                return
            self._reported.add((key, event))
        self._report({"event": event, **_name(key), **detail})


def _judge(found: Exited | NotStarted, ending: Why | None) -> Outcome:
    """Return the outcome of a command as the scheduler gets it. `ending`: why the agent has ended it; None: it has
    not.
    """
    rest: dict[str, Any] = {"tail": found.tail, "bytes": found.bytes}
    if isinstance(found, NotStarted):
        return Outcome(why="not_started" if found.cause is None else "lost", error=found.error, **rest)
    error = _describe_left("the command has ended", found.left) if found.left else None
    rest |= {"exit_code": found.code, "signal": found.signal, "error": error}
    if found.cause == "deadline":
        return Outcome(why="fenced", **rest)
    # Without a cause, a signal is that of the agent itself if it ends the command; an exit was the command's own.
    if found.cause is not None or (ending is not None and found.signal is not None):
        return Outcome(why=ending or "fenced", **rest)
    if found.oom and found.signal == signal.SIGKILL:
        return Outcome(why="out_of_memory", **rest)
    return Outcome(why="exited" if found.signal is None else "signal", **rest)


def _describe_left(text: str, left: int) -> str:
    return f"{text}; {left} of its processes resist SIGKILL" if left else text


def _name(key: LeaseKey) -> dict[str, Any]:
    return {"reservation": key.reservation, "component": key.component}
