"""The rules of a wait for a phase, written once for the blocking and the async client.

`PhaseWait.steps` yields what has to be done next; the client does it and sends back the result, or throws the error.
"""

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import msgspec

from leasehold.client import watch
from leasehold.client.models import Answer, Placement, Reservation
from leasehold.client.view_reader import Joined
from leasehold.errors import Ended, LeaseholdError, NotAnswered, Refused, Unavailable, Unknown

UNKNOWN_SECONDS: Final = 10.0
"""How long a valid view may lack a row until it is taken for unknown: longer than a tick's look for gaps."""
RENEWALS_A_TTL: Final = 3
"""A renewal is sent when a third of the ttl has gone: of a lease, and of a reservation that waits for one."""
RENEWAL_SECONDS: Final = 5.0
"""How long a renewal, or a worker's answer about a machine, is waited for at most."""
SHORTEST_PAUSE_SECONDS: Final = 0.02
_MACHINE_PAUSE_SECONDS: Final = 0.2
"""Between two looks at a leased row whose slot the view lacks."""


@dataclass(frozen=True)
class Look:
    """Read the row from the view. Result: Joined. Raises Unavailable."""


@dataclass(frozen=True)
class Renew:
    """Renew the pending reservation. Result: Answer. Raises LeaseholdError."""

    seconds: float


@dataclass(frozen=True)
class Ask:
    """Ask a worker for the row and its machines. Result: Joined. Raises LeaseholdError."""

    seconds: float


@dataclass(frozen=True)
class Pause:
    """Wait for a notice, at most for `seconds`. Result: None."""

    seconds: float


Step = Look | Renew | Ask | Pause
Steps = Generator[Step, Any, Reservation]


