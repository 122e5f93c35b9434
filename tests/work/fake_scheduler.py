"""The scheduler's side of commands, in memory. With a file it outlives the process that has it."""

import hashlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from leasehold.errors import Fault, Refused, Unavailable
from leasehold.work.command import HostIdentity, Signer
from leasehold.work.ports import LeaseKey, Outcome, Printed, Renewed, Taken
from leasehold.work.runner import LeaseState
from scheduler.protocol.signing import RunFields, sign_run

SIGNER: Final = Signer("lab-1", bytes(range(32)), "c1")
TTL: Final = 30.0


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
        return sum(each == verb for each, _ in self.requests)

    def _note(self, verb: str, detail: Any) -> None:
        with self._lock:
            self.requests.append((verb, detail))
        if self.is_silent:
            raise Unavailable("silent")
        if verb in self.refusals:
            raise self.refusals[verb]

    def take(self, key: LeaseKey, nonce: str) -> Taken:
        self._note("take", nonce)
        if key not in self.leases:
            raise refuse("reservation", "unknown")
        if self.takers.setdefault(key, self.host.run) != self.host.run:
            raise refuse("run", "conflict")
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

    def started(self, key: LeaseKey) -> None:
        self._note("started", key)

    def output(self, reports: Sequence[Printed]) -> None:
        self._note("output", list(reports))
        self.outputs += reports

    def exited(self, key: LeaseKey, outcome: Outcome) -> None:
        self._note("exited", (key, outcome))
        self.outcomes.setdefault(key, outcome)

    def renew(self, keys: Sequence[LeaseKey]) -> Mapping[LeaseKey, Renewed | Refused]:
        self._note("renew", list(keys))
        return {key: Renewed(self.ttl) if key in self.leases else refuse("token") for key in keys}

    def now(self) -> float:
        return time.time()

    def describe(self, key: LeaseKey) -> Any:
        return msgspec.to_builtins(self.outcomes[key])
