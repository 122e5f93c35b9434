"""The agent of a static host. It registers the host, sends heartbeats, reports the leases on the host, limits their
cores, and takes the host out of service at the end.

A thread of its own sends the heartbeats, so that the host does not look offline while the agent waits for an answer.
"""

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import msgspec

from leasehold.agent.enforcer import Enforcer
from leasehold.agent.machine import make_run
from leasehold.client.backoff import Backoff, shorten
from leasehold.client.hosts import Hosts
from leasehold.client.models import Host, Hosted, LeaseKey
from leasehold.client.ports import Hints
from leasehold.errors import NotAnswered, Refused, Unavailable
from leasehold.work.guard import read_boot_clock
from leasehold.work.jobs import LeaseState
from leasehold.work.runner import Runner
from scheduler.protocol.heartbeats import LONGEST_BEAT_SECONDS, find_beat

LOOK_SECONDS: Final = 300.0
"""Seconds after which a host reads its leases although it got no hint (a message that its slot has changed).

A host whose heartbeats name an old version of its slot gets a hint. Hints may be lost; then the regular read finds the
change.
"""
POLL_SECONDS: Final = 10.0
"""Seconds between two reads of the leases if the workers' answers contain no version of the slot. Heartbeats without a
version cause no hints, so these reads are more frequent than those of LOOK_SECONDS.
"""
RETURN_SECONDS: Final = 30.0
"""Longest delay in seconds between the end of a failure of the heartbeats and the next read of the leases.

The delay is random, so that hosts that lost the same Redis at the same moment do not all read at once.
"""
ASK_SECONDS: Final = 5.0
"""Time limit for the answer to a request of the agent, in seconds. Without an answer the agent sends the
request again.
"""
FIRST_TURN_SECONDS: Final = 0.2
LONGEST_TURN_SECONDS: Final = 2.0
"""The first and the longest pause in seconds between two attempts to register while an earlier run of the agent may be
live.
"""
RETRY_SECONDS: Final = 1.0
LONGEST_RETRY_SECONDS: Final = 30.0
FINISH_SECONDS: Final = 15.0
"""Longest time for which a drained host waits until the last commands of its leases have ended, in seconds."""
NOTICE_SECONDS: Final = 0.5
"""Longest time until the agent reacts to a request to leave, in seconds."""

AFTER_COMMANDS_SECONDS: Final = 0.1
"""Seconds between a hint that names new commands and the read of the leases."""

Report = Callable[[Mapping[str, Any]], object]
"""A function that is called with each event of the agent, as a mapping like {"event": "left", "slot": "lab-7"}."""


@dataclass(frozen=True)
class HostSpec:
    """The registration of a host: its slot and pool, the id of its machine, its resources and labels, and the address
    at which holders reach it.
    """

    slot: str
    pool: str
    machine: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]
    address: str | None = None


class Heart:
    """Sends the heartbeats of a host from a thread of its own until it is stopped, and reports when heartbeats no
    longer reach Redis.
    """

    def __init__(self, hosts: Hosts, spec: HostSpec, report: Report) -> None:
        self._hosts, self._spec, self._report = hosts, spec, report
        self.seconds = LONGEST_BEAT_SECONDS
        """Interval between two heartbeats in seconds."""
        self._is_stopped, self._wake = False, threading.Event()
        self._version: str | None = None
        self.run: str | None = None
        """The run of the agent that the slot has; None: the workers that answered know no runs."""
        self._has_returned = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="leasehold-heart", daemon=True)

    def start(self, seconds: float) -> None:
        """Start to send a heartbeat every `seconds`; if the thread already runs, change the interval. Raises the error
        that ended the thread, if there was one.
        """
        if self._error is not None:
            raise self._error
        is_quicker, self.seconds = seconds < self.seconds, seconds
        if not self._thread.is_alive():
            self._thread.start()
        elif is_quicker:
            self._wake.set()

    def carry(self, version: str | None) -> None:
        """Send `version`, the version of the slot that this host has read last, in all later heartbeats. A new version
        is sent at once, because the host gets hints (messages that its slot has changed) until its heartbeats have the
        present version.
        """
        is_new, self._version = version != self._version, version
        if is_new:
            self._wake.set()

    def take_return(self) -> bool:
        """Return True if a failure of the heartbeats has ended since the last call, else False. Hints (messages that
        the slot has changed) may have been lost during the failure.
        """
        has_returned, self._has_returned = self._has_returned, False
        return has_returned

    def stop(self) -> None:
        self._is_stopped = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._beat()
        except Exception as error:  # noqa: BLE001 - any error, such as a closed output: see `start`
            self._error = error

    def _beat(self) -> None:
        is_reachable = True
        while not self._is_stopped:
            try:
                more = {} if self.run is None else {"run": self.run}
                self._hosts.heartbeat(self._spec.slot, self._spec.machine, self._version, **more)
            except Unavailable as error:
                if is_reachable:
                    self._report({"event": "unreachable", "error": str(error)})
                is_reachable = False
            else:
                if not is_reachable:
                    self._report({"event": "reachable"})
                    self._has_returned = True
                is_reachable = True
            self._wake.wait(self.seconds if is_reachable else min(self.seconds, RETRY_SECONDS))
            self._wake.clear()


