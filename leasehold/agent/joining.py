"""A launched machine gets the identity of its slot: it proves by the credentials of its instance profile which machine
it is, and receives the key of its slot.

The proof is fresh for each attempt. It needs botocore, the library of AWS (`pip install 'leasehold[agent]'`).
"""

import os
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import httpx

from leasehold.client.backoff import Backoff
from leasehold.client.http.login import read_url
from leasehold.errors import BadCredentials, Fault, Refused, Unavailable, read_faults
from scheduler.protocol.host_proof import CLUSTER, HEADERS, JOIN_PATH, STS_BODY, STS_TYPE
from scheduler.protocol.http_routes import API
from scheduler.protocol.loopback import is_local_url

SECONDS: Final = 15.0
"""Time limit of one attempt."""
RETRY_SECONDS: Final = 1.0
LONGEST_RETRY_SECONDS: Final = 30.0
_LATER: Final = frozenset({"unknown"})
"""Code of the refusal of a machine that the cluster may not know yet: its launch may not be recorded."""


class Identity(NamedTuple):
    """The slot and pool of this machine, its instance id, and the key line of the principal of the slot."""

    slot: str
    pool: str
    machine: str
    key: str


def make_proof(cluster: str, region: str | None) -> dict[str, str]:
    """Return the headers of a fresh proof for the cluster with this identity. `region`: the region of the cluster;
    None: that of the environment, or of this machine. Raises BadCredentials without a region or credentials.
    """
    import botocore.session  # noqa: PLC0415 - only launched machines have it
    from botocore.auth import SigV4Auth  # noqa: PLC0415 - as above
    from botocore.awsrequest import AWSRequest  # noqa: PLC0415 - as above
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - as above

    try:
        session = botocore.session.Session()
        where = region or os.environ.get("AWS_REGION") or session.get_config_variable("region")
        if not where:
            raise BadCredentials("--region: expected the AWS region of the cluster, got nothing")
        credentials = session.get_credentials()
        if credentials is None:
            raise BadCredentials("expected the credentials of an instance profile on this machine, got none")
        client = session.create_client("sts", region_name=where)
        request = AWSRequest("POST", client.meta.endpoint_url, {"Content-Type": STS_TYPE, CLUSTER: cluster}, STS_BODY)
        SigV4Auth(credentials.get_frozen_credentials(), "sts", where).add_auth(request)
    except BotoCoreError as error:
        raise BadCredentials(f"the identity of this machine cannot be proved: {error}") from None
    return {name.lower(): str(value) for name, value in request.headers.items() if name.lower() in HEADERS}


def join(
    url: str,
    cluster: str,
    region: str | None,
    report: Callable[[Mapping[str, Any]], object],
    *,
    seconds: float = 900.0,
) -> Identity:
    """Ask the HTTP API at `url` for the identity of the slot of this machine, again and again for `seconds`, while the
    API does not answer or does not know the machine yet. `report`: called with each attempt that has to be repeated.

    Raises Refused, BadCredentials, and Unavailable when the time is over.
    """
    parts = read_url(url)
    if parts.scheme.lower() != "https" and not is_local_url(url):
        raise BadCredentials(f"{url}: expected https, by which the key of the slot is sent, got {parts.scheme}")
    target = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}{API}{JOIN_PATH}"
    # The certificates that the system trusts; no proxy and no netrc of the environment.
    verify = ssl.create_default_context() if parts.scheme.lower() == "https" else False
    end, retry = time.monotonic() + seconds, Backoff(RETRY_SECONDS, LONGEST_RETRY_SECONDS)
    with httpx.Client(verify=verify, trust_env=False, timeout=SECONDS, follow_redirects=False) as client:
        while True:
            try:
                answer = client.post(target, json={"headers": make_proof(cluster, region)})
                return _read(answer)
            except (httpx.HTTPError, Unavailable) as error:
                why = str(error) or type(error).__name__
            pause = retry.take()
            if time.monotonic() + pause > end:
                raise Unavailable(f"{url}: this machine got no identity within {seconds:g} s: {why}")
            report({"event": "waiting", "error": why})
            time.sleep(pause)


def _read(answer: httpx.Response) -> Identity:
    """Return the identity in an answer. Raises Refused, and Unavailable if a later attempt may succeed."""
    try:
        content = answer.json()
    except ValueError:
        content = {}
    if answer.is_success:
        found = [content.get(name) for name in Identity._fields] if isinstance(content, dict) else []
        if not found or not all(isinstance(each, str) for each in found):
            raise Unavailable("the answer has no identity: is this the address of Leasehold's HTTP API?")
        return Identity(*map(str, found))
    faults = read_faults(content.get("errors") or []) if isinstance(content, dict) else []
    if faults and not any(each.code in _LATER for each in faults):
        raise Refused(faults)
    if not faults and answer.is_client_error and answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
        raise Refused([Fault(0, "url", "the address of Leasehold's HTTP API", f"status {answer.status_code}")])
    raise Unavailable(str(Refused(faults)) if faults else f"status {answer.status_code}")
