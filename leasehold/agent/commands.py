"""The requests of a host about the commands of its leases, sent by the client."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from typing_extensions import override

from leasehold.client.client import Client
from leasehold.client.core import hosts as client_hosts
from leasehold.client.credentials import Credentials
from leasehold.errors import Refused
from leasehold.work.command import HostIdentity, Signer
from leasehold.work.ports import CommandsPort, LeaseKey, Outcome, Printed, Renewed, Taken

ASK_SECONDS: Final = 5.0
"""Time limit for the answer to a request, in seconds."""


def find_signer(credentials: Credentials | None) -> Signer | None:
    """Return the principal with whose key commands are verified; None if the key or the id of its cluster is not known.
    The id is not read from Redis, because whoever writes there could name another cluster.
    """
    if credentials is None or credentials.cluster is None:
        return None
    return Signer(credentials.principal, credentials.key, credentials.cluster)


class HostCommands(CommandsPort):
    """See CommandsPort. The requests belong to one run of the agent of one host."""

    def __init__(self, client: Client, host: HostIdentity) -> None:
        self._client, self._host = client, host

    def _name(self, key: LeaseKey) -> dict[str, Any]:
        lease = {"reservation": key.reservation, "component": key.component, "token": key.token}
        return {"slot": self._host.slot, "machine": self._host.machine, "run": self._host.run, **lease}

    @override
    def take(self, key: LeaseKey, nonce: str) -> Taken:
        found = self._client.hosts.take(**self._name(key), nonce=nonce, timeout=ASK_SECONDS)
        return Taken(found.command, found.signature)

    @override
    def started(self, key: LeaseKey) -> None:
        self._client.hosts.started(**self._name(key), timeout=ASK_SECONDS)

    @override
    def output(self, reports: Sequence[Printed]) -> None:
        printed: list[client_hosts.Printed] = [
            {
                "reservation": each.key.reservation,
                "component": each.key.component,
                "token": each.key.token,
                "tail": each.tail,
                "bytes": each.bytes,
            }
            for each in reports
        ]
        host = self._host
        self._client.hosts.output(host.slot, host.machine, run=host.run, reports=printed, timeout=ASK_SECONDS)

    @override
    def exited(self, key: LeaseKey, outcome: Outcome) -> None:
        self._client.hosts.exited(**self._name(key), **msgspec.structs.asdict(outcome), timeout=ASK_SECONDS)

    @override
    def renew(self, keys: Sequence[LeaseKey]) -> Mapping[LeaseKey, Renewed | Refused]:
        # A renewal moves the expiry of the reservation, whichever of its leases proves the sender.
        tokens: dict[str, int | None] = {key.reservation: key.token for key in keys}
        answers = dict(zip(tokens, self._client.renew_many(tokens, timeout=ASK_SECONDS), strict=True))
        found: dict[LeaseKey, Renewed | Refused] = {}
        for key in keys:
            answer = answers[key.reservation]
            found[key] = Renewed(answer.ttl) if answer.ok else Refused(answer.errors)
        return found

    @override
    def now(self) -> float:
        return self._client.now()
