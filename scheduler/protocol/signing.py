"""Signatures of messages: the bytes that are signed, and how a signature is made and verified.

This module imports only the standard library, so that the client can use it. docs/reference/protocol.md, "Signatures",
describes the format for other languages.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import Final, NamedTuple

VERSION: Final = "leasehold-1"
"""First field of the signed bytes of a message. A new format gets a new version."""
PRINCIPAL: Final = "principal"
CLUSTER: Final = "cluster"
SIGNED_AT: Final = "signed_at"
SIGNATURE: Final = "signature"
BODY_SHA256: Final = "body_sha256"
"""Header of a message with the hash of its body. The worker that receives the message computes the hash itself and
overwrites the sender's value.
"""
RUN_VERSION: Final = "leasehold-run-1"
"""First field of the signed bytes of a command that a host runs."""
FRESH_SECONDS: Final = 3600.0
"""Largest difference in seconds between the signing time of a message (`signed_at`) and cluster time; a worker refuses
an older or later signature.
"""
KEY_BYTES: Final = 32


class SignedFields(NamedTuple):
    """The fields of a message that its signature covers. `signed_at`: the text of the header with this name.
    `body_sha256`: the hash of the body in lower-case hexadecimal.
    """

    principal: str
    cluster: str
    queue: str
    task: str
    message_id: str
    signed_at: str
    body_sha256: str


class RunFields(NamedTuple):
    """The fields of a command that its signature covers. A command is signed with the key of the host that asked for
    it. `run`: the run of the host's agent. `nonce`: a random text that the host has made for this one request.
    `command_sha256`: the hash of the command's text in lower-case hexadecimal.
    """

    cluster: str
    principal: str
    slot: str
    machine: str
    run: str
    reservation: str
    component: str
    token: str
    nonce: str
    command_sha256: str


def hash_body(body: bytes) -> str:
    """Return the SHA-256 of a message's body in lower-case hexadecimal."""
    return hashlib.sha256(body).hexdigest()


def encode_canonically(*fields: str) -> bytes:
    """Return the fields as netstrings: `<length in bytes>:<bytes>,` for each field. Different tuples of fields give
    different bytes.

    A text that is not valid Unicode, which JSON may contain, is encoded too.
    """
    encoded = (field.encode("utf-8", "surrogatepass") for field in fields)
    return b"".join(b"%d:%b," % (len(each), each) for each in encoded)


def sign(key: bytes, fields: SignedFields) -> str:
    """Return the signature of these fields with `key`: HMAC-SHA256 over VERSION and the fields as netstrings, in
    lower-case hexadecimal.
    """
    return hmac.new(key, encode_canonically(VERSION, *fields), hashlib.sha256).hexdigest()


def is_signed_by(key: bytes, fields: SignedFields, signature: str) -> bool:
    """Return whether `signature` is the signature of these fields with this key. The comparison takes the same time for
    every wrong signature.
    """
    given = signature.encode("utf-8", "surrogatepass")
    return hmac.compare_digest(sign(key, fields).encode(), given)


def sign_run(key: bytes, fields: RunFields) -> str:
    """Return the signature of a command with `key`: HMAC-SHA256 over RUN_VERSION and the fields as netstrings, in
    lower-case hexadecimal.
    """
    return hmac.new(key, encode_canonically(RUN_VERSION, *fields), hashlib.sha256).hexdigest()


def is_run_signed_by(key: bytes, fields: RunFields, signature: str) -> bool:
    """Return whether `signature` is the signature of these fields with this key. The comparison takes the same time for
    every wrong signature.
    """
    given = signature.encode("utf-8", "surrogatepass")
    return hmac.compare_digest(sign_run(key, fields).encode(), given)


def sign_headers(
    key: bytes, *, principal: str, cluster: str, queue: str, task: str, message_id: str, now: float, body: bytes
) -> dict[str, str]:
    """Return the headers that prove the sender of a message: `principal`, `cluster`, `signed_at`, `signature`."""
    fields = SignedFields(principal, cluster, queue, task, message_id, repr(float(now)), hash_body(body))
    return {
        PRINCIPAL: principal,
        CLUSTER: cluster,
        SIGNED_AT: fields.signed_at,
        SIGNATURE: sign(key, fields),
    }


def make_key() -> str:
    """Return a new random key as text: 32 bytes in base64url without padding."""
    return secrets.token_urlsafe(KEY_BYTES)


def read_key(text: str) -> bytes:
    """Return the bytes of a key that is given as base64, in either alphabet, with or without padding.

    Raises ValueError if the text is not base64 or too short. The message of the error does not contain the key.
    """
    bare = text.strip().rstrip("=").translate(str.maketrans("+/", "-_"))
    try:
        key = base64.b64decode(bare + "=" * (-len(bare) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("a key that is not base64") from None
    if len(key) < KEY_BYTES:
        raise ValueError(f"a key of fewer than {KEY_BYTES} bytes")
    return key


def format_key_line(name: str, key: str, cluster: str) -> str:
    """Return the content of a key file: `NAME:KEY@CLUSTER`, the principal's name, its key and the id of the cluster."""
    return f"{name}:{key}@{cluster}"


def read_key_line(text: str) -> tuple[str | None, bytes, str | None]:
    """Return (1) the name, (2) the key and (3) the cluster in the content of a key file, the line `NAME:KEY@CLUSTER`.
    Name and cluster are None if the line does not have them.

    Raises ValueError if the text is no such line. The message of the error does not contain the key.
    """
    lines = text.strip().splitlines()
    if len(lines) != 1:
        raise ValueError(f"{len(lines)} lines")
    # Names may contain both separators, keys and identities contain neither.
    name, _, rest = lines[0].rpartition(":")
    key, _, cluster = rest.partition("@")
    return name or None, read_key(key), cluster or None
