"""The messages of static hosts for asyncio: the methods of `Hosts` as coroutines, with the same rules and errors."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from leasehold.client.hosts import Hosts
from leasehold.client.models import Answer, Host
from leasehold.client.ports import Hints, Notices

Run = Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]]


class AsyncHosts:
    """The messages of static hosts for one event loop. `run` calls a function in a thread and returns its result.
    `notices`: the receiver of hints, which report that a host's slot has changed; None: there is no receiver, and each
    wait for a hint occupies a thread.
    """

    def __init__(self, hosts: Hosts, notices: Notices | None, run: Run) -> None:
        self._hosts, self._notices, self._run = hosts, notices, run

    async def register(  # noqa: PLR0913 - the fields of a registration
        self,
        slot: str,
        *,
        pool: str,
        machine: str,
        resources: Mapping[str, float] | None = None,
        labels: Mapping[str, str] | None = None,
        address: str | None = None,
        run: str | None = None,
        waited: float | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as in Hosts
    ) -> Answer:
        """Register a host as a slot of a static pool, as `Hosts.register` does."""
        fields: dict[str, Any] = {"pool": pool, "machine": machine, "resources": resources, "labels": labels}
        fields |= {"address": address, "run": run, "waited": waited}
        asked = partial(self._hosts.register, slot, **fields, timeout=timeout)
        answer: Answer = await self._run(asked)
        return answer

    async def heartbeat(self, slot: str, machine: str, version: str | None = None, run: str | None = None) -> None:
        """Report that the host is online, and that it knows this `version` of its slot (`Host.version`; None: it knows
        no version). A heartbeat gets no answer. `run`: the run of the agent that the answer to `register` has.
        """
        await self._run(partial(self._hosts.heartbeat, slot, machine, version, run))

    async def check(self, slot: str, machine: str) -> None:
        """Raise Unknown if the view does not have the slot, and Refused if the slot belongs to another machine."""
        await self._run(partial(self._hosts.check, slot, machine))

    async def leave(
        self,
        slot: str,
        machine: str,
        *,
        run: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as in Hosts
    ) -> Answer:
        """Report that a host leaves, as `Hosts.leave` does."""
        answer: Answer = await self._run(partial(self._hosts.leave, slot, machine, run=run, timeout=timeout))
        return answer

    async def remove(self, slot: str, *, timeout: float | None = None) -> Answer:  # noqa: ASYNC109 - as in Hosts
        """Remove a host that does not come back (for operators). Its leases end, and another host may register under
        its name.
        """
        answer: Answer = await self._run(partial(self._hosts.remove, slot, timeout=timeout))
        return answer

    async def leases(
        self,
        slot: str,
        machine: str,
        *,
        run: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as in Hosts
    ) -> Host:
        """Return the slot of a host with the leases on it, as `Hosts.leases` does."""
        host: Host = await self._run(partial(self._hosts.leases, slot, machine, run=run, timeout=timeout))
        return host

    def hints(self, slot: str) -> "AsyncHints":
        """Return a subscription to hints, which report that this slot has changed. The caller must close it."""
        return AsyncHints(slot, self._notices, self._run, self._hosts)


class AsyncHints:
    """A subscription to the hints about one slot. A hint reports that the slot has changed, and may be lost. The
    subscription is for use in one asyncio task.
    """

    def __init__(self, slot: str, notices: Notices | None, run: Run, hosts: Hosts) -> None:
        self._slot, self._notices, self._run = slot, notices, run
        self._event = asyncio.Event()
        self._blocking: Hints | None = None
        if notices is None:
            self._blocking = hosts.hints(slot)
        else:
            notices.add(slot, self._event)

    async def wait(self, seconds: float) -> bool:
        """Wait for a hint, for `seconds` at most. Return whether a hint has arrived since the last wait."""
        if self._blocking is not None:
            hinted: bool = await self._run(partial(self._blocking.wait, seconds))
            return hinted
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True

    async def close(self) -> None:
        """End the subscription."""
        if self._notices is not None:
            self._notices.remove(self._slot, self._event)
        elif self._blocking is not None:
            await self._run(self._blocking.close)
