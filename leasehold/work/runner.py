"""The runner: it runs the commands of the leases on one host, and reports what becomes of them.

One thread serves the guard: it starts, stops and kills commands, and moves their deadlines. Those of the messenger send
the requests to the scheduler, so that no deadline waits for an answer. All work on the jobs, one for each lease that
has a command.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from leasehold.client.backoff import Backoff
from leasehold.client.models import LeaseKey
from leasehold.work.command import (
    HostIdentity,
    LeaseCommand,
    Signer,
    WrongCommand,
    format_peers,
    make_environment,
    make_program,
)
from leasehold.work.devices import Devices, NoDevice
from leasehold.work.fence import Term
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
from leasehold.work.jobs import (
    IDLE_SECONDS,
    LONGEST_RETRY_SECONDS,
    RETRY_SECONDS,
    Job,
    Jobs,
    LeaseState,
    Report,
    name_lease,
)
from leasehold.work.messenger import BATCH, REPORTERS, START_SECONDS, Messenger
from leasehold.work.ports import CommandsPort, Outcome, Why
from leasehold.work.records import NOTICE, PEERS, Record, Records, end_remains, make_lease_id

PING_SECONDS: Final = 5.0
SILENT_SECONDS: Final = 30.0
"""Seconds without an answer after which the guard is killed with its commands."""
AFTER_FENCE_SECONDS: Final = 1.0
"""Seconds after a deadline at which the agent ends a command that the guard has not ended."""
NOTICE_MARGIN_SECONDS: Final = 1.0
"""Seconds before the end of a notice at which a command is killed."""


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
        self._port, self._signer, self._host = port, signer, host
        self._jobs = Jobs(Records(folder), report, clock)
        self._guard = GuardClient(self._jobs.records.guard_folder)
        self._cgroup, self._note_start = cgroup, note_start
        self._devices = devices or Devices()
        self._ping, self._pinged_at, self._answered_at = 0, 0.0, 0.0
        self._connect_at, self._connect_retry = 0.0, Backoff(RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        self._error: Exception | None = None
        self._stored: dict[LeaseKey, Record] = {}
        """Records of an earlier agent whose commands were not started."""
        messenger = Messenger(self._jobs, port, signer, host, self._guard.wake)
        self._threads = [
            threading.Thread(target=self._run, args=(each,), name="leasehold-work", daemon=True)
            for each in (self._serve_guard, messenger.send_renewals, *[messenger.send_reports] * REPORTERS)
        ]

    def start(self) -> None:
        """Take over what an earlier agent has begun, and begin to work."""
        for record in self._jobs.records.load():
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
                job.report_start_at = job.renewal_at = self._jobs.clock()
            else:
                job.state, job.done_at = "done" if record.is_reported else "ended", self._jobs.clock()
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
        if self._jobs.is_closed:
            return
        self._jobs.close()
        self._guard.wake()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self._guard.close()

    def finish(self, seconds: float) -> bool:
        """Wait until all commands have ended and their ends were reported, for `seconds` at most. Return whether they
        have.
        """
        with self._jobs.lock:
            return self._jobs.changed.wait_for(lambda: not self._jobs.running, seconds)

    def look(self, leases: Iterable[LeaseState], asked_at: float) -> None:
        """Take the leases with a command that the scheduler has for this host. `asked_at`: the time on the boot clock
        at which they were asked for. Raises the error that ended a thread of the runner, if there was one.
        """
        if self._error is not None:
            raise self._error
        present = {each.key: each for each in leases}
        # The clocks are read before the lock is taken, because cluster time may have to be asked for.
        ends = {each.key: each.revoke_by for each in present.values() if each.revoke_by is not None}
        shift = self._jobs.clock() - self._port.now() if ends else 0.0
        with self._jobs.lock:
            for key, lease in present.items():
                self._see(key, lease)
            for key, end in ends.items():
                if job := self._jobs.get(key):
                    job.revoke_at = end + shift
            for key, job in list(self._jobs.items()):
                if key not in present:
                    if job.state == "running":
                        job.ending, job.is_to_kill = job.ending or "revoked", True
                    elif job.state in {"wanted", "taken"} or (job.state == "done" and asked_at > job.done_at):
                        del self._jobs[job.key]
            self._jobs.forget_reports()
            with contextlib.suppress(OSError):
                self._jobs.records.prune(set(self._jobs))
            self._jobs.changed.notify_all()
            self._jobs.due.notify()
        self._guard.wake()

    def expect(self, keys: Sequence[LeaseKey]) -> bool:
        """Take the commands of these leases before the leases are asked for, because a hint has named them. Return
        whether one is new. A hint may be forged: it makes this runner ask, and only a verified answer makes it start a
        command. Call `look` soon.
        """
        with self._jobs.lock:
            room = BATCH - sum(each.state == "wanted" for each in self._jobs.values())
            new = [key for key in keys if key not in self._jobs][: max(room, 0)]
            for key in new:
                self._see(key, LeaseState(key))
            self._jobs.due.notify()
            return bool(new)

    def _see(self, key: LeaseKey, lease: LeaseState) -> None:
        job = self._jobs.get(key)
        if job is None:
            if lease.is_revoking:
                return
            if self._signer is None:
                self._jobs.report_once(
                    key,
                    "not_run",
                    why="the agent has no key of a principal with the role host, and the id of its cluster",
                )
                return
            job = self._jobs[key] = Job(key, make_lease_id(key), record=self._stored.pop(key, None))
        job.is_revoking, job.revoke_by = lease.is_revoking, lease.revoke_by
        job.term = job.term._replace(offline_timeout=lease.offline_timeout)

    # The thread of the guard

    def _serve_guard(self) -> None:
        while True:
            with self._jobs.lock:
                if self._jobs.is_closed:
                    return
            try:
                self._turn()
            except GuardLost as error:
                self._guard.disconnect()
                self._jobs.report({"event": "guard_lost", "error": str(error)})
                with self._jobs.lock:
                    self._connect_at = self._jobs.clock() + self._connect_retry.take()
            except OSError as error:
                # For example a full disk, on which the folder of the guard cannot be made. A wait for the guard would
                # drop its events.
                self._jobs.report({"event": "work_failed", "error": str(error)})
                time.sleep(RETRY_SECONDS)

    def _turn(self) -> None:
        """Wait for events of the guard, and do what is due."""
        with self._jobs.lock:
            is_needed = any(each.state in {"taken", "running"} for each in self._jobs.values())
        if is_needed and not self._guard.is_connected and self._connect_at <= self._jobs.clock():
            self._connect()
        events = self._guard.wait(self._find_pause())
        with self._jobs.lock:
            for event in events:
                self._take_event(event)
            for job in list(self._jobs.values()):
                if job.state == "taken" and self._guard.is_connected:
                    self._start_command(job)
                elif job.state == "running":
                    self._end_in_time(job)
        if self._guard.is_connected and is_needed:
            self._watch_guard()

    def _find_pause(self) -> float:
        with self._jobs.lock:
            now, times = self._jobs.clock(), [IDLE_SECONDS]
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
        with self._jobs.lock:
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
                self._jobs.report({"event": "taken_back", **name_lease(job.key), "pid": known.pid})
                job.is_fence_moved = job.fence is not None
            return
        is_of_this_boot = record.run.partition("-")[0] == self._host.run.partition("-")[0]
        left = end_remains(record, is_own=not job.is_of_other_run) if is_of_this_boot else 0
        found = self._jobs.records.read_outcome(job.key)
        if found is not None:
            self._take_end(job, found)
        else:
            why = "the guard of the host ended" if is_of_this_boot else "the host was started again"
            self._jobs.end(job, Outcome(why="lost", error=_describe_left(why, left)))

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
                job.record.pid, job.record.begun = event.pid, event.begun
                self._jobs.save(job.record)
                job.report_start_at = self._jobs.clock() + START_SECONDS
                try:
                    self._note_start(job.key.reservation, job.key.component, event.pid)
                except OSError as error:
                    # Only limits of cores need the note, and the next events must not be lost.
                    self._jobs.report({"event": "work_failed", "error": str(error)})
                self._jobs.report({"event": "command_started", **name_lease(job.key), "pid": event.pid})
                self._jobs.due.notify()
            case Printed():
                job.printed = event.tail, event.bytes
                self._jobs.due.notify()
            case Exited() | NotStarted():
                self._take_end(job, event)
            case Known(outcome=outcome) if outcome is not None:
                self._take_end(job, outcome)
            case UnknownCommand() if job.state == "running":
                self._take_back(job, None)
            case _:
                pass

    def _take_end(self, job: Job, found: Exited | NotStarted) -> None:
        if job.state == "running":
            self._jobs.end(job, _judge(found, job.ending))
        self._guard_send({"do": "ack", "id": job.id})

    def _guard_send(self, request: Mapping[str, Any]) -> None:
        if self._guard.is_connected:
            self._guard.send(request)

    def _start_command(self, job: Job) -> None:
        record, command = job.record, job.command
        if record is None or command is None:
            return
        job.command = None
        job.state = "running"
        try:
            request = self._make_request(job, record, command)
            # Before the request: after a crash of the agent it is looked for, and not started again.
            record.is_started = True
            self._jobs.records.save(record)
        except (WrongCommand, NoDevice, OSError) as error:
            self._jobs.end(job, Outcome(why="not_started", error=str(error)))
            return
        self._guard.send(request)

    def _make_request(self, job: Job, record: Record, command: LeaseCommand) -> dict[str, Any]:
        folder = self._jobs.records.make_notices(record, command.user)
        others = [each.record for each in self._jobs.values() if each.state == "running" and each is not job]
        record.devices = self._devices.choose(command.resources, [each.devices for each in others if each])
        paths = str(folder / NOTICE), str(folder / PEERS)
        environment = make_environment(command, record.tag, *paths, record.devices)
        program = make_program(command, f"leasehold-{job.id}", environment, str(folder))
        self._jobs.records.write_peers(record, format_peers(command))
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
            "folder": str(self._jobs.records.folder(job.key).absolute()),
            "cgroup": record.cgroup,
            "deadline": job.fence,
        }

    def _write_notice(self, job: Job, record: Record, state: str) -> None:
        self._jobs.records.write_notice(record, {"state": state, "revoke_by": job.revoke_by})

    def _end_in_time(self, job: Job) -> None:
        now, record = self._jobs.clock(), job.record
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
            self._jobs.report({"event": "notice_failed", **name_lease(job.key), "error": str(error)})
        left = float("inf") if job.revoke_at is None else job.revoke_at - self._jobs.clock() - NOTICE_MARGIN_SECONDS
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
        self._jobs.end(job, Outcome(why="fenced", error=_describe_left("the guard of the host did not answer", left)))


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
    # Without a cause, a signal is that of the agent itself if it ends the command; an exit was the command's own. An
    # earlier agent asked the guard to end a command only because of its lease.
    if found.cause is not None or (ending is not None and found.signal is not None):
        return Outcome(why=ending or "revoked", **rest)
    if found.oom and found.signal == signal.SIGKILL:
        return Outcome(why="out_of_memory", **rest)
    return Outcome(why="exited" if found.signal is None else "signal", **rest)


def _describe_left(text: str, left: int) -> str:
    return f"{text}; {left} of its processes resist SIGKILL" if left else text
