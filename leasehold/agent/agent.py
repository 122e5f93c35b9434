"""The agent of a static host: registers the host, sends heartbeats, reports its leases, limits their cores, and leaves.

Heartbeats are sent by a thread of their own, so that a host does not look offline while the agent waits for an answer.
"""

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import msgspec

from leasehold.agent.enforcer import Enforcer
from leasehold.client.backoff import Backoff, shorten
from leasehold.client.hosts import Hosts
from leasehold.client.models import Host, Hosted
from leasehold.client.watch import Hints
from leasehold.errors import NotAnswered, Unavailable

BEATS_A_TIMEOUT: Final = 6
LONGEST_BEAT_SECONDS: Final = 30.0
SHORTEST_BEAT_SECONDS: Final = 0.3
LOOK_SECONDS: Final = 300.0
"""Interval in which a host reads its leases without a hint, in seconds. Heartbeats contain the version of the slot that
the host knows, and a host with an old version gets a hint. This interval is for a hint that is lost.
"""
POLL_SECONDS: Final = 10.0
"""Interval in which a host reads its leases if the workers' answers contain no version, in seconds."""
RETURN_SECONDS: Final = 30.0
"""Longest delay of the first read after heartbeats succeed again. The delay is random, because all hosts lose their
Redis at the same moment.
"""
ASK_SECONDS: Final = 5.0
"""Time limit of one request of the agent in seconds; then the request is sent again."""
RETRY_SECONDS: Final = 1.0
LONGEST_RETRY_SECONDS: Final = 30.0
NOTICE_SECONDS: Final = 0.5
"""Longest delay until the agent reacts to a request to stop, in seconds."""

Report = Callable[[Mapping[str, Any]], object]
"""A function that is called with each event of the agent as a table."""


@dataclass(frozen=True)
class HostSpec:
    """The identity of a host and its resources."""

    slot: str
    pool: str
    machine: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]
    address: str | None = None


