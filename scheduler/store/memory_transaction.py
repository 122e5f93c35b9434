"""The Transaction port implemented with plain dicts. As in SQL, a write fails if its row was changed
after it was read.
"""

import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from operator import itemgetter
from types import TracebackType
from typing import Any, Self, cast

import msgspec

from scheduler.model.accounts import NOTHING, Account, BalanceSample, Levels, add, find_account
from scheduler.model.costs import Cost, book
from scheduler.model.events import Event
from scheduler.model.launch_backoff import Hold
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.rules import read_rules, with_images
from scheduler.model.slots import Slot
from scheduler.model.transitions import INACTIVE
from scheduler.model.view import KINDS, Gone, Row
from scheduler.policy.quota.accounting import sum_running
from scheduler.ports import (
    AppliedRules,
    DeposedError,
    LeaderTerm,
    OutboxMessage,
    Pending,
    StaleWriteError,
    StoredAnswer,
    StoredPrincipal,
    StoredRules,
    StoreUnavailableError,
)
from scheduler.store.memory_market import MemoryMarketWrites
from scheduler.store.shared_rules import LONG_AGO, WholeOrNothing, take_marks
from scheduler.store.world import Key, World

_LOCK_SECONDS = 5.0


class MemoryTransaction(MemoryMarketWrites, WholeOrNothing):
    """A transaction of the memory store. It collects its writes, and carries all of them out when the `with` block ends
    without an error.
    """

    def __init__(self, world: World, lock: threading.Lock, clock: Callable[[], float]) -> None:
        self._world, self._lock, self._clock = world, lock, clock
        self._rows: dict[Key, Row | None] = {}
        self._events: list[Event] = []
        self._answers: dict[str, StoredAnswer] = {}
        self._outgoing: dict[str, OutboxMessage | None] = {}
        self._balances: list[BalanceSample] = []
        self._costs: list[Cost] = []
        self._booked: dict[str, float] = {}
        self._principals: dict[str, StoredPrincipal | None] = {}
        self._ended_sessions: dict[str, float] = {}

    def __enter__(self) -> Self:
        if not self._lock.acquire(timeout=_LOCK_SECONDS):
            raise StoreUnavailableError("the store is locked by another transaction")
        self._now = self._clock()
        self._sequence, self._token = self._world.sequence, self._world.token
        self._buried, self._restores = self._world.buried, self._world.restores
        self._leader_term, self._rules = self._world.leader_term, self._world.rules
        self._market, self._price_changes = self._world.market, []
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.check_whole()
                self._apply()
        finally:
            self._lock.release()

    def now(self) -> float:
        """Return cluster time at the begin of the transaction; in a simulation, virtual time. See Transaction."""
        return self._now

    def rules_version(self) -> int:
        """Return the version of the scheduling rules that was in force when the transaction began. See Transaction."""
        return self._rules.version

    def take_term(self, holder: str) -> LeaderTerm:
        """Make the process `holder` the leader: increase the stored leader term by one. See Transaction."""
        self._leader_term = LeaderTerm(self._leader_term.term + 1, holder, self._leader_term.ticked_at)
        return self._leader_term

    def jump(self, term: int, token: int) -> None:
        """Set the leader term and the highest fencing token to these values after a restore, and count the restore. See
        Transaction.
        """
        self._leader_term, self._token = LeaderTerm(term, "", LONG_AGO), token
        self._restores += 1

    def note_tick(self, leader_term: LeaderTerm, now: float) -> None:
        """Store `now` as the time of the last tick of this leader term. Raises DeposedError if another leader has begun
        a later term. See Transaction.
        """
        current = self._leader_term
        if (current.term, current.holder) != (leader_term.term, leader_term.holder):
            raise self._lose(DeposedError(f"term {leader_term.term} is over: the present term is {current.term}"))
        self._leader_term = LeaderTerm(leader_term.term, leader_term.holder, now)

    def load_reservations(self, ids: Iterable[str]) -> dict[str, Reservation]:
        """Lock the reservations with these ids and return them by id, with their leases. See Transaction."""
        return cast("dict[str, Reservation]", self._load(Reservation, ids))

    def load_slots(self, ids: Iterable[str]) -> dict[str, Slot]:
        """Lock the slots with these ids and return them by id. See Transaction."""
        return cast("dict[str, Slot]", self._load(Slot, ids))

    def load_holds(self, ids: Iterable[str]) -> dict[str, Hold]:
        """Lock the launch back-offs (holds) with these ids and return them by id. See Transaction."""
        return cast("dict[str, Hold]", self._load(Hold, ids))

    def load_accounts(self, ids: Iterable[str]) -> dict[str, Account]:
        """Lock the accounts with these ids and return them by id, deleted (forgotten) ones too. See Transaction."""
        return cast("dict[str, Account]", self._load(Account, ids))

    def load_all_accounts(self) -> list[Account]:
        """Lock and return every account, deleted (forgotten) ones too, sorted by id. See Transaction."""
        names = {*self._world.accounts, *(key[1] for key in self._rows if key[0] is Account)}
        return list(self.load_accounts(sorted(names)).values())

    def sum_running(self, now: float) -> dict[str, Levels]:
        """Return, by account, the worker-seconds by level that the account's running leases have used from their last
        charge to `now`. See Transaction.
        """
        accounts = {account.id: account for account in self.load_all_accounts()}
        owners = {owner for held in self._world.occupants.values() for owner in held}
        owners |= {row.id for row in self._rows.values() if isinstance(row, Reservation)}
        found: dict[str, Levels] = {}
        for row in self.load_reservations(sorted(owners) if accounts else ()).values():
            account = find_account(accounts, row.request.account, row.sequence)
            used = NOTHING if account is None else sum_running(account, row.leases, now)
            if account is not None and any(used):
                found[account.id] = add(found.get(account.id, NOTHING), used)
        return found

    def last_sequence(self) -> int:
        """Return the `sequence` (number in the order of submission) of the newest reservation. See Transaction."""
        return self._sequence

    def count_pending_of_principal(self, principal: str | None, sender: str | None = None) -> Pending:
        """Count the pending reservations of this principal (None: of the unsigned requests of the host `sender`), and
        their instances. See Transaction.
        """
        return self._count_pending(lambda row: (row.principal, row.sender) == (principal, sender))

    def count_pending_of_account(self, account: str) -> Pending:
        """Count the pending reservations of this account, and their instances. See Transaction."""
        return self._count_pending(lambda row: row.request.account == account)

    def count_inserted(self, after: int, upto: int) -> dict[tuple[str | None, str | None, str | None], Pending]:
        """Count the reservations whose `sequence` is above `after` and at most `upto`, by principal, account and
        sender. See Transaction.
        """
        names = {*self._world.reservations, *(key[1] for key in self._rows if key[0] is Reservation)}
        found: dict[tuple[str | None, str | None, str | None], Pending] = {}
        for row in self.load_reservations(names).values():
            if after < row.sequence <= upto:
                key = row.principal, row.request.account, row.sender
                known = found.get(key, Pending())
                found[key] = Pending(known.reservations + 1, known.instances + (row.instances or 1))
        return found

    def _count_pending(self, counts: Callable[[Reservation], bool]) -> Pending:
        names = {*self._world.phases["pending"], *(key[1] for key in self._rows if key[0] is Reservation)}
        rows = [row for row in self.load_reservations(names).values() if row.phase == "pending" and counts(row)]
        return Pending(len(rows), sum(row.instances or 1 for row in rows))

    def load_leases(self, slots: Iterable[str], without: Container[str] = ()) -> dict[str, list[tuple[str, Lease]]]:
        """Return the leases on each of these slots (in any epoch) as pairs (reservation id, lease), sorted by
        reservation id, except those of the reservations in `without`. See Transaction.
        """
        written = {key[1]: row for key, row in self._rows.items() if key[0] is Reservation}
        found: dict[str, list[tuple[str, Lease]]] = {}
        for slot in slots:
            held = self._world.occupants.get(slot)
            if held is None:
                found[slot] = []
                continue
            others = [owner for owner in sorted(held) if owner not in written and owner not in without]
            found[slot] = [(owner, lease) for owner in others for lease in held[owner]]
        for owner, row in written.items():
            for lease in row.leases if isinstance(row, Reservation) and owner not in without else ():
                if lease.slot in found:
                    found[lease.slot].append((owner, lease))
        if written:
            for there in found.values():
                there.sort(key=itemgetter(0))
        return found

    def list_holders(self) -> list[str]:
        """Return the ids of all reservations with leases or claims, sorted. See Transaction."""
        written = {key[1]: row for key, row in self._rows.items() if key[0] is Reservation}
        held = {owner for owners in self._world.occupants.values() for owner in owners} - written.keys()
        return sorted(held | {name for name, row in written.items() if isinstance(row, Reservation) and row.leases})

    def load_all_slots(self) -> list[Slot]:
        """Lock and return every slot. See Transaction."""
        names = dict.fromkeys([*self._world.slots, *(key[1] for key in self._rows if key[0] is Slot)])
        return list(self.load_slots(names).values())

    def count_active(self, pool: str) -> int:
        """Return the number of slots of this pool that are neither `empty` nor `error`. See Transaction."""
        return sum(slot.pool == pool and slot.state not in INACTIVE for slot in self.load_all_slots())

    def insert_reservations(self, rows: Sequence[Reservation]) -> list[Reservation]:
        """Store those of these reservations whose ids are new, in this order. Return these with their `sequence`,
        `version` 1 and `marked_at`. See Transaction.
        """
        inserted = []
        for row in rows:
            if self._find((Reservation, row.id)) is not None:
                continue
            self._sequence += 1
            stored = msgspec.structs.replace(row, sequence=self._sequence, version=1, marked_at=self._now)
            self._rows[Reservation, row.id] = stored
            inserted.append(stored)
        return inserted

    def save(self, rows: Sequence[Row]) -> list[Row]:
        """Write `rows`, and return them with their new `version` and `marked_at`. Raises StaleWriteError if one of them
        has changed since this transaction read it. See Transaction.
        """
        saved: list[Row] = []
        now, kept, known, replace = self._now, self._rows, self._world.rows, msgspec.structs.replace
        for row in rows:
            key = kind, name = type(row), row.id
            current = kept[key] if key in kept else known[kind].get(name)
            if current is None or current.version != row.version:
                self._guard(row)
            version = row.version + 1 if row.version else self._buried + 1
            stored = kept[key] = replace(row, version=version, marked_at=now)
            saved.append(stored)
        return saved

    def mark(self, rows: Sequence[Row]) -> list[Row]:
        """Write only the time marks of `rows` (`last_seen`, `noted_at`, `expires_at`, `confirmed_at`, `sent_at`,
        `not_before`, `attempts`, `marked_at`), and return the rows as they are stored now. See Transaction.
        """
        marked = []
        for row in rows:
            current = self._guard(row)
            if current is None:
                raise self._lose(StaleWriteError(_stale(row, None)))
            changed = take_marks(current, row, self._now)
            self._rows[type(row), row.id] = changed
            marked.append(changed)
        return marked

    def delete(self, rows: Sequence[Row]) -> list[Gone]:
        """Delete `rows`, and return their tombstones for the view. Raises StaleWriteError if one of them has changed
        since this transaction read it. See Transaction.
        """
        gone = []
        for row in rows:
            if self._guard(row) is None:
                raise self._lose(StaleWriteError(_stale(row, None)))
            self._rows[type(row), row.id] = None
            gone.append(Gone(KINDS[type(row)], row.id, row.version + 1))
            self._buried = max(self._buried, row.version + 1)
        return gone

    def next_tokens(self, count: int, likely: int = 0) -> range:  # noqa: ARG002 - tokens in memory cost no statement
        """Return `count` fencing tokens that were never used before, ascending. `likely` has no effect here. See
        Transaction.
        """
        first = self._token + 1
        self._token += count
        return range(first, first + count)

    def append_events(self, events: Sequence[Event]) -> None:
        """Append these events to the stored history, in this order. See Transaction."""
        self._events.extend(events)

    def find_answers(self, ids: Iterable[str]) -> dict[str, StoredAnswer]:
        """Return the stored answers to the requests with these ids, by request id. See Transaction."""
        both = {**self._world.answers, **self._answers} if self._answers else self._world.answers
        return {row_id: both[row_id] for row_id in ids if row_id in both}

    def save_answers(self, answers: Sequence[StoredAnswer]) -> None:
        """Store answers to requests. See Transaction."""
        for answered in answers:
            if answered.id in self._answers or answered.id in self._world.answers:
                raise self._lose(StaleWriteError(f"request {answered.id} has an answer already"))
            self._answers[answered.id] = answered

    def save_outgoing(self, rows: Sequence[OutboxMessage]) -> None:
        """Insert messages to producers into the outbox, or replace stored ones with the same ids. See Transaction."""
        self._outgoing.update((row.id, row) for row in rows)

    def delete_outgoing(self, ids: Iterable[str]) -> None:
        """Delete the messages with these ids from the outbox, because the broker accepted them. See Transaction."""
        self._outgoing.update(dict.fromkeys(ids))

    def load_principals(self) -> dict[str, StoredPrincipal]:
        """Lock and return every principal (sender of signed messages), by name. See Transaction."""
        both = {**self._world.principals, **self._principals}
        return {name: row for name, row in sorted(both.items()) if row is not None}

    def save_principals(self, rows: Sequence[StoredPrincipal]) -> None:
        """Insert or replace principals, and increase `ClusterRow.principals_version`. See Transaction."""
        self._principals.update((row.name, row) for row in rows)

    def delete_principals(self, names: Iterable[str]) -> None:
        """Delete principals, and increase `ClusterRow.principals_version`. See Transaction."""
        self._principals.update(dict.fromkeys(names))

    def end_session(self, session: str, until: float) -> None:
        """Store that the session with this id was logged out. See Transaction."""
        self._ended_sessions[session] = until

    def save_balances(self, samples: Sequence[BalanceSample]) -> None:
        """Store samples of account balances for the history. See Transaction."""
        self._balances.extend(samples)

    def book(self, costs: Sequence[Cost]) -> None:
        """Add these costs to the rows of the cost ledger that have the same key. See CostWriter."""
        self._costs += costs

    def take_unbooked(self, born: Mapping[str, float]) -> dict[str, float]:
        """Return, for each machine in `born`, the time from which its costs are not booked, and store that they are
        booked until now. `born`: machine -> the result if nothing is booked for this machine. See CostWriter.
        """
        found = {name: self._booked.get(name, self._world.booked_machines.get(name, at)) for name, at in born.items()}
        self._booked |= {name: max(at, self._now) for name, at in found.items()}
        return found

    def load_rules(self) -> StoredRules:
        """Return the scheduling rules in force, or those that this transaction has stored. See Transaction."""
        return self._rules

    def save_rules(self, document: Mapping[str, Any], version: int, images: Mapping[str, str] | None = None) -> int:
        """Store this document as the rules in force, and return their new version. Raises StaleWriteError if the
        version in force is not `version`. See Transaction.
        """
        if version != self._rules.version:
            raise self._lose(StaleWriteError(f"the rules have version {self._rules.version}, not {version}"))
        stored, found = dict(document), dict(images or {})
        self._rules = StoredRules(version + 1, stored, with_images(read_rules(stored), found), found)
        return version + 1

    def _find(self, key: Key) -> Row | None:
        return self._rows[key] if key in self._rows else self._world.rows[key[0]].get(key[1])

    def _load(self, kind: type[Row], ids: Iterable[str]) -> dict[str, Row]:
        stored = self._world.rows[kind]
        if not self._rows:
            return {row_id: stored[row_id] for row_id in ids if row_id in stored}
        found = ((row_id, self._find((kind, row_id))) for row_id in ids)
        return {row_id: row for row_id, row in found if row is not None}

    def _guard(self, row: Row) -> Row | None:
        """Return the present copy of a row that will be written, or None if the row will be inserted.

        Raises StaleWriteError if the present copy has another version than `row`.
        """
        current = self._find((type(row), row.id))
        if current is not None and current.version == row.version:
            return current
        is_new = current is None and row.version == 0 and type(row) is not Reservation
        if not is_new:
            raise self._lose(StaleWriteError(_stale(row, current)))
        return current

    def _apply(self) -> None:
        world = self._world
        world.apply(self._rows)
        for event in self._events:
            world.event_number += 1
            world.events.append(msgspec.structs.replace(event, number=world.event_number))
        world.answers.update(self._answers)
        for sample in self._balances:
            world.balances.setdefault(sample.account, {})[sample.at] = sample
        if self._costs:
            book(world.costs, self._costs)
        world.booked_machines |= self._booked
        for row_id, outgoing in self._outgoing.items():
            if outgoing is None:
                world.outgoing.pop(row_id, None)
            else:
                world.outgoing[row_id] = outgoing
        if self._principals:
            world.principals = self.load_principals()
            world.principals_version += 1
        if self._ended_sessions:
            ended = {**world.ended_sessions, **self._ended_sessions}
            world.ended_sessions = {name: until for name, until in ended.items() if until >= self._now}
        world.sequence, world.token, world.restores = self._sequence, self._token, self._restores
        world.buried = self._buried
        if self._rules.version != world.rules.version:
            world.applied.append(AppliedRules(self._rules.version, self._now, self._rules.document, self._rules.images))
        world.price_changes.update((each.key, each) for each in self._price_changes)
        world.leader_term, world.rules, world.market = self._leader_term, self._rules, self._market


def _stale(row: Row, current: Row | None) -> str:
    found = "it was deleted" if current is None else f"it has version {current.version}"
    return f"{KINDS[type(row)]}: row {row.id} was read with version {row.version}, {found}"
