"""The proof of a launched machine: a request `GetCallerIdentity` to AWS STS, which the machine signs with the
credentials of its instance profile, and which the server sends. STS answers with the id of the instance.

The signature covers a header with the identity of the cluster, so the proof of one cluster is of no use for another
one. The server builds the address itself: only the headers come from the machine. This module imports only the standard
library, because machines use it.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

JOIN_PATH: Final = "/hosts/join"
"""Resource of the HTTP API to which a machine sends its proof. It needs no key."""
STS_BODY: Final = "Action=GetCallerIdentity&Version=2011-06-15"
STS_TYPE: Final = "application/x-www-form-urlencoded; charset=utf-8"
AUTHORIZATION: Final = "authorization"
DATE: Final = "x-amz-date"
TOKEN: Final = "x-amz-security-token"  # noqa: S105 - the name of a header
CLUSTER: Final = "x-leasehold-cluster"
HEADERS: Final = frozenset({AUTHORIZATION, DATE, TOKEN, CLUSTER})
"""The headers of a proof, in lower case."""
FRESH_SECONDS: Final = 300.0
"""Largest difference in seconds between the date of a proof and cluster time."""
MOST_TEXT: Final = 4096
"""The most characters of a header. Session tokens have about 1,000."""
_SIGNED: Final = frozenset({"host", DATE, CLUSTER})
"""The headers that a signature has to cover."""
_MAY_SIGN: Final = _SIGNED | {"content-type", TOKEN}
_AUTHORIZATION: Final = re.compile(
    r"AWS4-HMAC-SHA256 Credential=[A-Za-z0-9]{4,128}/[0-9]{8}/(?P<region>[a-z0-9-]{1,40})/sts/aws4_request, ?"
    r"SignedHeaders=(?P<signed>[a-z0-9;-]{1,400}), ?Signature=(?P<signature>[0-9a-f]{64})",
    re.ASCII,
)
_ARN: Final = re.compile(
    r"arn:aws[a-z-]*:sts::(?P<account>[0-9]{12}):assumed-role/(?P<role>[A-Za-z0-9+=,.@_-]{1,64})/(?P<machine>i-[0-9a-f]{8,17})",
    re.ASCII,
)


class ProofError(ValueError):
    """Raised for a proof that is malformed, too old, or for another cluster. `expected` and `got` are for the sender;
    they contain no secret.
    """

    def __init__(self, path: str, expected: str, got: str) -> None:
        self.path, self.expected, self.got = path, expected, got
        super().__init__(f"{path}: expected {expected}, got {got}")


class ProvenMachine(NamedTuple):
    """The machine that STS named: the AWS account, the role of its instance profile, and the id of the instance."""

    account: str
    role: str
    machine: str


def check_proof(headers: Mapping[str, object], *, cluster: str, region: str, now: float) -> str:
    """Return the signature of a proof, which identifies it. `cluster`: the identity of this cluster. `region`: the
    region whose STS is asked. `now`: cluster time. Raises ProofError.
    """
    unknown = sorted(set(headers) - HEADERS)
    if unknown:
        raise ProofError("headers", f"only {', '.join(sorted(HEADERS))}", unknown[0][:40])
    texts = {name: _read_text(name, value) for name, value in headers.items()}
    for name in (AUTHORIZATION, DATE, CLUSTER):
        if name not in texts:
            raise ProofError(f"headers.{name}", "a text", "nothing")
    found = _AUTHORIZATION.fullmatch(texts[AUTHORIZATION])
    if found is None:
        raise ProofError(f"headers.{AUTHORIZATION}", "a signature of version 4 for the service sts", "another text")
    signed = set(found["signed"].split(";"))
    if not _SIGNED <= signed <= _MAY_SIGN or (TOKEN in texts) != (TOKEN in signed):
        wanted = f"a signature that covers {', '.join(sorted(_SIGNED))} and the token"
        raise ProofError(f"headers.{AUTHORIZATION}", wanted, ";".join(sorted(signed))[:80])
    if found["region"] != region:
        raise ProofError(f"headers.{AUTHORIZATION}", f"a signature for the region {region}", found["region"])
    if texts[CLUSTER] != cluster:
        raise ProofError(f"headers.{CLUSTER}", "the identity of this cluster", "another one")
    age = now - _read_date(texts[DATE])
    if abs(age) > FRESH_SECONDS:
        raise ProofError(f"headers.{DATE}", f"a time within {FRESH_SECONDS:.0f} s of cluster time", f"{age:.0f} s ago")
    return found["signature"]


def read_arn(arn: str) -> ProvenMachine:
    """Return the machine that an ARN names. Raises ProofError for the ARN of a user, or of a role that no instance
    assumed.
    """
    found = _ARN.fullmatch(arn)
    if found is None:
        raise ProofError("headers", "the credentials of an instance profile", arn[:200])
    return ProvenMachine(found["account"], found["role"], found["machine"])


def _read_text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.isascii() or not value.isprintable() or len(value) > MOST_TEXT:
        raise ProofError(f"headers.{name}", f"at most {MOST_TEXT} printable ASCII characters", "others")
    return value


def _read_date(text: str) -> float:
    try:
        return datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise ProofError(f"headers.{DATE}", "a time like 20261129T120000Z", text[:40]) from None
