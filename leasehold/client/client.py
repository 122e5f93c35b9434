"""The blocking client for producers: it submits reservations, waits for them, holds their leases, and explains why they
wait.

Requests for changes are sent as Celery messages, or to the HTTP API; an answer means that the change is committed.
Reads come from the view in Redis, or from the HTTP API. A producer needs only the package `leasehold`.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack, assert_never

import msgspec

from leasehold.client.commands import Commands
from leasehold.client.display import Table, show_line
from leasehold.client.hosts import Hosts
from leasehold.client.lease import Lease
from leasehold.client.models import (
    Account,
    Answer,
    Conditions,
    Explanation,
    Reservation,
    Slot,
    list_phases,
    read_answer,
    read_explanation,
)
from leasehold.client.ports import Joined
from leasehold.client.reservation_fields import ReservationFields
from leasehold.client.reservation_keys import Keys
from leasehold.client.rules import RuleRequests
from leasehold.client.stack_access import open_access
from leasehold.client.submitting import ITEMS_A_REQUEST, read_answers, split_items, with_id
from leasehold.client.waiting import Ask, Explain, Look, Pause, PhaseWait, Renew, Step, carry_out
from leasehold.client.watch import Watch
from leasehold.errors import Fault, LeaseholdError, Refused, Unavailable, read_faults
from scheduler.model.faults import one_of, show
from scheduler.protocol.masking import show_url

if TYPE_CHECKING:
    from leasehold.canaries import Probe

TIMEOUT_SECONDS: Final = 30.0
NAMES_SECONDS: Final = 5.0
"""Seconds to wait for a worker's answer with the pools of the rules."""


