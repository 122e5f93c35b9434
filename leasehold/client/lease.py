"""A lease for blocking programs. The event loop of the clients renews it and reads its row. If the lease cannot be
renewed, it ends by the local clock.
"""

import builtins
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Final, Self

from typing_extensions import override

from leasehold.client.blocking import Run
from leasehold.client.core.lease import DrivenLease, LeaseClient
from leasehold.client.lease_changes import Change
from leasehold.client.models import Answer

CALLBACK_SECONDS: Final = 2.0
"""The most seconds for which leaving a lease waits for its callbacks."""


class Lost(threading.Event):
    """An event that is set when a lease is lost. `is_set` is also true if the lease has expired by the local clock."""

    def __init__(self, is_over: Callable[[], bool]) -> None:
        super().__init__()
        self._is_over = is_over

    def is_set(self) -> bool:
        """Return whether the lease is lost, as shown by an answer, by the row of its reservation, or by the clock of
        this process.
        """
        return super().is_set() or self._is_over()


class Lease(DrivenLease):
    """A lease for use as a context manager. Entering it waits until the reservation is leased and its first renewal is
    answered.

    The lease is renewed in the background. The body should check two events: `revoking` (the lease must be given back
    by `deadline`; leave the body in time) and `lost` (the lease has ended; stop at once). A lease that cannot be
    renewed is lost when its ttl has passed, by the local clock, since the last answered renewal was sent. Leaving the
    body releases the lease. Callbacks run in a thread of the lease.
    """

    revoking: threading.Event
    lost: Lost
    _left: threading.Event

    def __init__(
        self,
        core: LeaseClient,
        run: Run,
        fields: Mapping[str, Any],
        wait: float | None = None,
        *,
        wait_anyway: bool = False,
    ) -> None:
        super().__init__(core, fields, wait, wait_anyway=wait_anyway)
        self._run = run
        self.revoking = threading.Event()
        self.lost = Lost(self._expiry.is_over)
        self._left = threading.Event()
        self._holder: int | None = None
        """The process that entered the lease."""
        self._loop_thread: int | None = None
        self._callbacks: SimpleQueue[Callable[[Any], object] | None] = SimpleQueue()
        self._caller: threading.Thread | None = None

    def changes(self, timeout: float | None = None) -> Iterator[Change]:
        """Yield the changes of the lease's instances as they happen, first the instances that it began with: an
        instance was granted, is being revoked, has ended, or may use another number of CPUs. Use it as `for change in
        lease.changes():`.

        The iteration ends with the lease, or after `timeout` seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        return self._elastic.read(lambda: None if until is None else until - time.monotonic())

    def surrender(
        self, component: str | None = None, *, want: int | None = None, timeout: float | None = None
    ) -> Answer:
        """Give back the elastic instance whose name is `component`, or all instances of the component with this name.
        If `component` is None, give back all elastic instances that are being revoked.

        An instance that was not being revoked is not granted again; other instances of its component may be. `want`:
        the most instances of the component from now on, more or fewer than it has. If it has more, those with the
        highest index end. `component` None then means the only elastic component.

        Raise Refused, NotAnswered or Unavailable.
        """
        asked = self._core.surrender(self.id, self.token, component=component, want=want, timeout=timeout)
        return self._run(asked)

    def __enter__(self) -> Self:
        self._holder = os.getpid()
        self._run(self._enter())
        return self

    def __exit__(
        self,
        kind: "builtins.type[BaseException] | None",
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if os.getpid() != self._holder:
            # A fork of the holder, which still has the lease.
            return
        self._run(self._leave())
        if self._caller is not None:
            self._callbacks.put(None)
            if self._caller is not threading.current_thread():
                self._caller.join(CALLBACK_SECONDS)

    @override
    async def _enter(self) -> None:
        self._loop_thread = threading.get_ident()
        await super()._enter()

    @override
    def _call(self, callback: Callable[[Any], object]) -> None:
        if threading.get_ident() != self._loop_thread:
            callback(self)
            return
        # A callback may block, and may use the client: the event loop must go on meanwhile.
        self._callbacks.put(callback)
        if self._caller is None:
            self._caller = threading.Thread(target=self._call_back, name="leasehold-callbacks", daemon=True)
            self._caller.start()

    def _call_back(self) -> None:
        while (callback := self._callbacks.get()) is not None:
            try:
                callback(self)
            except Exception:  # noqa: BLE001 - as in any thread: the error is shown, and later callbacks are called
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
