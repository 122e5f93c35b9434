"""The principal that sent the message of the running task, and the verification of the sender."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import msgspec

from scheduler.model.principals import Principal, Role
from scheduler.model.validation import Fault
from workers.access import SignatureError, is_signed

_CURRENT: Final[ContextVar[Principal | None]] = ContextVar("principal", default=None)
_WANTED: Final = "a valid signature of a known principal of this cluster, at most an hour old"
"""The same text for every wrong signature, so that a sender does not learn which names exist."""


class UnprovenError(Exception):
    """A message was refused because of its sender. `fault` goes to the sender, `reason` into the worker's log."""

    def __init__(self, fault: Fault, reason: str) -> None:
        self.fault, self.reason = fault, reason
        super().__init__(str(fault))

    @property
    def answer(self) -> dict[str, Any]:
        """The answer to the sender."""
        return {"ok": False, "errors": [{"index": 0, **msgspec.to_builtins(self.fault)}]}


def current_principal() -> Principal | None:
    """Return the verified sender of the message that this task carries out; None if the message was not signed."""
    return _CURRENT.get()


@contextmanager
def acting_for(principal: Principal | None) -> Iterator[None]:
    """Let `current_principal` return this principal within the context. Only `tasks.base` calls it, after verifying."""
    token = _CURRENT.set(principal)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def verify_sender(headers: Mapping[str, Any], task: str, roles: frozenset[Role]) -> Principal | None:
    """Return the principal that sent a message for this task; None for an unsigned one, if `access.mode` accepts it.

    A wrong signature is refused in every mode, a role that is not in `roles` in mode `signed`. Raises UnprovenError,
    and StoreUnavailableError without the database.
    """
    from tasks.app import services  # noqa: PLC0415 - the app imports what calls this

    mode = services.settings.access.mode
    _, queue, *_ = (*task.split("."), "")
    if not is_signed(headers):
        _accept_unsigned(mode, queue)
        return None
    try:
        found = services.access.verify(headers, queue=queue, task=task, message_id=str(headers.get("id") or ""))
    except SignatureError as error:
        raise UnprovenError(Fault("signature", _WANTED, "another one"), str(error)) from None
    if mode == "signed" and found.role not in roles:
        wanted = f"a principal of the role {' or '.join(sorted(roles))}"
        raise UnprovenError(Fault("principal", wanted, found.role), f"{found.name} has another role")
    return found


def _accept_unsigned(mode: str, queue: str) -> None:
    from tasks.app import services  # noqa: PLC0415 - as above

    if mode == "signed":
        raise UnprovenError(Fault("signature", _WANTED, "none"), "it is not signed")
    if mode == "warn":
        services.meter.count("leasehold_unsigned_messages_total", {"queue": queue})
