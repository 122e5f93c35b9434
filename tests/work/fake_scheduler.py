"""The scheduler's side of commands, in memory. With a file it outlives the process that has it."""

import hashlib
import json
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from leasehold.client.models import LeaseKey
from leasehold.errors import Fault, NotAnswered, Refused, Unavailable
from leasehold.work.command import HostIdentity, Signer
from leasehold.work.jobs import LeaseState
from leasehold.work.ports import Outcome, Printed, Renewed, Taken
from scheduler.protocol.signing import RunFields, sign_run

SIGNER: Final = Signer("lab-1", bytes(range(32)), "c1")
TTL: Final = 30.0
PATIENCE: Final = 30.0


def refuse(path: str, code: str | None = None) -> Refused:
    return Refused([Fault(0, path, "another", "this", code)])


class FakeScheduler:
    """Leases with commands on one slot. A test changes the fields while a host works."""

    def __init__(self, host: HostIdentity, path: Path | None = None) -> None:
        self.host, self._path = host, path
        self.commands: dict[LeaseKey, dict[str, Any]] = {}
        self.leases: dict[LeaseKey, LeaseState] = {}
        self.takers: dict[LeaseKey, str] = {}
        self.requests: list[tuple[str, Any]] = []
        self.outcomes: dict[LeaseKey, Outcome] = {}
        self.outputs: list[Printed] = []
        self.ttl: float | None = TTL
        self.offline_timeout: float | None = None
        self.is_silent = False
        self.refusals: dict[str, Refused] = {}
        self.spoiled: dict[str, Any] = {}
        """Fields that a signature is made for, in place of those of the request."""
        self.refused: dict[tuple[str, str], Refused] = {}
        """(verb, reservation) -> the refusal of its part of a request."""
        self.held_back: dict[tuple[str, str], threading.Event] = {}
        """(verb, reservation) -> the event until which a request about it gets no answer."""
        self.broken: set[str] = set()
        """Reservations about which no request gets an answer."""
        self.signer = SIGNER
        self.replay: Taken | None = None
        self._lock = threading.RLock()
        if path is not None and path.exists():
            stored = json.loads(path.read_text(encoding="utf-8"))
            self.takers = {LeaseKey(*each[:3]): each[3] for each in stored}

    def lease(
        self, name: str, argv: Sequence[str], *, token: int = 1, component: str = "main", **more: Any
    ) -> LeaseKey:
        """Give the host a lease with a command."""
        key = LeaseKey(name, component, token)
        self.commands[key] = {"argv": list(argv), "grace": 5.0, **more}
        self.leases[key] = LeaseState(key, offline_timeout=self.offline_timeout)
        return key

    def revoke(self, key: LeaseKey, seconds: float) -> None:
        self.leases[key] = LeaseState(key, True, time.time() + seconds, self.offline_timeout)

    def count(self, verb: str) -> int:
        """Return the number of requests with this verb."""
        return sum(each == verb for each, _ in self.requests)

    def _note(self, verb: str, detail: Any) -> None:
        with self._lock:
            self.requests.append((verb, detail))
        if self.is_silent:
            raise Unavailable("silent")
        if verb in self.refusals:
            raise self.refusals[verb]

    def _await_answers(self, verb: str, keys: Iterable[LeaseKey]) -> None:
        """Let a request wait as long as an answer about one of its leases is held back, or fail if one is broken."""
        names = {each.reservation for each in keys}
        for name in names:
            if hold := self.held_back.get((verb, name)):
                assert hold.wait(PATIENCE)
        if names & self.broken:
            raise NotAnswered("broken", "")

    def take(self, nonces: Mapping[LeaseKey, str]) -> Mapping[LeaseKey, Taken | Refused]:
        self._note("take", dict(nonces))
        self._await_answers("take", nonces)
        return {key: self._take(key, nonce) for key, nonce in nonces.items()}

    def _take(self, key: LeaseKey, nonce: str) -> Taken | Refused:
        if key not in self.leases:
            return refuse("reservation", "unknown")
        if self.takers.setdefault(key, self.host.run) != self.host.run:
            return refuse("run", "conflict")
        if self._path is not None:
            self._path.write_text(json.dumps([[*each, run] for each, run in self.takers.items()]), encoding="utf-8")
        if self.replay is not None:
            return self.replay
        more = {"reservation": key.reservation, "component": key.component, "token": key.token}
        more |= {"slot": self.host.slot, "ttl": self.ttl, "offline_timeout": self.offline_timeout}
        text = json.dumps(more | self.commands[key])
        fields = RunFields(
            cluster=self.signer.cluster,
            principal=self.signer.principal,
            slot=self.host.slot,
            machine=self.host.machine,
            run=self.host.run,
            reservation=key.reservation,
            component=key.component,
            token=str(key.token),
            nonce=nonce,
            command_sha256=hashlib.sha256(text.encode()).hexdigest(),
        )
        return Taken(text, sign_run(self.signer.key, fields._replace(**self.spoiled)))

    def started(self, keys: Sequence[LeaseKey]) -> Mapping[LeaseKey, Refused]:
        self._note("started", list(keys))
        self._await_answers("started", keys)
        return self._list_refused("started", keys)

    def output(self, reports: Sequence[Printed]) -> None:
        self._note("output", list(reports))
        self.outputs += reports

    def exited(self, outcomes: Mapping[LeaseKey, Outcome]) -> Mapping[LeaseKey, Refused]:
        self._note("exited", dict(outcomes))
        self._await_answers("exited", outcomes)
        refused = self._list_refused("exited", outcomes)
        for key, outcome in outcomes.items():
            if key not in refused:
                self.outcomes.setdefault(key, outcome)
        return refused

    def _list_refused(self, verb: str, keys: Iterable[LeaseKey]) -> dict[LeaseKey, Refused]:
        return {key: found for key in keys if (found := self.refused.get((verb, key.reservation)))}

    def renew(self, keys: Sequence[LeaseKey]) -> Mapping[LeaseKey, Renewed | Refused]:
        self._note("renew", list(keys))
        return {key: Renewed(self.ttl) if key in self.leases else refuse("token") for key in keys}

    def now(self) -> float:
        return time.time()

    def describe(self, key: LeaseKey) -> Any:
        return msgspec.to_builtins(self.outcomes[key])