class Keepalive:
    """When a pending reservation has to be renewed so that its ttl does not run out while it is waited for.

    `now`: cluster time.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._ttl = 0.0
        self._due: float | None = None

    def note(self, row: Reservation | None) -> None:
        """Take the ttl from the first pending row that has an expiry."""
        if row is None or row.phase != "pending" or row.expires_at is None:
            self._due = None
        elif self._due is None:
            # A later write than the one that set the expiry only makes it shorter.
            self._ttl = max(row.expires_at - row.marked_at, 0.0)
            spent = max(self._ttl - (row.expires_at - self._now()), 0.0)
            self._due = time.monotonic() + max(self._ttl / RENEWALS_A_TTL - spent, 0.0)

    def seconds_left(self) -> float | None:
        """Until the next renewal is due; None: none is needed."""
        return None if self._due is None else max(self._due - time.monotonic(), 0.0)

    def patience(self) -> float:
        """How long one renewal is waited for."""
        return min(self._pause() or RENEWAL_SECONDS, RENEWAL_SECONDS)

    def answered(self, answer: Answer, sent: float) -> None:
        """A renewal that was sent then was answered."""
        self._ttl = answer.ttl or 0.0
        self._due = None if answer.ttl is None else sent + self._pause()

    def failed(self) -> None:
        """A renewal was refused or not answered: another one soon."""
        self._due = time.monotonic() + min(self._pause(), watch.POLL_SECONDS)

    def _pause(self) -> float:
        return max(self._ttl / RENEWALS_A_TTL, SHORTEST_PAUSE_SECONDS) if self._ttl else 0.0


class PhaseWait:
    """One wait. `timeout` None: without a limit. `renew`: keep the reservation from expiring while it is pending.

    `now`: cluster time.
    """

    def __init__(
        self,
        name: str,
        phases: frozenset[str],
        timeout: float | None,
        *,
        renew: bool,
        now: Callable[[], float],
    ) -> None:
        self._name, self._phases, self._timeout = name, phases, timeout
        self._keepalive = Keepalive(now) if renew else None
        self._started = time.monotonic()
        self._trouble: Unavailable | None = None
        self._seen = Joined(None)
        self._first_missed: float | None = None
        self._asked_at: float | None = None
        """When the machine of a leased row was found missing, then when a worker was asked for it last."""

    def steps(self) -> Steps:
        """Ends with the row as soon as its phase is one of these; of a leased one with the machines of its essential
        components.

        Raises Ended when it is over otherwise, Unknown for an id that the view does not get to know, and
        NotAnswered (or Unavailable, when Redis or a missing machine is why) when time runs out.
        """
        while True:
            yield from self._look()
            row = self._seen.row
            if row is not None and row.phase in self._phases:
                if not self._missing():
                    return row
                found = yield from self._ask_for_machines()
                if found is not None:
                    return found
            elif row is not None and row.is_over:
                raise Ended(row.id, row.phase, row.reason)
            if self._is_over():
                self._give_up()
            if self._keepalive is not None:
                yield from self._renew(self._keepalive)
            yield Pause(self._pause())

    def _look(self) -> Generator[Step, Any, None]:
        try:
            self._seen, self._trouble = (yield Look()), None
        except Unavailable as error:
            self._trouble, self._first_missed = error, None
            return
        if self._seen.row is None:
            self._first_missed = self._first_missed or time.monotonic()

    def _missing(self) -> frozenset[str]:
        return find_missing(self._seen)

    def _ask_for_machines(self) -> Generator[Step, Any, Reservation | None]:
        """The row from the database where the view lacks a slot: not at first sight, since the view may be about to
        get it, and every few seconds.
        """
        now = time.monotonic()
        is_first, self._asked_at = self._asked_at is None, self._asked_at or now - watch.POLL_SECONDS
        if is_first or now - self._asked_at < watch.POLL_SECONDS or self._left(RENEWAL_SECONDS) <= 0:
            return None
        try:
            asked: Joined = yield Ask(self._left(RENEWAL_SECONDS))
        except LeaseholdError:
            asked = Joined(None)
        self._asked_at = time.monotonic()
        is_found = asked.row is not None and asked.row.phase in self._phases and not find_missing(asked)
        return asked.row if is_found else None

    def _renew(self, keepalive: Keepalive) -> Generator[Step, Any, None]:
        keepalive.note(self._seen.row)
        due = keepalive.seconds_left()
        if due is None or due > 0:
            return
        sent = time.monotonic()
        try:
            answer: Answer = yield Renew(self._left(keepalive.patience()))
        except (Refused, NotAnswered, Unavailable):
            # Leased or ended in between, as the next look will show; or to be repeated soon.
            keepalive.failed()
        else:
            keepalive.answered(answer, sent)

    def _left(self, most: float) -> float:
        """Return the seconds until the timeout, `most` at the most."""
        if self._timeout is None:
            return most
        return min(most, self._timeout - (time.monotonic() - self._started))

    def _pause(self) -> float:
        longest = _MACHINE_PAUSE_SECONDS if self._missing() else watch.POLL_SECONDS
        due = self._keepalive.seconds_left() if self._keepalive is not None else None
        return max(self._left(longest if due is None else min(longest, due)), 0.0)

    def _is_over(self) -> bool:
        missed = self._first_missed
        return self._left(1.0) <= 0 or (missed is not None and time.monotonic() - missed >= UNKNOWN_SECONDS)

    def _give_up(self) -> NoReturn:
        if self._trouble is not None:
            raise self._trouble
        row, seconds = self._seen.row, time.monotonic() - self._started
        if row is None:
            raise Unknown(f"no reservation {self._name} is in the view")
        if missing := self._missing():
            slots = ", ".join(sorted(missing))
            raise Unavailable(
                f"{self._name} is {row.phase} on {slots}, but after {seconds:.1f} s its machine is neither in the view"
                " nor known to a worker"
            )
        raise NotAnswered(f"{self._name} is still {row.phase} after {seconds:.1f} s")


def find_missing(seen: Joined) -> frozenset[str]:
    """The slots of the essential leases of a leased row whose machine is not known."""
    if seen.row is None or seen.row.phase != "leased":
        return frozenset()
    return seen.missing & {lease.slot for lease in seen.row.leases if lease.kind == "essential"}


def fill_in(row: Reservation, missing: frozenset[str], known: Sequence[Placement]) -> tuple[Placement, ...]:
    """The leases of a row, those whose machine the view lacks with the machine that was known of them. A lease whose
    machine was never known is not among them: it is there as soon as its machine is.
    """
    machines = {(each.component, each.slot, each.epoch, each.token): each for each in known}
    found = []
    for lease in row.leases:
        before = machines.get((lease.component, lease.slot, lease.epoch, lease.token))
        if lease.slot not in missing:
            found.append(lease)
        elif before is not None:
            machine = {name: getattr(before, name) for name in ("instance_id", "address", "type", "zone")}
            found.append(msgspec.structs.replace(lease, **machine))
    return tuple(found)


def carry_out(steps: Steps, act: Callable[[Step], object]) -> Reservation:
    """Do each step until the wait ends, and give its result."""
    try:
        step = next(steps)
        while True:
            try:
                result = act(step)
            except LeaseholdError as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as stop:
        found: Reservation = stop.value
        return found