class Client(Commands, RuleRequests):
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
        found = open_access(url, view_url, prefix, principal, key, key_file, token)
        self._keys = Keys(None if keys is None else Path(keys), makes=found.has_key)
        self.url, self.timeout = found.url, timeout
        self._wire, self._reader = found.wire, found.reader
        self._hosts = Hosts(self._wire, self._reader, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return show_line(self, show_url(self.url))

    def close(self) -> None:
        """Close all connections. Leases that are still held expire after their ttl."""
        self._wire.close()

    def ping(self) -> None:
        """Raise Unavailable unless the stack answers and has a valid view."""
        self._reader.check()

    def now(self) -> float:
        """Return cluster time in seconds since the epoch. All times that this client returns are cluster time.

        Requests and reads correct the time; in between, a monotonic clock continues it. The wall clock of this host may
        be wrong.
        """
        return self._wire.clock.now()

    def _check_open(self) -> None:
        """Raise Unavailable if the client was closed."""
        if self._wire.is_closed:
            raise Unavailable("the client was closed while it waited")

    @property
    def probe(self) -> "Probe":
        """The checks of the stack's health, for operators. Raise Unavailable for a client over HTTP, which cannot make
        these checks.
        """
        return self._wire.make_probe()

    @property
    def hosts(self) -> Hosts:
        """The messages of static hosts: a host registers, sends heartbeats, leaves, and reads its leases."""
        return self._hosts

    # Requests that change something.

    def ask(
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
        return self._wire.ask(verb, document, self._timeout(timeout), request=request)

    def reserve(self, *, timeout: float | None = None, **fields: Unpack[ReservationFields]) -> Reservation:
        """Submit a reservation, and return it when it is stored durably. A second request with the same id changes
        nothing.

        If no slot or offering could hold the reservation at present, its field `waiting` has the reason. Raise Refused,
        NotAnswered (safe to repeat with the same id) or Unavailable.
        """
        return self.submit(fields, timeout=timeout)

    def submit(self, document: Mapping[str, Any], *, timeout: float | None = None) -> Reservation:
        """Submit a reservation whose fields are in `document`, and return the reservation, as `reserve` does. Raise
        Refused for invalid fields.
        """
        (hidden,) = self._keys.hide([with_id(document)])
        answer, seen = self._wire.submit(hidden, self._timeout(timeout))
        return self._describe(read_answer(check_accepted(answer)), seen)

    def reserve_many(self, items: Iterable[ReservationFields], *, timeout: float | None = None) -> Table[Answer]:
        """Submit many reservations, a thousand in each message. Return a table with one answer for each, in the given
        order. The answers to invalid reservations have `errors`.

        Raise NotAnswered or Unavailable; reservations that were accepted until then stay accepted.
        """
        return self._ask_many("submit", map(self._keys.hide, split_items(items)), timeout)

    def _ask_many(self, verb: str, chunks: Iterable[list[dict[str, Any]]], timeout: float | None) -> Table[Answer]:
        sizes: list[int] = []

        def requests() -> Iterator[dict[str, Any]]:
            for chunk in chunks:
                sizes.append(len(chunk))
                yield {"items": chunk}

        answers = self._wire.ask_each(verb, requests(), self._timeout(timeout))
        return Table(
            answer
            for number, document in enumerate(answers)
            for answer in read_answers(document, sizes[number], number * ITEMS_A_REQUEST)
        )

    def find_key(self, reservation: str) -> str | None:
        """Return the key of a reservation that this user submitted on this host. Return None for other reservations.

        A holder on another host needs the key: pass it as `key` to the commands of a holder.
        """
        return self._keys.find(reservation)

    def _find_keys(self, reservations: Iterable[str]) -> Mapping[str, str]:
        return self._keys.find_all(reservations)

    # Reads. Each raises Unavailable while the stack is unreachable or the view is not valid.

    def get(self, reservation: str) -> Reservation | None:
        """Return a reservation with its leases and their machines, or None if the view does not have it.

        An ended reservation stays in the view for ten minutes; `recall` also finds older ones. Raise Unavailable.
        """
        return self._reader.find_joined([reservation])[0].row

    def recall(self, *reservations: str, timeout: float | None = None) -> Table[Reservation]:
        """Return the reservations with these ids from the database, including those that ended long ago. Unknown ids
        are omitted.

        A worker must run to answer this. Raise NotAnswered or Unavailable.
        """
        found = self._query(reservations, timeout)
        return Table(each.row for each in found if each.row is not None)

    def _query(self, reservations: Iterable[str], timeout: float | None) -> tuple[Joined, ...]:
        """Return the rows of these reservations, read from the database by a worker. With each row, `missing` has the
        slots of its leases whose machine is unknown. Reservations that the database does not have are omitted.
        """
        answer = self._ask_worker("query", {"ids": list(reservations)}, timeout)
        return tuple(
            # A worker that knows the machine of a lease sends an instance id, which may be null.
            Joined(
                msgspec.convert(row, Reservation),
                frozenset(lease["slot"] for lease in row.get("leases", ()) if "instance_id" not in lease),
            )
            for row in answer["reservations"]
        )

    def slots(self, *, pool: str | None = None, state: str | None = None) -> Table[Slot]:
        """Return the slots of the view, sorted by name. `pool`: only slots of this pool. `state`: only slots in this
        state. None: any. Raise Refused, with the known names, for a pool that does not exist.
        """
        rows = self._reader.list_slots(pool, state)
        if not rows and not self._reader.checks_names:
            self.check_names(pool=pool)
        return Table(rows)

    def slot(self, slot: str) -> Slot | None:
        """Return the slot with this id, or None if the view does not have it."""
        return self._reader.find_slots([slot])[0]

    def accounts(self) -> Table[Account]:
        """Return the quota accounts of the view, sorted by name. Their balances are those of the last charge."""
        return Table(self._reader.list_accounts())

    def report(self) -> dict[str, Any]:
        """Return the report of the last tick: its term and time, and the reservations that wait with their reasons."""
        return self._reader.read_report()

    def explain(self, reservation: str) -> Explanation:
        """Return the state of a reservation and the reason why it waits, as the last tick reported it. Raise Unknown if
        the view does not have the reservation.
        """
        return self._reader.explain(reservation)

    def suggest(self, reservation: str, *, timeout: float | None = None) -> Explanation:
        """Return the state of a reservation, why it waits, and the smallest change that would end its wait.

        A worker computes the change from the present rows. Raise Refused for an unknown id, NotAnswered or Unavailable.
        """
        return read_explanation(self._ask_worker("explain", {"reservation": reservation}, timeout))

    def conditions(self, pool: str | None = None, *, timeout: float | None = None) -> Conditions:
        """Return sentences about slots and pools. They report what the states of the slots do not show, for example
        that launches are paused. `pool`: only this pool and its slots; None: all pools.

        A worker must run to answer this. Raise NotAnswered or Unavailable.
        """
        asked = {} if pool is None else {"pool": pool}
        return msgspec.convert(self._ask_worker("conditions", asked, timeout), Conditions)

    def wait(
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
        phases, now = list_phases(phase) or frozenset(), self._wire.clock.now
        waiting = PhaseWait(reservation, phases, timeout, renew=renew, wait_anyway=wait_anyway, now=now)
        with self.watch(reservation) as watch:
            return carry_out(waiting.steps(), partial(self._take_step, watch))

    def _take_step(self, watch: Watch, step: Step) -> object:
        match step:
            case Look():
                return watch.read_joined()
            case Renew(seconds):
                return self.renew(watch.reservation, timeout=seconds)
            case Ask(seconds):
                return next(iter(self._query([watch.reservation], seconds)), Joined(None))
            case Pause(seconds):
                watch.wait_for_hint(seconds)
                self._check_open()
                return None
            case Explain():
                return self._reader.find_waits([watch.reservation])[0]
            case _:
                assert_never(step)

    def watch(self, reservation: str) -> Watch:
        """Return an object that reports the present row of one reservation and waits for its next change. Use it as a
        context manager.
        """
        return Watch(self._wire.hint_row(reservation), self._reader, reservation)

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
        seconds (None: no limit). A thread renews the lease in the background, and leaving it releases the lease.
        `on_revoke` and `on_lost` are called with the lease when it is being revoked and when it is lost.

        If no slot and no launch could serve the reservation, entering cancels it and raises CannotBeServed, as `wait`
        does. `wait_anyway`: wait all the same, because rules will change or hosts will join.
        """
        lease = Lease(self, with_id(fields), wait, wait_anyway=wait_anyway)
        for callback, add in ((on_revoke, lease.on_revoke), (on_lost, lease.on_lost)):
            if callback is not None:
                add(callback)
        return lease

    def list(
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
        rows = self._reader.list_reservations(list_phases(phase), wanted, tags or {})
        if not rows and not self._reader.checks_names:
            self.check_names(pool=pool, system=system)
        return Table(rows)

    def check_names(self, *, account: str | None = None, pool: str | None = None, system: str | None = None) -> None:
        """Raise Refused, with the known names, for an account, pool or system that does not exist. A list that is empty
        checks the pool and the system of its filters. A name that a reservation or slot of the view has is no fault.

        Pools and systems are in the report of the last tick. A worker is asked for those that the report lacks, because
        the rules may be newer; if none answers, the name is accepted.
        """
        wanted = {"account": account, "pool": pool, "system": system}
        known: dict[str, list[str]] = {}
        if account is not None:
            known["account"] = [each.id for each in self._reader.list_accounts()]
        if pool is not None or system is not None:
            pools = self._reader.read_report().get("pools", {})
            if pool not in {None, *pools} or system not in {None, *pools.values()}:
                try:
                    document = self.rules(timeout=min(self.timeout, NAMES_SECONDS)).document
                except LeaseholdError:
                    pool = system = None
                else:
                    pools = {name: each.get("system") for name, each in document.get("pools", {}).items()}
            known |= {} if pool is None else {"pool": sorted(pools)}
            known |= {} if system is None else {"system": sorted({each for each in pools.values() if each})}
        faults = [
            Fault(0, name, one_of(value, names), show(value))
            for name, names in known.items()
            if (value := wanted[name]) is not None and value not in names and not self._is_used(name, value)
        ]
        if faults:
            raise Refused(faults)

    def _is_used(self, name: str, value: str) -> bool:
        """Return whether a reservation or slot of the view has this value of a filter, although nothing else knows it:
        an account that was never made, or a pool that was removed.
        """
        return bool(
            self._reader.list_reservations(None, {name: value}, {})
            or (name == "pool" and self._reader.list_slots(value, None))
        )

    def _timeout(self, given: float | None) -> float:
        return self.timeout if given is None else given

    def _ask(self, verb: str, document: Mapping[str, Any], timeout: float | None) -> Answer:
        return read_answer(self._ask_worker(verb, document, timeout))

    def _ask_worker(self, verb: str, document: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
        return check_accepted(self._wire.ask(verb, document, self._timeout(timeout)))

    def _describe(self, answer: Answer, seen: Joined | None) -> Reservation:
        """Return the reservation that was submitted with `submit`, with the `waiting` and the `notes` of the answer.
        `seen`: the row that came with the answer; None: no row came, so the row is read from the view now. If the view
        does not have the row yet, the reservation has only the fields of the answer.
        """
        name, phase = answer.reservation or "", answer.phase or "pending"
        found = None if seen is None else seen.row
        if seen is None:
            with suppress(Unavailable):
                found = self.get(name)
        row = found or Reservation(id=name, phase=phase, expires_at=answer.expires_at, token=answer.token or 0)
        waiting = answer.waiting if row.phase == "pending" else None
        return msgspec.structs.replace(row, waiting=waiting, notes=answer.notes)


def check_accepted(answer: dict[str, Any]) -> dict[str, Any]:
    """Return `answer` unchanged if the request was accepted. If it was refused, raise Refused with the faults."""
    if not answer.get("ok"):
        raise Refused(read_faults(answer.get("errors", [])))
    return answer
