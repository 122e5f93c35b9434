"""Verifies the signatures of messages and signs the cluster's own, with keys that are read from the database."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from leasehold.common.signing import (
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
from scheduler.model.principals import WORKER, Principal
from scheduler.ports import ClusterRow, Store, StoredPrincipal, StoreUnavailableError

LOOK_SECONDS: Final = 1.0
"""A removal of a principal or of a key takes effect in every process within this time; an addition at once."""


class SignatureError(Exception):
    """A signature is not valid. The text says why; it is for the log, not for the sender."""


class _Known(msgspec.Struct, frozen=True):
    """What was read from the database, and the monotonic time of the last look."""

    looked_at: float
    state: ClusterRow
    principals: dict[str, StoredPrincipal]


def is_signed(headers: Mapping[str, object]) -> bool:
    """Whether a message claims to be signed."""
    return SIGNATURE in headers or PRINCIPAL in headers


class Access:
    """The principals of the cluster as this process knows them. For any number of threads.

    `monotonic`: a clock in seconds that never jumps. It carries cluster time between two looks at the database.
    """

    def __init__(self, store: Store, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store, self._monotonic = store, monotonic
        self._guard = threading.Lock()
        self._known: _Known | None = None

    def verify(self, headers: Mapping[str, object], *, queue: str, task: str, message_id: str) -> Principal:
        """The principal that signed the message.

        `headers` has the `body_sha256` that the transport computed; `queue` and `task` are those that the worker really
        consumed. Raises SignatureError for a signature that is not valid, StoreUnavailableError without the database.
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
        self._check_origin(fields, known)
        found = self._find_signer(known, fields, signature)
        if found is None:
            # A principal or a key that was added a moment ago is valid at once.
            found = self._find_signer(self._look(LOOK_SECONDS), fields, signature)
        if found is None:
            raise SignatureError("an unknown principal, or another signature than the principal's")
        return found

    def sign(self, *, queue: str, task: str, message_id: str, body: bytes) -> dict[str, str]:
        """The headers that sign a message as the cluster's own. While the database cannot be used, the key that was
        read last signs. Raises StoreUnavailableError if none was read yet.
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
            now=self._now(known),
            body=body,
        )

    def _find_signer(self, known: _Known, fields: SignedFields, signature: str) -> Principal | None:
        row = known.principals.get(fields.principal)
        keys = row.list_keys(self._now(known)) if row is not None else []
        is_valid = any(is_signed_by(read_key(key), fields, signature) for key in keys)
        return row.principal if row is not None and is_valid else None

    def _check_origin(self, fields: SignedFields, known: _Known) -> None:
        if fields.cluster != known.state.identity:
            raise SignatureError("another cluster")
        try:
            age = self._now(known) - float(fields.signed_at)
        except ValueError:
            age = math.nan
        if not abs(age) <= FRESH_SECONDS:
            raise SignatureError(f"signed {age:.0f} s ago, at most {FRESH_SECONDS:.0f} s are accepted")

    def _now(self, known: _Known) -> float:
        return known.state.now + self._monotonic() - known.looked_at

    def _look(self, early: float = 0.0) -> _Known:
        """What is known, at most LOOK_SECONDS less `early` old. Principals are read again only if they changed."""
        with self._guard:
            known, now = self._known, self._monotonic()
            if known is not None and now - known.looked_at < LOOK_SECONDS - early:
                return known
            state = self._store.read_cluster()
            same = known is not None and _name_version(known.state) == _name_version(state)
            # Changed after `state` was read: the next look finds another version and reads them again.
            rows = known.principals if known is not None and same else self._read_principals()
            self._known = _Known(self._monotonic(), state, rows)
            return self._known

    def _read_principals(self) -> dict[str, StoredPrincipal]:
        return {row.name: row for row in self._store.find_principals()}


def _name_version(state: ClusterRow) -> tuple[str, int]:
    return state.identity, state.principals_version


def _text(headers: Mapping[str, object], name: str) -> str:
    value = headers.get(name)
    if not isinstance(value, str):
        raise SignatureError(f"no text in the header {name}")
    return value
