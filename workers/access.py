"""Verify the signatures of messages, and sign the messages that workers send. The keys are read from the database."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from scheduler.model.principals import WORKER, Principal
from scheduler.ports import ClusterRow, Store, StoredPrincipal, StoreUnavailableError
from scheduler.protocol.signing import (
    BODY_SHA256,
    CLUSTER,
    FRESH_SECONDS,
    PRINCIPAL,
    SIGNATURE,
    SIGNED_AT,
    SignedFields,
    is_signed_by,
    read_key,
    sign_headers,
)

LOOK_SECONDS: Final = 1.0
"""Seconds after which a process compares its copy of the principals with the database again. A key that was removed is
refused after this time at the latest.
"""


class KnownPrincipals(msgspec.Struct, frozen=True):
    """A copy of the row about the cluster (`state`) and of the principals (name -> principal), which was read when the
    monotonic clock of this process was at `looked_at`.
    """

    looked_at: float
    state: ClusterRow
    principals: dict[str, StoredPrincipal]

    def now(self, monotonic: float) -> float:
        """Return the cluster time at which the monotonic clock of this process is at `monotonic`."""
        return self.state.now + monotonic - self.looked_at


def read_principals(store: Store, known: KnownPrincipals | None, monotonic: Callable[[], float]) -> KnownPrincipals:
    """Return an up-to-date copy of the row about the cluster and of the principals. The principals are read only if
    they changed since the copy `known` (None: there is no copy yet). Raises StoreUnavailableError if the database is
    unavailable.
    """
    state = store.read_cluster()
    before = known and (known.state.identity, known.state.principals_version)
    if known is not None and before == (state.identity, state.principals_version):
        rows = known.principals
    else:
        # Principals that change after `state` was read have another version, so the next read finds them.
        rows = {row.name: row for row in store.find_principals()}
    return KnownPrincipals(monotonic(), state, rows)


class SignatureError(Exception):
    """Raised if the signature of a message is not valid. The message of the error is the reason, for the log; the
    sender must not get it.
    """


def is_signed(headers: Mapping[str, object]) -> bool:
    """Return whether the headers of a message have a signature or name a principal. The signature is not verified."""
    return SIGNATURE in headers or PRINCIPAL in headers


class Access:
    """Verifies and signs messages with a copy of the cluster's principals (the senders that have keys). Safe for
    threads.

    `monotonic`: a clock in seconds that never jumps. It continues cluster time between two reads of the database.
    """

    def __init__(self, store: Store, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store, self._monotonic = store, monotonic
        self._guard = threading.Lock()
        self._known: KnownPrincipals | None = None

    def verify(self, headers: Mapping[str, object], *, queue: str, task: str, message_id: str) -> Principal:
        """Return the principal (the sender) whose key signed the message with these headers.

        `headers` must have the `body_sha256` that the transport computed. `queue` and `task` must be the queue and the
        task that the worker consumed, not the ones that the message names. Raises SignatureError for an invalid
        signature, StoreUnavailableError if the principals must be read and the database is unavailable.
        """
        fields = SignedFields(
            principal=_text(headers, PRINCIPAL),
            cluster=_text(headers, CLUSTER),
            queue=queue,
            task=task,
            message_id=message_id,
            signed_at=_text(headers, SIGNED_AT),
            body_sha256=_text(headers, BODY_SHA256),
        )
        signature, known = _text(headers, SIGNATURE), self._look()
        if fields.cluster != known.state.identity:
            raise SignatureError("the message is for another cluster")
        try:
            age = known.now(self._monotonic()) - float(fields.signed_at)
        except ValueError:
            age = math.nan
        if not abs(age) <= FRESH_SECONDS:
            raise SignatureError(f"the message was signed {age:.0f} s ago, at most {FRESH_SECONDS:.0f} s are accepted")
        found = self._find_signer(known, fields, signature)
        if found is None:
            # The principals are read again, so that a principal or a key that was just added is valid at once.
            found = self._find_signer(self._look(LOOK_SECONDS), fields, signature)
        if found is None:
            raise SignatureError("the principal (sender) is unknown, or the signature was made with another key")
        return found

    def sign(self, *, queue: str, task: str, message_id: str, body: bytes) -> dict[str, str]:
        """Return the headers that sign a message with the key of the workers.

        While the database is unavailable, the last known key is used. Raises StoreUnavailableError if no key is known
        yet, or if the database has no key of the workers.
        """
        try:
            known = self._look()
        except StoreUnavailableError:
            if self._known is None:
                raise
            known = self._known
        if WORKER not in known.principals:
            raise StoreUnavailableError(f"the database has no principal {WORKER}: run `leasehold migrate`")
        return sign_headers(
            read_key(known.principals[WORKER].key),
            principal=WORKER,
            cluster=known.state.identity,
            queue=queue,
            task=task,
            message_id=message_id,
            now=known.now(self._monotonic()),
            body=body,
        )

    def _find_signer(self, known: KnownPrincipals, fields: SignedFields, signature: str) -> Principal | None:
        row = known.principals.get(fields.principal)
        keys = row.list_keys(known.now(self._monotonic())) if row is not None else []
        used = next((key for key in map(read_key, keys) if is_signed_by(key, fields, signature)), None)
        return msgspec.structs.replace(row.principal, key=used) if row is not None and used is not None else None

    def _look(self, early: float = 0.0) -> KnownPrincipals:
        """Return the copy of the principals (the senders that have keys). If the copy is older than LOOK_SECONDS -
        `early` seconds, compare it with the database first, and read the principals again if they changed.
        """
        with self._guard:
            known, now = self._known, self._monotonic()
            if known is not None and now - known.looked_at < LOOK_SECONDS - early:
                return known
            self._known = read_principals(self._store, known, self._monotonic)
            return self._known


def _text(headers: Mapping[str, object], name: str) -> str:
    value = headers.get(name)
    if not isinstance(value, str):
        raise SignatureError(f"the message has no text in the header {name}")
    return value
