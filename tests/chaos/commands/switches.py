"""Guards of commands on leases that a run can switch off. The checker must then report violations."""

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.chaos.commands import guard as chaos_guard


def _deadline() -> None:
    """Let a command run on however long ago the last request was answered."""
    from leasehold.work import messenger

    _replace(messenger, "find_fence", lambda *_: None)
    _replace(messenger, "move_fence", lambda *_: None)


def _nothing() -> None:
    """Leave this process as it is: another one lacks the guard."""


def _signature() -> None:
    """Let an agent run whatever command an answer has."""
    import msgspec

    from leasehold.work import messenger
    from leasehold.work.command import LeaseCommand

    _replace(messenger, "read_command", lambda taken, *_: msgspec.json.decode(taken.command, type=LeaseCommand))


def _adoption() -> None:
    """Let a new agent know nothing of what an earlier one of the host has begun, and start it again."""
    from leasehold.work import records, runner
    from leasehold.work.guard_client import GuardClient

    inner: Callable[[Any], str] = records.make_lease_id
    connect: Callable[[GuardClient], Any] = GuardClient.connect

    def make_lease_id(key: Any) -> str:
        return f"{inner(key)}-{os.getpid()}"

    def connect_to_nothing(self: GuardClient) -> Any:
        import msgspec

        return msgspec.structs.replace(connect(self), commands=())

    for owner in (records, runner):
        _replace(owner, "make_lease_id", make_lease_id)
    _replace(records.Records, "load", lambda _: [])
    _replace(GuardClient, "connect", connect_to_nothing)


def _taker() -> None:
    """Let the scheduler give a command to each agent of the host that asks for it."""
    from scheduler.model.command_schemas import TakeDocument
    from scheduler.operations.commands import runs

    inner: Callable[..., Any] = runs._find_execution

    def find_execution(work: Any, document: Any) -> Any:
        return None if isinstance(document, TakeDocument) else inner(work, document)

    _replace(runs, "_find_execution", find_execution)


def _replace(owner: object, name: str, by: object) -> None:
    getattr(owner, name)  # A name that is no longer there would remove no guard.
    setattr(owner, name, by)


AGENT_SWITCHES: Final[Mapping[str, Callable[[], None]]] = {
    "deadline": _deadline,
    "keeper": _nothing,
    "signature": _signature,
    "adoption": _adoption,
    "taker": _nothing,
}
"""Guard → what removes it from the process of an agent."""
WORKER_SWITCHES: Final[Mapping[str, Callable[[], None]]] = {"adoption": _taker, "taker": _taker}
"""Guard → what removes it from a worker. A host starts a command again only if the scheduler gives it twice."""
FAULTS_FOR: Final[Mapping[str, tuple[str, ...]]] = {
    "deadline": ("agent", "link"),
    "keeper": ("guard",),
    "signature": ("forge",),
    "adoption": ("agent",),
    "taker": ("wipe",),
}
"""Guard → the faults that it protects against. A run without the guard injects only these, and must fail."""


def switch_off(off: str) -> None:
    """Remove a guard from this process, which is an agent."""
    AGENT_SWITCHES[off]()
    if off in chaos_guard.GUARD_DUTIES:
        from leasehold.work import guard

        _replace(guard, "__file__", chaos_guard.__file__)
