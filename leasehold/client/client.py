"""The producer's client: submits reservations, waits for them, holds their leases, explains why they wait.

Changes travel as Celery messages and are accepted when they are committed; reads come from the view in Redis.
It imports nothing of the application: a producer needs `leasehold`, Redis and no more.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, Unpack, assert_never

import msgspec

from leasehold.canaries import Probe
from leasehold.client.commands import Commands
from leasehold.client.credentials import find_credentials
from leasehold.client.discovery import find_address
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
from leasehold.client.reservation_fields import ReservationFields
from leasehold.client.reservation_keys import Keys
from leasehold.client.submitting import ITEMS_A_REQUEST, read_answers, split_items, with_id
from leasehold.client.transport import RequestTransport
from leasehold.client.view_reader import Joined, ViewReader
from leasehold.client.waiting import Ask, Look, Pause, PhaseWait, Renew, Step, carry_out
from leasehold.client.watch import Watch
from leasehold.common.masking import show_url
from leasehold.errors import Refused, Unavailable, Unknown, read_faults

TIMEOUT_SECONDS: Final = 30.0


class Client(Commands):
    """Talks to one stack. For any number of threads; a forked child makes its own connections.

    `url`: the Redis of the stack; left out it is LEASEHOLD_BROKER__URL, else that of the stack which runs in
    this folder or above it. `view_url` and `prefix` matter where the view has a Redis or names of its own; left
    out they are LEASEHOLD_VIEW__URL and LEASEHOLD_VIEW__PREFIX, else the broker's and `leasehold:`.
    `timeout`: seconds for which an answer is waited for where none is given. `keys`: the file in which the keys of
    reservations are kept; default: LEASEHOLD_KEYS, else `~/.local/state/leasehold/keys`.

    With `key_file` (or `key`, its content) messages are signed as its principal; `principal` names it where the file
    does not. Default: LEASEHOLD_ACCESS__KEY_FILE, LEASEHOLD_ACCESS__KEY and LEASEHOLD_ACCESS__PRINCIPAL; without them
    messages are not signed. Raises NoStack, Unavailable, BadCredentials.
    """

    def __init__(
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
    ) -> None:
        found = find_address(url, view_url, prefix)
        credentials = find_credentials(os.environ, principal, key, key_file)
        self._keys = Keys(None if keys is None else Path(keys), makes=credentials is not None)
        self.url, self.timeout = found.broker_url, timeout
        self._wire = RequestTransport(found.broker_url, found.prefix, found.view_url, credentials)
        self._reader = ViewReader(self._wire.redis, found.prefix, found.view_url, self._wire.clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return show_line(self, show_url(self.url))

    def close(self) -> None:
        """Let go of all connections. Leases that are held run out unless they are left first."""
        self._wire.close()

    def ping(self) -> None:
        """Raise Unavailable unless Redis answers and holds a valid view."""
        self._reader.check()

    def now(self) -> float:
        """Cluster time in seconds since the epoch: the clock of all times that this client gives. It is kept right by
        requests and reads, and carried by a monotonic clock; this host's clock may be wrong.
        """
        return self._wire.clock.now()

    def _check_open(self) -> None:
        """Raise Unavailable once `close` was called."""
        if self._wire.is_closed:
            raise Unavailable("the client was closed while it waited")

    @property
    def probe(self) -> Probe:
        """For operators: whether the stack is alive."""
        return Probe(self._wire)

    @property
    def hosts(self) -> Hosts:
        """For hosts of static pools: register, send heartbeats, leave, and learn of leases."""
        return Hosts(self._wire, self._reader, self.timeout)

    # What changes something.

    def reserve(self, *, timeout: float | None = None, **fields: Unpack[ReservationFields]) -> Reservation:
        """Ask for a reservation; it is accepted, durably, when this returns. The same id again changes nothing.

        `waiting`: nothing there could ever hold it. Raises Refused, NotAnswered (ask again, same id), Unavailable.
        """
        return self.submit(fields, timeout=timeout)

    def submit(self, document: Mapping[str, Any], *, timeout: float | None = None) -> Reservation:
        """The same with the fields as a document, whatever is in it: what is wrong is refused."""
        (hidden,) = self._keys.hide([with_id(document)])
        return self._describe(self._ask("submit", hidden, timeout))

    def reserve_many(self, items: Iterable[ReservationFields], *, timeout: float | None = None) -> Table[Answer]:
        """Ask for many at once, a thousand a message; the answers by index: good ones are accepted, bad ones
        carry `errors`. Raises NotAnswered and Unavailable; what was accepted until then stays accepted.
        """
        sizes: list[int] = []

        def requests() -> Iterator[dict[str, Any]]:
            for chunk in split_items(items):
                sizes.append(len(chunk))
                yield {"items": self._keys.hide(chunk)}

        answers = self._wire.ask_each("submit", requests(), self._timeout(timeout))
        return Table(
            answer
            for number, document in enumerate(answers)
            for answer in read_answers(document, sizes[number], number * ITEMS_A_REQUEST)
        )

    def find_key(self, reservation: str) -> str | None:
        """The key of a reservation that a client of this user on this host submitted; None for any other. A holder on
        another host needs it: every command of a holder takes `key`.
        """
        return self._keys.find(reservation)

    # What reads. All of it raises Unavailable while there is no Redis or no valid view.

    def get(self, reservation: str) -> Reservation | None:
        """The reservation with its leases and their machines; None for an id that the view does not know.

        One that has ended stays in the view for ten minutes; `recall` finds older ones.
        """
        return self._reader.find_reservations([reservation])[0]

    def recall(self, *reservations: str, timeout: float | None = None) -> Table[Reservation]:
        """Reservations as the database has them, however long ago they ended; unknown ids are left
        out. A worker answers this, so it needs one. Raises NotAnswered, Unavailable.
        """
        found = self._query(reservations, timeout)
        return Table(each.row for each in found if each.row is not None)

    def _query(self, reservations: Iterable[str], timeout: float | None) -> tuple[Joined, ...]:
        """The rows that `recall` gives, each with the slots of leases whose machine the worker does not know."""
        answer = self._wire.ask("query", {"ids": list(reservations)}, self._timeout(timeout))
        if not answer.get("ok"):
            raise Refused(read_faults(answer.get("errors", [])))
        return tuple(
            # A worker that knows the machine of a lease names its instance id, if only as null.
            Joined(
                msgspec.convert(row, Reservation),
                frozenset(lease["slot"] for lease in row.get("leases", ()) if "instance_id" not in lease),
            )
            for row in answer["reservations"]
        )

    def slots(self, *, pool: str | None = None, state: str | None = None) -> Table[Slot]:
        """The slots of the view, those of a pool, or those in a state, in order of their names."""
        found = (
            slot for slot in self._reader.scan_slots() if pool in {None, slot.pool} and state in {None, slot.state}
        )
        return Table(sorted(found, key=lambda slot: (slot.pool, len(slot.id), slot.id)))

    def slot(self, slot: str) -> Slot | None:
        """The slot of this id; None for one that the view does not know."""
        return self._reader.find_slots([slot])[0]

    def accounts(self) -> Table[Account]:
        """The quota accounts of the view by name, with what each had when it was last charged."""
        found = {row.id: row for row in self._reader.scan_accounts() if not row.forgotten}
        return Table(found[name] for name in sorted(found))

    def report(self) -> dict[str, Any]:
        """Return the report of the last tick: term, time, the reservations that wait and why."""
        return self._reader.read_report()

    def explain(self, reservation: str) -> Explanation:
        """Why it is where it is, and what it waits for. Raises Unknown."""
        row = self.get(reservation)
        if row is None:
            raise Unknown(f"no reservation {reservation} is in the view")
        report = self.report()
        waiting: dict[str, Any] = report.get("waiting", {})
        found = waiting.get(reservation) if row.phase == "pending" else None
        code, detail = found or (None, None)
        return Explanation(
            reservation=row.id,
            phase=row.phase,
            reason=row.reason,
            code=code,
            detail=detail,
            position=list(waiting).index(reservation) + 1 if found else None,
            waiting=len(waiting),
            as_of=report.get("at"),
        )

    def suggest(self, reservation: str, *, timeout: float | None = None) -> Explanation:
        """The same with the smallest change that would end its wait, found by the engine on the rows as they are now.
        A worker answers this, so it needs one. Raises Refused for an unknown id, NotAnswered, Unavailable.
        """
        answer = self._wire.ask("explain", {"reservation": reservation}, self._timeout(timeout))
        if not answer.get("ok"):
            raise Refused(read_faults(answer.get("errors", [])))
        return read_explanation(answer)

    def conditions(self, pool: str | None = None, *, timeout: float | None = None) -> Conditions:
        """Return the conditions of slots and pools beyond their states, as sentences. A worker answers this. Raises
        NotAnswered, Unavailable.
        """
        asked = {} if pool is None else {"pool": pool}
        answer = self._wire.ask("conditions", asked, self._timeout(timeout))
        if not answer.get("ok"):
            raise Refused(read_faults(answer.get("errors", [])))
        return msgspec.convert(answer, Conditions)

    def wait(
        self,
        reservation: str,
        phase: str | Iterable[str] = "leased",
        timeout: float | None = None,
        *,
        renew: bool = False,
    ) -> Reservation:
        """Return when it is in this phase (or one of several; `ended` is any end). `timeout` None: without a limit.
        A leased one is returned with its machines. `renew`: while it is pending, renew it before its ttl runs out.

        Raises Ended when it is over otherwise, Unknown, and NotAnswered or Unavailable when time runs out.
        """
        phases, now = list_phases(phase) or frozenset(), self._wire.clock.now
        waiting = PhaseWait(reservation, phases, timeout, renew=renew, now=now)
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
            case _:
                assert_never(step)

    def watch(self, reservation: str) -> Watch:
        """A watch over one reservation, which reports every change; to be used as a context."""
        return Watch(self._wire, self._reader, reservation)

    def lease(
        self,
        *,
        wait: float | None = None,
        on_revoke: Callable[[Lease], object] | None = None,
        on_lost: Callable[[Lease], object] | None = None,
        **fields: Unpack[ReservationFields],
    ) -> Lease:
        """A lease to hold: `with client.lease(system="x86_64-linux") as lease:` reserves, waits for `wait` seconds
        at most (None: for ever), renews by itself and releases at the end. See Lease.
        """
        lease = Lease(self, with_id(fields), wait)
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
        """The reservations of the view that match all that is given, in order of submission."""
        phases = list_phases(phase)
        wanted = {"account": account, "pool": pool, "system": system}
        found = [
            row
            for row in self._reader.scan_reservations()
            if (phases is None or row.phase in phases)
            and all(value in {None, getattr(row.request, name)} for name, value in wanted.items())
            and (tags or {}).items() <= row.request.tags.items()
        ]
        # A scan meets a row twice when the hash grows under it.
        rows = {row.id: row for row in found}
        ordered = sorted(rows.values(), key=lambda row: row.sequence)
        return Table(row for row in self._reader.with_machines(ordered) if row is not None)

    def _timeout(self, given: float | None) -> float:
        return self.timeout if given is None else given

    def _ask(self, verb: str, document: Mapping[str, Any], timeout: float | None) -> Answer:
        answer = self._wire.ask(verb, document, self._timeout(timeout))
        if not answer.get("ok"):
            raise Refused(read_faults(answer.get("errors", [])))
        return read_answer(answer)

    def _describe(self, answer: Answer) -> Reservation:
        """Return the row that an answer is about; made from the answer if the view does not have it yet."""
        name, phase = answer.reservation or "", answer.phase or "pending"
        row = Reservation(id=name, phase=phase, expires_at=answer.expires_at, token=answer.token or 0)
        with suppress(Unavailable):
            row = self.get(name) or row
        waiting = answer.waiting if row.phase == "pending" else None
        return msgspec.structs.replace(row, waiting=waiting, notes=answer.notes)
