"""A lease as its holder has it: renewed in the background, warned before it is taken, ended by our own clock."""

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
from leasehold.common.clock import read_monotonic
from leasehold.errors import Ended, LeaseholdError, NotAnswered, Refused, Unavailable

if TYPE_CHECKING:
    from leasehold.client.client import Client


class Lost(threading.Event):
    """Set when the lease is not ours any more; also true once its time is over."""

    def __init__(self, is_over: Callable[[], bool]) -> None:
        super().__init__()
        self._is_over = is_over

    def is_set(self) -> bool:
        """Whether the lease is lost, by an answer, by the row, or by the clock of this process."""
        return super().is_set() or self._is_over()


class Lease(HeldLease):
    """A lease to be used as a context. It is entered when it is leased and the first renewal was answered.

    From then on a thread renews it, so its body only has to look at two flags: `revoking` (it has to be given
    back by `deadline`; leave the body when you are ready) and `lost` (it is not ours any more: stop at once).
    It is lost, too, when it could not be renewed: at (time of sending the last acknowledged renewal) + ttl, by
    our own clock. Leaving the body releases it. The callbacks run in threads of the lease.
    """

    revoking: threading.Event
    lost: Lost
    _left: threading.Event

    def __init__(self, client: "Client", fields: Mapping[str, Any], wait: float | None = None) -> None:
        super().__init__(fields, wait, client.now)
        self._client = client
        self.revoking = threading.Event()
        self.lost = Lost(self._is_overdue)
        self._left = threading.Event()
        self._threads: list[threading.Thread] = []

    def changes(self, timeout: float | None = None) -> Iterator[Change]:
        """What becomes of its elastic instances, those that it began with first, and how many cores each component may
        use: `for change in lease.changes():`. Ends with the lease, or after this number of seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        return self._elastic.read(lambda: None if until is None else until - time.monotonic())

    def surrender(self, component: str | None = None, *, timeout: float | None = None) -> Answer:
        """Give back an elastic instance, to be revoked or not; without a name all that is being revoked. One that
        was not revoked is not granted again. Raises Refused, NotAnswered, Unavailable.
        """
        return self._client.surrender(self.id, self.token, component=component, timeout=timeout)

    def __enter__(self) -> Self:
        self._client.reserve(**self._fields)
        try:
            self._take()
        except BaseException:
            # Ctrl-C too: otherwise the reservation would be leased without a holder.
            self._say_goodbye(None)
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
        self._say_goodbye(self.token)
        for thread in self._threads:
            # The watch ends when it hears of the release, at the latest with its next look.
            thread.join(POLL_SECONDS)

    def _take(self) -> None:
        """Wait for the lease, and say the holder's first word; start again if it was taken in between."""
        until = None if self._wait is None else time.monotonic() + self._wait
        while self._row is None:
            left = None if until is None else max(until - time.monotonic(), 0.0)
            row = self._client.wait(self.id, "leased", left, renew=True)
            # Refused: taken back in between. The wait above goes on, and ends when the time or the reservation does.
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
                # Again, after the pause, until our time is over.
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
        """Set `lost` at the moment our time is over, even while everything else hangs."""
        while not self._is_done():
            with self._guard:
                left = self.seconds_left
                if left is None or left > 0:
                    self._guard.wait(left)
        if not self._left.is_set():
            self._lose("it could not be renewed in time")

    def _say_goodbye(self, token: int | None) -> None:
        """Release it; cancel it if another holder has it by now, or if it is not leased yet."""
        try:
            self._client.release(self.id, token, timeout=GOODBYE_SECONDS)
        except Refused as refused:
            if not self._is_foreign(refused):
                self._cancel()
        except (NotAnswered, Unavailable):
            return

    def _cancel(self) -> None:
        try:
            self._client.cancel(self.id, timeout=GOODBYE_SECONDS)
        except (Ended, LeaseholdError):
            # It has ended already, or no answer came: it expires by itself.
            return
