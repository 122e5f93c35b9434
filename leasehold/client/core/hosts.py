"""The messages of static hosts as coroutines: a host registers, sends heartbeats, leaves, and reads the leases on its
slot.

A heartbeat is one write to Redis and waits in no queue. All other messages are requests to workers.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import msgspec

from leasehold.client.core.watch import Hint
from leasehold.client.models import Answer, Host, LeaseKey, Taken, read_answer
from leasehold.client.ports import Notices, Reader, Wire, is_run_unknown
from leasehold.client.submitting import read_answers
from leasehold.errors import Fault, Refused, Unknown, read_faults
from scheduler.protocol.faults import describe_unknown


class Printed(TypedDict):
    """The end of the output of a running command (`tail`, at most 8,192 characters), and how many bytes it has printed
    on this lease.
    """

    reservation: str
    component: str
    token: int
    tail: str
    bytes: int


class AsyncHosts:
    """The messages of static hosts. `slot`: the name of the host and of its slot. `machine`: the id of the machine
    itself, for example from /etc/machine-id, which must not change while the machine is the same.

    Requests raise Refused, NotAnswered (safe to repeat) and Unavailable. `timeout` is in seconds.
    """

    def __init__(self, wire: Wire, reader: Reader, timeout: float) -> None:
        self._wire, self._reader, self._timeout = wire, reader, timeout
        self._counters: dict[str, int] = {}
        """Slot id -> counter of the last heartbeat that was sent. The next heartbeat gets a higher one."""

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
        timeout: float | None = None,
    ) -> Answer:
        """Register a host as a slot of a static pool, with its resources and labels (default: those of the pool).

        Registering the same machine again updates its slot. Another machine under this name is refused until an
        operator has removed the slot. `run`: an id of this run of the host's agent; while an earlier run of it sends
        heartbeats, this one is refused. The fault names `run` as long as the earlier one may have ended: then ask again
        with `waited`, the seconds since the first attempt.
        """
        given: dict[str, Any] = {"pool": pool, "machine": machine, "resources": resources, "labels": labels}
        given |= {"address": address, "run": run, "waited": waited}
        document = {"slot": slot, **{key: value for key, value in given.items() if value is not None}}
        answer = read_answer(await self._ask("register", document, timeout))
        self._counters[slot] = max(self._counters.get(slot, 0), answer.heartbeat or 0)
        return answer

    async def heartbeat(self, slot: str, machine: str, version: str | None = None, run: str | None = None) -> None:
        """Report that the host is online, and that it knows this `version` of its slot (`Host.version`; None: it knows
        no version). A heartbeat gets no answer. `run`: the run of the agent that the answer to `register` has.

        A heartbeat counts only if it is from the machine that the slot belongs to. It is signed if this client's
        principal has the name of the slot. Raise Unavailable if the stack does not answer.
        """
        above = self._counters.get(slot, 0)
        self._counters[slot] = await self._wire.send_heartbeat(slot, machine, version, above, run)

    async def check(self, slot: str, machine: str) -> None:
        """Raise Unknown if the view does not have the slot, and Refused if the slot belongs to another machine."""
        (row,) = await self._reader.find_slots([slot])
        if row is None:
            raise Unknown(f"{describe_unknown('slot', slot)}: has its host registered?")
        if row.machine != machine:
            raise Refused([Fault(0, "machine", f"the machine that {slot} belongs to", f'"{machine}"')])

    async def leave(self, slot: str, machine: str, *, run: str | None = None, timeout: float | None = None) -> Answer:
        """Report that a host leaves. Its slot takes no new leases, and becomes empty when its leases have ended. Raise
        Refused if the slot belongs to another run of the agent than `run` (None: any).
        """
        return read_answer(await self._ask("leave", _name_host(slot, machine, run), timeout))

    async def remove(self, slot: str, *, timeout: float | None = None) -> Answer:
        """Remove a host that does not come back (for operators). Its leases end, and another host may register under
        its name.
        """
        return read_answer(await self._ask("remove", {"slot": slot}, timeout))

    async def leases(self, slot: str, machine: str, *, run: str | None = None, timeout: float | None = None) -> Host:
        """Return the slot of a host with the leases on it, read from the database. Raise Refused if the slot belongs to
        another run of the agent than `run` (None: any).
        """
        return msgspec.convert(await self._ask("leases", _name_host(slot, machine, run), timeout), Host)

    async def take(
        self,
        slot: str,
        machine: str,
        *,
        run: str,
        reservation: str,
        component: str,
        token: int,
        nonce: str,
        timeout: float | None = None,
    ) -> Taken:
        """Take the command of a lease on the slot, and return it with its signature. The agent that takes it first gets
        it, however often it asks; raise Refused for another one. `nonce`: a random text of 16 to 200 letters, digits, -
        and _ for this request, which the signature covers.
        """
        document = _name_lease(slot, machine, run, reservation, component, token) | {"nonce": nonce}
        return msgspec.convert(await self._ask("take", document, timeout), Taken)

    async def started(
        self,
        slot: str,
        machine: str,
        *,
        run: str,
        reservation: str,
        component: str,
        token: int,
        timeout: float | None = None,
    ) -> Answer:
        """Report that the command of a lease runs. That confirms and renews the lease."""
        document = _name_lease(slot, machine, run, reservation, component, token)
        return read_answer(await self._ask("started", document, timeout))

    async def output(
        self, slot: str, machine: str, *, run: str, reports: Sequence[Printed], timeout: float | None = None
    ) -> tuple[Answer, ...]:
        """Report the ends of the outputs of running commands, in one request, and return one answer for each. Send at
        most one request a second. An answer about a report that was refused has `errors`.
        """
        seconds = self._timeout if timeout is None else timeout
        items = [{"slot": slot, "machine": machine, "run": run, **each} for each in reports]
        answer, _ = await self._wire.ask("output", {"items": items}, seconds)
        return tuple(read_answers(answer, len(items), 0))

    async def exited(  # noqa: PLR0913 - the fields of the report
        self,
        slot: str,
        machine: str,
        *,
        run: str,
        reservation: str,
        component: str,
        token: int,
        why: str,
        exit_code: int | None = None,
        signal: int | None = None,
        error: str | None = None,
        tail: str | None = None,
        bytes: int | None = None,  # noqa: A002 - the name of the field
        timeout: float | None = None,
    ) -> Answer:
        """Report how the command of a lease has ended (`why`, as in `Command`). The reservation is released, fails or
        waits again as the outcome demands. A second report changes nothing.
        """
        given: dict[str, Any] = {"why": why, "exit_code": exit_code, "signal": signal}
        given |= {"error": error, "tail": tail, "bytes": bytes}
        document = _name_lease(slot, machine, run, reservation, component, token)
        document |= {name: value for name, value in given.items() if value is not None}
        return read_answer(await self._ask("exited", document, timeout))

    def hints(self, slot: str) -> "AsyncHints":
        """Return a subscription to hints, which report that this slot has changed. The caller must close it."""
        return AsyncHints(slot, self._wire.hosts)

    async def _ask(self, verb: str, document: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
        seconds = self._timeout if timeout is None else timeout
        answer, _ = await self._wire.ask(verb, document, seconds)
        if not answer.get("ok") and "run" in document and is_run_unknown(read_faults(answer.get("errors", []))):
            known = {name: value for name, value in document.items() if name not in {"run", "waited"}}
            answer, _ = await self._wire.ask(verb, known, seconds)
        if not answer.get("ok"):
            raise Refused(read_faults(answer.get("errors", [])))
        return answer


def _name_host(slot: str, machine: str, run: str | None) -> dict[str, Any]:
    return {"slot": slot, "machine": machine, **({} if run is None else {"run": run})}


def _name_lease(slot: str, machine: str, run: str, reservation: str, component: str, token: int) -> dict[str, Any]:
    lease = {"reservation": reservation, "component": component, "token": token}
    return {"slot": slot, "machine": machine, "run": run, **lease}


class AsyncHints:
    """A subscription to the hints about one slot. A hint reports that the slot has changed, and may be lost. The
    subscription is for use in one asyncio task.
    """

    def __init__(self, slot: str, notices: Notices) -> None:
        self._slot, self._notices = slot, notices
        self._hint = Hint()
        self._is_open = False

    def _begin(self) -> None:
        """Begin the subscription. `wait` begins it, too."""
        if not self._is_open:
            self._is_open = True
            self._notices.add(self._slot, self._hint)

    async def listen(self) -> None:
        """Begin the subscription, and return when every later change will be reported, or after a short time."""
        self._begin()
        await self._notices.listen(self._slot)

    async def wait(self, seconds: float) -> bool:
        """Wait for a hint, for `seconds` at most. Return whether a hint has arrived since the last wait."""
        self._begin()
        return await self._hint.take(seconds)

    @property
    def commands(self) -> Sequence[LeaseKey]:
        """The leases whose commands are new by the newest hint, if that is known."""
        return self._notices.find_commands(self._slot)

    def forget(self) -> None:
        """Drop the hints that have arrived so far."""
        self._hint.clear()

    async def close(self) -> None:
        """End the subscription."""
        if self._is_open:
            self._is_open = False
            self._notices.remove(self._slot, self._hint)
