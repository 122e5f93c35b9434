"""Sessions of people: signed cookies, and the tokens against forged requests (CSRF). The database has only the sessions
that were logged out (leasehold/web/ended_sessions.py).

A cookie contains how the person logged in (by the token of a local stack, or as a principal), the name of the person,
and the time of the login. Its signature is made with the secret of the cluster and with the present key of that
principal, or with the token. So all sessions of a principal end if the principal is removed or gets a new key, and a
new token ends the sessions that began with the token. Any process of the console accepts the cookies of another one.
"""

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Final, cast

import msgspec

from leasehold.web.caller import Source

SESSION_SECONDS: Final = 12 * 3600.0
_VERSION: Final = "1"
_EARLY_SECONDS: Final = 60.0
"""Seconds by which a cookie may seem to be issued in the future, because the clock of the process that issued it was
ahead.
"""
_MOST_COOKIE: Final = 2048


@dataclass(frozen=True)
class Session:
    """The content of a cookie. `source`: how the person logged in; `name`: the name of the person; `issued_at`: cluster
    time of the login; `nonce`: a random text, by which one session can be ended.
    """

    source: Source
    name: str
    issued_at: float
    nonce: str


def issue_cookie(source: Source, name: str, binding: bytes, now: float) -> str:
    """Return the value of a new cookie. `binding`: the secret by which it is signed (`make_binding`)."""
    body = msgspec.json.encode([source, name, now, secrets.token_hex(8)])
    text = f"{_VERSION}.{base64.urlsafe_b64encode(body).decode().rstrip('=')}"
    return f"{text}.{_sign(binding, 'session', text)}"


def open_cookie(value: str) -> Session | None:
    """Return the content of a cookie whose signature is not verified yet, or None if it is no cookie of this
    console.
    """
    parts = value.split(".")
    if len(value) > _MOST_COOKIE or len(parts) != 3 or parts[0] != _VERSION:  # noqa: PLR2004 - version, body, signature
        return None
    try:
        body = base64.b64decode(parts[1] + "=" * (-len(parts[1]) % 4), altchars=b"-_", validate=True)
        source, name, issued_at, nonce = msgspec.json.decode(body, type=tuple[str, str, float, str])
    except (ValueError, msgspec.DecodeError):
        return None
    if source not in {"token", "principal"}:
        return None
    return Session(cast("Source", source), name, issued_at, nonce)


def is_signed(value: str, binding: bytes) -> bool:
    """Return whether the cookie `value` was signed with the secret `binding`."""
    text, _, signature = value.rpartition(".")
    return hmac.compare_digest(_sign(binding, "session", text).encode(), signature.encode("utf-8", "surrogatepass"))


def is_current(session: Session, now: float) -> bool:
    """Return whether a session has begun and is not older than SESSION_SECONDS. `now`: cluster time."""
    return -_EARLY_SECONDS <= now - session.issued_at <= SESSION_SECONDS


def make_binding(secret: bytes, key: str) -> bytes:
    """Return the secret by which the cookies of one caller are signed. `secret`: the secret of the cluster, or the
    token of a local stack. `key`: the present key of the caller, or the same token.
    """
    return hmac.new(secret, b"leasehold-console:" + hashlib.sha256(key.encode()).digest(), hashlib.sha256).digest()


def make_csrf_token(binding: bytes, session: str) -> str:
    """Return the token that each request of this session that may change something must have in the header
    X-CSRF-Token. `session`: the value of the cookie, or the name that a reverse proxy passed.
    """
    return _sign(binding, "csrf", session)


def _sign(binding: bytes, purpose: str, text: str) -> str:
    payload = f"{purpose}:{text}".encode("utf-8", "surrogatepass")
    return hmac.new(binding, payload, hashlib.sha256).hexdigest()
