"""Sessions of people: signed cookies, and the tokens against forged requests (CSRF).

A cookie contains how the person logged in (by the token of a local stack, or as a principal), the name of the person,
and the time of the login. Its signature is made with the secret of the cluster and with the present key of that
principal, or with the token. So all sessions of a principal end if the principal is removed or gets a new key, and a
new token ends the sessions that began with the token. Any process of the console accepts the cookies of another one.

The database has the sessions that were logged out, so that every process refuses their cookies, also after a restart
and after Redis lost its data.
"""

import base64
import hashlib
import hmac
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

import msgspec

from leasehold.web.caller import Source
from scheduler.ports import Store, StoreUnavailableError
from workers.access import LOOK_SECONDS

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


_MOST_READS: Final = 4
"""The most reads that wait for the database at the same time, so that a database that hangs does not take all threads
of the process.
"""
_PATIENCE_SECONDS: Final = 0.25


class EndedSessions:
    """The sessions that were logged out. Safe for threads. `monotonic`: the monotonic clock of this process."""

    def __init__(self, store: Store, monotonic: Callable[[], float]) -> None:
        self._store, self._monotonic = store, monotonic
        self._known: dict[str, float] = {}
        """Session that this process ended -> cluster time from which on its cookie is too old."""
        self._unwritten: dict[str, float] = {}
        self._guard = threading.Lock()
        self._reads = threading.BoundedSemaphore(_MOST_READS)
        self._lost_until = float("-inf")

    def is_known(self, session: str) -> bool:
        """Return whether this process knows that the session was logged out. This reads no database."""
        return session in self._known

    def has(self, session: str) -> bool:
        """Return whether the session was logged out in any process. While the database does not answer, only the
        sessions that this process knows count, as for principals that were removed.
        """
        if session in self._known:
            return True
        if self._monotonic() < self._lost_until or not self._reads.acquire(timeout=_PATIENCE_SECONDS):
            return False
        try:
            self._write_late()
            is_ended = self._store.is_session_ended(session)
        except StoreUnavailableError:
            self._lost_until = self._monotonic() + LOOK_SECONDS
            return False
        finally:
            self._reads.release()
        return is_ended

    def end(self, session: str, until: float) -> None:
        """Log a session out, whose cookie is too old from `until` on (cluster time). Raises StoreUnavailableError if
        the database does not answer; then this process alone refuses the session, and writes it to the database when
        that answers again.
        """
        with self._guard:
            self._known[session] = self._unwritten[session] = until
        self._write_late()

    def _write_late(self) -> None:
        for session, until in tuple(self._unwritten.items()):
            with self._store.transaction() as transaction:
                transaction.end_session(session, until)
                now = transaction.now()
            with self._guard:
                self._unwritten.pop(session, None)
                self._known = {each: late for each, late in self._known.items() if late >= now}
