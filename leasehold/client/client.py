"""The blocking client for producers: it submits reservations, waits for them, holds their leases, and explains why they
wait. Its methods are those of `CoreClient`; all clients of a process share one event loop in a thread.

A producer needs only the package `leasehold`.
"""

import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from leasehold.client.blocking import blocks
from leasehold.client.core.client import TIMEOUT_SECONDS, CoreClient
from leasehold.client.core.portal import PORTAL, Portal
from leasehold.client.display import show_line
from leasehold.client.hosts import Hosts
from leasehold.client.lease import Lease
from leasehold.client.reservation_fields import ReservationFields
from leasehold.client.submitting import with_id
from leasehold.client.watch import Watch
from scheduler.protocol.masking import show_url

if TYPE_CHECKING:
    from leasehold.canaries import Probe

R = TypeVar("R")


class Client:
    """A client of one stack. It can be used by any number of threads, and after a fork.

    `url`: the Redis of the stack, or its HTTP API (`https://…`); default: LEASEHOLD_BROKER__URL, else the stack that
    runs in this folder or in one above it. `view_url` and `prefix`: a separate Redis and key prefix of the view;
    default: LEASEHOLD_VIEW__URL and LEASEHOLD_VIEW__PREFIX, else the broker's Redis and `leasehold:`. `timeout`: time
    limit of a request in seconds, unless a call has its own. `keys`: the file with the keys of reservations; default:
    LEASEHOLD_KEYS, else `~/.local/state/leasehold/keys`.

    `key_file` (or `key`, the content of such a file): the key that signs the messages. The sender is the principal that
    the key file names; if it names none, `principal`. Defaults: the environment variables LEASEHOLD_ACCESS__KEY_FILE,
    LEASEHOLD_ACCESS__KEY and LEASEHOLD_ACCESS__PRINCIPAL; without a key, messages are not signed. `token`: the token of
    an HTTP API; default: LEASEHOLD_CONSOLE__TOKEN. Raises NoStack, Unavailable, BadCredentials.
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
        core = CoreClient(
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
        self._begin(core, PORTAL)
        finalizer = weakref.finalize(self, _abandon, core, PORTAL)
        finalizer.atexit = False

    def _begin(self, core: CoreClient, portal: Portal) -> None:
        self._core, self._portal = core, portal
        self._loop: object = None
        self._guard = threading.Lock()
        self._hosts = Hosts(lambda: core.hosts, self._run)
        self.url, self.timeout = core.url, core.timeout

    @classmethod
    def _over(cls, core: CoreClient, portal: Portal) -> Self:
        """Return the blocking face of a client that another event loop runs."""
        client = cls.__new__(cls)
        client._begin(core, portal)  # noqa: SLF001 - itself
        return client

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        loop = self._portal.loop
        if self._loop is not loop:
            with self._guard:
                if self._loop not in {None, loop} and not self._core._is_closed:  # noqa: SLF001 - its face
                    self._core._reopen()  # noqa: SLF001 - its face
                self._loop = loop
        return self._portal.run(work)

    @property
    def _wire(self) -> Any:
        return self._core._transport  # noqa: SLF001 - its face

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return show_line(self, show_url(self.url))

    def now(self) -> float:
        """Return cluster time in seconds since the epoch. All times that this client returns are cluster time.

        Requests and reads correct the time; in between, a monotonic clock continues it. The wall clock of this host may
        be wrong.
        """
        return self._core.now()

    @property
    def probe(self) -> "Probe":
        """The checks of the stack's health, for operators. Raise Unavailable for a client over HTTP, which cannot make
        these checks.
        """
        return self._core._make_probe()  # noqa: SLF001 - its face

    @property
    def hosts(self) -> Hosts:
        """The messages of static hosts: a host registers, sends heartbeats, leaves, and reads its leases."""
        return self._hosts

    close = blocks(CoreClient.close)

    # Requests that change something.

    ask = blocks(CoreClient.ask)
    reserve = blocks(CoreClient.reserve)
    submit = blocks(CoreClient.submit)
    rerun = blocks(CoreClient.rerun)
    reserve_many = blocks(CoreClient.reserve_many)
    renew = blocks(CoreClient.renew)
    renew_many = blocks(CoreClient.renew_many)
    confirm = blocks(CoreClient.confirm)
    absent = blocks(CoreClient.absent)
    idle = blocks(CoreClient.idle)
    release = blocks(CoreClient.release)
    release_many = blocks(CoreClient.release_many)
    cancel = blocks(CoreClient.cancel)
    priority = blocks(CoreClient.priority)
    fail = blocks(CoreClient.fail)
    surrender = blocks(CoreClient.surrender)
    decline = blocks(CoreClient.decline)
    suspend = blocks(CoreClient.suspend)
    resume = blocks(CoreClient.resume)
    cordon = blocks(CoreClient.cordon)
    uncordon = blocks(CoreClient.uncordon)
    drain = blocks(CoreClient.drain)
    account = blocks(CoreClient.account)
    reset_account = blocks(CoreClient.reset_account)
    forget_account = blocks(CoreClient.forget_account)
    apply_rules = blocks(CoreClient.apply_rules)
    find_key = blocks(CoreClient.find_key)

    # Queries that a worker answers, and reads of the view.

    recall = blocks(CoreClient.recall)
    suggest = blocks(CoreClient.suggest)
    command = blocks(CoreClient.command)
    conditions = blocks(CoreClient.conditions)
    rules = blocks(CoreClient.rules)
    preview_rules = blocks(CoreClient.preview_rules)
    ping = blocks(CoreClient.ping)
    get = blocks(CoreClient.get)
    slots = blocks(CoreClient.slots)
    slot = blocks(CoreClient.slot)
    accounts = blocks(CoreClient.accounts)
    run_times = blocks(CoreClient.run_times)
    etas = blocks(CoreClient.etas)
    foresight = blocks(CoreClient.foresight)
    report = blocks(CoreClient.report)
    explain = blocks(CoreClient.explain)
    check_names = blocks(CoreClient.check_names)
    list = blocks(CoreClient.list)
    wait = blocks(CoreClient.wait)

    def watch(self, reservation: str) -> Watch:
        """Return an object that reports the present row of one reservation and waits for its next change. Use it as a
        context manager.
        """
        return Watch(self._core.watch(reservation), self._run)

    def lease(
        self,
        *,
        wait: float | None = None,
        wait_anyway: bool = False,
        on_revoke: Callable[[Lease], object] | None = None,
        on_lost: Callable[[Lease], object] | None = None,
        **fields: Unpack[ReservationFields],
    ) -> Lease:
        """Return a lease for use as `with client.lease(system="x86_64-linux") as lease:`.

        Entering the lease submits a reservation with these `fields` and waits until it is leased, at most `wait`
        seconds (None: no limit). The lease is renewed in the background, and leaving it releases the lease.
        `on_revoke` and `on_lost` are called with the lease when it is being revoked and when it is lost.

        If no slot and no launch could serve the reservation, entering cancels it and raises CannotBeServed, as `wait`
        does. `wait_anyway`: wait all the same, because rules will change or hosts will join.
        """
        lease = Lease(self._core, self._run, with_id(fields), wait, wait_anyway=wait_anyway)
        for callback, add in ((on_revoke, lease.on_revoke), (on_lost, lease.on_lost)):
            if callback is not None:
                add(callback)
        return lease


def _abandon(core: CoreClient, portal: Portal) -> None:
    """Close the connections of a client that was forgotten without `close`."""
    portal.spawn(core.close())
