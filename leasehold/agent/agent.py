"""The agent of a host: registers it, sends its heartbeats, reports its leases, limits their cores, and leaves cleanly.

Heartbeats have a thread and a path of their own, so nothing that the rest waits for makes the host look dead.
"""

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
"""How often a host asks for its leases without a hint. Its heartbeats carry the version that it knows, and a host whose
version is old is hinted at; this is for a hint that never comes.
"""
POLL_SECONDS: Final = 10.0
"""The same where the workers' answers have no version."""
RETURN_SECONDS: Final = 30.0
"""After heartbeats came through again, a host asks within this time: all hosts lost their Redis at the same moment."""
ASK_SECONDS: Final = 5.0
"""How long one question is waited for; then it is asked again."""
RETRY_SECONDS: Final = 1.0
LONGEST_RETRY_SECONDS: Final = 30.0
NOTICE_SECONDS: Final = 0.5
"""How long it takes at most to notice that the agent is to stop."""

Tell = Callable[[Mapping[str, Any]], object]


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
    """Sends heartbeats from a thread of its own until it is stopped; reports when they stop to arrive."""

    def __init__(self, hosts: Hosts, spec: HostSpec, tell: Tell) -> None:
        self._hosts, self._spec, self._tell = hosts, spec, tell
        self.seconds = LONGEST_BEAT_SECONDS
        """Between two heartbeats."""
        self._is_stopped, self._wake = False, threading.Event()
        self._version: str | None = None
        self._has_returned = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="leasehold-heart", daemon=True)

    def start(self, seconds: float) -> None:
        """Begin, or go on at another pace, a quicker one from now on. Raises what ended it."""
        if self._error is not None:
            raise self._error
        is_quicker, self.seconds = seconds < self.seconds, seconds
        if not self._thread.is_alive():
            self._thread.start()
        elif is_quicker:
            self._wake.set()

    def carry(self, version: str | None) -> None:
        """Name this version of the slot in the heartbeats; a new one at once, so that no more hints come for it."""
        is_new, self._version = version != self._version, version
        if is_new:
            self._wake.set()

    def take_return(self) -> bool:
        """Whether heartbeats came through again since the last call: hints may have been lost meanwhile."""
        has_returned, self._has_returned = self._has_returned, False
        return has_returned

    def stop(self) -> None:
        """Stop; what is under way is waited for."""
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
        is_heard = True
        while not self._is_stopped:
            try:
                self._hosts.heartbeat(self._spec.slot, self._spec.machine, self._version)
            except Unavailable as error:
                if is_heard:
                    self._tell({"event": "unreachable", "error": str(error)})
                is_heard = False
            else:
                if not is_heard:
                    self._tell({"event": "reachable"})
                    self._has_returned = True
                is_heard = True
            self._wake.wait(self.seconds if is_heard else min(self.seconds, RETRY_SECONDS))
            self._wake.clear()


