"""The join token of a launch: the machines of a pool without an instance profile get it in their user data, and prove
by it to which launch they belong.

It is derived from the key of the cluster's workers and the id of the launch, so it is stored nowhere. All machines of
one launch request have the same token, because they have the same user data. This module imports only the standard
library, because machines use it.
"""

import hashlib
import hmac
import re
from base64 import urlsafe_b64encode
from hmac import compare_digest
from typing import Final

from scheduler.protocol.signing import encode_canonically

VERSION: Final = "leasehold-join-1"
"""First field of the bytes from which a token is derived. No signature has it, so no token is one of a message."""
TOKEN_SECONDS: Final = 900.0
"""Seconds of cluster time after the decision of the launch for which its token counts."""
TOKEN_VARIABLE: Final = "LEASEHOLD_JOIN_TOKEN"  # noqa: S105 - the name of a variable
"""Variable of the environment by which `leasehold host join` gets the token."""
TOKEN_LENGTH: Final = 43
"""Characters of a token: 32 bytes in base64url without padding."""
TOKEN_PLACE: Final = "@leasehold-join-token".ljust(TOKEN_LENGTH, "@")
"""Stands for the token in a stored launch request. It has the length of a token and is none."""
_TOKEN: Final = re.compile(rf"[A-Za-z0-9_-]{{{TOKEN_LENGTH}}}", re.ASCII)
_MACHINE: Final = re.compile(r"i-[0-9a-f]{8,17}", re.ASCII)


def make_join_token(key: bytes, cluster: str, launch: str) -> str:
    """Return the token of a launch. `key`: that of the workers. `cluster`: the identity of the cluster. `launch`: the
    id of the launch, or of the batch of launches.
    """
    made = hmac.new(key, encode_canonically(VERSION, cluster, launch), hashlib.sha256).digest()
    return urlsafe_b64encode(made).decode().rstrip("=")


def is_join_token(key: bytes, cluster: str, launch: str, token: str) -> bool:
    """Return whether `token` is that of the launch. The comparison takes the same time for every wrong token."""
    return compare_digest(make_join_token(key, cluster, launch).encode(), token.encode("utf-8", "surrogatepass"))


def hash_join_token(token: str) -> str:
    """Return the SHA-256 of a token in lower-case hexadecimal."""
    return hashlib.sha256(token.encode()).hexdigest()


def has_form_of_token(text: object) -> bool:
    return isinstance(text, str) and _TOKEN.fullmatch(text) is not None


def has_form_of_machine(text: object) -> bool:
    return isinstance(text, str) and _MACHINE.fullmatch(text) is not None
