"""The principal whose message the running task carries out."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from scheduler.model.principals import Principal

_CURRENT: Final[ContextVar[Principal | None]] = ContextVar("principal", default=None)


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
