"""The port to the database with the authoritative rows (slots, reservations, holds, accounts), in SQL or memory."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from scheduler.model.accounts import Account, BalanceSample, Levels
from scheduler.model.events import Event
from scheduler.model.launch_backoff import Hold
from scheduler.model.principals import Principal, Role
from scheduler.model.reservations import Callback, Lease, Reservation
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.view import Gone, Kind, Row
from scheduler.ports.cluster import ClusterRow, LeaderTerm, StoreUnavailableError


class StaleWriteError(Exception):
    """A row has another version than the one on which a write was conditional. The transaction is rolled back."""


class DeposedError(Exception):
    """The leader term in the database belongs to another process, so this process must not write its plan."""


class ConflictError(StoreUnavailableError):
    """The database rolled a transaction back because of a concurrent one. Repeat the whole transaction."""


class StoredAnswer(msgspec.Struct, frozen=True):
    """The stored answer to a request that was carried out. A repetition of the request gets the same answer."""

    id: str
    at: float
    answer: dict[str, Any]
    principal: str | None = None
    """The principal that signed the request; only it gets the stored answer again. None: an unsigned request."""


class Pending(msgspec.Struct, frozen=True):
    """The number of pending reservations of a principal or an account, and of the instances that they request."""

    reservations: int = 0
    instances: int = 0


class OutboxMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A callback in the outbox: it is sent to the broker until the broker accepts it (at least once)."""

    id: str
    callback: Callback
    payload: dict[str, Any]
    created_at: float
    sent_at: float = 0.0
    attempts: int = 0


class StoredPrincipal(msgspec.Struct, frozen=True, kw_only=True):
    """A principal (a signing client) with its key, as text. `previous_key` is also valid until `previous_until`."""

    name: str
    role: Role
    accounts: tuple[str, ...] = ()
    key: str
    created_at: float
    previous_key: str | None = None
    previous_until: float | None = None

    def __repr__(self) -> str:
        """Return the representation of the principal without its keys."""
        return f"StoredPrincipal(name={self.name!r}, role={self.role!r}, accounts={self.accounts!r})"

    @property
    def principal(self) -> Principal:
        """Return the principal's name, role and accounts, without keys and times."""
        return Principal(name=self.name, role=self.role, accounts=self.accounts)

    def list_keys(self, now: float) -> list[str]:
        """Return the keys of this principal that are valid at `now`."""
        is_previous_valid = self.previous_until is not None and now < self.previous_until
        return [self.key, *([self.previous_key] if self.previous_key is not None and is_previous_valid else [])]


class RowVersion(msgspec.Struct, frozen=True, gc=False):
    """The version of a row and the time of its last write, to compare a copy of the row with the database."""

    kind: Kind
    id: str
    version: int
    marked_at: float
    is_over: bool = False
    """Whether it is a reservation that has ended and will not be restarted: then the view need not contain it."""


class StoredRules(msgspec.Struct, frozen=True):
    """The scheduling rules in force. `version` counts the applied changes; 0 = no rules were ever applied."""

    version: int
    document: dict[str, Any]
    rules: Rules


