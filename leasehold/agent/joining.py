"""A launched machine gets the identity of its slot: it proves which machine it is, and receives the key of its slot.

It proves this by the credentials of its instance profile, afresh for each attempt. That needs botocore, the library of
AWS (`pip install 'leasehold[agent]'`). A machine without an instance profile sends the token of its launch instead. The
token counts once, so this machine keeps its identity in a file.
"""

import json
import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import httpx

from leasehold.client.backoff import Backoff
from leasehold.client.http.login import read_url
from leasehold.errors import BadCredentials, Fault, Refused, Unavailable, read_faults
from scheduler.protocol.host_proof import CLUSTER, HEADERS, JOIN_PATH, STS_BODY, STS_TYPE
from scheduler.protocol.http_routes import API
from scheduler.protocol.join_tokens import has_form_of_machine
from scheduler.protocol.loopback import is_local_url

SECONDS: Final = 15.0
"""Time limit of one attempt."""
RETRY_SECONDS: Final = 1.0
LONGEST_RETRY_SECONDS: Final = 30.0
_LATER: Final = frozenset({"unknown"})
"""Code of the refusal of a machine that the cluster may not know yet: its launch may not be recorded."""
IDENTITY_FILE: Final = "identity.json"
"""File in the state folder of the agent with the identity that the machine got for its token. Mode 0600."""
METADATA_URL: Final = "http://169.254.169.254"
METADATA_VARIABLE: Final = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
"""Variable of the environment with another address of the metadata service, as AWS' own libraries read it."""
METADATA_SECONDS: Final = 5.0
"""Time limit of a request to the metadata service."""


Result = TypeVar("Result")


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


def find_instance_id() -> str:
    """Return the id of this instance, from version 2 of EC2's metadata service. Raises Unavailable without one."""
    url = (os.environ.get(METADATA_VARIABLE) or METADATA_URL).rstrip("/")
    try:
        with httpx.Client(trust_env=False, timeout=METADATA_SECONDS, follow_redirects=False) as client:
            session = client.put(f"{url}/latest/api/token", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"})
            session.raise_for_status()
            found = client.get(
                f"{url}/latest/meta-data/instance-id", headers={"X-aws-ec2-metadata-token": session.text}
            )
            found.raise_for_status()
    except httpx.HTTPError as error:
        raise Unavailable(f"the metadata service of this machine: {str(error) or type(error).__name__}") from None
    if not has_form_of_machine(found.text):
        raise Unavailable("the metadata service of this machine: expected the id of an instance, got another text")
    return found.text


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
    return _join(url, lambda: {"headers": make_proof(cluster, region)}, report, seconds)


def join_by_token(
    url: str,
    cluster: str,
    token: str,
    state: Path,
    report: Callable[[Mapping[str, Any]], object],
    *,
    seconds: float = 900.0,
) -> Identity:
    """Return the identity that this machine has kept in the folder `state`. If it has none, ask for it as `join` does,
    with the token of its launch, and keep it.

    Raises Refused, BadCredentials, Unavailable when the time is over, and OSError if the folder cannot be written. The
    token is not used then.
    """
    _find_target(url)
    kept = state / IDENTITY_FILE
    machines: list[str] = []

    def find_machine() -> str:
        machines[:] = machines or [find_instance_id()]
        return machines[0]

    found = _repeat(url, lambda: _read_kept(kept, cluster, find_machine()), report, seconds)
    if found is not None:
        return found
    with _writing_privately(kept) as write:
        identity = _join(url, lambda: {"machine": find_machine(), "token": token}, report, seconds)
        write(json.dumps({"cluster": cluster, **identity._asdict()}))
    return identity


def _read_kept(path: Path, cluster: str, machine: str) -> Identity | None:
    """Return the identity in a file; None if it is that of another machine or cluster: an image that was made of a
    machine contains its file.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(content, dict) or (content.get("cluster"), content.get("machine")) != (cluster, machine):
        return None
    found = [content.get(name) for name in Identity._fields]
    return Identity(*map(str, found)) if all(isinstance(each, str) for each in found) else None


@contextmanager
def _writing_privately(path: Path) -> Iterator[Callable[[str], object]]:
    """Make a file that only this user can read, and yield the function that writes its text. The file is complete or as
    it was before. Raises OSError before the `with` block if it cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        try:
            yield file.write
            file.flush()
            os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def _join(
    url: str,
    make_body: Callable[[], Mapping[str, Any]],
    report: Callable[[Mapping[str, Any]], object],
    seconds: float,
) -> Identity:
    target = _find_target(url)
    # The certificates that the system trusts; no proxy and no netrc of the environment.
    verify = ssl.create_default_context() if target.lower().startswith("https:") else False
    with httpx.Client(verify=verify, trust_env=False, timeout=SECONDS, follow_redirects=False) as client:
        return _repeat(url, lambda: _read(client.post(target, json=make_body())), report, seconds)


def _find_target(url: str) -> str:
    parts = read_url(url)
    if parts.scheme.lower() != "https" and not is_local_url(url):
        raise BadCredentials(f"{url}: expected https, by which the key of the slot is sent, got {parts.scheme}")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}{API}{JOIN_PATH}"


def _repeat(
    url: str, attempt: Callable[[], Result], report: Callable[[Mapping[str, Any]], object], seconds: float
) -> Result:
    """Repeat `attempt` while it cannot reach its server or is put off, and return its result."""
    end, retry = time.monotonic() + seconds, Backoff(RETRY_SECONDS, LONGEST_RETRY_SECONDS)
    while True:
        try:
            return attempt()
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
