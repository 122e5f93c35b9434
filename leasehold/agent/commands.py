"""The requests of a host about the commands of its leases, sent by the client; and the key of a host of a local stack
(`leasehold up`), which the owner of the stack gets without a command.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib.util import find_spec
from typing import Any, Final

import msgspec
from typing_extensions import override

from leasehold.client.client import Client
from leasehold.client.credentials import Credentials
from leasehold.client.discovery import URL_VARIABLE, find_running
from leasehold.client.models import LeaseKey
from leasehold.errors import Refused, read_faults
from leasehold.work.command import HostIdentity, Signer
from leasehold.work.ports import CommandsPort, Outcome, Printed, Renewed, Taken
from scheduler.protocol.names import OWN_STACK_VARIABLE
from scheduler.protocol.signing import format_key_line


def find_own_key(slot: str) -> str | None:
    """Return the key line of the principal of this slot in the stack that runs in this folder or in one above it. If
    there is no such principal, add it: whoever can read the stack's folder may read its database, too.

    Return None if there is no such stack, if its Redis is not its own, if the principal of this name is no host, or if
    the libraries of a server are not installed.
    """
    if os.environ.get(URL_VARIABLE) or find_spec("sqlalchemy") is None:
        return None
    stack = find_running()
    if stack is None or stack.environment.get(OWN_STACK_VARIABLE) != "1":
        return None
    from scheduler.operations.principals import add_principal  # noqa: PLC0415 - an agent elsewhere needs no database
    from scheduler.store.opening import open_store  # noqa: PLC0415 - as above

    with closing(open_store(stack.database_url)) as store:
        found = next((each for each in store.find_principals() if each.name == slot), None)
        if found is None:
            found = add_principal(store, {"name": slot, "role": "host"})
        if found.role != "host":
            return None
        return format_key_line(found.name, found.key, store.read_cluster().identity)


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

    def _ask(self, verb: str, fields: Mapping[LeaseKey, Mapping[str, Any]]) -> dict[LeaseKey, dict[str, Any] | Refused]:
        """Send one request about these leases, with fields for each. Return the answer for each, or its refusal."""
        host, items = self._host, []
        for key, more in fields.items():
            given = {name: value for name, value in more.items() if value is not None}
            items.append({"slot": host.slot, "machine": host.machine, "run": host.run, **key._asdict(), **given})
        answer = self._client.ask(verb, {"items": items}, timeout=ASK_SECONDS)
        if "results" not in answer:
            raise Refused(read_faults(answer.get("errors", [])))
        return {
            key: each if each["ok"] else Refused(read_faults({**fault, "index": 0} for fault in each.get("errors", ())))
            for key, each in zip(fields, answer["results"], strict=True)
        }

    @override
    def take(self, nonces: Mapping[LeaseKey, str]) -> Mapping[LeaseKey, Taken | Refused]:
        answers = self._ask("take", {key: {"nonce": nonce} for key, nonce in nonces.items()})
        return {
            key: each if isinstance(each, Refused) else Taken(each["command"], each["signature"])
            for key, each in answers.items()
        }

    @override
    def started(self, keys: Sequence[LeaseKey]) -> Mapping[LeaseKey, Refused]:
        return _list_refused(self._ask("started", {key: {} for key in keys}))

    @override
    def output(self, reports: Sequence[Printed]) -> None:
        self._ask("output", {each.key: {"tail": each.tail, "bytes": each.bytes} for each in reports})

    @override
    def exited(self, outcomes: Mapping[LeaseKey, Outcome]) -> Mapping[LeaseKey, Refused]:
        return _list_refused(self._ask("exited", {key: msgspec.structs.asdict(each) for key, each in outcomes.items()}))

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


def _list_refused(answers: Mapping[LeaseKey, object]) -> dict[LeaseKey, Refused]:
    return {key: each for key, each in answers.items() if isinstance(each, Refused)}