class AppliedRules(msgspec.Struct, frozen=True):
    """One version of the rules in the history: its document, and when it was applied."""

    version: int
    applied_at: float
    document: dict[str, Any]


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which events to read: those that match every given field. `after`: the number of the last event read before."""

    after: int = 0
    reservation: str | None = None
    slot: str | None = None
    name: str | None = None
    newest: bool = False
    """True: read the last `limit` of the matching events (still oldest first); False: the first `limit`."""
    limit: int = 1000


class Transaction(Protocol):
    """One atomic unit of reading and writing. Reads see the transaction's own writes.

    Rows that are read for writing stay locked until the end, so the row that was tested is the row that is
    overwritten. All transactions lock in one order, which excludes deadlocks: the term; principals; the counter of
    `insert_reservations`; reservations; slots; holds; accounts; rules and the counters of other writes; rows with a
    key of their own (answers, callbacks). Rows of one kind are locked in the order of their ids, so a transaction
    loads all that it needs of a kind in one call. Numbers of events are assigned last, at the commit.

    A save whose row has another version than the given one (or, for version 0, exists already) raises
    StaleWriteError. After a StaleWriteError or DeposedError the whole transaction is lost: a caller that catches the
    error gets it again at the end of the block.
    """

    def now(self) -> float:
        """Return cluster time at the begin of the transaction; virtual time in memory (consistency.md, "Time")."""

    def check_term(self, leader_term: LeaderTerm) -> None:
        """Lock the row of the leader term. Raises DeposedError unless it has the given term and holder."""

    def take_term(self, holder: str) -> LeaderTerm:
        """Make `holder` the leader: raise the stored term by one. Return the new term; `ticked_at` is unchanged."""

    def jump(self, term: int, token: int) -> None:
        """Set the leader term and highest fencing token to these values, and count a restore.

        Call it first in the transaction. No process leads afterwards, and all time until now counts as an outage.
        """

    def note_tick(self, leader_term: LeaderTerm, now: float) -> None:
        """Store `now` as the time of this leader term's last tick. Raises DeposedError if another term began."""

    def load_reservations(self, ids: Iterable[str]) -> dict[str, Reservation]:
        """Lock and return the reservations with these ids, with their leases. Unknown ids are missing."""

    def load_slots(self, ids: Iterable[str]) -> dict[str, Slot]:
        """Lock and return the slots with these ids. Unknown ids are missing in the result."""

    def load_holds(self, ids: Iterable[str]) -> dict[str, Hold]:
        """Lock and return the launch back-offs (holds) with these ids. Unknown ids are missing in the result."""

    def load_accounts(self, ids: Iterable[str]) -> dict[str, Account]:
        """Lock and return the accounts with these ids, forgotten ones too. Unknown ids are missing."""

    def load_all_accounts(self) -> list[Account]:
        """Lock and return every account, forgotten ones too, in the order of their ids."""

    def sum_running(self, now: float) -> dict[str, Levels]:
        """Return per account what its running leases have used from its last charge to `now`. Locks nothing.

        Leases that ended since then are not included: their amount is in `Account.due`. Accounts without running leases
        are missing. The rule is `policy.quota.accounting.sum_running`.
        """

    def last_sequence(self) -> int:
        """Return the `sequence` of the newest reservation, and block inserts of reservations until the transaction
        ends. Call it before any row is locked.
        """

    def count_pending_of_principal(self, principal: str | None) -> Pending:
        """Count the pending reservations of this principal; None: those of unsigned requests. Locks nothing."""

    def count_pending_of_account(self, account: str) -> Pending:
        """Count the pending reservations of this account. Locks nothing."""

    def load_leases(self, slots: Iterable[str]) -> dict[str, list[tuple[str, Lease]]]:
        """Return for each slot the leases on it (in any epoch), as (reservation id, lease), sorted by reservation id.

        The reservations are not locked. The set of leases on a locked slot cannot change, because each transaction that
        gives or ends a lease locks its slot. Leases of one reservation keep its order.
        """

    def load_all_slots(self) -> list[Slot]:
        """Lock and return every slot. Only for a change of the rules."""

    def count_active(self, pool: str) -> int:
        """Return the number of slots of this pool that are neither `empty` nor `error`. Locks nothing."""

    def insert_reservations(self, rows: Sequence[Reservation]) -> list[Reservation]:
        """Store new reservations in this order. Return them with their `sequence`, `version` 1 and `marked_at`.

        A reservation whose id exists already is locked, not changed, and missing in the result.
        """

    def save(self, rows: Sequence[Row]) -> list[Row]:
        """Write rows at the versions that they were read with. Return them with the version increased by one and
        `marked_at` now.

        Slots, holds and accounts with version 0 are inserted, with a version above that of any deleted row of the id
        (the view keeps tombstones, which win over older rows). A reservation is written with all its leases, without
        the fields that never change: `request`, `sequence` and `created_at`.
        """

    def mark(self, rows: Sequence[Row]) -> list[Row]:
        """Write only the fields of rows that change no state (`last_seen`, `noted_at`, `expires_at`, `confirmed_at`,
        `sent_at`, `not_before`, `attempts`), and set `marked_at` to now. The version stays. Return the rows.

        Raises StaleWriteError for a row that was deleted or has another version.
        """

    def delete(self, rows: Sequence[Row]) -> list[Gone]:
        """Delete rows at the versions that they were read with. Return the tombstones that delete them in the view."""

    def next_tokens(self, count: int) -> range:
        """Return `count` fencing tokens that were never used before, ascending. Some numbers may be left out."""

    def append_events(self, events: Sequence[Event]) -> None:
        """Append these events to the stored history of events, in this order."""

    def find_answers(self, ids: Iterable[str]) -> dict[str, StoredAnswer]:
        """Return the stored answers to the requests with these ids. Requests without an answer are missing."""

    def save_answers(self, answers: Sequence[StoredAnswer]) -> None:
        """Store answers to requests. Raises StaleWriteError for a request id that has a stored answer already."""

    def save_outgoing(self, rows: Sequence[OutboxMessage]) -> None:
        """Insert or replace callbacks in the outbox, from which they are sent to the broker."""

    def delete_outgoing(self, ids: Iterable[str]) -> None:
        """Delete the callbacks with these ids from the outbox, because the broker accepted them."""

    def load_principals(self) -> dict[str, StoredPrincipal]:
        """Lock and return every principal, by name. Call it before any other row is locked."""

    def save_principals(self, rows: Sequence[StoredPrincipal]) -> None:
        """Insert or replace principals, and increase `ClusterRow.principals_version`. Call `load_principals` first."""

    def delete_principals(self, names: Iterable[str]) -> None:
        """Delete principals, and increase `ClusterRow.principals_version`. Call `load_principals` first."""

    def save_balances(self, samples: Sequence[BalanceSample]) -> None:
        """Store balances of accounts at a time, for the history. A second one of the same time replaces the first."""

    def load_rules(self) -> StoredRules:
        """Return the scheduling rules in force, as this transaction sees them."""

    def save_rules(self, document: Mapping[str, Any], version: int) -> int:
        """Put this rules document in force if the version in force is still `version`. Return the new version."""


