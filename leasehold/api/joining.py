"""The resource `POST /hosts/join`: a launched machine sends its proof, or the token of its launch, and gets the key of
its slot.

It needs no key, because the machine has none yet. The proof is checked by AWS (`workers/ec2/identity.py`), the token by
the database. The key travels in this response only, and through no queue.
"""

import os
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from leasehold.api.service import Service, read_body, respond
from leasehold.errors import Fault, Overloaded, Refused, Unavailable
from leasehold.web.server_sent import Places
from scheduler.operations.commands.lease_commands import CommandRefused
from scheduler.operations.machines.joining import Identity, join, join_by_token
from scheduler.protocol.host_proof import ProofError, check_proof
from scheduler.protocol.join_tokens import TOKEN_LENGTH, has_form_of_machine, has_form_of_token
from scheduler.protocol.signing import format_key_line
from workers.ec2.identity import Sts, StsError
from workers.logs import get_logger

MOST_JOINING: Final = 64
"""The most proofs and tokens that are checked at the same time. An address gets a quarter of them at the most."""
log = get_logger(__name__)


class Joining:
    """The handler of proofs and tokens."""

    def __init__(self, service: Service) -> None:
        self._backend = service.backend
        self._places = Places(MOST_JOINING)

    async def join(self, request: Request) -> Response:
        """Give the machine that the proof or the token names the identity of its slot."""
        peer = request.client.host if request.client else "unknown"
        with self._places.using(peer) as has_place:
            if not has_place:
                raise Overloaded("too many machines prove their identity at present")
            body = await read_body(request)
            try:
                identity, cluster = await (self._find_launched(body) if "token" in body else self._identify(body))
            except ProofError as error:
                log.warning("A machine was refused.", action="host.refused", peer=peer, reason=str(error))
                raise Refused([Fault(0, error.path, error.expected, error.got, "forbidden")]) from None
            except CommandRefused as refusal:
                log.warning("A machine was refused.", action="host.refused", peer=peer, reason=str(refusal))
                found = refusal.fault
                raise Refused([Fault(0, found.path, found.expected, found.got, found.code)]) from None
            except StsError as error:
                raise Unavailable(str(error)) from None
        log.info("A machine got the identity of its slot.", action="host.joined", slot=identity.slot, peer=peer)
        line = format_key_line(identity.slot, identity.key, cluster)
        answer = {"slot": identity.slot, "pool": identity.pool, "machine": identity.machine, "key": line}
        return respond(answer, 201)

    async def _find_launched(self, body: dict[str, object]) -> tuple[Identity, str]:
        """Return the identity of the slot of the machine that sends the token of its launch."""
        machine, token = body.get("machine"), body["token"]
        if unknown := sorted(set(body) - {"machine", "token"}):
            raise ProofError("body", "only machine and token", unknown[0][:40])
        if not has_form_of_machine(machine):
            raise ProofError("machine", "the id of an instance", "another value")
        if not has_form_of_token(token):
            raise ProofError("token", f"{TOKEN_LENGTH} characters of base64url", "another value")
        store = self._backend.store
        rules = (await self._backend.run(store.load_rules)).rules
        identity = await self._backend.run(join_by_token, store, rules, str(machine), str(token))
        return identity, (await self._backend.run(store.read_cluster)).identity

    async def _identify(self, body: dict[str, object]) -> tuple[Identity, str]:
        """Return the identity of the slot of the machine that STS names for the proof."""
        headers = body.get("headers")
        if not isinstance(headers, dict):
            raise ProofError("headers", "a table of headers", type(headers).__name__)
        settings, store = self._backend.settings, self._backend.store
        region = settings.aws.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if region is None:
            raise StsError("aws.region is not set")
        cluster = await self._backend.run(store.read_cluster)
        signature = check_proof(headers, cluster=cluster.identity, region=region, now=cluster.now)
        endpoint = settings.aws.endpoint_url
        machine = await Sts(region, endpoint).find_machine({name: str(value) for name, value in headers.items()})
        arn = f"{machine.account}:{machine.role}"
        if arn not in settings.access.join_roles:
            raise ProofError("headers", "an instance profile with a role of `access.join_roles`", arn)
        rules = (await self._backend.run(store.load_rules)).rules
        return await self._backend.run(join, store, rules, machine.machine, signature), cluster.identity
