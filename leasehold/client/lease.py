"""A lease for blocking programs. One thread renews it in the background, and another thread reports its revocation. If
the lease cannot be renewed, it ends by the local clock.
"""

import builtins
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from leasehold.client.held_lease import GOODBYE_SECONDS, HeldLease
from leasehold.client.lease_changes import Change
from leasehold.client.models import Answer, Reservation
from leasehold.client.watch import POLL_SECONDS
from leasehold.errors import CannotBeServed, Ended, LeaseholdError, NotAnswered, Refused, Unavailable
from scheduler.protocol.clock import read_monotonic

if TYPE_CHECKING:
    from leasehold.client.client import Client


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


class Lease(HeldLease):
    """A lease for use as a context manager. Entering it waits until the reservation is leased and its first renewal is
    answered.

    A thread renews the lease. The body should check two events: `revoking` (the lease must be given back by `deadline`;
    leave the body in time) and `lost` (the lease has ended; stop at once). A lease that cannot be renewed is lost when
    its ttl has passed, by the local clock, since the last answered renewal was sent. Leaving the body releases the
    lease. Callbacks run in threads of the lease.
    """

    revoking: threading.Event
    lost: Lost
    _left: threading.Event

    def __init__(
        self, client: "Client", fields: Mapping[str, Any], wait: float | None = None, *, wait_anyway: bool = False
    ) -> None:
        super().__init__(fields, wait, client.now, wait_anyway=wait_anyway)
        self._client = client
        self.revoking = threading.Event()
        self.lost = Lost(self._is_overdue)
        self._left = threading.Event()
        self._threads: list[threading.Thread] = []

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
        return self._client.surrender(self.id, self.token, component=component, want=want, timeout=timeout)

    def __enter__(self) -> Self:
        self._client.reserve(**self._fields)
        try:
            self._take()
        except CannotBeServed as error:
            self._cancel(f"{error.code}: {error.reason}")
            raise
        except BaseException:
            # This includes Ctrl-C. Otherwise the reservation would be leased without a holder.
            self._end_lease(None)
            raise
        for work in (self._keep_renewed, self._keep_watch, self._keep_time):
            thread = threading.Thread(target=work, name=f"leasehold-{work.__name__}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(
        self,
        kind: "builtins.type[BaseException] | None",
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._left.set()
        self._elastic.end()
        self._wake()
        self._end_lease(self.token)
        for thread in self._threads:
            # The watching thread ends at the notice of the release, or at its next poll.
            thread.join(POLL_SECONDS)

    def _take(self) -> None:
        """Wait until the reservation is leased, and confirm the lease with a first renewal. If the lease was taken back
        before the renewal, wait again.
        """
        until = None if self._wait is None else time.monotonic() + self._wait
        while self._row is None:
            left = None if until is None else max(until - time.monotonic(), 0.0)
            row = self._client.wait(self.id, "leased", left, renew=True, wait_anyway=self._wait_anyway)
            # A refusal means that the lease was taken back in between. Wait again until the timeout or the end.
            try:
                self._begin(row, self._renew(row))
            except Refused as refused:
                if self._is_foreign(refused):
                    raise

    def _renew(self, row: Reservation) -> Answer:
        sent = read_monotonic()
        answer = self._client.renew(row.id, row.token, timeout=self._patience())
        self._note_renewal(answer, sent)
        return answer

    def _wake(self) -> None:
        with self._guard:
            self._guard.notify_all()

    def _call(self, callback: Callable[[Any], object]) -> None:
        callback(self)

    def _keep_renewed(self) -> None:
        while not self._is_done():
            self._left.wait(self._pause())
            if self._is_done():
                return
            try:
                if self._ttl is not None:
                    answer = self._renew(self.reservation)
                    self._learn(answer.phase, answer.token, answer.deadline, None)
            except Refused as refused:
                self._lose(str(refused))
            except (NotAnswered, Unavailable):
                # Try again after the pause, until the lease has expired.
                continue

    def _keep_watch(self) -> None:
        with self._client.watch(self.id) as watch:
            while not self._is_done():
                try:
                    row, missing = watch.read_joined()
                except Unavailable:
                    row, missing = None, frozenset()
                self._note_row(row, missing)
                if not self._is_done():
                    watch.wait_for_hint(POLL_SECONDS)

    def _keep_time(self) -> None:
        """Set `lost` when the lease expires by the local clock, even if all other threads hang."""
        while not self._is_done():
            with self._guard:
                left = self.seconds_left
                if left is None or left > 0:
                    self._guard.wait(left)
        if not self._left.is_set():
            self._lose("it could not be renewed in time")

    def _end_lease(self, token: int | None) -> None:
        """Release the lease. If the release is refused, because the token is stale or the reservation is not leased
        yet, cancel the reservation. Do nothing more if this process cannot prove to be the holder, or if no answer
        comes: the lease expires after its ttl.
        """
        try:
            self._client.release(self.id, token, timeout=GOODBYE_SECONDS)
        except Refused as refused:
            if not self._is_foreign(refused):
                self._cancel()
        except (NotAnswered, Unavailable):
            return

    def _cancel(self, reason: str | None = None) -> None:
        """Cancel the reservation. If it was leased in the meantime, this ends the lease."""
        try:
            self._client.cancel(self.id, reason=reason, timeout=GOODBYE_SECONDS)
        except (Ended, LeaseholdError):
            # The reservation has already ended, or there was no answer and it expires after its ttl.
            return
