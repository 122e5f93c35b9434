"""The state and rules of a held lease, which the blocking and the async lease share.

A lease learns its state from answers and from the row of its reservation in the view. It uses two clocks: cluster time
for deadlines of the stack (`revoke_by`), and the monotonic clock for the time since its last renewal. Its state changes
in the event loop only. Subclasses define how to wait, and how to react to changes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from html import escape
from typing import Any, Final, Protocol, Self

from leasehold.client.display import Table, join_words, show_line
from leasehold.client.lease_changes import Changes
from leasehold.client.models import Answer, Placement, Reservation
from leasehold.client.waiting import RENEWAL_SECONDS, RENEWALS_A_TTL, SHORTEST_PAUSE_SECONDS, fill_in
from leasehold.errors import Refused, Unavailable
from scheduler.protocol.clock import read_monotonic

LONGEST_PAUSE_SECONDS: Final = 60.0
HELD: Final = frozenset({"leased", "revoking"})
GOODBYE_SECONDS: Final = 10.0
"""The most seconds to wait for the answer when a lease is given back. Without an answer the lease expires after its
ttl.
"""


FINAL_FAULTS: Final = frozenset({"key", "principal", "signature"})
"""Paths of faults for which a request is not repeated: this process cannot prove that it is the holder of the lease."""


class Flag(Protocol):
    """The methods that `threading.Event` and `asyncio.Event` have in common."""

    def is_set(self) -> bool:
        """Return whether the event (for example `lost`) is set."""

    def set(self) -> None:
        """Set the event, and wake every thread or task that waits for it."""


class Expiry:
    """When a lease ends unless it is renewed: by the monotonic clock, since its last renewal (`trusted_until`), and by
    cluster time, while it is being revoked (`revoke_by`). `now` returns cluster time.

    Speed: the lease and its event `lost` share this object. If the event referred to the lease, only the garbage
    collector could free a lease.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.trusted_until: float | None = None
        self.revoke_by: float | None = None

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the lease ends; None: no limit."""
        limits = []
        if self.trusted_until is not None:
            limits.append(self.trusted_until - read_monotonic())
        if self.revoke_by is not None:
            limits.append(self.revoke_by - self.now())
        return min(limits, default=None)

    def is_over(self) -> bool:
        """Return whether the lease has expired."""
        left = self.seconds_left
        return left is not None and left <= 0


class HeldLease(ABC):
    """A lease as its holder sees it: its state, its machine and its remaining time. The base class of `Lease` and
    `AsyncLease`.
    """

    revoking: Flag
    lost: Flag
    _left: Flag

    def __init__(
        self, fields: Mapping[str, Any], wait: float | None, now: Callable[[], float], *, wait_anyway: bool
    ) -> None:
        self._fields, self._wait, self._expiry = dict(fields), wait, Expiry(now)
        self._wait_anyway = wait_anyway
        self.id: str = self._fields["id"]
        self.reason: str | None = None
        """Why the lease is being revoked or was lost; None if it is neither."""
        self._row: Reservation | None = None
        self._placements: tuple[Placement, ...] | None = None
        self._elastic = Changes()
        self._ttl: float | None = None
        self._is_known_lost = False
        self._on_revoke: list[Callable[[Any], object]] = []
        self._on_lost: list[Callable[[Any], object]] = []

    def on_revoke(self, callback: Callable[[Self], object]) -> None:
        """Call `callback` when the scheduler begins to revoke the lease. If it is being revoked already, call
        `callback` at once.
        """
        self._on_revoke.append(callback)
        if self.revoking.is_set():
            self._call(callback)

    def on_lost(self, callback: Callable[[Self], object]) -> None:
        """Call `callback` when the lease is lost. If it is lost already, call `callback` at once."""
        self._on_lost.append(callback)
        if self.lost.is_set():
            self._call(callback)

    @property
    def reservation(self) -> Reservation:
        """The row of the reservation as it was when the reservation was leased. Raises Unavailable before the lease is
        entered.
        """
        if self._row is None:
            raise Unavailable(f"{self.id} is not leased: use it as `with client.lease(...) as lease:`")
        return self._row

    @property
    def placements(self) -> tuple[Placement, ...]:
        """The present leases of all component instances with their machines. They change when elastic instances are
        granted or end.
        """
        first = self.reservation.leases
        return first if self._placements is None else self._placements

    @property
    def token(self) -> int:
        """The fencing token of the lease. Pass it to resources that must refuse earlier holders."""
        return self.reservation.token

    @property
    def slot(self) -> str:
        """The id of the slot of the reservation's first instance."""
        return self.placements[0].slot

    @property
    def instance_id(self) -> str | None:
        """The EC2 instance id of the machine of the reservation's first instance; None on a static host."""
        return self.placements[0].instance_id

    @property
    def address(self) -> str | None:
        """The network address of the machine of the reservation's first instance; None if it is not known."""
        return self.placements[0].address

    @property
    def type(self) -> str | None:
        """The EC2 instance type of the machine of the reservation's first instance; None on a static host."""
        return self.placements[0].type

    @property
    def zone(self) -> str | None:
        """The availability zone of the machine of the reservation's first instance; None on a static host."""
        return self.placements[0].zone

    @property
    def resources(self) -> dict[str, float]:
        """Resource name -> amount that the reservation's first instance got on its slot."""
        return self.placements[0].resources

    @property
    def cores(self) -> float | None:
        """The number of CPUs of its slot that the reservation's first instance may use at present. This includes its
        part of the spare CPUs, which no lease on the slot has requested. None: the instance requested no CPUs and no
        number was reported.
        """
        return self.placements[0].usable_cores

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the lease ends unless it is renewed, and at most until the deadline of its revocation; None: no
        limit. The wall clock of this host has no effect.
        """
        return self._expiry.seconds_left

    @property
    def deadline(self) -> float | None:
        """Time at which the lease ends unless it is renewed, in seconds since the epoch by cluster time (`Client.now`);
        None: no limit. A renewal moves it on, except while the lease is being revoked.
        """
        left = self.seconds_left
        return None if left is None else self._expiry.now() + left

    @property
    def revoke_by(self) -> float | None:
        """Time at which a lease that is being revoked ends, in seconds since the epoch by cluster time; None for other
        leases.
        """
        return self._expiry.revoke_by

    @property
    def is_held(self) -> bool:
        """Whether the lease is held: its `with` block was entered and not left, and the lease is not lost."""
        return self._row is not None and not self._left.is_set() and not self.lost.is_set()

    def __repr__(self) -> str:
        return show_line(self, join_words([self.id, self._state(), self._where()]))

    def _repr_html_(self) -> str:
        placements = Table(self.placements if self._row is not None else ())
        return f"<p>{escape(repr(self))}</p>{placements._repr_html_()}"

    def _state(self) -> str:
        if self._row is None:
            return "not entered"
        if self._left.is_set():
            return "left"
        if self.lost.is_set():
            return "lost" if self.reason is None else f"lost ({self.reason})"
        if self.revoking.is_set():
            return "revoking" if self.reason is None else f"revoking ({self.reason})"
        return "held"

    def _where(self) -> str | None:
        if self._row is None:
            return None
        left = "" if self.seconds_left is None else f", {max(self.seconds_left, 0):.0f} s left"
        return f"on {', '.join(each.slot for each in self.placements)}, token {self.token}{left}"

    @abstractmethod
    def _wake(self) -> None:
        """React to a change of the lease's times: plan its end again, and wake tasks that wait for a change."""

    @abstractmethod
    def _call(self, callback: Callable[[Any], object]) -> None:
        """Call a callback that the holder has registered with `on_revoke` or `on_lost`."""

    def _begin(self, row: Reservation, answer: Answer) -> bool:
        """Begin to hold the lease after its first renewal, which got `answer`, and return True. If the reservation is
        no longer leased, change nothing and return False.
        """
        if answer.phase not in HELD:
            return False
        self._row = row
        self._elastic.take(row.leases)
        self._learn(answer.phase, row.token, answer.deadline, None)
        return True

    @staticmethod
    def _is_foreign(refused: Refused) -> bool:
        """Return whether a refusal means that this process cannot prove to be the holder, for example because its key
        is wrong.
        """
        return any(error.path in FINAL_FAULTS for error in refused.errors)

    def _note_renewal(self, answer: Answer, sent: float) -> None:
        """Set the local expiry of the lease to the time when the renewal was first sent (`sent`) plus the ttl in the
        answer. So the time that the answer took does not extend the lease.
        """
        self._ttl = answer.ttl
        self._expiry.trusted_until = None if answer.ttl is None else sent + answer.ttl  # promise: holder-clock
        self._wake()

    def _patience(self) -> float:
        """Return the seconds for which one renewal waits for its answer: at most until the next renewal is due. A
        longer wait is useless, because the next renewal extends the lease to a later time.
        """
        return RENEWAL_SECONDS if self._ttl is None else min(self._pause(), RENEWAL_SECONDS)

    def _pause(self) -> float:
        if self._ttl is None:
            return LONGEST_PAUSE_SECONDS
        return min(max(self._ttl / RENEWALS_A_TTL, SHORTEST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)

    def _note_row(self, row: Reservation | None, missing: frozenset[str]) -> None:
        """Update the state of the lease from the row of its reservation. `missing`: the slots whose machine is not in
        the view.
        """
        if row is not None:
            # If the token of the row is another one, the row belongs to another holder.
            if self._row is not None and row.token == self._row.token and row.phase in HELD:
                self._placements = fill_in(row, missing, self.placements)
                self._elastic.take(self._placements)
                self._wake()
            self._learn(row.phase, row.token, row.revoke_by, row.revoke_reason or row.reason)

    def _learn(self, phase: str | None, token: int | None, deadline: float | None, reason: str | None) -> None:
        """Update the state of the lease from the phase, token and deadline in an answer or a row. `reason`: why the
        lease is being revoked or has ended; None if that is not known. An answer or row whose token is older than the
        known one is outdated, and changes nothing.
        """
        ours = self._row.token if self._row is not None else token
        if self._left.is_set() or (token is not None and ours is not None and token < ours):
            return
        if token not in {None, ours} or phase not in HELD:
            self._lose(f"it is {phase}" + (f": {reason}" if reason else ""))
        elif phase == "revoking":
            self._begin_revoke(deadline, reason)

    def _begin_revoke(self, deadline: float | None, reason: str | None) -> None:
        self.reason = reason or self.reason
        self._expiry.revoke_by = deadline
        is_first = not self.revoking.is_set()
        self.revoking.set()
        self._wake()
        for callback in self._on_revoke if is_first else ():
            self._call(callback)

    def _lose(self, reason: str) -> None:
        # `lost.is_set` also checks the clock and does not show whether a reason is set. The first reason stays.
        is_first, self._is_known_lost = not self._is_known_lost, True
        if is_first:
            self.reason = reason
        self.lost.set()
        self._wake()
        self._elastic.end()
        for callback in self._on_lost if is_first else ():
            self._call(callback)

    def _is_done(self) -> bool:
        return self._left.is_set() or self.lost.is_set()
