"""The gate finds out which caller sent an HTTP request. It lets no unknown caller pass, even if `access.mode` lets
workers accept unsigned requests.

There are three ways in: the random token of a local stack, the name and key of a principal, and the header of a trusted
reverse proxy. People get a session cookie for the first two.

A cookie contains how the person logged in (by the token of a local stack, or as a principal), the name of the person,
and the time of the login. Its signature is made with the secret of the cluster and with the present key of that
principal, or with the token. So all sessions of a principal end if the principal is removed or gets a new key, and a
new token ends the sessions that began with the token. Any process of the console accepts the cookies of another one.
The database has the sessions that were logged out, so that every process refuses their cookies, also after a restart
and after Redis lost its data.

Failed logins are counted for each peer (network address), so that guesses of keys cannot fill the log or keep the
process busy.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import secrets
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request

from leasehold.web.caller import TOKEN_NAME, Caller, PrincipalReader, Source
from leasehold.web.token_file import read_token
from scheduler.model.principals import WORKER
from scheduler.ports import Store, StoredPrincipal, StoreUnavailableError
from scheduler.protocol.verbs import Role
from workers.access import LOOK_SECONDS, KnownPrincipals
from workers.settings import Settings

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
    return Session(cast("Source", source), name, issued_at, nonce) if source in {"token", "principal"} else None


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
        if self._monotonic() < self._lost_until or not self._reads.acquire(timeout=0.25):
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


SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_MOST_CREDENTIALS: Final = 4096


@dataclass(frozen=True)
class Admission:
    """A known caller, which may pass the gate. `csrf`: the token that each of its changing requests must carry, so that
    no other web site can send one; None: its requests need no token. `session`: the session whose cookie the request
    has; None: it was admitted by something else.
    """

    caller: Caller
    csrf: str | None = None
    session: Session | None = None


class Gate:
    """Identifies the callers of HTTP requests by the settings, the principals in the database and the token file.

    Raises TokenFileError at construction if `console.token_file` cannot be used.
    """

    def __init__(self, settings: Settings, principals: PrincipalReader) -> None:
        self._settings, self._console = settings, settings.console
        self.principals = principals
        path = self._console.token_file
        self._token = None if path is None else read_token(Path(path))
        self._networks = [ipaddress.ip_network(each) for each in self._console.trusted_proxies or ()]
        self._failures = FailedLogins(principals.monotonic)
        self._ended = EndedSessions(principals.store, principals.monotonic)
        self._looking: asyncio.Task[None] | None = None
        """The next read of the principals for requests whose credentials seem wrong."""
        self.cookie_name = f"leasehold-{self._console.port}"

    def refresh(self) -> None:
        """Read the principals from the database if this process's copy is old. If the database does not answer, keep
        the copy and raise no error.
        """
        self._read()

    async def look_again(self, request: HTTPConnection) -> None:
        """Read the principals from the database again, because credentials that seem wrong may belong to a principal
        that was added meanwhile. All requests that wait for this share one read. For a peer that failed too often,
        nothing is read. If the database does not answer, raise no error.
        """
        if self._failures.is_over(_find_peer(request)):
            return
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        # Others may wait for the read if this request is cancelled.
        await asyncio.shield(self._looking)

    async def _look(self) -> None:
        await asyncio.sleep(self.principals.again_in)
        # A principal that is added during the read may be missing in it: a later request needs the next read.
        self._looking = None
        with suppress(StoreUnavailableError):
            await run_in_threadpool(self.principals.look_again)

    def admit(self, request: HTTPConnection) -> Admission | None:
        """Return the caller of a request with its CSRF token, or None if the caller is unknown.

        Credentials in the header Authorization count before a cookie. If they are wrong, the caller is unknown, even if
        the request has a valid cookie. The database is read at most once a second.
        """
        if "authorization" in request.headers:
            return self._admit_authorization(request.headers.getlist("authorization"))
        return self._admit_proxy(request) or self._admit_cookie(find_cookie(request, self.cookie_name))

    def is_forged(self, request: HTTPConnection, admission: Admission) -> bool:
        """Return whether a request that may change something (any method except SAFE_METHODS) lacks the CSRF token of
        its session. Return False for any other request, and if its caller needs no token.
        """
        if admission.csrf is None or request.scope.get("method") in SAFE_METHODS:
            return False
        given = request.headers.get("x-csrf-token", "")
        return not hmac.compare_digest(given.encode("utf-8", "surrogatepass"), admission.csrf.encode())

    async def log_in(self, request: HTTPConnection, name: str, key: str) -> str | None:
        """Return a session cookie for the principal with this name and key, or None if they are wrong."""
        if not self.principals.is_fresh:
            await run_in_threadpool(self.refresh)
        known = self._read()
        row = self._check_key(known, name, key)
        if row is None:
            await self.look_again(request)
            known = self._read()
            row = self._check_key(known, name, key)
        if known is None or row is None:
            return None
        return issue_cookie("principal", row.name, self._bind(known, row.key), self._now(known))

    def log_in_by_token(self, token: str) -> str | None:
        """Return a session cookie for the holder of the token of the local stack, or None if the token is wrong."""
        if not self._is_token(token):
            return None
        return issue_cookie("token", TOKEN_NAME, self._token_binding(), self._now(self._read()))

    def is_ended(self, session: Session) -> bool:
        """Return whether the session was logged out, in this or another process. This reads the database."""
        return self._ended.has(session.nonce)

    def log_out(self, request: Request) -> None:
        """End the session of this request: every process refuses a copy of its cookie from now on. This writes to the
        database. Raises StoreUnavailableError if the database does not answer: then only this process refuses the copy
        until the database answers again.
        """
        admission = self.admit(request)
        if admission is not None and admission.session is not None:
            session = admission.session
            self._ended.end(session.nonce, session.issued_at + SESSION_SECONDS)

    def note_failure(self, request: HTTPConnection) -> float | None:
        """Count a failed login. If this peer (network address) failed too often, return the seconds until one more
        failure is permitted, else None. Right credentials are never refused, because keys of 256 random bits cannot be
        guessed.
        """
        return self._failures.note(_find_peer(request))

    def is_trusted_proxy(self, request: HTTPConnection) -> bool:
        return self.is_trusted(_find_peer(request))

    def is_trusted(self, address: str) -> bool:
        try:
            peer = ipaddress.ip_address(address)
        except ValueError:
            return False
        mapped = getattr(peer, "ipv4_mapped", None) or peer
        return any(mapped in network for network in self._networks)

    def is_https(self, request: HTTPConnection) -> bool:
        """Return whether the browser uses HTTPS, as this process or a trusted proxy sees it."""
        is_forwarded = request.headers.get("x-forwarded-proto", "") == "https"
        return request.scope["scheme"] == "https" or (is_forwarded and self.is_trusted_proxy(request))

    def _admit_authorization(self, values: list[str]) -> Admission | None:
        scheme, _, credentials = values[0].partition(" ")
        if len(values) != 1 or len(credentials) > _MOST_CREDENTIALS:
            return None
        if scheme.lower() == "bearer":
            return Admission(self._token_caller(self._read())) if self._is_token(credentials.strip()) else None
        if scheme.lower() != "basic":
            return None
        try:
            names, key = split_basic(base64.b64decode(credentials, validate=True).decode())
        except (binascii.Error, ValueError):
            return None
        known = self._read()
        row = next((row for name in names if (row := self._check_key(known, name, key)) is not None), None)
        return None if row is None else Admission(self._principal_caller(row, "principal"))

    def _admit_proxy(self, request: HTTPConnection) -> Admission | None:
        header = self._console.user_header
        values = request.headers.getlist(header) if header is not None and self.is_trusted_proxy(request) else []
        known = self._read() if len(values) == 1 else None
        row = None if known is None else known.principals.get(values[0])
        if known is None or row is None or row.role == "worker":
            return None
        csrf = make_csrf_token(self._bind(known, row.key), f"proxy:{row.name}")
        return Admission(self._principal_caller(row, "proxy"), csrf)

    def _admit_cookie(self, value: str | None) -> Admission | None:
        session = None if value is None else open_cookie(value)
        if value is None or session is None or self._ended.is_known(session.nonce):
            return None
        known = self._read()
        if not is_current(session, self._now(known)):
            return None
        if session.source == "token":
            binding = self._token_binding()
            if self._token is None or not is_signed(value, binding):
                return None
            return Admission(self._token_caller(known), make_csrf_token(binding, value), session)
        row = None if known is None else known.principals.get(session.name)
        if known is None or row is None or not is_signed(value, self._bind(known, row.key)):
            return None
        csrf = make_csrf_token(self._bind(known, row.key), value)
        return Admission(self._principal_caller(row, "principal"), csrf, session)

    def _token_caller(self, known: KnownPrincipals | None) -> Caller:
        """Return the caller that has the token of the local stack. Its requests are signed as the principal
        `access.principal` if the settings have that principal's key, and not signed otherwise.
        """
        access = self._settings.access
        name = access.principal if access.key is not None or access.key_file is not None else None
        row = known.principals.get(name) if known is not None and name is not None else None
        role: Role = row.role if row is not None else "operator"
        refusal = self._find_refusal()
        if refusal is None and name is None and access.mode != "open":
            refusal = (
                f"access.mode is {access.mode}, and no access.principal is configured to sign the requests of the"
                " local token: log in as a principal"
            )
        return Caller(TOKEN_NAME, role, "token", name, refusal)

    def _principal_caller(self, row: StoredPrincipal, source: Source) -> Caller:
        return Caller(row.name, row.role, source, row.name, self._find_refusal())

    def _find_refusal(self) -> str | None:
        return "this console only reads (console.read_only)" if self._console.read_only else None

    def _check_key(self, known: KnownPrincipals | None, name: str, key: str) -> StoredPrincipal | None:
        """Return the principal `name` if `key` is one of its present keys, else None. An unknown name takes as long as
        a known name, so that the time does not show which names exist.
        """
        row = None if known is None else known.principals.get(name)
        keys = [] if row is None or known is None else row.list_keys(self._now(known))
        # People paste the whole line of a key file, NAME:KEY@CLUSTER, or the part after the name.
        bare = key.strip().partition("@")[0].rpartition(":")[2].encode("utf-8", "surrogatepass")
        found = [hmac.compare_digest(each.encode(), bare) for each in keys or [""]]
        is_right = any(found) and bool(keys)
        return row if is_right and row is not None and row.role != "worker" else None

    def _is_token(self, token: str) -> bool:
        given = token.encode("utf-8", "surrogatepass")
        return self._token is not None and hmac.compare_digest(self._token.encode(), given)

    def _token_binding(self) -> bytes:
        return make_binding((self._token or "").encode(), self._token or "")

    def _bind(self, known: KnownPrincipals, key: str) -> bytes:
        cluster_key = known.principals[WORKER].key if WORKER in known.principals else key
        return make_binding(cluster_key.encode(), key)

    def _now(self, known: KnownPrincipals | None) -> float:
        """Return cluster time for the age of sessions. If `known` is None, because the database was never read, return
        the monotonic clock of this process instead: only this process accepts the sessions that begin in that time.
        """
        monotonic = self.principals.monotonic()
        return monotonic if known is None else known.now(monotonic)

    def _read(self) -> KnownPrincipals | None:
        try:
            return self.principals.read()
        except StoreUnavailableError:
            return None


def _find_peer(request: HTTPConnection) -> str:
    return request.client.host if request.client else ""


def find_cookie(request: HTTPConnection, name: str) -> str | None:
    """Return the value of the cookie `name`, the last one if there are several; None if there is none.

    Our values have no quotes and escapes. Python's parser removes them in a time that grows with the square of the
    length of a cookie: an unknown caller could keep the event loop busy for seconds with one header.
    """
    pairs = [each.partition("=") for header in request.headers.getlist("cookie") for each in header.split(";")]
    return next((value.strip() for key, _, value in reversed(pairs) if key.strip() == name), None)


def split_basic(text: str) -> tuple[list[str], str]:
    """Return the user names that the text of Basic credentials may mean, and the key: the part after the last colon.

    In `USER:KEY`, the user name is `USER`. If a user enters the whole line of a key file (`USER:KEY@CLUSTER`) as the
    password, the text is `USER:USER:KEY@CLUSTER`. Names may contain colons, so the user name is then `USER:USER` or
    `USER`, and both are returned.
    """
    # Names may contain colons. Keys and the identities of clusters contain none.
    name, _, key = text.rpartition(":")
    half = name[: len(name) // 2]
    return ([name, half] if name == f"{half}:{half}" else [name]), key


MOST_FAILURES: Final = 10
WINDOW_SECONDS: Final = 60.0
MOST_PEERS: Final = 1000
"""The most peers whose failures are counted. If there are more, the peer that was added first is forgotten."""


class FailedLogins:
    """The times of the last failed logins of each peer. Safe for threads. `monotonic` returns the monotonic time in
    seconds.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic, self._guard = monotonic, threading.Lock()
        self._times: dict[str, deque[float]] = {}

    def note(self, peer: str) -> float | None:
        """Count a failed login of this peer. Return None if the peer had fewer than MOST_FAILURES failures in the last
        WINDOW_SECONDS. Else do not count it, and return the seconds until one more failure is permitted.
        """
        with self._guard:
            now, times = self._drop_old(peer)
            if len(times) >= MOST_FAILURES:
                return WINDOW_SECONDS - (now - times[0])
            self._times[peer] = times
            times.append(now)
            if len(self._times) > MOST_PEERS:
                del self._times[next(iter(self._times))]
        return None

    def is_over(self, peer: str) -> bool:
        """Return whether `note` would not count one more failure of this peer now."""
        with self._guard:
            return len(self._drop_old(peer)[1]) >= MOST_FAILURES

    def _drop_old(self, peer: str) -> tuple[float, deque[float]]:
        now, times = self._monotonic(), self._times.get(peer, deque())
        while times and now - times[0] >= WINDOW_SECONDS:
            times.popleft()
        return now, times