class Store(Protocol):
    """The port to the database with the authoritative rows, in SQL, or in memory for the simulator.

    Every driver error is raised as StoreUnavailableError, StaleWriteError or DeposedError.
    """

    def close(self) -> None:
        """Close all database connections of this process. The next use of the store opens new ones."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Begin a transaction. It is committed at the end of the block, and rolled back if the block raises."""

    def now(self) -> float:
        """Return cluster time, outside a transaction. It never jumps, whatever the clocks of hosts and databases do."""

    def read_cluster(self) -> ClusterRow:
        """Return cluster time and the other values of the cluster row.

        Raises DatabaseWentBackError or ForeignClusterError when this process has seen higher numbers or another
        identity in this database. Each transaction raises the same errors.
        """

    def rules_version(self) -> int:
        """Return the version of the scheduling rules in force, with one cheap query."""

    def load_rules(self) -> StoredRules:
        """Return the scheduling rules in force."""

    def read_rules_history(self, *, version: int | None = None, limit: int = 1000) -> list[AppliedRules]:
        """Return the newest `limit` versions of the rules, oldest first, or only `version`. None is ever deleted."""

    def find_principals(self) -> list[StoredPrincipal]:
        """Return every principal, sorted by name, without locking."""

    def load_leader_term(self) -> LeaderTerm:
        """Return the term and holder of the present leadership; term 0 before the first leader."""

    def read_rows(self) -> Iterator[Row]:
        """Yield every slot, hold and account, and each reservation except those that ended over 10 minutes ago.

        All rows are of the moment when the first one is requested. Locks nothing.
        """

    def read_stamps(self) -> Iterator[RowVersion]:
        """Yield the versions of every slot, hold and account, and of every reservation that has not ended.

        All versions are of one moment, which is not before the first one is requested. Locks nothing.
        """

    def read_versions_since(self, since: float) -> list[RowVersion]:
        """Return the versions of all rows, ended reservations too, that were written at or after `since`."""

    def find_reservations(
        self, *, ids: Sequence[str] | None = None, phases: Sequence[str] | None = None, limit: int = 1000
    ) -> list[Reservation]:
        """Return the reservations that match all given conditions, in order of submission, without locking."""

    def find_slots(
        self,
        *,
        ids: Sequence[str] | None = None,
        states: Sequence[str] | None = None,
        pools: Sequence[str] | None = None,
    ) -> list[Slot]:
        """Return the slots that match all given conditions, in any order, without locking."""

    def find_slots_of_machines(self, machines: Sequence[str]) -> list[Slot]:
        """Return the slots whose `instance_id` is one of `machines`, in any order, without locking."""

    def find_accounts(self) -> list[Account]:
        """Return every account, forgotten ones too, in the order of their ids, without locking."""

    def read_balances(self, account: str, since: float = 0.0) -> list[BalanceSample]:
        """Return the stored balances of this account at or after `since`, oldest first."""

    def find_outgoing(self, *, sent_before: float, limit: int = 1000) -> list[OutboxMessage]:
        """Return up to `limit` callbacks in the outbox that were last sent before `sent_before`."""

    def count_phases(self) -> dict[str, int]:
        """Return the number of reservations in each phase; phases without any are included as 0."""

    def read_events(self, which: EventFilter) -> list[Event]:
        """Return the events that match the filter, in the order in which they were appended."""

    def prune(self, *, events_before: float, requests_before: float, ended_before: float) -> int:
        """Delete old events, balances, answers and ended reservations. Return the number of deleted rows."""