class HostAgent:
    """The agent of one host, from the registration of the host until it leaves. `report` is called with each event,
    from several threads.

    `enforcer` limits the cores of the leases' processes; default: no limits. `make_runner` makes the runner of the
    leases' commands for a run of the agent; default: commands are not run.
    """

    def __init__(
        self,
        hosts: Hosts,
        spec: HostSpec,
        report: Report,
        *,
        enforcer: Enforcer | None = None,
        make_runner: Callable[[str], Runner] | None = None,
        poll_seconds: float = POLL_SECONDS,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._hosts, self._spec, self._report = hosts, spec, report
        self._poll_seconds, self._look_seconds = poll_seconds, look_seconds
        self._retry = Backoff(RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        self._enforcer = enforcer
        self._make_runner = make_runner
        self._runner: Runner | None = None
        self._heart = Heart(hosts, spec, report)
        self._run = make_run()
        # Plain attributes and no threading.Event: a signal handler that interrupts Event.set would wait for itself.
        self._is_leaving = self._is_gone = False
        self._held: dict[tuple[str, str, int], Hosted] = {}
        self._has_served = False
        self._is_leave_known = False

    def leave(self) -> None:
        """Let the agent drain its slot. The agent ends when the last lease of the slot has ended; a second call of
        `leave` ends it at once.
        """
        self._is_gone = self._is_leaving
        self._is_leaving = True

    def run(self) -> None:
        """Register the host, then report its leases and limit their cores until its slot has drained. The slot drains
        after a call of `leave`, or because an operator drains it. Raises Refused if a worker refuses a request of the
        agent.
        """
        try:
            if self._register():
                self._serve()
        finally:
            if self._runner is not None:
                self._runner.close()
            if self._enforcer is not None:
                self._enforcer.lift_all()
            self._heart.stop()

    def _register(self) -> bool:
        """Send the registration of the host again and again until a worker accepts it, and return True. Return False if
        `leave` is called before. While an earlier run of the agent may be live, the registration is sent again; the
        workers refuse it finally (Refused) once they have heard that run after the first attempt.
        """
        spec, is_reported, retry = self._spec, False, Backoff(RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        turn, begin = Backoff(FIRST_TURN_SECONDS, LONGEST_TURN_SECONDS), time.monotonic()
        while not self._is_leaving:
            waited = round(time.monotonic() - begin, 3)
            try:
                answer = self._hosts.register(**asdict(spec), run=self._run, waited=waited, timeout=ASK_SECONDS)
            except (NotAnswered, Unavailable, Refused) as error:
                if isinstance(error, Refused) and not any(each.path == "run" for each in error.errors):
                    raise
                if not is_reported:
                    self._report({"event": "waiting", "error": str(error)})
                is_reported = True
                until = time.monotonic() + (turn if isinstance(error, Refused) else retry).take()
                while (left := until - time.monotonic()) > 0 and not self._is_leaving:
                    # A signal only sets `_is_leaving`, and the sleep goes on after it: so the pause has short parts.
                    time.sleep(min(left, NOTICE_SECONDS))
                continue
            self._has_served = answer.state == "ready"
            self._heart.run = answer.run
            self._heart.start(find_beat(answer.offline_timeout))
            self._report({"event": "registered", "slot": spec.slot, "state": answer.state, "machine": spec.machine})
            if self._enforcer is not None:
                self._enforcer.start()
            if self._make_runner is not None and self._runner is None:
                self._runner = self._make_runner(self._run)
                self._runner.start()
            return True
        return False

    def _serve(self) -> None:
        hints = self._hosts.hints(self._spec.slot)
        hints.listen()
        try:
            while not self._is_gone:
                if self._has_to_leave:
                    self._leave()
                hints.forget()
                host = self._look()
                is_drained = host is not None and host.state == "empty"
                # If the slot was still draining when the agent started, the host registers again. If the slot has
                # served since the start, an operator has drained it, and the agent ends.
                if is_drained and (self._has_served or self._is_leaving or not self._register()):
                    if self._runner is not None:
                        self._runner.finish(FINISH_SECONDS)
                    self._report({"event": "left", "slot": self._spec.slot})
                    return
                self._wait(hints, seconds=self._find_pause(host))
        finally:
            hints.close()

    def _find_pause(self, host: Host | None) -> float:
        """Return the seconds that the agent waits for a hint (a message that its slot has changed) before it reads the
        slot again. `host`: the result of the last read; None if no worker answered the read.
        """
        if host is None:
            return self._retry.take()
        self._retry.reset()
        return shorten(self._poll_seconds if host.version is None else self._look_seconds)

    @property
    def _has_to_leave(self) -> bool:
        return self._is_leaving and not self._is_leave_known

    def _leave(self) -> None:
        """Send the workers the request to take the host out of service. If no worker answers, return; the agent sends
        the request again later.
        """
        try:
            answer = self._hosts.leave(self._spec.slot, self._spec.machine, run=self._heart.run, timeout=ASK_SECONDS)
        except (NotAnswered, Unavailable) as error:
            self._report({"event": "waiting", "error": str(error)})
            return
        self._is_leave_known = True
        self._report({"event": "leaving", "slot": self._spec.slot, "state": answer.state, "leases": len(self._held)})

    def _look(self) -> Host | None:
        """Ask a worker for the slot and its leases, report the changes since the last read, and return the slot. Return
        None if no worker answers; the agent then asks again soon.
        """
        asked_at = read_boot_clock()
        try:
            host = self._hosts.leases(self._spec.slot, self._spec.machine, run=self._heart.run, timeout=ASK_SECONDS)
        except (NotAnswered, Unavailable):
            return None
        self._has_served = self._has_served or host.state == "ready"
        self._heart.start(find_beat(host.offline_timeout))
        self._heart.carry(host.version)
        present = {(each.reservation, each.component, each.token): each for each in host.leases}
        for key, lease in self._held.items():
            if key not in present:
                self._report({"event": "ended", "reservation": lease.reservation, "component": lease.component})
        for key, lease in present.items():
            if self._held.get(key) != lease:
                self._report({"event": _name_change(self._held.get(key), lease), **msgspec.to_builtins(lease)})
        self._held = present
        if self._runner is not None:
            commands = [each for each in host.leases if each.has_command]
            self._runner.look([_read_lease(each, host) for each in commands], asked_at)
        if self._enforcer is not None:
            self._enforcer.enforce(list(self._held.values()))
        return host

    def _wait(self, hints: Hints, seconds: float) -> None:
        """Wait until the first of three things happens: a hint reports a change of the slot, `seconds` have passed, or
        the agent is asked to leave.
        """
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._is_gone:
            if hints.wait(min(left, NOTICE_SECONDS)):
                if self._runner is None or not self._runner.expect(hints.commands):
                    return
                # speed: the request for the leases would delay those for the commands.
                until = min(until, time.monotonic() + AFTER_COMMANDS_SECONDS)
            if self._has_to_leave:
                return
            if self._heart.take_return():
                until = min(until, time.monotonic() + min(RETURN_SECONDS, seconds) * random.random())  # noqa: S311
            if self._enforcer is not None:
                self._enforcer.watch(list(self._held.values()))


def _name_change(known: Hosted | None, lease: Hosted) -> str:
    """Return the name of the event for a lease that began or changed: "leased", "revoking", or "cores" if only its
    number of cores changed. `known`: the lease as it was at the last read; None for a new lease.
    """
    if known is not None and msgspec.structs.replace(known, cores=lease.cores) == lease:
        return "cores"
    return "leased" if lease.state == "held" else lease.state


def _read_lease(lease: Hosted, host: Host) -> LeaseState:
    key = LeaseKey(lease.reservation, lease.component, lease.token)
    return LeaseState(key, lease.state == "revoking", lease.revoke_by, host.offline_timeout)
