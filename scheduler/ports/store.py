"""The port to the database, which holds the authoritative rows: slots, reservations, launch back-offs (holds),
accounts, run times. Adapters store them in SQL or in memory.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from scheduler.model.accounts import Account, BalanceSample, Levels
from scheduler.model.events import Event
from scheduler.model.launch_backoff import Hold
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.slots import Slot
from scheduler.model.view import Gone, RecentWrites, Row
from scheduler.ports.cluster import ClusterRow, LeaderTerm, StoreUnavailableError
from scheduler.ports.ledger import CostLedger, CostWriter
from scheduler.ports.market import MarketReads, MarketWrites, PriceHistory
from scheduler.ports.run_times import RunTimeReads, RunTimeWrites
from scheduler.ports.runs import RunReads, RunWrites
from scheduler.ports.stored import (
    AppliedRules,
    EventFilter,
    OutboxMessage,
    Pending,
    RowVersion,
    StoredAnswer,
    StoredPrincipal,
    StoredRules,
)


class StaleWriteError(Exception):
    """Raised when a row was changed by another transaction after it was read. The transaction is rolled back."""


class DeposedError(Exception):
    """Raised when another process has become the leader, so that this process must not write its plan."""


class ConflictError(StoreUnavailableError):
    """Raised when the database rolled a transaction back because of a concurrent one. Repeat the whole transaction."""


class Transaction(CostWriter, MarketWrites, RunTimeWrites, RunWrites, Protocol):
    """One atomic unit of reading and writing. Reads see the transaction's own writes.

    Rows that are read for writing stay locked until the end, so no other transaction changes a row between its test and
    its write. All transactions lock in the same order, which excludes deadlocks: the term; principals; the counter that
    numbers new reservations (`sequence`); the last counted reservation; reservations; slots; holds; accounts; run
    times; rules and other counters (for example of fencing tokens); rows with a key of their own (answers, callbacks,
    costs). Rows of one kind are locked in the order of their ids, so a transaction loads all rows of a kind in one
    call. Numbers of events are assigned last, at the commit.

    A write raises StaleWriteError if the stored row has another version than the given one, or, for version 0, if the
    row exists. After a StaleWriteError or DeposedError the transaction is never committed. If the caller catches the
    error, the end of the `with` block raises the same error again.
    """

    def now(self) -> float:
        """Return cluster time at the begin of the transaction; in a simulation, virtual time. See
        docs/reference/consistency.md, "Time".
        """

    def identity(self) -> str:
        """Return the identity of the cluster. Needs no statement."""

    def rules_version(self) -> int:
        """Return the version of the scheduling rules in force when the transaction began. Needs no statement.

        After `note_tick`, return the version that was in force at that call; no other transaction changes the rules
        before this one ends.
        """

    def take_term(self, holder: str) -> LeaderTerm:
        """Make the process `holder` the leader: increase the stored term by one. Return the new term with the old
        `ticked_at`.
        """

    def jump(self, term: int, token: int) -> None:
        """Set the leader term and the highest fencing token to these values after a backup was restored, and count the
        restore.

        Call it first in the transaction. Afterwards no process leads, and the time until now counts as an outage.
        """

    def note_tick(self, leader_term: LeaderTerm, now: float) -> None:
        """Lock the row of the leader term and store `now` as the time of the term's last tick. Raises DeposedError
        unless `leader_term` is the present term and holder.
        """

    def load_reservations(self, ids: Iterable[str]) -> dict[str, Reservation]:
        """Lock the reservations with these ids and return them by id, with their leases. Unknown ids are missing."""

    def load_slots(self, ids: Iterable[str]) -> dict[str, Slot]:
        """Lock the slots with these ids and return them by id. Unknown ids are missing."""

    def load_holds(self, ids: Iterable[str]) -> dict[str, Hold]:
        """Lock the launch back-offs (holds) with these ids and return them by id. Unknown ids are missing."""

    def load_accounts(self, ids: Iterable[str]) -> dict[str, Account]:
        """Lock the accounts with these ids and return them by id, deleted (forgotten) ones too. Unknown ids are
        missing.
        """

    def load_all_accounts(self) -> list[Account]:
        """Lock and return every account, deleted (forgotten) ones too, sorted by id."""

    def sum_running(self, now: float) -> dict[str, Levels]:
        """Return for each account what its running leases have cost from their last charge to `now`. Locks nothing.

        Leases that have ended since the last charge are not included: their cost is in `Account.due`. Accounts without
        running leases are missing. The rule is `policy.quota.accounting.sum_running`.
        """

    def last_sequence(self) -> int:
        """Return the `sequence` of the newest reservation. Until this transaction ends, no other transaction can insert
        reservations. Call it before any row is locked.
        """

    def count_pending_of_principal(self, principal: str | None, sender: str | None = None) -> Pending:
        """Count the pending reservations that this principal has submitted, and their instances. None: the reservations
        that unsigned requests of the host `sender` (None: of unknown hosts) have submitted. Locks nothing.
        """

    def count_pending_of_account(self, account: str) -> Pending:
        """Count the pending reservations of this quota account, and their instances. Locks nothing."""

    def count_inserted(self, after: int, upto: int) -> dict[tuple[str | None, str | None, str | None], Pending]:
        """Count the reservations whose `sequence` is above `after` and at most `upto`, in whatever phase they are.
        Return the counts by (principal, account, sender). Locks nothing.

        Speed: this reads only the reservations in the range. `count_pending_of_principal` and
        `count_pending_of_account` read all pending reservations of the principal or account.
        """

    def load_leases(self, slots: Iterable[str], without: Container[str] = ()) -> dict[str, list[tuple[str, Lease]]]:
        """Return the leases on each of these slots (in any epoch) as pairs (reservation id, lease), sorted by
        reservation id. The leases of one reservation are in the order that they have in the reservation. Leases of the
        reservations in `without` are missing.

        The reservations are not locked. But no lease on a locked slot can be added or ended by another transaction,
        because a transaction that gives or ends a lease locks the slot first.
        """

    def list_holders(self) -> list[str]:
        """Return the ids of all reservations with leases or claims, sorted. Locks nothing."""

    def load_all_slots(self) -> list[Slot]:
        """Lock and return every slot. Use it only to change the rules."""

    def count_active(self, pool: str) -> int:
        """Return the number of slots of this pool that are neither `empty` nor `error`. Locks nothing."""

    def insert_reservations(self, rows: Sequence[Reservation]) -> list[Reservation]:
        """Store new reservations in this order. Return them with their `sequence`, `version` 1 and `marked_at`.

        If a reservation with the same id exists, it is locked and not changed, and is missing in the result.
        """

    def save(self, rows: Sequence[Row]) -> list[Row]:
        """Write rows that were read in this transaction. Return them with the version increased by one and `marked_at`
        now.

        A row with version 0 that is no reservation is inserted. If a row with the same id was deleted before, the new
        row gets a higher version than the deleted one. Otherwise the deleted row's tombstone, which the view keeps,
        would replace the new row there.

        All leases of a reservation are written, and all of its fields except three that never change: `request`,
        `sequence` and `created_at`. Raises StaleWriteError if a stored row has another version than the given one.
        """

    def mark(self, rows: Sequence[Row]) -> list[Row]:
        """Write only those fields of rows that change no state (`last_seen`, `noted_at`, `expires_at`, `confirmed_at`,
        `sent_at`, `not_before`, `attempts`), and set `marked_at` to now. The version of a row stays the same. Return
        the rows.

        Raises StaleWriteError for a row that was deleted or has another version.
        """

    def delete(self, rows: Sequence[Row]) -> list[Gone]:
        """Delete rows that were read in this transaction. Return their tombstones, which delete the rows in the view.
        Raises StaleWriteError if a stored row has another version than the given one.
        """

    def next_tokens(self, count: int, likely: int = 0) -> range:
        """Return `count` fencing tokens that were never used before, ascending. Some numbers may be skipped.

        `likely`: how many tokens the transaction will probably need from now on, so that one statement reserves them.
        """

    def append_events(self, events: Sequence[Event]) -> None:
        """Append these events to the stored history, in this order."""

    def find_answers(self, ids: Iterable[str]) -> dict[str, StoredAnswer]:
        """Return the stored answers to the requests with these ids, by request id. Requests without a stored answer are
        missing.
        """

    def save_answers(self, answers: Sequence[StoredAnswer]) -> None:
        """Store answers to requests. Raises StaleWriteError if one of the requests has an answer already."""

    def save_outgoing(self, rows: Sequence[OutboxMessage]) -> None:
        """Insert or replace callbacks (Celery tasks for producers) in the outbox, from which they are sent to the
        broker.
        """

    def delete_outgoing(self, ids: Iterable[str]) -> None:
        """Delete the callbacks (Celery tasks for producers) with these ids from the outbox, because the broker accepted
        them.
        """

    def load_principals(self) -> dict[str, StoredPrincipal]:
        """Lock and return every principal, by name. Call it before any other row is locked."""

    def save_principals(self, rows: Sequence[StoredPrincipal]) -> None:
        """Insert or replace principals, and increase `ClusterRow.principals_version`, so that other processes read the
        principals again. Call `load_principals` first.
        """

    def delete_principals(self, names: Iterable[str]) -> None:
        """Delete principals, and increase `ClusterRow.principals_version`, so that other processes read the principals
        again. Call `load_principals` first.
        """

    def end_session(self, session: str, until: float) -> None:
        """Store that the session of the console with this id was logged out; its cookie is too old from `until` on
        (cluster time). Forget the sessions whose cookies are too old.
        """

    def save_balances(self, samples: Sequence[BalanceSample]) -> None:
        """Store samples of account balances for the history. A sample replaces an earlier one of the same account and
        time.
        """

    def load_rules(self) -> StoredRules:
        """Return the scheduling rules in force, as this transaction sees them. Until this transaction ends, no other
        one passes `note_tick`, so no tick writes decisions. Call it before any row is locked.
        """

    def save_rules(self, document: Mapping[str, Any], version: int, images: Mapping[str, str] | None = None) -> int:
        """Store this document as the rules in force, if the version in force is still `version`, and return the new
        version. Otherwise raise StaleWriteError.

        `images`: the ids of the images that the document names by a source, as source -> id (default: none).
        """


class Store(CostLedger, MarketReads, PriceHistory, RunReads, RunTimeReads, Protocol):
    """The port to the database with the authoritative rows, in SQL, or in memory for the simulator.

    Every error of a database driver is raised as StoreUnavailableError, StaleWriteError, DeposedError or ConflictError.
    """

    def close(self) -> None:
        """Close all database connections of this process. The next use of the store opens new connections."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Begin a transaction. It is committed at the end of the block, and rolled back if the block raises."""

    def now(self) -> float:
        """Return cluster time, outside a transaction. It never jumps, even if the clock of a host or of the database
        does.
        """

    def read_cluster(self) -> ClusterRow:
        """Return the row about the cluster, with cluster time.

        Raises DatabaseWentBackError if this process has read a higher term or token from this database before, and
        ForeignClusterError if it has read another identity. Each transaction raises the same errors.
        """

    def accept_restores(self, restores: int) -> None:
        """Permit this process to write into a database with this number of restores (`ClusterRow.restores`). A process
        calls this when it has checked that the database belongs to its cluster. The command `restore` calls it when it
        has increased the number.

        A transaction in a database with another number raises DatabaseWentBackError, because a restore may still be
        running. Before the first call, the number that the first transaction finds is permitted.
        """

    def rules_version(self) -> int:
        """Return the version of the scheduling rules in force, by one cheap query."""

    def load_rules(self) -> StoredRules:
        """Return the scheduling rules in force."""

    def read_rules_history(self, *, version: int | None = None, limit: int = 1000) -> list[AppliedRules]:
        """Return the newest `limit` entries of the history of the rules, oldest first. `version`: return only the entry
        with this version; None: all versions.
        """

    def find_principals(self) -> list[StoredPrincipal]:
        """Return every principal, sorted by name, without locking."""

    def is_session_ended(self, session: str) -> bool:
        """Return whether the session of the console with this id was logged out, without locking."""

    def load_leader_term(self) -> LeaderTerm:
        """Return the term and holder of the present leadership; term 0 before the first leader."""

    def read_rows(self) -> Iterator[Row]:
        """Yield every slot, hold, account and row of run times, and every reservation except those that ended more than
        10 minutes ago.

        All rows are of one moment: when the first row is requested. Locks nothing.
        """

    def read_stamps(self) -> Iterator[RowVersion]:
        """Yield the version of every slot, hold, account and row of run times, and of every reservation that has not
        ended.

        All versions are of one moment, at or after the request for the first version. Locks nothing.
        """

    def read_versions_since(self, since: float, known: RecentWrites | None = None) -> list[RowVersion]:
        """Return the versions of all rows that were written at or after `since`, also of ended reservations. Locks
        nothing.

        `known`: the rows that the caller's view has applied lately; None: no row is known. A known row whose version in
        the database is still the same may be missing in the result, which saves reading it. The view must not have a
        newer version of any row than the database.
        """

    def find_reservations(
        self, *, ids: Sequence[str] | None = None, phases: Sequence[str] | None = None, limit: int = 1000
    ) -> list[Reservation]:
        """Return up to `limit` reservations that match all given conditions, in order of submission, without locking.
        None for `ids` or `phases`: reservations with any id, or in any phase.
        """

    def find_slots(
        self,
        *,
        ids: Sequence[str] | None = None,
        states: Sequence[str] | None = None,
        pools: Sequence[str] | None = None,
    ) -> list[Slot]:
        """Return the slots that match all given conditions, in any order, without locking. A parameter that is None is
        no condition.
        """

    def find_slots_of_machines(self, machines: Sequence[str]) -> list[Slot]:
        """Return the slots whose `instance_id` is one of `machines`, in any order, without locking."""

    def find_accounts(self) -> list[Account]:
        """Return every account, forgotten ones too, in the order of their ids, without locking."""

    def read_balances(self, account: str, since: float = 0.0) -> list[BalanceSample]:
        """Return the stored balances of this account at or after `since`, oldest first."""

    def find_outgoing(self, *, sent_before: float, limit: int = 1000) -> list[OutboxMessage]:
        """Return up to `limit` callbacks (Celery tasks for producers) in the outbox that were last sent before
        `sent_before`, or never.
        """

    def count_phases(self) -> dict[str, int]:
        """Return the number of reservations in each phase; 0 for a phase without any."""

    def read_events(self, which: EventFilter) -> list[Event]:
        """Return the events that match the filter, oldest first."""

    def prune(self, *, events_before: float, requests_before: float, ended_before: float) -> int:
        """Delete events and account balances from before `events_before`, answers to requests from before
        `requests_before`, and reservations that ended before `ended_before`. Return the number of deleted rows.
        """
