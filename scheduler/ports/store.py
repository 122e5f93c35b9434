"""The truth: what the operations read and write, as rows of SQL or in memory."""

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


class StaleWriteError(Exception):
    """A row's version was not the one that the write was conditional on; nothing of the transaction stays."""


class DeposedError(Exception):
    """The term in SQL is another leader's: whatever was planned may not be written."""


class StoreUnavailableError(Exception):
    """The database cannot be reached, is full or refuses; the message says which. Try again later."""


class NotPermittedError(StoreUnavailableError):
    """The database works, but refuses this to the user that asks: a right is missing."""


class ForeignClusterError(StoreUnavailableError):
    """The database, Redis or machines belong to different clusters; the message names both. Nothing was done."""


class ForeignMachineError(ForeignClusterError):
    """EC2 runs machines of another cluster under the same `leasehold:cluster` tag; they are left alone."""


class DatabaseWentBackError(StoreUnavailableError):
    """The database is an older state than one that was seen before, or is being restored."""


class ConflictError(StoreUnavailableError):
    """The database gave this transaction up for another one's sake; nothing of it stays. Do it again, whole."""


class LeaderTerm(msgspec.Struct, frozen=True):
    """One leadership: `term` only ever grows; `ticked_at` is when the last tick was committed (0 = never)."""

    term: int
    holder: str
    ticked_at: float = 0.0


