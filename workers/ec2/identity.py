"""Ask AWS STS which machine sent a proof (`scheduler/protocol/host_proof.py`).

The address is that of STS in the region of the settings, or the endpoint of the settings (the emulator). Nothing that a
machine sent decides where the request goes.
"""

from collections.abc import Mapping
from typing import Final
from xml.etree import ElementTree as ET

import httpx

from scheduler.protocol.host_proof import HEADERS, STS_BODY, STS_TYPE, ProofError, ProvenMachine, read_arn
from scheduler.protocol.loopback import is_local_url

SECONDS: Final = 5.0
"""Time limit of a request to STS."""
MOST_BYTES: Final = 64 * 1024
_NAMESPACE: Final = "{https://sts.amazonaws.com/doc/2011-06-15/}"


class StsError(Exception):
    """Raised if STS gives no usable answer. The proof may be sent again."""


def find_sts_url(region: str, endpoint_url: str | None) -> str:
    """Return the address of STS in a region; `endpoint_url` (the emulator) replaces it."""
    if endpoint_url is not None:
        return endpoint_url
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"https://sts.{region}.{suffix}/"


class Sts:
    """STS of one region."""

    def __init__(self, region: str, endpoint_url: str | None = None) -> None:
        self._url = find_sts_url(region, endpoint_url)

    async def find_machine(self, headers: Mapping[str, str]) -> ProvenMachine:
        """Return the machine whose credentials signed these headers, which `check_proof` has checked. Raises ProofError
        if AWS refuses the signature or names no machine, and StsError.
        """
        given = {name: value for name, value in headers.items() if name in HEADERS} | {"content-type": STS_TYPE}
        # No proxy on the way to an emulator on this host.
        is_local = is_local_url(self._url)
        try:
            async with httpx.AsyncClient(timeout=SECONDS, follow_redirects=False, trust_env=not is_local) as client:
                answer = await client.post(self._url, content=STS_BODY, headers=given)
        except httpx.HTTPError as error:
            raise StsError(f"AWS STS cannot be reached: {str(error) or type(error).__name__}") from None
        if len(answer.content) > MOST_BYTES:
            raise StsError("AWS STS sent too long an answer")
        if answer.is_server_error or answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
            raise StsError(f"AWS STS answered with status {answer.status_code}")
        if not answer.is_success:
            raise ProofError("headers.authorization", "a signature that AWS accepts", f"status {answer.status_code}")
        try:
            arn = ET.fromstring(answer.content).findtext(f".//{_NAMESPACE}Arn")  # noqa: S314 - AWS's own answer
        except ET.ParseError:
            raise StsError("AWS STS sent an answer that is no XML") from None
        if arn is None:
            raise StsError("AWS STS sent an answer without an ARN")
        return read_arn(arn)
