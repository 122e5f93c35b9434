"""The client as coroutines: it submits reservations, waits for them, holds their leases, and explains why they wait.
The blocking client calls these coroutines.

Requests for changes are sent as Celery messages, or to the HTTP API; an answer means that the change is committed.
Reads come from the view in Redis, or from the HTTP API.
"""

import asyncio
import builtins
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack, assert_never

import msgspec

from leasehold.client.core.commands import Commands
from leasehold.client.core.gathering import Gathering
from leasehold.client.core.hosts import AsyncHosts
from leasehold.client.core.lease import AsyncLease
from leasehold.client.core.watch import AsyncWatch, AsyncWatches, Gathered
from leasehold.client.display import Table, show_line
from leasehold.client.models import (
    Account,
    Answer,
    Command,
    Conditions,
    Explanation,
    LastWait,
    Reservation,
    RunTimes,
    Slot,
    list_phases,
    read_answer,
    read_explanation,
)
from leasehold.client.ports import Answered, Joined
from leasehold.client.reservation_fields import ReservationFields, Run
from leasehold.client.reservation_keys import Keys
from leasehold.client.rules import RuleRequests
from leasehold.client.stack_access import Ways, open_access
from leasehold.client.submitting import ITEMS_A_REQUEST, read_answers, split_items, with_id
from leasehold.client.waiting import Ask, Explain, Look, Pause, PhaseWait, Renew, Step
from leasehold.errors import Fault, LeaseholdError, Refused, Unavailable, Unknown, read_faults
from scheduler.model.faults import one_of, show
from scheduler.model.validation import is_name
from scheduler.protocol.faults import describe_unknown
from scheduler.protocol.masking import show_url

if TYPE_CHECKING:
    from leasehold.canaries import Probe

A = TypeVar("A")
R = TypeVar("R")
TIMEOUT_SECONDS: Final = 30.0
NAMES_SECONDS: Final = 5.0
"""Seconds to wait for a worker's answer with the pools of the rules."""


LEFT_BEHIND: Final[list[object]] = []
"""What belonged to the loop of a parent process. It is kept, because closing it would change the parent's sockets."""