class ClusterRow(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for the whole cluster, read in one statement together with cluster time."""

    now: float
    """Cluster time in seconds since the epoch."""
    identity: str
    term: int
    token: int
    """The highest fencing token that was given out."""
    restores: int
    """How often a backup was restored into this database."""
    principals_version: int
    reference_offset: float = 0.0
    """Cluster time minus the database's own clock: the sum of the jumps that were corrected."""

    def refuse_older(self, term: int, token: int, source: str) -> None:
        """Raise DatabaseWentBackError if `source` has seen a higher term or token than this row has."""
        if self.term < term or self.token < token:
            raise DatabaseWentBackError(
                f"the database of cluster {self.identity} is an older state: it has term {self.term} and token"
                f" {self.token}, {source} has seen term {term} and token {token}: run `leasehold restore --in-place`"
            )


class StoredAnswer(msgspec.Struct, frozen=True):
    """A request that was carried out, with the answer that every repeat of it gets."""

    id: str
    at: float
    answer: dict[str, Any]
    principal: str | None = None
    """The principal that sent it; only that one gets the stored answer. None: it was not signed."""


class Pending(msgspec.Struct, frozen=True):
    """How many reservations are pending, and how many instances they ask for."""

    reservations: int = 0
    instances: int = 0


class OutboxMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A callback that is to be sent until the broker took it (at least once)."""

    id: str
    callback: Callback
    payload: dict[str, Any]
    created_at: float
    sent_at: float = 0.0
    attempts: int = 0


class StoredPrincipal(msgspec.Struct, frozen=True, kw_only=True):
    """A principal with its key, as text. `previous_key` is accepted, too, until `previous_until`."""

    name: str
    role: Role
    accounts: tuple[str, ...] = ()
    key: str
    created_at: float
    previous_key: str | None = None
    previous_until: float | None = None

    def __repr__(self) -> str:
        """Without the keys."""
        return f"StoredPrincipal(name={self.name!r}, role={self.role!r}, accounts={self.accounts!r})"

    @property
    def principal(self) -> Principal:
        """The same without keys and times."""
        return Principal(name=self.name, role=self.role, accounts=self.accounts)

    def list_keys(self, now: float) -> list[str]:
        """The keys that are valid now."""
        is_previous_valid = self.previous_until is not None and now < self.previous_until
        return [self.key, *([self.previous_key] if self.previous_key is not None and is_previous_valid else [])]


class RowVersion(msgspec.Struct, frozen=True, gc=False):
    """Which copy of a row is the one in force: enough to tell whether somebody else's is."""

    kind: Kind
    id: str
    version: int
    marked_at: float


class StoredRules(msgspec.Struct, frozen=True):
    """The rules in force: `version` counts the changes, 0 = none were ever applied."""

    version: int
    document: dict[str, Any]
    rules: Rules


class AppliedRules(msgspec.Struct, frozen=True):
    """One version of the rules: the document, and when it was applied."""

    version: int
    applied_at: float
    document: dict[str, Any]


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which events to read: all that match every field that is given, `after` a running number."""

    after: int = 0
    reservation: str | None = None
    slot: str | None = None
    name: str | None = None
    newest: bool = False
    """True: the last `limit` of them (still oldest first)."""
    limit: int = 1000


class Transaction(Protocol):
    """One unit of reading and writing: all of it stays, or nothing. Reads in it see its own writes.

    Rows that are read for writing are locked until the end, so that what was tested is what is overwritten.
    Nobody waits in a circle, because everybody locks in one order: the term; principals; what `insert_reservations`
    counts; reservations; slots; holds; accounts; rules and what the other writes count; what is kept by a key of its
    own (answers, callbacks). Rows of one kind are locked in the order of their ids, so all that a transaction needs of
    a kind is loaded in one call. Numbers of events are given out last, at the commit.

    A save whose row has another version than the one given (or, for version 0, exists already) raises
    StaleWriteError. After a StaleWriteError or DeposedError the whole transaction is lost: one that swallows it
    gets it again at its end.
    """

    def now(self) -> float:
        """Cluster time when the transaction began (docs/reference/consistency.md, "Time"); virtual time in memory."""

    def check_term(self, leader_term: LeaderTerm) -> None:
        """Lock the term row and raise DeposedError unless term and holder are these."""

    def take_term(self, holder: str) -> LeaderTerm:
        """Advance the term by one for `holder`; the new tenure, with `ticked_at` as it was."""

    def jump(self, term: int, token: int) -> None:
        """Set term and highest token to these values and count a restore. Nobody leads then, and everything until now
        counts as an outage. Before all else.
        """

    def note_tick(self, leader_term: LeaderTerm, now: float) -> None:
        """Write down that this tenure ticked at `now`; DeposedError when it is over."""

    def load_reservations(self, ids: Iterable[str]) -> dict[str, Reservation]:
        """The rows of these ids with their leases, locked; ids that nobody knows are left out."""

    def load_slots(self, ids: Iterable[str]) -> dict[str, Slot]:
        """The rows of these ids, locked; ids that nobody knows are left out."""

    def load_holds(self, ids: Iterable[str]) -> dict[str, Hold]:
        """The rows of these ids, locked; ids that nobody knows are left out."""

    def load_accounts(self, ids: Iterable[str]) -> dict[str, Account]:
        """The rows of these ids, forgotten ones too, locked; ids that nobody knows are left out."""

    def load_all_accounts(self) -> list[Account]:
        """Every account, forgotten ones too, locked, in the order of their ids."""

    def sum_running(self, now: float) -> dict[str, Levels]:
        """By account: what its leases have used up to now since it was last charged, those that ended aside (they are
        `due`). Accounts without any are left out; nothing is locked. The rule is `policy.charging.sum_running`.
        """

    def last_sequence(self) -> int:
        """The `sequence` of the newest reservation; until the end of this transaction none is inserted. It is asked
        for before any row is locked.
        """

    def count_pending_of_principal(self, principal: str | None) -> Pending:
        """What is pending of the reservations that this principal submitted; None: what no principal signed. Nothing is
        locked. The cost grows with that number.
        """

    def count_pending_of_account(self, account: str) -> Pending:
        """What is pending of the reservations of this account. Nothing is locked."""

    def load_leases(self, slots: Iterable[str]) -> dict[str, list[tuple[str, Lease]]]:
        """For each slot the leases that name it (in any epoch), each after the id of its reservation, in order of id
        and then in that reservation's order. The reservations are not locked: as long as a slot is, no lease on it
        comes or goes, for who gives or ends one locks its slot.
        """

    def load_all_slots(self) -> list[Slot]:
        """Every slot, locked: for changed rules only."""

    def count_active(self, pool: str) -> int:
        """Slots of this pool that are neither `empty` nor `error`; nothing is locked."""

    def insert_reservations(self, rows: Sequence[Reservation]) -> list[Reservation]:
        """Store new reservations in this order and give each its `sequence`, `version` 1 and `marked_at`.

        An id that exists already is left as it is, locked, and left out of the result.
        """

    def save(self, rows: Sequence[Row]) -> list[Row]:
        """Write rows whose `version` is the one they were read with, and give back the rows as they now are:
        version one higher, `marked_at` now. Slots, holds and accounts with version 0 are inserted, with a version
        above any that a deleted row ever had (the view keeps tombstones, which beat what is older). A reservation is
        written with all its leases, but for what never changes after its insert: `request`, `sequence`
        and `created_at`.
        """

    def mark(self, rows: Sequence[Row]) -> list[Row]:
        """Write only marks of time (`last_seen`, `noted_at`, `expires_at`, `confirmed_at`, `sent_at`, `not_before`,
        `attempts`): no version is bumped, `marked_at` becomes now. The rows as they now are. StaleWriteError
        for a row that is gone or has another version.
        """

    def delete(self, rows: Sequence[Row]) -> list[Gone]:
        """Delete rows at the version they were read with; what to publish about it."""

    def next_tokens(self, count: int) -> range:
        """`count` fencing tokens that were never given out before, ascending."""

    def append_events(self, events: Sequence[Event]) -> None:
        """Append to the history, in this order."""

    def find_answers(self, ids: Iterable[str]) -> dict[str, StoredAnswer]:
        """The answers to requests that were carried out before."""

    def save_answers(self, answers: Sequence[StoredAnswer]) -> None:
        """Remember answers; an id that is there already raises StaleWriteError."""

    def save_outgoing(self, rows: Sequence[OutboxMessage]) -> None:
        """Insert or replace callbacks that have to be sent."""

    def delete_outgoing(self, ids: Iterable[str]) -> None:
        """Forget callbacks that the broker took."""

    def load_principals(self) -> dict[str, StoredPrincipal]:
        """Every principal by name. They are locked until the end of this transaction. It is asked for before any other
        row is locked.
        """

    def save_principals(self, rows: Sequence[StoredPrincipal]) -> None:
        """Insert or replace principals, and raise `ClusterRow.principals_version`. `load_principals` comes first."""

    def delete_principals(self, names: Iterable[str]) -> None:
        """Delete principals, and raise `ClusterRow.principals_version`. `load_principals` comes first."""

    def save_balances(self, samples: Sequence[BalanceSample]) -> None:
        """Keep what accounts had at a time, for those who look back; a second one of that time replaces the first."""

    def load_rules(self) -> StoredRules:
        """The rules in force."""

    def save_rules(self, document: Mapping[str, Any], version: int) -> int:
        """Make this document the rules, if the version in force still is `version`; the new version."""


class Store(Protocol):
    """The truth: intent, in SQL (or in memory, for the simulator). Every error of a driver comes out as
    StoreUnavailableError, StaleWriteError or DeposedError.
    """

    def close(self) -> None:
        """Let go of all connections of this process; the next use opens new ones."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """A new transaction: committed when the block ends well, rolled back when it raises."""

    def now(self) -> float:
        """Cluster time, outside a transaction. It never jumps, whatever the clocks of hosts and databases do."""

    def read_cluster(self) -> ClusterRow:
        """Cluster time, and what else holds for the whole cluster. Raises DatabaseWentBackError or ForeignClusterError
        when this process has seen higher numbers or another identity in this database; so does each transaction.
        """

    def rules_version(self) -> int:
        """The version of the rules in force; cheap."""

    def load_rules(self) -> StoredRules:
        """The rules in force."""

    def read_rules_history(self, *, version: int | None = None, limit: int = 1000) -> list[AppliedRules]:
        """The newest `limit` versions of the rules, or this version alone; oldest first. All versions are kept."""

    def find_principals(self) -> list[StoredPrincipal]:
        """Every principal in the order of the names, without locking them."""

    def load_leader_term(self) -> LeaderTerm:
        """The present leadership; term 0 before the first."""

    def read_rows(self) -> Iterator[Row]:
        """Every slot, hold and account, and every reservation that is not over or ended less than 10 minutes ago, as of
        the moment at which the first row is asked for; nothing is locked.
        """

    def read_stamps(self) -> Iterator[RowVersion]:
        """The stamps of every slot, hold and account, and of every reservation that is not over, as of one moment,
        which is not earlier than that at which the first is asked for; nothing is locked.
        """

    def read_changed_since(self, since: float) -> list[Row]:
        """The rows (of any phase) that were written at or after `since`."""

    def find_reservations(
        self, *, ids: Sequence[str] | None = None, phases: Sequence[str] | None = None, limit: int = 1000
    ) -> list[Reservation]:
        """Reservations in order of submission, without locking them."""

    def find_slots(
        self,
        *,
        ids: Sequence[str] | None = None,
        states: Sequence[str] | None = None,
        pools: Sequence[str] | None = None,
    ) -> list[Slot]:
        """The slots that match all that is given, in no particular order, without locking them."""

    def find_slots_of_machines(self, machines: Sequence[str]) -> list[Slot]:
        """The slots whose machine is one of these (by `instance_id`), in no particular order, not locked."""

    def find_accounts(self) -> list[Account]:
        """Every account, forgotten ones too, in the order of their ids, without locking them."""

    def read_balances(self, account: str, since: float = 0.0) -> list[BalanceSample]:
        """What was kept of its balances at or after `since`, oldest first."""

    def find_outgoing(self, *, sent_before: float, limit: int = 1000) -> list[OutboxMessage]:
        """Callbacks that wait to be sent and were not sent since `sent_before`."""

    def count_phases(self) -> dict[str, int]:
        """Reservations by phase; every phase is there, zeros too."""

    def read_events(self, which: EventFilter) -> list[Event]:
        """Events in the order in which they were appended."""

    def prune(self, *, events_before: float, requests_before: float, ended_before: float) -> int:
        """Forget old events (and with them old balances), answers and ended reservations; how many rows went."""
