"""The resource `POST /hosts/join`: a launched machine sends its proof and gets the key of its slot.

It needs no key, because the machine has none yet. The proof is checked by AWS (`workers/ec2/identity.py`); the key
travels in this response only, and through no queue.
"""

import os
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from leasehold.api.service import Service, read_body, respond
from leasehold.errors import Fault, Overloaded, Refused, Unavailable
from leasehold.web.server_sent import Places
from scheduler.operations.commands.lease_commands import CommandRefused
from scheduler.operations.machines.joining import Identity, join
from scheduler.protocol.host_proof import ProofError, check_proof
from scheduler.protocol.signing import format_key_line
from workers.ec2.identity import Sts, StsError
from workers.logs import get_logger

MOST_JOINING: Final = 64
"""The most proofs that wait for AWS at the same time. An address gets a quarter of them at the most."""
log = get_logger(__name__)


class Joining:
    """The handler of proofs."""

    def __init__(self, service: Service) -> None:
        self._backend = service.backend
        self._places = Places(MOST_JOINING)

    async def join(self, request: Request) -> Response:
        """Give the machine that the proof names the identity of its slot."""
        peer = request.client.host if request.client else "unknown"
        with self._places.using(peer) as has_place:
            if not has_place:
                raise Overloaded("too many machines prove their identity at present")
            headers = (await read_body(request)).get("headers")
            if not isinstance(headers, dict):
                raise _refuse(ProofError("headers", "a table of headers", type(headers).__name__))
            try:
                identity, cluster = await self._identify(headers)
            except ProofError as error:
                log.warning("A machine was refused.", action="host.refused", peer=peer, reason=str(error))
                raise _refuse(error) from None
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

    async def _identify(self, headers: dict[str, object]) -> tuple[Identity, str]:
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


def _refuse(error: ProofError) -> Refused:
    return Refused([Fault(0, error.path, error.expected, error.got, "forbidden")])