class CoreClient(Commands, RuleRequests):
    """A client of one stack for one event loop. Its arguments are those of `Client`."""

    def __init__(  # noqa: PLR0913 - each is an option of its own
        self,
        url: str | None = None,
        *,
        view_url: str | None = None,
        prefix: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
        keys: str | Path | None = None,
        principal: str | None = None,
        key: str | None = None,
        key_file: str | os.PathLike[str] | None = None,
        token: str | None = None,
    ) -> None:
        self._access = open_access(url, view_url, prefix, principal, key, key_file, token)
        self._keys = Keys(None if keys is None else Path(keys), makes=self._access.has_key)
        self.url, self.timeout = self._access.url, timeout
        self._attach(self._access.open())

    def _attach(self, ways: Ways) -> None:
        self._wire, self._reader = ways
        self._gathering = Gathering(self._wire)
        self._rows = Gathered(self._find_rows)
        self._waits = Gathered(self._find_waits)
        self._stored_keys = Gathered(self._list_keys)
        self._hosts = AsyncHosts(self._wire, self._reader, self.timeout)

    def _reopen(self) -> None:
        """Open connections for another event loop: that of a child after a fork."""
        LEFT_BEHIND.append((self._wire, self._reader, self._gathering, self._rows, self._waits, self._stored_keys))
        self._attach(self._access.open())

    def __repr__(self) -> str:
        return show_line(self, show_url(self.url))

    async def close(self) -> None:
        """Close all connections of the client. Leases that are still held expire after their ttl."""
        await self._wire.close()

    async def ping(self) -> None:
        """Raise Unavailable unless the stack answers and has a valid view."""
        await self._reader.check()

    def now(self) -> float:
        """Return cluster time in seconds since the epoch. All times that this client returns are cluster time.

        Requests and reads correct the time; in between, a monotonic clock continues it. The wall clock of this host may
        be wrong.
        """
        return self._wire.clock.now()

    @property
    def _is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._wire.is_closed

    @property
    def _transport(self) -> Any:
        """What sends the requests, for tools that need more than a client has."""
        return getattr(self._wire, "transport", self._wire)

    def _make_probe(self) -> "Probe":
        """Return the checks of the stack's health. Raise Unavailable for a client over HTTP."""
        return self._wire.make_probe()

    def _check_open(self) -> None:
        """Raise Unavailable if the client was closed."""
        if self._wire.is_closed:
            raise Unavailable("the client was closed while it waited")

    @property
    def hosts(self) -> AsyncHosts:
        """The messages of static hosts: a host registers, sends heartbeats, leaves, and reads its leases."""
        return self._hosts

    # Requests that change something.

    async def ask(
        self,
        verb: str,
        document: Mapping[str, Any],
        *,
        timeout: float | None = None,
        request: str | None = None,
    ) -> dict[str, Any]:
        """Send one request with this verb and this document (docs/reference/protocol.md), and return the answer
        unchanged, even if the request was refused. `request`: the id of the request (default: a random one). A request
        with the id of an earlier one changes nothing and gets the earlier answer.

        The other methods raise Refused for a refused request, and put the key of the reservation into the document;
        this method does neither. Raise NotAnswered or Unavailable.
        """
        return (await self._wire.ask(verb, document, self._timeout(timeout), request=request)).answer

    async def reserve(self, *, timeout: float | None = None, **fields: Unpack[ReservationFields]) -> Reservation:
        """Submit a reservation, and return it when it is stored durably. A second request with the same id changes
        nothing.

        If no slot or offering could hold the reservation at present, its field `waiting` has the reason. Raise Refused,
        NotAnswered (safe to repeat with the same id) or Unavailable.
        """
        return await self.submit(fields, timeout=timeout)

    async def submit(
        self, document: Mapping[str, Any], *, run: Run | None = None, timeout: float | None = None
    ) -> Reservation:
        """Submit a reservation whose fields are in `document`, and return the reservation, as `reserve` does. Raise
        Refused for invalid fields.

        `run`: the command that the hosts of its leases run. The message must be signed by a principal with the right
        `run`, except on a local stack with a Redis of its own.
        """
        document = document if run is None else {**document, "run": run}
        answer, seen = await self._submit(with_id(document), timeout, has_row=True)
        return await self._describe(read_answer(answer), seen)

    async def rerun(self, reservation: str, *, new_id: str | None = None, timeout: float | None = None) -> Reservation:
        """Submit a new reservation that asks for the same as an earlier one and has the same command, and return it.
        `new_id`: its id; None: a random one.

        The sender needs the right `run`. Only the principal that submitted the earlier reservation and operators may
        ask. Raise Refused for another sender and for a reservation without a command, NotAnswered or Unavailable.
        """
        answer = await self._ask("rerun", with_id({"reservation": reservation, "id": new_id}), timeout)
        return await self._describe(answer, None)

    async def _submit(self, document: dict[str, Any], timeout: float | None, *, has_row: bool) -> Answered:
        (hidden,) = await self._use_keys(self._keys.hide, [document])
        seconds = self._timeout(timeout)
        found = await self._gathering.ask("submit", hidden, seconds, has_row=has_row)
        check_accepted(found.answer)
        return found

    async def _use_keys(self, act: Callable[[A], R], argument: A) -> R:
        # The file of keys is written in a thread: another process may be writing, too.
        return await asyncio.to_thread(act, argument) if self._access.has_key else act(argument)

    async def reserve_many(self, items: Iterable[ReservationFields], *, timeout: float | None = None) -> Table[Answer]:
        """Submit many reservations, a thousand in each message. Return a table with one answer for each, in the given
        order. The answers to invalid reservations have `errors`.

        Raise NotAnswered or Unavailable; reservations that were accepted until then stay accepted.
        """
        return await self._ask_many("submit", map(self._keys.hide, split_items(items)), timeout)

    async def _ask_many(
        self, verb: str, chunks: Iterable[list[dict[str, Any]]], timeout: float | None
    ) -> Table[Answer]:
        sizes: list[int] = []

        def requests() -> Iterator[dict[str, Any]]:
            for chunk in chunks:
                sizes.append(len(chunk))
                yield {"items": chunk}

        found: list[Answer] = []
        number = 0
        async for document in self._wire.ask_each(verb, requests(), self._timeout(timeout)):
            found += read_answers(document, sizes[number], number * ITEMS_A_REQUEST)
            number += 1
        return Table(found)

    async def find_key(self, reservation: str) -> str | None:
        """Return the key of a reservation that this user submitted on this host. Return None for other reservations.

        A holder on another host needs the key: pass it as `key` to the commands of a holder.
        """
        return await self._stored_keys.read(reservation)

    async def _list_keys(self, ids: builtins.list[str], _expected: Collection[str]) -> builtins.list[str | None]:
        found = await self._find_keys(ids)
        return [found.get(name) for name in ids]

    async def _find_keys(self, reservations: Iterable[str]) -> Mapping[str, str]:
        return await self._use_keys(self._keys.find_all, reservations)

    # Reads. Each raises Unavailable while the stack is unreachable or the view is not valid.

    async def get(self, reservation: str) -> Reservation | None:
        """Return a reservation with its leases and their machines, or None if the view does not have it.

        An ended reservation stays in the view for ten minutes; `recall` also finds older ones. Raise Unavailable.
        """
        return (await self._rows.read(reservation)).row

    async def recall(self, *reservations: str, timeout: float | None = None) -> Table[Reservation]:
        """Return the reservations with these ids from the database, including those that ended long ago. Unknown ids
        are omitted.

        A worker must run to answer this. Raise NotAnswered or Unavailable.
        """
        found = await self._query(reservations, timeout)
        return Table(each.row for each in found if each.row is not None)

    async def _query(self, reservations: Iterable[str], timeout: float | None) -> tuple[Joined, ...]:
        """Return the rows of these reservations, read from the database by a worker. With each row, `missing` has the
        slots of its leases whose machine is unknown. Reservations that the database does not have are omitted.
        """
        answer = await self._ask_worker("query", {"ids": list(reservations)}, timeout)
        return tuple(
            # A worker that knows the machine of a lease sends an instance id, which may be null.
            Joined(
                msgspec.convert(row, Reservation),
                frozenset(lease["slot"] for lease in row.get("leases", ()) if "instance_id" not in lease),
            )
            for row in answer["reservations"]
        )

    async def slots(self, *, pool: str | None = None, state: str | None = None) -> Table[Slot]:
        """Return the slots of the view, sorted by name. `pool`: only slots of this pool. `state`: only slots in this
        state. None: any. Raise Refused, with the known names, for a pool that does not exist.
        """
        rows = await self._reader.list_slots(pool, state)
        if not rows and not self._reader.checks_names:
            await self.check_names(pool=pool)
        return Table(rows)

    async def slot(self, slot: str) -> Slot | None:
        """Return the slot with this id, or None if the view does not have it."""
        return (await self._reader.find_slots([slot]))[0] if is_name(slot) else None

    async def accounts(self) -> Table[Account]:
        """Return the quota accounts of the view, sorted by name. Their balances are those of the last charge."""
        return Table(await self._reader.list_accounts())

    async def run_times(self, *, account: str | None = None, job: str | None = None) -> Table[RunTimes]:
        """Return how long released leases ran, by classes of similar work. `account`, `job`: only classes whose work
        has this account or this job (tag `job`, else `name`); None: any.
        """
        return Table(await self._reader.list_run_times(account, job))

    async def etas(self, reservations: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return by id when these waiting reservations are expected to start: `low`, `median`, `high` and `late` are
        the times, in seconds since the epoch, before which the reservation starts with a probability of 10, 50, 90 and
        95 %. `as_of`: the time of the forecast. `unknown`: why there is none. Reservations that no forecast contains
        are missing.
        """
        return await self._reader.find_etas([*filter(is_name, reservations)])

    async def foresight(self) -> dict[str, Any]:
        """Return how well forecasts of starts were kept: `as_of`, `plays`, `seconds` and `qualities`, with a table for
        each class: `name`, `count`, `coverage` of the 80 % interval, `width`, `loss` and `calibration`. {}: there are
        no forecasts.
        """
        return await self._reader.read_foresight()

    async def report(self) -> dict[str, Any]:
        """Return the report of the last tick: its term and time, and the reservations that wait with their reasons."""
        return await self._reader.read_report()

    async def explain(self, reservation: str) -> Explanation:
        """Return the state of a reservation and the reason why it waits, as the last tick reported it. Raise Unknown if
        the view does not have the reservation.
        """
        if not is_name(reservation):
            raise Unknown(describe_unknown("reservation", reservation))
        return await self._reader.explain(reservation)

    async def suggest(self, reservation: str, *, timeout: float | None = None) -> Explanation:
        """Return the state of a reservation, why it waits, and the smallest change that would end its wait.

        A worker computes the change from the present rows. Raise Refused for an unknown id, NotAnswered or Unavailable.
        """
        return read_explanation(await self._ask_worker("explain", {"reservation": reservation}, timeout))

    async def command(self, reservation: str, *, timeout: float | None = None) -> Command:
        """Return the command of a reservation: its state, how it ended, and the end of its output, read from the
        database. The values of its environment are hidden.

        Only the principal that submitted the reservation and operators may ask. Raise Refused for another sender and
        for a reservation without a command, NotAnswered or Unavailable.
        """
        return msgspec.convert(await self._ask_worker("command", {"reservation": reservation}, timeout), Command)

    async def conditions(self, pool: str | None = None, *, timeout: float | None = None) -> Conditions:
        """Return sentences about slots and pools. They report what the states of the slots do not show, for example
        that launches are paused. `pool`: only this pool and its slots; None: all pools.

        A worker must run to answer this. Raise NotAnswered or Unavailable.
        """
        asked = {} if pool is None else {"pool": pool}
        return msgspec.convert(await self._ask_worker("conditions", asked, timeout), Conditions)

    async def wait(
        self,
        reservation: str,
        phase: str | Iterable[str] = "leased",
        timeout: float | None = None,
        *,
        renew: bool = False,
        wait_anyway: bool = True,
    ) -> Reservation:
        """Wait until a reservation is in one of the phases `phase`, and return the reservation. `ended` stands for all
        phases in which a reservation has ended. A leased reservation is returned with its machines.

        `timeout` is in seconds; None: no limit. `renew`: renew the reservation while it is pending, so that its ttl
        does not end. Raise Ended if the reservation ends in another phase, Unknown if it does not appear in the view,
        and NotAnswered or Unavailable when `timeout` has passed. NotAnswered has the waiting code of a pending
        reservation.

        `wait_anyway` False: raise CannotBeServed if two ticks, at least 3 s apart, report that no slot and no launch
        could serve the reservation (`never_fits`, `no_pool`). The reservation stays as it is.
        """
        async with self.watch(reservation) as watch:
            return await self._wait_with(watch, phase, timeout, renew=renew, wait_anyway=wait_anyway)

    async def _wait_with(
        self, watch: AsyncWatch, phase: str | Iterable[str], timeout: float | None, *, renew: bool, wait_anyway: bool
    ) -> Reservation:
        phases = list_phases(phase) or frozenset()
        waiting = PhaseWait(watch.reservation, phases, timeout, renew=renew, wait_anyway=wait_anyway, now=self.now)
        steps = waiting.steps()
        try:
            step = next(steps)
            while True:
                try:
                    result = await self._take_step(watch, step)
                except LeaseholdError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as stop:
            found: Reservation = stop.value
            return found

    async def _take_step(self, watch: AsyncWatch, step: Step) -> object:
        match step:
            case Look():
                return await watch.read_joined()
            case Renew(seconds):
                return await self.renew(watch.reservation, timeout=seconds)
            case Ask(seconds):
                return next(iter(await self._query([watch.reservation], seconds)), Joined(None))
            case Pause(seconds):
                await watch.wait_for_hint(seconds)
                self._check_open()
                return None
            case Explain():
                return await self._waits.read(watch.reservation)
            case _:
                assert_never(step)

    def watch(self, reservation: str) -> AsyncWatch:
        """Return an object that reports the changes of one reservation: `async with client.watch(id) as watch:`, then
        `await watch.read()`.
        """
        return AsyncWatch(self._wire.rows, self._rows, reservation)

    def watch_many(self, reservations: Collection[str]) -> AsyncWatches:
        """Return an object that reports the changes of several reservations: `async with client.watch_many(ids) as
        watches:`, then `await watches.read_joined()`.
        """
        return AsyncWatches(self._wire.rows, self._rows, reservations)

    def lease(
        self,
        *,
        wait: float | None = None,
        wait_anyway: bool = False,
        on_revoke: Callable[[AsyncLease], object] | None = None,
        on_lost: Callable[[AsyncLease], object] | None = None,
        **fields: Unpack[ReservationFields],
    ) -> AsyncLease:
        """Return a lease for use as `async with client.lease(system="x86_64-linux") as lease:`.

        Entering the lease submits a reservation with these `fields` and waits until it is leased, at most `wait`
        seconds (None: no limit). The lease is renewed in the background, and leaving it releases the lease. `on_revoke`
        and `on_lost` are called with the lease when it is being revoked and when it is lost.

        If no slot and no launch could serve the reservation, entering cancels it and raises CannotBeServed, as `wait`
        does. `wait_anyway`: wait all the same, because rules will change or hosts will join.
        """
        lease = AsyncLease(self, with_id(fields), wait, wait_anyway=wait_anyway)
        for callback, add in ((on_revoke, lease.on_revoke), (on_lost, lease.on_lost)):
            if callback is not None:
                add(callback)
        return lease

    async def list(
        self,
        phase: str | Iterable[str] | None = None,
        *,
        account: str | None = None,
        pool: str | None = None,
        system: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Table[Reservation]:
        """Return the reservations of the view that match all given filters, in order of submission. Without a filter,
        return all. Raise Refused, with the known names, if none matches and a filter names a pool or system that does
        not exist. An account may be any name, so one that has no reservations is no fault.
        """
        wanted = {"account": account, "pool": pool, "system": system}
        rows = await self._reader.list_reservations(list_phases(phase), wanted, tags or {})
        if not rows and not self._reader.checks_names:
            await self.check_names(pool=pool, system=system)
        return Table(rows)

    async def check_names(
        self, *, account: str | None = None, pool: str | None = None, system: str | None = None
    ) -> None:
        """Raise Refused, with the known names, for an account, pool or system that does not exist. A list that is empty
        checks the pool and the system of its filters. A name that a reservation or slot of the view has is no fault.

        Pools and systems are in the report of the last tick. A worker is asked for those that the report lacks, because
        the rules may be newer; if none answers, the name is accepted.
        """
        wanted = {"account": account, "pool": pool, "system": system}
        known: dict[str, list[str]] = {}
        if account is not None:
            known["account"] = [each.id for each in await self._reader.list_accounts()]
        if pool is not None or system is not None:
            pools = (await self._reader.read_report()).get("pools", {})
            if pool not in {None, *pools} or system not in {None, *pools.values()}:
                try:
                    document = (await self.rules(timeout=min(self.timeout, NAMES_SECONDS))).document
                except LeaseholdError:
                    pool = system = None
                else:
                    pools = {name: each.get("system") for name, each in document.get("pools", {}).items()}
            known |= {} if pool is None else {"pool": sorted(pools)}
            known |= {} if system is None else {"system": sorted({each for each in pools.values() if each})}
        faults = [
            Fault(0, name, one_of(value, names), show(value))
            for name, names in known.items()
            if (value := wanted[name]) is not None and value not in names and not await self._is_used(name, value)
        ]
        if faults:
            raise Refused(faults)

    async def _is_used(self, name: str, value: str) -> bool:
        """Return whether a reservation or slot of the view has this value of a filter, although nothing else knows it:
        an account that was never made, or a pool that was removed.
        """
        return bool(
            await self._reader.list_reservations(None, {name: value}, {})
            or (name == "pool" and await self._reader.list_slots(value, None))
        )

    async def _find_rows(self, ids: builtins.list[str], expected: Collection[str]) -> builtins.list[Joined]:
        # One read is for many callers. It must not fail because one of them asks for what can be no id.
        names = [*filter(is_name, ids)]
        found = dict(zip(names, await self._reader.find_joined(names, expected), strict=True)) if names else {}
        return [found.get(each, Joined(None)) for each in ids]

    async def _find_waits(self, ids: builtins.list[str], _expected: Collection[str]) -> builtins.list[LastWait]:
        return await self._reader.find_waits(ids)

    def _timeout(self, given: float | None) -> float:
        return self.timeout if given is None else given

    async def _ask(self, verb: str, document: Mapping[str, Any], timeout: float | None) -> Answer:
        return read_answer(await self._ask_worker(verb, document, timeout))

    async def _ask_worker(self, verb: str, document: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
        return check_accepted((await self._gathering.ask(verb, document, self._timeout(timeout))).answer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _describe(self, answer: Answer, seen: Joined | None) -> Reservation:
        """Return the reservation that was submitted with `submit`, with the `waiting`, the `eta` and the `notes` of the
        answer. `seen`: the row that came with the answer; None: no row came, so the row is read from the view now. If
        the view does not have the row yet, the reservation has only the fields of the answer.
        """
        name, phase = answer.reservation or "", answer.phase or "pending"
        found = None if seen is None else seen.row
        if seen is None:
            with suppress(Unavailable):
                found = await self.get(name)
        row = found or Reservation(id=name, phase=phase, expires_at=answer.expires_at, token=answer.token or 0)
        waiting = answer.waiting if row.phase == "pending" else None
        eta = answer.eta if row.phase == "pending" else None
        return msgspec.structs.replace(row, waiting=waiting, eta=eta, notes=answer.notes)


def check_accepted(answer: dict[str, Any]) -> dict[str, Any]:
    """Return `answer` unchanged if the request was accepted. If it was refused, raise Refused with the faults."""
    if not answer.get("ok"):
        raise Refused(read_faults(answer.get("errors", [])))
    return answer
