"""A lease as its holder has it: renewed in the background, warned before it is taken, ended by our own clock."""

import builtins
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from leasehold.changes import Change, Changes
from leasehold.errors import Ended, LeaseholdError, NotAnswered, Refused, Unavailable
from leasehold.results import Answer, Placement, Reservation
from leasehold.waiting import RENEWAL_SECONDS, RENEWALS_A_TTL, SHORTEST_PAUSE_SECONDS, fill_in
from leasehold.watching import POLL_SECONDS

if TYPE_CHECKING:
    from leasehold.client import Client

LONGEST_PAUSE_SECONDS: Final = 60.0
HELD: Final = frozenset({"leased", "revoking"})
GOODBYE_SECONDS: Final = 10.0
"""How long leaving may take to tell the stack; after that the lease runs out by itself."""


class Lost(threading.Event):
    """Set when the lease is not ours any more; also true, without anybody setting it, once its time is over."""

    def __init__(self, is_over: Callable[[], bool]) -> None:
        super().__init__()
        self._is_over = is_over

    def is_set(self) -> bool:
        """Whether the lease is lost, by what we were told or by our own clock."""
        return super().is_set() or self._is_over()


class Lease:
    """A lease to be used as a context. It is entered when it is leased and the first renewal was answered.

    From then on a thread renews it, so its body only has to look at two flags: `revoking` (it has to be given
    back by `deadline`; leave the body when you are ready) and `lost` (it is not ours any more: stop at once).
    It is lost, too, when it could not be renewed: at (time of sending the last acknowledged renewal) + ttl, by
    our own clock. Leaving the body releases it. The callbacks run in threads of the lease.
    """

    def __init__(self, client: "Client", fields: Mapping[str, Any], wait: float | None = None) -> None:
        self._client, self._fields, self._wait = client, dict(fields), wait
        self.id: str = self._fields["id"]
        self.revoking = threading.Event()
        self.lost = Lost(self._is_overdue)
        self.reason: str | None = None
        """Why it is being revoked, or how it was lost."""
        self._row: Reservation | None = None
        self._placements: tuple[Placement, ...] | None = None
        self._elastic = Changes()
        self._ttl: float | None = None
        self._trusted_until: float | None = None
        self._revoke_by: float | None = None
        self._left = threading.Event()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._on_revoke: list[Callable[[Lease], object]] = []
        self._on_lost: list[Callable[[Lease], object]] = []

    def on_revoke(self, callback: Callable[["Lease"], object]) -> None:
        """Call this when it begins to be revoked; at once if that is already so."""
        self._on_revoke.append(callback)
        if self.revoking.is_set():
            callback(self)

    def on_lost(self, callback: Callable[["Lease"], object]) -> None:
        """Call this when it is lost; at once if that is already so."""
        self._on_lost.append(callback)
        if self.lost.is_set():
            callback(self)

    @property
    def reservation(self) -> Reservation:
        """The reservation as it was when it was leased."""
        if self._row is None:
            raise Unavailable(f"{self.id} is not leased: use it as `with client.lease(...) as lease:`")
        return self._row

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Each component's lease as it now is, with its slot's machine; elastic ones come and go."""
        first = self.reservation.leases
        return first if self._placements is None else self._placements

    @property
    def token(self) -> int:
        """The fencing token: hand it on to whatever has to refuse an earlier holder."""
        return self.reservation.token

    @property
    def slot(self) -> str:
        """The slot of the first component."""
        return self.placements[0].slot

    @property
    def instance_id(self) -> str | None:
        """The EC2 instance of the first component."""
        return self.placements[0].instance_id

    @property
    def address(self) -> str | None:
        """Where the machine of the first component is reached."""
        return self.placements[0].address

    @property
    def type(self) -> str | None:
        """The instance type of the first component's machine."""
        return self.placements[0].type

    @property
    def zone(self) -> str | None:
        """The availability zone of the first component's machine."""
        return self.placements[0].zone

    @property
    def resources(self) -> dict[str, float]:
        """What the first component was given."""
        return self.placements[0].resources

    @property
    def cores(self) -> float | None:
        """The cpus of its slot that the first component may use at present; see `Placement.usable_cores`."""
        return self.placements[0].usable_cores

    def changes(self, timeout: float | None = None) -> Iterator[Change]:
        """What becomes of its elastic instances, those that it began with first, and how many cores each component may
        use: `for change in lease.changes():`. Ends with the lease, or after so many seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        return self._elastic.read(lambda: None if until is None else until - time.monotonic())

    def surrender(self, component: str | None = None, *, timeout: float | None = None) -> Answer:
        """Give back an elastic instance, to be revoked or not; without a name all that is being revoked. One that
        nobody wanted back is not granted again. Raises Refused, NotAnswered, Unavailable.
        """
        return self._client.surrender(self.id, self.token, component=component, timeout=timeout)

    @property
    def seconds_left(self) -> float | None:
        """How long it is ours without another word, by our own clock; None: until it is revoked."""
        limits = []
        if self._trusted_until is not None:
            limits.append(self._trusted_until - time.monotonic())
        if self._revoke_by is not None:
            limits.append(self._revoke_by - time.time())
        return min(limits, default=None)

    @property
    def deadline(self) -> float | None:
        """The same as seconds since the epoch; moves on with every renewal, ends while it is being revoked."""
        left = self.seconds_left
        return None if left is None else time.time() + left

    @property
    def revoke_by(self) -> float | None:
        """When it is taken at the latest, in seconds since the epoch; None while it is not being revoked."""
        return self._revoke_by

    @property
    def is_held(self) -> bool:
        """Whether it is ours: entered, not left, not lost."""
        return self._row is not None and not self._left.is_set() and not self.lost.is_set()

    def __enter__(self) -> Self:
        self._client.reserve(**self._fields)
        try:
            self._take()
        except BaseException:
            # Ctrl-C too: what was asked for would be leased to nobody.
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
        with self._changed:
            self._changed.notify_all()
        self._say_goodbye(self.token)
        for thread in self._threads:
            # The watch ends when it hears of the release, at the latest with its next look.
            thread.join(POLL_SECONDS)

    def _take(self) -> None:
        """Wait for the lease, and say the holder's first word; begin anew when it was taken in between."""
        until = None if self._wait is None else time.monotonic() + self._wait
        while self._row is None:
            left = None if until is None else max(until - time.monotonic(), 0.0)
            row = self._client.wait(self.id, "leased", left, renew=True)
            try:
                answer = self._renew(row)
            except Refused:
                # Taken back in between: the wait above goes on, and ends when the time or the reservation does.
                continue
            if answer.phase in HELD:
                self._row = row
                self._elastic.take(row.leases)
                self._learn(answer.phase, row.token, answer.deadline, None)

    def _renew(self, row: Reservation) -> Answer:
        """Renew; whatever it takes to be answered, our time counts from when it was sent first."""
        sent = time.monotonic()
        answer = self._client.renew(row.id, row.token, timeout=self._patience())
        with self._changed:
            self._ttl = answer.ttl
            self._trusted_until = None if answer.ttl is None else sent + answer.ttl
            self._changed.notify_all()
        return answer

    def _patience(self) -> float:
        """How long one renewal is waited for: a new one counts from its own sending, so soon rather than late."""
        return RENEWAL_SECONDS if self._ttl is None else min(self._pause(), RENEWAL_SECONDS)

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

    def _pause(self) -> float:
        if self._ttl is None:
            return LONGEST_PAUSE_SECONDS
        return min(max(self._ttl / RENEWALS_A_TTL, SHORTEST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)

    def _keep_watch(self) -> None:
        with self._client.watch(self.id) as watch:
            while not self._is_done():
                try:
                    row, missing = watch.read_joined()
                except Unavailable:
                    row, missing = None, frozenset()
                if row is not None:
                    self._note_parts(row, missing)
                    self._learn(row.phase, row.token, row.revoke_by, row.revoke_reason or row.reason)
                if not self._is_done():
                    watch.wait_for_hint(POLL_SECONDS)

    def _keep_time(self) -> None:
        """Set `lost` at the moment our time is over, even while everything else hangs."""
        while not self._is_done():
            with self._changed:
                left = self.seconds_left
                if left is None or left > 0:
                    self._changed.wait(left)
        if not self._left.is_set():
            self._lose("it could not be renewed in time")

    def _learn(self, phase: str | None, token: int | None, deadline: float | None, reason: str | None) -> None:
        """Take over what an answer or the row says. A row may lag: an older token than ours says nothing."""
        ours = self._row.token if self._row is not None else token
        if self._left.is_set() or (token is not None and ours is not None and token < ours):
            return
        if token not in {None, ours} or phase not in HELD:
            self._lose(f"it is {phase}" + (f": {reason}" if reason else ""))
        elif phase == "revoking":
            self._begin_revoke(deadline, reason)

    def _note_parts(self, row: Reservation, missing: frozenset[str]) -> None:
        """Take over the leases of the row, unless its token is another holder's."""
        if self._row is not None and row.token == self._row.token and row.phase in HELD:
            self._placements = fill_in(row, missing, self.placements)
            self._elastic.take(self._placements)

    def _begin_revoke(self, deadline: float | None, reason: str | None) -> None:
        with self._changed:
            self.reason = reason or self.reason
            self._revoke_by = deadline
            first = not self.revoking.is_set()
            self.revoking.set()
            self._changed.notify_all()
        for callback in self._on_revoke if first else ():
            callback(self)

    def _lose(self, reason: str) -> None:
        with self._changed:
            # Not `is_set`, which also asks the clock: the first to say so tells the callbacks.
            first = not threading.Event.is_set(self.lost)
            if first:
                self.reason = reason
            self.lost.set()
            self._changed.notify_all()
        self._elastic.end()
        for callback in self._on_lost if first else ():
            callback(self)

    def _is_overdue(self) -> bool:
        left = self.seconds_left
        return left is not None and left <= 0

    def _is_done(self) -> bool:
        return self._left.is_set() or self.lost.is_set()

    def _say_goodbye(self, token: int | None) -> None:
        """Give it back; where it is another's by now, or not leased yet, say that nobody wants it any more."""
        try:
            self._client.release(self.id, token, timeout=GOODBYE_SECONDS)
        except Refused:
            self._cancel()
        except (NotAnswered, Unavailable):
            return

    def _cancel(self) -> None:
        try:
            self._client.cancel(self.id, timeout=GOODBYE_SECONDS)
        except (Ended, LeaseholdError):
            # It has ended already, or nobody answers: it runs out by itself.
            return
