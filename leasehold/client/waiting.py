"""The rules of waiting for a phase of a reservation, which the blocking and the async client share.

`PhaseWait.steps` is a generator that yields what the client must do next (an action). The client carries the action out
and sends the result back into the generator, or throws the error into it.
"""

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import msgspec

from leasehold.client.models import NOT_PLANNED, Answer, LastWait, Placement, Reservation, Wait
from leasehold.client.ports import Joined
from leasehold.errors import CannotBeServed, Ended, LeaseholdError, NotAnswered, Refused, Unavailable, Unknown
from scheduler.model.waiting_codes import UNSERVABLE
from scheduler.protocol.faults import describe_unknown

POLL_SECONDS: Final = 2.0
"""Seconds between two reads of a watched row if no notice arrives."""
UNKNOWN_SECONDS: Final = 10.0
"""Seconds for which a valid view may lack the row of a reservation before the reservation counts as unknown. This is
longer than a tick needs to repair the view.
"""
RENEWALS_A_TTL: Final = 3
"""Number of renewals in one ttl: a lease, or a reservation that waits, is renewed after a third of its ttl."""
RENEWAL_SECONDS: Final = 5.0
"""Seconds to wait for the answer to a renewal, or to a question to a worker about a machine."""
SHORTEST_PAUSE_SECONDS: Final = 0.02
FIRST_CODE_SECONDS: Final = 1.0
"""Seconds after which a wait reads the waiting code of its reservation for the first time: most waits are over by then.
"""
LONGEST_CODE_SECONDS: Final = 30.0
"""The longest time between two reads of the waiting code. While no slot and no launch could serve the reservation, it
is read as often as the row.
"""
STANDS_SECONDS: Final = 3.0
"""Cluster time between two ticks that must both report that no slot and no launch could serve a reservation, before its
wait ends for that reason. In between, rules that were just applied and hosts that just started come into force.
"""
_MACHINE_PAUSE_SECONDS: Final = 0.2
"""Seconds between two reads of a leased row while one of its slots is missing in the view."""


@dataclass(frozen=True)
class Look:
    """An action of a wait (a generator of the type Steps): read the row from the view. The client sends a Joined into
    the generator (the row, and the slots whose machine is unknown), or throws Unavailable into it if the read fails.
    """


@dataclass(frozen=True)
class Renew:
    """An action of a wait (a generator of the type Steps): renew the pending reservation, within `seconds`. The client
    sends an Answer into the generator, or throws LeaseholdError into it if the renewal fails.
    """

    seconds: float


@dataclass(frozen=True)
class Ask:
    """An action of a wait (a generator of the type Steps): ask a worker for the row and its machines, within `seconds`.
    The client sends a Joined into the generator, or throws LeaseholdError into it if no worker answers with the row.
    """

    seconds: float


@dataclass(frozen=True)
class Pause:
    """An action of a wait: wait for a notice about the reservation, for `seconds` at most. The result is None."""

    seconds: float


@dataclass(frozen=True)
class Explain:
    """An action of a wait: read from the report of the last tick why the reservation waits. The client sends a LastWait
    into the generator, or throws LeaseholdError into it if the read fails.
    """


Step = Look | Renew | Ask | Pause | Explain
Steps = Generator[Step, Any, Reservation]