class HostAgent:
    """One host's life from `register` to `leave`. `tell` gets each event as a table, from several threads.

    `enforcer`: limits the processes of its leases; default: they are not limited.
    """

    def __init__(
        self,
        hosts: Hosts,
        spec: HostSpec,
        tell: Tell,
        *,
        enforcer: Enforcer | None = None,
        poll_seconds: float = POLL_SECONDS,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._hosts, self._spec, self._tell = hosts, spec, tell
        self._poll_seconds, self._look_seconds = poll_seconds, look_seconds
        self._retry = Backoff(RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        self._enforcer = enforcer
        self._heart = Heart(hosts, spec, tell)
        # No events: a handler of signals that comes between the lines of one would wait for itself.
        self._is_leaving = self._is_gone = False
        self._held: dict[tuple[str, str, int], Hosted] = {}
        self._has_served = False
        self._has_said_leave = False

    def leave(self) -> None:
        """Drain and end when the last lease has ended; the second call ends it now."""
        self._is_gone = self._is_leaving
        self._is_leaving = True

    def run(self) -> None:
        """Serve until the slot is drained, by us or by an operator. Raises Refused."""
        try:
            if self._register():
                self._serve()
        finally:
            if self._enforcer is not None:
                self._enforcer.lift_all()
            self._heart.stop()

    def _register(self) -> bool:
        """Until we are in; False: we are to go before."""
        spec = self._spec
        answer = self._insist(
            lambda: self._hosts.register(
                spec.slot,
                pool=spec.pool,
                machine=spec.machine,
                resources=spec.resources,
                labels=spec.labels,
                address=spec.address,
                timeout=ASK_SECONDS,
            )
        )
        if answer is None:
            return False
        self._has_served = answer.state == "ready"
        self._heart.start(find_beat(answer.offline_timeout))
        self._tell({"event": "registered", "slot": spec.slot, "state": answer.state, "machine": spec.machine})
        if self._enforcer is not None:
            self._enforcer.start()
        return True

    def _insist(self, ask: Callable[[], Any]) -> Any:
        """The answer, however long it takes; None when we are to go before. Raises Refused."""
        is_known, retry = False, Backoff(RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        while not self._is_leaving:
            try:
                return ask()
            except (NotAnswered, Unavailable) as error:
                if not is_known:
                    self._tell({"event": "waiting", "error": str(error)})
                is_known = True
                self._rest(retry.take())
        return None

    def _rest(self, seconds: float) -> None:
        """Wait this number of seconds, or until the agent is to end."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._is_leaving:
            time.sleep(min(left, NOTICE_SECONDS))

    def _serve(self) -> None:
        hints = self._hosts.hints(self._spec.slot)
        hints.listen()
        try:
            while not self._is_gone:
                if self._is_leaving and not self._has_said_leave:
                    self._say_leave()
                hints.forget()
                host = self._look()
                if host is not None and host.state == "empty" and not self._is_back():
                    self._tell({"event": "left", "slot": self._spec.slot})
                    return
                self._wait(hints, seconds=self._find_pause(host))
        finally:
            hints.close()

    def _find_pause(self, host: Host | None) -> float:
        """How long to wait for a hint before the next look."""
        if host is None:
            return self._retry.take()
        self._retry.reset()
        return shorten(self._poll_seconds if host.version is None else self._look_seconds)

    def _is_back(self) -> bool:
        """A slot that still drained when we came is empty now: then we register again. One that served was drained."""
        return not self._has_served and not self._is_leaving and self._register()

    def _say_leave(self) -> None:
        try:
            answer = self._hosts.leave(self._spec.slot, self._spec.machine, timeout=ASK_SECONDS)
        except (NotAnswered, Unavailable) as error:
            self._tell({"event": "waiting", "error": str(error)})
            return
        self._has_said_leave = True
        self._tell({"event": "leaving", "slot": self._spec.slot, "state": answer.state, "leases": len(self._held)})

    def _look(self) -> Host | None:
        """Return the row of the slot from the database; None without an answer (the next look is soon)."""
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
        """Report each lease that came, changed or ended."""
        present = {(each.reservation, each.component, each.token): each for each in host.leases}
        for key, lease in self._held.items():
            if key not in present:
                self._tell({"event": "ended", "reservation": lease.reservation, "component": lease.component})
        for key, lease in present.items():
            if self._held.get(key) != lease:
                self._tell({"event": _name_change(self._held.get(key), lease), **msgspec.to_builtins(lease)})
        self._held = present
        self._enforce(is_thorough=True)

    def _enforce(self, *, is_thorough: bool = False) -> None:
        if self._enforcer is not None:
            self._enforcer.enforce(list(self._held.values()), is_thorough=is_thorough)

    def _wait(self, hints: Hints, seconds: float) -> None:
        """Wait until the slot changed, the seconds are over, or the agent has something to do."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._is_gone:
            if hints.wait(min(left, NOTICE_SECONDS)):
                return
            if self._is_leaving and not self._has_said_leave:
                return
            if self._heart.take_return():
                until = min(until, time.monotonic() + min(RETURN_SECONDS, seconds) * random.random())  # noqa: S311
            self._enforce()


def _name_change(known: Hosted | None, lease: Hosted) -> str:
    """What happened to a lease: it is new, is to be given back, or may use more or fewer cores."""
    if known is not None and msgspec.structs.replace(known, cores=lease.cores) == lease:
        return "cores"
    return "leased" if lease.state == "held" else lease.state


def find_beat(offline_timeout: float | None) -> float:
    """Seconds between two heartbeats: several in the timeout, so that one may be lost."""
    if offline_timeout is None:
        return LONGEST_BEAT_SECONDS
    return min(max(offline_timeout / BEATS_A_TIMEOUT, SHORTEST_BEAT_SECONDS), LONGEST_BEAT_SECONDS)
