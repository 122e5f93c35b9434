"""The messages of static hosts for blocking programs: a host registers, sends heartbeats, leaves, and reads the leases
on its slot.

A heartbeat is one write to Redis and waits in no queue. All other messages are requests to workers.
"""

from collections.abc import Callable, Sequence

from typing_extensions import override

from leasehold.client.blocking import Run, blocks
from leasehold.client.core.hosts import AsyncHints, AsyncHosts
from leasehold.client.models import LeaseKey
from leasehold.client.ports import Hints, Joined


class Hosts:
    """The messages of static hosts. `slot`: the name of the host and of its slot. `machine`: the id of the machine
    itself, for example from /etc/machine-id, which must not change while the machine is the same.

    Requests raise Refused, NotAnswered (safe to repeat) and Unavailable. `timeout` is in seconds.
    """

    def __init__(self, find_core: Callable[[], AsyncHosts], run: Run) -> None:
        self._find_core, self._run = find_core, run

    @property
    def _core(self) -> AsyncHosts:
        return self._find_core()

    register = blocks(AsyncHosts.register)
    heartbeat = blocks(AsyncHosts.heartbeat)
    check = blocks(AsyncHosts.check)
    leave = blocks(AsyncHosts.leave)
    remove = blocks(AsyncHosts.remove)
    leases = blocks(AsyncHosts.leases)
    take = blocks(AsyncHosts.take)
    started = blocks(AsyncHosts.started)
    output = blocks(AsyncHosts.output)
    exited = blocks(AsyncHosts.exited)

    def hints(self, slot: str) -> Hints:
        """Return a subscription to hints, which report that this slot has changed. The caller must close it."""
        return _HostHints(self._core.hints(slot), self._run)


class _HostHints(Hints):
    """A subscription to the hints about one slot, for one thread."""

    expected: frozenset[str] = frozenset()

    def __init__(self, core: AsyncHints, run: Run) -> None:
        self._core, self._run = core, run

    listen = blocks(AsyncHints.listen)
    wait = blocks(AsyncHints.wait)
    close = blocks(AsyncHints.close)

    @override
    def note(self, seen: Joined) -> None:
        """Do nothing: a host reads no reservation's row."""

    @property
    @override
    def commands(self) -> Sequence[LeaseKey]:
        return self._core.commands

    @override
    def forget(self) -> None:
        async def forget() -> None:
            self._core.forget()

        self._run(forget())