class Heart:
    """Sends heartbeats from a thread of its own until it is stopped, and reports when they no longer reach Redis."""

    def __init__(self, hosts: Hosts, spec: HostSpec, report: Report) -> None:
        self._hosts, self._spec, self._report = hosts, spec, report
        self.seconds = LONGEST_BEAT_SECONDS
        """Interval between two heartbeats in seconds."""
        self._is_stopped, self._wake = False, threading.Event()
        self._version: str | None = None
        self._has_returned = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="leasehold-heart", daemon=True)

    def start(self, seconds: float) -> None:
        """Start the heartbeats, or change their interval. Raise the error that ended the thread, if one did."""
        if self._error is not None:
            raise self._error
        is_quicker, self.seconds = seconds < self.seconds, seconds
        if not self._thread.is_alive():
            self._thread.start()
        elif is_quicker:
            self._wake.set()

    def carry(self, version: str | None) -> None:
        """Send `version`, the version of the slot that this host knows, in the heartbeats. A new version is sent at
        once, so that no further hints to read the slot arrive for it.
        """
        is_new, self._version = version != self._version, version
        if is_new:
            self._wake.set()

    def take_return(self) -> bool:
        """Return whether heartbeats reach Redis again after a failure that ended since the last call. Change hints for
        the slot may have been lost during the failure.
        """
        has_returned, self._has_returned = self._has_returned, False
        return has_returned

    def stop(self) -> None:
        """Stop the heartbeats and wait for the thread to end."""
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
                self._hosts.heartbeat(self._spec.slot, self._spec.machine, self._version)
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
    """The agent of one host from `register` to `leave`. `report` is called with each event as a table, from several
    threads.

    `enforcer` limits the cores of the leases' processes; default: no limits.
    """

    def __init__(
        self,
        hosts: Hosts,
        spec: HostSpec,
        report: Report,
        *,
        enforcer: Enforcer | None = None,
        poll_seconds: float = POLL_SECONDS,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._hosts, self._spec, self._report = hosts, spec, report
        self._poll_seconds, self._look_seconds = poll_seconds, look_seconds
        self._retry = Backoff(RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        self._enforcer = enforcer
        self._heart = Heart(hosts, spec, report)
        # Plain attributes and no threading.Event: a signal handler that interrupts Event.set would wait for itself.
        self._is_leaving = self._is_gone = False
        self._held: dict[tuple[str, str, int], Hosted] = {}
        self._has_served = False
        self._is_leave_known = False

    def leave(self) -> None:
        """Drain the slot, and end when its last lease has ended. A second call ends the agent at once."""
        self._is_gone = self._is_leaving
        self._is_leaving = True

    def run(self) -> None:
        """Run the agent until the slot has drained, by this agent or by an operator. Raise Refused if a request is
        refused.
        """
        try:
            if self._register():
                self._serve()
        finally:
            if self._enforcer is not None:
                self._enforcer.lift_all()
            self._heart.stop()

    def _register(self) -> bool:
        """Register the host, and repeat until it is answered. Return False if the agent is asked to leave before."""
        spec, is_reported, retry = self._spec, False, Backoff(RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        while not self._is_leaving:
            try:
                answer = self._hosts.register(**asdict(spec), timeout=ASK_SECONDS)
            except (NotAnswered, Unavailable) as error:
                if not is_reported:
                    self._report({"event": "waiting", "error": str(error)})
                is_reported = True
                until = time.monotonic() + retry.take()
                while (left := until - time.monotonic()) > 0 and not self._is_leaving:
                    time.sleep(min(left, NOTICE_SECONDS))
                continue
            self._has_served = answer.state == "ready"
            self._heart.start(find_beat(answer.offline_timeout))
            self._report({"event": "registered", "slot": spec.slot, "state": answer.state, "machine": spec.machine})
            if self._enforcer is not None:
                self._enforcer.start()
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
                # A slot that still drained at the start is empty now: register again. A slot that has served since
                # then was drained by an operator.
                if is_drained and (self._has_served or self._is_leaving or not self._register()):
                    self._report({"event": "left", "slot": self._spec.slot})
                    return
                self._wait(hints, seconds=self._find_pause(host))
        finally:
            hints.close()

    def _find_pause(self, host: Host | None) -> float:
        """Return the seconds that the agent waits for a change hint before it reads its slot again."""
        if host is None:
            return self._retry.take()
        self._retry.reset()
        return shorten(self._poll_seconds if host.version is None else self._look_seconds)

    @property
    def _has_to_leave(self) -> bool:
        return self._is_leaving and not self._is_leave_known

    def _leave(self) -> None:
        """Report to the workers that the host leaves. Without an answer the next round of the agent sends the report
        again.
        """
        try:
            answer = self._hosts.leave(self._spec.slot, self._spec.machine, timeout=ASK_SECONDS)
        except (NotAnswered, Unavailable) as error:
            self._report({"event": "waiting", "error": str(error)})
            return
        self._is_leave_known = True
        self._report({"event": "leaving", "slot": self._spec.slot, "state": answer.state, "leases": len(self._held)})

    def _look(self) -> Host | None:
        """Read the slot and its leases from the database. Return None without an answer; the next read then follows
        soon.
        """
        try:
            host = self._hosts.leases(self._spec.slot, self._spec.machine, timeout=ASK_SECONDS)
        except (NotAnswered, Unavailable):
            return None
        self._has_served = self._has_served or host.state == "ready"
        self._heart.start(find_beat(host.offline_timeout))
        self._heart.carry(host.version)
        self._compare(host)
        return host

    def _compare(self, host: Host) -> None:
        """Report each lease of the slot that began, changed or ended since the last read."""
        present = {(each.reservation, each.component, each.token): each for each in host.leases}
        for key, lease in self._held.items():
            if key not in present:
                self._report({"event": "ended", "reservation": lease.reservation, "component": lease.component})
        for key, lease in present.items():
            if self._held.get(key) != lease:
                self._report({"event": _name_change(self._held.get(key), lease), **msgspec.to_builtins(lease)})
        self._held = present
        self._enforce(is_thorough=True)

    def _enforce(self, *, is_thorough: bool = False) -> None:
        if self._enforcer is not None:
            self._enforcer.enforce(list(self._held.values()), is_thorough=is_thorough)

    def _wait(self, hints: Hints, seconds: float) -> None:
        """Wait until the slot changes, the seconds have passed, or the agent is asked to leave."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._is_gone:
            if hints.wait(min(left, NOTICE_SECONDS)):
                return
            if self._has_to_leave:
                return
            if self._heart.take_return():
                until = min(until, time.monotonic() + min(RETURN_SECONDS, seconds) * random.random())  # noqa: S311
            self._enforce()


def _name_change(known: Hosted | None, lease: Hosted) -> str:
    """Return the name of a lease's change: `leased`, `revoking`, or `cores` if only its number of cores changed."""
    if known is not None and msgspec.structs.replace(known, cores=lease.cores) == lease:
        return "cores"
    return "leased" if lease.state == "held" else lease.state


def find_beat(offline_timeout: float | None) -> float:
    """Return the seconds between two heartbeats. Several fit into the offline timeout, so that some may be lost."""
    if offline_timeout is None:
        return LONGEST_BEAT_SECONDS
    return min(max(offline_timeout / BEATS_A_TIMEOUT, SHORTEST_BEAT_SECONDS), LONGEST_BEAT_SECONDS)
