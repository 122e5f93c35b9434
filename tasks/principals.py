"""The principal whose message the running task carries out, and the proof that it sent the message."""

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
"""One text for every wrong signature: a sender does not learn which names exist or how close a guess came."""


class UnprovenError(Exception):
    """A message was refused for its sender. `fault` is for the sender, `reason` for the log of the worker."""

    def __init__(self, fault: Fault, reason: str) -> None:
        self.fault, self.reason = fault, reason
        super().__init__(str(fault))

    @property
    def answer(self) -> dict[str, Any]:
        """The answer to the sender."""
        return {"ok": False, "errors": [{"index": 0, **msgspec.to_builtins(self.fault)}]}


def current_principal() -> Principal | None:
    """The verified sender of the message that this task carries out; None if the message was not signed."""
    return _CURRENT.get()


@contextmanager
def acting_for(principal: Principal | None) -> Iterator[None]:
    """Within it, `current_principal` returns this principal. Only `tasks.base` calls it, after the verification."""
    token = _CURRENT.set(principal)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def verify_sender(headers: Mapping[str, Any], task: str, roles: frozenset[Role]) -> Principal | None:
    """The principal that sent a message for this task; None for an unsigned message where `access.mode` accepts it.

    A wrong signature is refused in every mode, a role other than `roles` in mode `signed`. Raises UnprovenError, and
    StoreUnavailableError without the database.
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
