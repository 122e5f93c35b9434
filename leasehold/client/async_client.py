"""The client for asyncio: the methods of `Client` as coroutines, with the same rules and errors.

Requests and reads run in a limited number of threads, in which the blocking client is called. A wait for a lease or a
phase occupies no thread.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Coroutine, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial, update_wrapper
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar, Unpack, assert_never

from leasehold.client.async_hosts import AsyncHosts
from leasehold.client.async_lease import AsyncLease
from leasehold.client.async_watch import AsyncWatch, AsyncWatches, Gathered
from leasehold.client.client import TIMEOUT_SECONDS, Client
from leasehold.client.display import show_line
from leasehold.client.models import Reservation, list_phases
from leasehold.client.ports import Joined
from leasehold.client.reservation_fields import ReservationFields
from leasehold.client.submitting import with_id
from leasehold.client.waiting import Ask, Explain, Look, Pause, PhaseWait, Renew, Step
from leasehold.errors import LeaseholdError, Unavailable
from scheduler.protocol.masking import show_url

REQUESTS_AT_ONCE: Final = 32
"""The most requests that one client makes at the same time. Each request occupies a thread. A request that exceeds this
number waits for a free thread.
"""
READS_AT_ONCE: Final = 4

P = ParamSpec("P")
R = TypeVar("R")


def _asks(
    method: Callable[Concatenate[Client, P], R],
) -> Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, R]]:
    """Return a coroutine function for a method of the blocking client that sends a request. The function calls the
    method in one of the threads for requests.
    """

    async def ask(self: "AsyncClient", /, *args: P.args, **keywords: P.kwargs) -> R:
        return await self._run(self._requests, partial(method, self._client, *args, **keywords))

    update_wrapper(ask, method)
    return ask


def _reads(
    method: Callable[Concatenate[Client, P], R],
) -> Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, R]]:
    """Return a coroutine function for a method of the blocking client that reads. The function calls the method in one
    of the threads for reads. Reads have threads of their own, so that they do not wait behind requests.
    """

    async def read(self: "AsyncClient", /, *args: P.args, **keywords: P.kwargs) -> R:
        return await self._run(self._readers, partial(method, self._client, *args, **keywords))

    update_wrapper(read, method)
    return read


class AsyncClient:
    """A client of one stack for one event loop. Its arguments and methods are those of `Client`.

    Cancelling a coroutine that sends a request does not withdraw the request: a worker may still carry it out, as after
    NotAnswered. Cancelling `wait` only ends the wait. Cancelling `lease` while it waits also cancels the reservation,
    as Ctrl-C does with `Client`.
    """

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
        self._client = Client(
            url,
            view_url=view_url,
            prefix=prefix,
            timeout=timeout,
            keys=keys,
            principal=principal,
            key=key,
            key_file=key_file,
            token=token,
        )
        self.url, self.timeout = self._client.url, self._client.timeout
        self._requests = ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="leasehold-request")
        self._readers = ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="leasehold-read")
        wire, reader = self._client._wire, self._client._reader
        self._notices = wire.collect_notices()
        self._rows = Gathered(partial(self._run_soon, self._readers, reader.find_joined))
        self._waits = Gathered(partial(self._run_soon, self._readers, reader.find_waits))
        host_notices = wire.collect_host_notices()
        self._ends = [self._notices.close, *([] if host_notices is None else [host_notices.close])]
        self._hosts = AsyncHosts(self._client.hosts, host_notices, partial(self._run, self._requests))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections and threads of the client. Leases that are still held expire after their ttl."""
        self._client.close()
        loop = asyncio.get_running_loop()
        for end in (*self._ends, self._requests.shutdown, self._readers.shutdown):
            await loop.run_in_executor(None, end)

    def now(self) -> float:
        """Return cluster time in seconds since the epoch, like `Client.now`. This is no coroutine, because it does not
        wait.
        """
        return self._client.now()

    def __repr__(self) -> str:
        return show_line(self, show_url(self.url))

    @property
    def hosts(self) -> AsyncHosts:
        """The messages of static hosts, as coroutines: register, send heartbeats, leave, and read the leases of a
        host.
        """
        return self._hosts

    # Requests that change something.

    ask = _asks(Client.ask)
    reserve = _asks(Client.reserve)
    submit = _asks(Client.submit)
    reserve_many = _asks(Client.reserve_many)
    renew = _asks(Client.renew)
    renew_many = _asks(Client.renew_many)
    confirm = _asks(Client.confirm)
    absent = _asks(Client.absent)
    idle = _asks(Client.idle)
    release = _asks(Client.release)
    release_many = _asks(Client.release_many)
    cancel = _asks(Client.cancel)
    priority = _asks(Client.priority)
    fail = _asks(Client.fail)
    surrender = _asks(Client.surrender)
    decline = _asks(Client.decline)
    suspend = _asks(Client.suspend)
    resume = _asks(Client.resume)
    cordon = _asks(Client.cordon)
    uncordon = _asks(Client.uncordon)
    drain = _asks(Client.drain)
    account = _asks(Client.account)
    reset_account = _asks(Client.reset_account)
    forget_account = _asks(Client.forget_account)
    apply_rules = _asks(Client.apply_rules)
    find_key = _reads(Client.find_key)

    # Queries that a worker answers, and reads of the view.

    recall = _asks(Client.recall)
    suggest = _asks(Client.suggest)
    conditions = _asks(Client.conditions)
    rules = _asks(Client.rules)
    preview_rules = _asks(Client.preview_rules)
    ping = _reads(Client.ping)
    get = _reads(Client.get)
    slots = _reads(Client.slots)
    slot = _reads(Client.slot)
    accounts = _reads(Client.accounts)
    report = _reads(Client.report)
    explain = _reads(Client.explain)
    list = _reads(Client.list)
    check_names = _reads(Client.check_names)

    async def wait(
        self,
        reservation: str,
        phase: str | Iterable[str] = "leased",
        timeout: float | None = None,  # noqa: ASYNC109 - as in Client, and the error contains the state of the reservation
        *,
        renew: bool = False,
        wait_anyway: bool = True,
    ) -> Reservation:
        """Wait until a reservation is in one of the phases `phase`, and return the reservation. `timeout` (in seconds),
        `renew`, `wait_anyway` and the errors are those of `Client.wait`.
        """
        phases = list_phases(phase) or frozenset()
        waiting = PhaseWait(reservation, phases, timeout, renew=renew, wait_anyway=wait_anyway, now=self.now)
        steps = waiting.steps()
        async with self.watch(reservation) as watch:
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

    def watch(self, reservation: str) -> AsyncWatch:
        """Return an object that reports the changes of one reservation: `async with client.watch(id) as watch:`, then
        `await watch.read()`.
        """
        return AsyncWatch(self._notices, self._rows, reservation)

    def watch_many(self, reservations: Collection[str]) -> AsyncWatches:
        """Return an object that reports the changes of several reservations: `async with client.watch_many(ids) as
        watches:`, then `await watches.read_joined()`.
        """
        return AsyncWatches(self._notices, self._rows, reservations)

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
        seconds (None: no limit). A task renews the lease, and leaving it releases the lease. `on_revoke` and `on_lost`
        are called with the lease when it is being revoked and when it is lost.

        If no slot and no launch could serve the reservation, entering cancels it and raises CannotBeServed, as `wait`
        does. `wait_anyway`: wait all the same, because rules will change or hosts will join.
        """
        lease = AsyncLease(self, with_id(fields), wait, wait_anyway=wait_anyway)
        for callback, add in ((on_revoke, lease.on_revoke), (on_lost, lease.on_lost)):
            if callback is not None:
                add(callback)
        return lease

    async def run(self, work: Callable[[Client], R]) -> R:
        """Call the function `work` with the blocking client, in one of the threads for requests, and return its result.
        A function that calls several methods of the client needs only one change of the thread.
        """
        return await self._run(self._requests, partial(work, self._client))

    async def _take_step(self, watch: AsyncWatch, step: Step) -> object:
        match step:
            case Look():
                return await watch.read_joined()
            case Renew(seconds):
                return await self.renew(watch.reservation, timeout=seconds)
            case Ask(seconds):
                query = partial(self._client._query, [watch.reservation], seconds)
                return next(iter(await self._run(self._requests, query)), Joined(None))
            case Pause(seconds):
                await watch.wait_for_hint(seconds)
                self._client._check_open()
                return None
            case Explain():
                return await self._waits.read(watch.reservation)
            case _:
                assert_never(step)

    async def _run_soon(self, executor: Executor, act: Callable[..., R], *args: object) -> R:
        return await self._run(executor, partial(act, *args))

    async def _run(self, executor: Executor, act: Callable[[], R]) -> R:
        try:
            future = asyncio.get_running_loop().run_in_executor(executor, act)
        except RuntimeError as error:
            # The executor was shut down.
            raise Unavailable("the client is closed") from error
        return await future
