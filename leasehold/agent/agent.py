"""The agent of a host: registers it, sends its heartbeats, reports its leases, limits their cores, and drains it.

Heartbeats have a thread and a path of their own, so the host does not look dead while a request waits for an answer.
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
"""How often a host requests its leases without a hint. Its heartbeats carry the version of the slot that it knows, and
a host with an old version gets a hint. This interval applies if hints are lost.
"""
POLL_SECONDS: Final = 10.0
"""The same interval if the answers of the workers contain no version."""
RETURN_SECONDS: Final = 30.0
"""After heartbeats succeed again, a host requests its leases at a random instant within this time, because all hosts
lost Redis at the same moment.
"""
ASK_SECONDS: Final = 5.0
"""Time limit of one request; after it the request is sent again."""
RETRY_SECONDS: Final = 1.0
LONGEST_RETRY_SECONDS: Final = 30.0
NOTICE_SECONDS: Final = 0.5
"""The longest time until the agent notices that it has to stop."""

Report = Callable[[Mapping[str, Any]], object]
"""Called with each event as a table."""


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
    """Sends heartbeats from a thread of its own. Reports when they fail and when they succeed again."""

    def __init__(self, hosts: Hosts, spec: HostSpec, report: Report) -> None:
        self._hosts, self._spec, self._report = hosts, spec, report
        self.seconds = LONGEST_BEAT_SECONDS
        """The pause between two heartbeats."""
        self._is_stopped, self._wake = False, threading.Event()
        self._version: str | None = None
        self._has_returned = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="leasehold-heart", daemon=True)

    def start(self, seconds: float) -> None:
        """Start the thread, or change the pause (a shorter one at once). Raises the error that ended the thread."""
        if self._error is not None:
            raise self._error
        is_quicker, self.seconds = seconds < self.seconds, seconds
        if not self._thread.is_alive():
            self._thread.start()
        elif is_quicker:
            self._wake.set()

    def carry(self, version: str | None) -> None:
        """Send this version of the slot with the heartbeats; a new one at once, because it ends the hints about it."""
        is_new, self._version = version != self._version, version
        if is_new:
            self._wake.set()

    def take_return(self) -> bool:
        """Return whether heartbeats have succeeded again since the last call: hints may have been lost meanwhile."""
        has_returned, self._has_returned = self._has_returned, False
        return has_returned

    def stop(self) -> None:
        """Stop the thread and wait for its end."""
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
    """Serves one host from `register` to `leave`. `report` is called from several threads.

    `enforcer`: limits the processes of the host's leases; default: they are not limited.
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
        """Drain the host and end `run` when the last lease has ended. The second call ends it at once."""
        self._is_gone = self._is_leaving
        self._is_leaving = True

    def run(self) -> None:
        """Serve until the slot is drained, by `leave` or by an operator. Raises Refused."""
        try:
            if self._register():
                self._serve()
        finally:
            if self._enforcer is not None:
                self._enforcer.lift_all()
            self._heart.stop()

    def _register(self) -> bool:
        """Register the host, however long it takes. Return False if the agent has to leave before. Raises Refused."""
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
        """Return how many seconds to wait for a hint before the leases are read again."""
        if host is None:
            return self._retry.take()
        self._retry.reset()
        return shorten(self._poll_seconds if host.version is None else self._look_seconds)

    @property
    def _has_to_leave(self) -> bool:
        return self._is_leaving and not self._is_leave_known

    def _leave(self) -> None:
        """Report to the workers that the host leaves. Without an answer the next round tries again."""
        try:
            answer = self._hosts.leave(self._spec.slot, self._spec.machine, timeout=ASK_SECONDS)
        except (NotAnswered, Unavailable) as error:
            self._report({"event": "waiting", "error": str(error)})
            return
        self._is_leave_known = True
        self._report({"event": "leaving", "slot": self._spec.slot, "state": answer.state, "leases": len(self._held)})

    def _look(self) -> Host | None:
        """Return the row of the slot from the database; None without an answer."""
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
        """Report each lease that is new, has changed or has ended."""
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
        """Wait until the slot changed, the time is over, or the agent has to leave; limit new processes meanwhile."""
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
    """Return the event of a lease that is new (`leased`), has another state, or may use other `cores`."""
    if known is not None and msgspec.structs.replace(known, cores=lease.cores) == lease:
        return "cores"
    return "leased" if lease.state == "held" else lease.state


def find_beat(offline_timeout: float | None) -> float:
    """Return the seconds between two heartbeats: several in the timeout, so that one may be lost."""
    if offline_timeout is None:
        return LONGEST_BEAT_SECONDS
    return min(max(offline_timeout / BEATS_A_TIMEOUT, SHORTEST_BEAT_SECONDS), LONGEST_BEAT_SECONDS)