class Keepalive:
    """Computes when a pending reservation must be renewed during a wait, so that it does not expire. `now` returns
    cluster time.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._ttl = 0.0
        self._due: float | None = None

    def note(self, row: Reservation | None) -> None:
        """Update the schedule of renewals by a row. The ttl is taken from the first pending row that has an expiry.
        After a row that is not pending, there are no more renewals.
        """
        if row is None or row.phase != "pending" or row.expires_at is None:
            self._due = None
        elif self._due is None:
            # If the row was written after its expiry was set, the computed ttl is shorter than the real one.
            self._ttl = max(row.expires_at - row.marked_at, 0.0)
            spent = max(self._ttl - (row.expires_at - self._now()), 0.0)
            self._due = time.monotonic() + max(self._ttl / RENEWALS_A_TTL - spent, 0.0)

    def seconds_left(self) -> float | None:
        """Return the seconds until the next renewal of the pending reservation; None if it needs no renewal."""
        return None if self._due is None else max(self._due - time.monotonic(), 0.0)

    def patience(self) -> float:
        """Return for how many seconds to wait for the answer to a renewal of the pending reservation."""
        return min(self._pause() or RENEWAL_SECONDS, RENEWAL_SECONDS)

    def answered(self, answer: Answer, sent: float) -> None:
        """Record the answer to the renewal that was sent at `sent`, and schedule the next renewal by the ttl in the
        answer.
        """
        self._ttl = answer.ttl or 0.0
        self._due = None if answer.ttl is None else sent + self._pause()

    def failed(self) -> None:
        """Record that a renewal of the pending reservation was refused or not answered, and schedule
        another one soon.
        """
        self._due = time.monotonic() + min(self._pause(), POLL_SECONDS)

    def _pause(self) -> float:
        return max(self._ttl / RENEWALS_A_TTL, SHORTEST_PAUSE_SECONDS) if self._ttl else 0.0


class CodeWatch:
    """Computes when a wait must read the waiting code of its reservation, and whether the wait is in vain."""

    def __init__(self) -> None:
        self._due = time.monotonic() + FIRST_CODE_SECONDS
        self._pause = FIRST_CODE_SECONDS
        self._since: float | None = None
        """Time of the first tick since which all ticks that were read found the reservation unservable; None: the
        newest one did not.
        """

    def seconds_left(self) -> float:
        """Return the seconds until the waiting code must be read again."""
        return max(self._due - time.monotonic(), 0.0)

    def is_in_vain(self, last: LastWait) -> bool:
        """Return whether this report of the last tick and an earlier one, which is at least STANDS_SECONDS older, both
        contain that no slot and no launch could serve the reservation. Schedule the next read.
        """
        if last.as_of is None or last.why is None or last.why.code not in UNSERVABLE:
            self._since = None
            self._pause = min(2 * self._pause, LONGEST_CODE_SECONDS)
        else:
            self._since = last.as_of if self._since is None else min(self._since, last.as_of)
            self._pause = POLL_SECONDS
        self._due = time.monotonic() + self._pause
        return self._since is not None and last.as_of is not None and last.as_of - self._since >= STANDS_SECONDS


class PhaseWait:
    """One wait until the reservation `name` is in one of the phases `phases`.

    `timeout` is in seconds; None: no limit. `renew`: renew the reservation while it is pending. `wait_anyway`: go on
    while no slot and no launch could serve the reservation. `now` returns cluster time.
    """

    def __init__(
        self,
        name: str,
        phases: frozenset[str],
        timeout: float | None,
        *,
        renew: bool,
        wait_anyway: bool,
        now: Callable[[], float],
    ) -> None:
        self._name, self._phases, self._timeout = name, phases, timeout
        self._keepalive = Keepalive(now) if renew else None
        self._code_watch = None if wait_anyway else CodeWatch()
        self._last: LastWait | None = None
        """What the report of the last tick contained when it was read last; None: it was not read."""
        self._started = time.monotonic()
        self._trouble: Unavailable | None = None
        self._seen = Joined(None)
        self._first_missed: float | None = None
        self._asked_at: float | None = None
        """Monotonic time of the last question to a worker about a missing machine of a leased row; None before a
        machine was missing. When a machine is missing for the first time, a time in the past is set, so that the worker
        is asked when the machine is still missing at the second read.
        """

    def steps(self) -> Steps:
        """Yield the actions of the wait. When the row is in one of the phases that the wait is for, return the row. A
        leased row has the machines of its essential components.

        Raise Ended if the reservation ends in another phase, and Unknown if it does not appear in the view. When the
        time is over, raise Unavailable if Redis does not answer or a machine is missing, else NotAnswered. Raise
        CannotBeServed, unless `wait_anyway`, if no slot and no launch could serve the reservation.
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
                raise Ended(row.id, row.phase, row.reason, self._why.code if self._why else None)
            if self._is_over():
                yield from self._give_up()
            if self._code_watch is not None:
                yield from self._check_code(self._code_watch)
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
        """Ask a worker for the row, because the view lacks one of the row's slots. Return the row if it has all
        machines and is in one of the phases that the wait is for; else return None.

        The first question is delayed, because the view may get the slot soon. Later questions follow every few seconds.
        """
        now = time.monotonic()
        is_first, self._asked_at = self._asked_at is None, self._asked_at or now - POLL_SECONDS
        if is_first or now - self._asked_at < POLL_SECONDS or self._left(RENEWAL_SECONDS) <= 0:
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
            # The reservation was leased or ended (the next read shows it), or the renewal is repeated soon.
            keepalive.failed()
        else:
            keepalive.answered(answer, sent)

    def _check_code(self, code_watch: CodeWatch) -> Generator[Step, Any, None]:
        row = self._seen.row
        if row is None or row.phase != "pending" or code_watch.seconds_left() > 0:
            return
        yield from self._read_code()
        if code_watch.is_in_vain(self._last or LastWait()) and self._why is not None:
            raise CannotBeServed(row.id, self._why.code, self._why.detail)

    def _read_code(self) -> Generator[Step, Any, None]:
        try:
            self._last = yield Explain()
        except LeaseholdError:
            # Without a report the reason is not known. The wait goes on, or ends without one.
            self._last = None

    @property
    def _why(self) -> Wait | None:
        return None if self._last is None else self._last.why

    def _left(self, most: float) -> float:
        """Return the seconds until the timeout of the wait, but at most `most`."""
        if self._timeout is None:
            return most
        return min(most, self._timeout - (time.monotonic() - self._started))

    def _pause(self) -> float:
        pauses = [_MACHINE_PAUSE_SECONDS if self._missing() else POLL_SECONDS]
        if self._keepalive is not None and (due := self._keepalive.seconds_left()) is not None:
            pauses.append(due)
        if self._code_watch is not None and self._seen.row is not None and self._seen.row.phase == "pending":
            pauses.append(self._code_watch.seconds_left())
        return max(self._left(min(pauses)), 0.0)

    def _is_over(self) -> bool:
        missed = self._first_missed
        return self._left(1.0) <= 0 or (missed is not None and time.monotonic() - missed >= UNKNOWN_SECONDS)

    def _give_up(self) -> Generator[Step, Any, NoReturn]:
        if self._trouble is not None:
            raise self._trouble
        row, seconds = self._seen.row, time.monotonic() - self._started
        if row is None:
            raise Unknown(describe_unknown("reservation", self._name))
        if missing := self._missing():
            slots = ", ".join(sorted(missing))
            raise Unavailable(
                f"{self._name} is {row.phase} on {slots}, but after {seconds:.1f} s its machine is neither in the view"
                " nor known to a worker"
            )
        text = f"{self._name} is still {row.phase} after {seconds:.1f} s"
        if row.phase != "pending":
            raise NotAnswered(text)
        yield from self._read_code()
        if self._last is None:
            raise NotAnswered(text)
        if self._why is None:
            raise NotAnswered(f"{text}: {NOT_PLANNED}", NOT_PLANNED)
        raise NotAnswered(f"{text}: {self._why}", self._why.detail, self._why.code)


def find_missing(seen: Joined) -> frozenset[str]:
    """Return the ids of the leased slots of essential components whose machine is unknown; an empty set if the row is
    not leased.
    """
    if seen.row is None or seen.row.phase != "leased":
        return frozenset()
    return seen.missing & {lease.slot for lease in seen.row.leases if lease.kind == "essential"}


def fill_in(row: Reservation, missing: frozenset[str], known: Sequence[Placement]) -> tuple[Placement, ...]:
    """Return the leases of a row. `missing`: the slots whose machine is not in the view. `known`: the leases that were
    known before. A lease on a missing slot gets the machine of the same lease in `known`. If `known` does not have the
    lease, the lease is omitted.
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
