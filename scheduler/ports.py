"""The seams: what the operations need from the outside, as Protocols whose docstrings are the contract.

Whoever implements one reads nothing else; one suite of tests a port runs on every implementation.
Times are seconds since the epoch unless a name says otherwise.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

import msgspec

from scheduler.model.events import Event
from scheduler.model.holds import Hold
from scheduler.model.reservations import Callback, Lease, Reservation
from scheduler.model.rules import Rules
from scheduler.model.slots import Machine, Slot
from scheduler.model.view import Change, Gone, Kind, Row, View


class StaleWriteError(Exception):
    """A row's version was not the one that the write was conditional on; nothing of the transaction stays."""


class DeposedError(Exception):
    """The term in SQL is another leader's: whatever was planned may not be written."""


class StoreUnavailableError(Exception):
    """The database cannot be reached, is full or refuses; the message says which. Try again later."""


class ConflictError(StoreUnavailableError):
    """The database gave this transaction up for another one's sake; nothing of it stays. Do it again, whole."""


class ViewUnavailableError(Exception):
    """The view cannot be reached or read: no Redis, or no valid view in it. Try later; nothing is lost."""


class ForeignAddressError(ValueError):
    """An answer was to be put somewhere else than where the answers to requests go; nothing was written."""


class Tenure(msgspec.Struct, frozen=True):
    """One leadership: `term` only ever grows; `ticked_at` is when the last tick was committed (0 = never)."""

    term: int
    holder: str
    ticked_at: float = 0.0


class Answered(msgspec.Struct, frozen=True):
    """A request that was carried out, with the answer that every repeat of it gets."""

    id: str
    at: float
    answer: dict[str, Any]


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """A callback that is to be sent until the broker took it (at least once)."""

    id: str
    callback: Callback
    payload: dict[str, Any]
    created_at: float
    sent_at: float = 0.0
    attempts: int = 0


class Stamp(msgspec.Struct, frozen=True, gc=False):
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
    Nobody waits in a circle, because everybody locks in one order: the term; what `insert_reservations` counts;
    reservations; slots; holds; rules and what the other writes count; what is kept by a key of its own (answers,
    callbacks). Rows of one kind are locked in the order of their ids, so all that a transaction needs of a kind is
    loaded in one call. Numbers of events are given out last, at the commit.

    A save whose row has another version than the one given (or, for version 0, exists already) raises
    StaleWriteError. After a StaleWriteError or DeposedError the whole transaction is lost: one that swallows it
    gets it again at its end.
    """

    def now(self) -> float:
        """The store's clock: the database's on PostgreSQL, the host's on SQLite, the virtual one in memory."""

    def check_term(self, tenure: Tenure) -> None:
        """Lock the term row and raise DeposedError unless term and holder are these."""

    def take_term(self, holder: str) -> Tenure:
        """Advance the term by one for `holder`; the new tenure, with `ticked_at` as it was."""

    def note_tick(self, tenure: Tenure, now: float) -> None:
        """Write down that this tenure ticked at `now`; DeposedError when it is over."""

    def load_reservations(self, ids: Iterable[str]) -> dict[str, Reservation]:
        """The rows of these ids with their leases, locked; ids that nobody knows are left out."""

    def load_slots(self, ids: Iterable[str]) -> dict[str, Slot]:
        """The rows of these ids, locked; ids that nobody knows are left out."""

    def load_holds(self, ids: Iterable[str]) -> dict[str, Hold]:
        """The rows of these ids, locked; ids that nobody knows are left out."""

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
        version one higher, `marked_at` now. Slots and holds with version 0 are inserted, with a version above any
        that a deleted row ever had (the view keeps tombstones, which beat what is older). A reservation is
        written with all its leases, but for what never changes after its insert: `request`, `sequence`
        and `created_at`.
        """

    def mark(self, rows: Sequence[Row]) -> list[Row]:
        """Write only marks of time (`last_seen`, `expires_at`, `confirmed_at`, `sent_at`, `not_before`,
        `attempts`): no version is bumped, `marked_at` becomes now. The rows as they now are. StaleWriteError
        for a row that is gone or has another version.
        """

    def delete(self, rows: Sequence[Row]) -> list[Gone]:
        """Delete rows at the version they were read with; what to publish about it."""

    def next_tokens(self, count: int) -> range:
        """`count` fencing tokens that were never given out before, ascending."""

    def append_events(self, events: Sequence[Event]) -> None:
        """Append to the history, in this order."""

    def find_answers(self, ids: Iterable[str]) -> dict[str, Answered]:
        """The answers to requests that were carried out before."""

    def save_answers(self, answers: Sequence[Answered]) -> None:
        """Remember answers; an id that is there already raises StaleWriteError."""

    def save_outgoing(self, rows: Sequence[Outgoing]) -> None:
        """Insert or replace callbacks that have to be sent."""

    def delete_outgoing(self, ids: Iterable[str]) -> None:
        """Forget callbacks that the broker took."""

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
        """The store's clock, outside a transaction."""

    def rules_version(self) -> int:
        """The version of the rules in force; cheap."""

    def load_rules(self) -> StoredRules:
        """The rules in force."""

    def load_tenure(self) -> Tenure:
        """The present leadership; term 0 before the first."""

    def read_rows(self) -> Iterator[Row]:
        """Every slot, every hold and every reservation that is not over or ended less than 10 minutes ago, as of
        the moment at which the first row is asked for; nothing is locked.
        """

    def read_stamps(self) -> Iterator[Stamp]:
        """The stamps of every slot, every hold and every reservation that is not over, as of one moment, which is
        not earlier than that at which the first is asked for; nothing is locked.
        """

    def read_changed_since(self, since: float) -> list[Row]:
        """The rows (of any phase) that were written at or after `since`."""

    def find_reservations(
        self, *, ids: Sequence[str] | None = None, phases: Sequence[str] | None = None, limit: int = 1000
    ) -> list[Reservation]:
        """Reservations in order of submission, without locking them."""

    def find_slots(self, *, ids: Sequence[str] | None = None, states: Sequence[str] | None = None) -> list[Slot]:
        """Slots in no particular order, without locking them."""

    def find_slots_of_machines(self, machines: Sequence[str]) -> list[Slot]:
        """The slots whose machine is one of these (by `instance_id`), in no particular order, not locked."""

    def find_outgoing(self, *, sent_before: float, limit: int = 1000) -> list[Outgoing]:
        """Callbacks that wait to be sent and were not sent since `sent_before`."""

    def count_phases(self) -> dict[str, int]:
        """Reservations by phase; every phase is there, zeros too."""

    def read_events(self, which: EventFilter) -> list[Event]:
        """Events in the order in which they were appended."""

    def prune(self, *, events_before: float, requests_before: float, ended_before: float) -> int:
        """Forget old events, answers and ended reservations; how many rows went."""


class Board(Protocol):
    """Belief: the lagging view, kept where every process sees it (Redis), or in memory.

    Every method raises ViewUnavailableError when Redis cannot be reached. Ended reservations and what is
    remembered of deleted rows go by themselves, 10 minutes after they were published.
    """

    def publish(self, changes: Sequence[Change]) -> bool:
        """Lay changed rows over the view; of two copies the newer stays. False: there is no valid view to lay
        them over (flushed, restarted, never built): the next tick rebuilds it, nothing is lost.
        """

    def catch_up(self) -> View | None:
        """This process's own warm copy, brought up to date by deltas; None: it has no valid copy, or there
        is no valid view to copy, and `load` or `rebuild` is due. The same View object as long as it lasts.
        """

    def load(self) -> View | None:
        """A copy read whole; None when there is no valid view."""

    def rebuild(self, rows: Iterable[Row]) -> View:
        """Make the view anew from the truth: drop what it held, write the generation last.

        What is published meanwhile is merged by version. `rows` is first asked for a row after the old view was given
        up, so with rows that are read lazily (`Store.read_rows()`) no publish falls in between.
        Raises ViewUnavailableError when another process began a rebuild later: it finishes its own.
        """

    def matches_copy(self) -> bool:
        """Whether as many rows of each kind are stored as the warm copy holds, after both were brought to the same
        moment. False: what is stored was damaged (or there is no valid copy), and `rebuild` is due.
        """

    def write_report(self, report: Mapping[str, Any]) -> None:
        """Keep what the last tick said (waiting codes, wake_at, term, duration) for people to read."""

    def read_report(self) -> dict[str, Any]:
        """The last report, {} before the first."""

    def read_reservations(self, ids: Iterable[str]) -> dict[str, Reservation]:
        """Those of these that the view knows (ended ones for 10 minutes), for people and holders.

        Raises ViewUnavailableError when there is no valid view.
        """

    def read_slots(self, ids: Iterable[str]) -> dict[str, Slot]:
        """Those of these slots that the view knows. Raises as `read_reservations` does."""


class Lock(Protocol):
    """Who tries to lead. Redis decides who tries; the term in SQL decides who may write.

    One tick at a time a process: `take` while this very process holds it is refused and marked as any other.
    The methods raise ViewUnavailableError when Redis cannot be reached.
    """

    def take(self) -> bool:
        """Become the holder for the lock's time; False: another holds it, and a mark (`again`) is left for it.

        The holder sees the mark when it lets go, and ticks once more. Taking deletes the mark: the tick that
        begins now is the one that was asked for.
        """

    def renew(self) -> bool:
        """Hold it for another whole time; False: it is not ours any more."""

    def release(self) -> bool:
        """Let go if it is ours; whether somebody left the mark meanwhile: then tick once more.

        The next take deletes the mark, whoever it is, so a repeated or half-heard release loses none. When ours
        ran out and nobody holds it, the mark is told as well; another holder keeps lock and mark.
        """

    def seconds_left(self) -> float:
        """How much of the lock's time is left since the last successful take or renewal *began*, by this
        process's monotonic clock; 0 when it is not held.
        """


class Bell(Protocol):
    """Kicks and notices: hints that make things quick. Losing one costs time, never correctness."""

    def kick(self) -> None:
        """Ask for a tick; who asks first within two seconds sends the message, the others are spared it."""

    def hear(self) -> None:
        """A tick has begun: kicks from now on ask for another."""

    def notify(self, reservation: str, notice: Mapping[str, Any]) -> None:
        """Tell those who wait on this reservation's channel; nobody listening is fine."""

    def reply(self, address: str, answer: Mapping[str, Any]) -> None:
        """Put an answer where the client waits for it; it is kept for a minute.

        `address` came from outside: raises ForeignAddressError unless it is one of the reply addresses.
        """


class Dispatcher(Protocol):
    """Sends the slow work to its queues, after commit. A message lost is sent again by `recover`."""

    def send_launches(self, slots: Sequence[Slot]) -> None:
        """Ask the launch queue to carry out these slots' launches."""

    def send_terminations(self, slots: Sequence[Slot]) -> None:
        """Ask the terminate queue to end the machines of these slots, in these epochs."""

    def send_checks(self, slots: Sequence[str]) -> None:
        """Ask the health queue to look at these slots."""

    def send_callback(self, outgoing: Outgoing) -> None:
        """Send a callback to its task and queue; raises ConnectionError when the broker did not take it."""

    def wake_at(self, due: float | None, now: float) -> None:
        """Have a tick sent at `due` (None: at no particular time); replaces what was asked before."""


Category = Literal["capacity", "quota", "throttled", "transient", "auth", "misconfigured", "not_found", "unknown"]


class CloudError(Exception):
    """The cloud said no, or nothing. `category` tells what to do about it, `code` is the cloud's own word.

    capacity, quota, throttled, auth, misconfigured: a definite refusal, nothing was launched.
    transient, unknown: nobody knows whether it happened; replay exactly the same request.
    not_found: no such machine.
    """

    def __init__(self, category: Category, code: str, message: str) -> None:
        self.category, self.code, self.message = category, code, message
        super().__init__(f"{category}: {code}: {message}")


class LaunchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a launch is made of: everything that the frozen request is built from."""

    slot: str
    pool: str
    launch_id: str
    generation: int
    """Goes up only after a definite refusal of the earlier one: a new client token."""
    offering: str | None
    """Key of the offering; None in a pool that lists none."""


class Fleet(Protocol):
    """Reality: the machines. Every method but `freeze` talks to the cloud and may raise CloudError."""

    def freeze(self, order: LaunchOrder, rules: Rules) -> dict[str, Any]:
        """The whole request to the cloud, as JSON values, with a client token derived from the launch id and
        its generation. No I/O; the same order and rules give the same request. Raises CloudError
        (misconfigured) when the pool's rules do not suffice for a launch.
        """

    def launch(self, request: Mapping[str, Any]) -> Machine:
        """Carry out a frozen request. The same request again gives the same machine, not another one."""

    def describe(self, machines: Sequence[str]) -> dict[str, Machine]:
        """What is known of these ids; an id that the cloud does not (yet, or any more) know is left out."""

    def find_launch(self, launch_id: str) -> list[Machine]:
        """The machines that bear this launch id, terminated ones left out."""

    def sweep(self) -> Iterator[Machine]:
        """Every machine under our tags, terminated ones left out, page by page."""

    def terminate(self, machines: Sequence[str]) -> None:
        """Ask for the end of these machines; idempotent; ids that the cloud does not know are no error."""


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """What the cloud says ahead of one machine: that it will be taken, or that it is at a higher risk than others."""

    machine: str
    kind: Literal["interruption", "rebalance"]
    at: float
    """When the cloud said so, by its own clock."""

    @property
    def gone_at(self) -> float:
        """When an interrupted machine is gone: two minutes after the notice (EC2, "Spot interruption notices")."""
        return self.at + INTERRUPTION_SECONDS


INTERRUPTION_SECONDS = 120.0


class Message(msgspec.Struct, frozen=True):
    """One message of the feed: what to delete it by, and the notice in it; None: it is none of ours to heed."""

    receipt: str
    notice: Notice | None


class NoticeFeed(Protocol):
    """Interruption and rebalance notices, from a queue that gives each at least once, in no particular order.

    Both methods may raise CloudError.
    """

    def receive(self, wait_seconds: float = 0.0) -> list[Message]:
        """A handful of messages, as soon as there is one; [] when none came in time. A message that is not deleted
        comes again after a while.
        """

    def delete(self, receipts: Sequence[str]) -> None:
        """These messages are done with; one that is deleted already, or was given out again, is no error."""


class Probe(Protocol):
    """Asks a machine whether it is ready to serve."""

    def is_ready(self, slot: Slot, machine: Machine, rules: Rules) -> bool:
        """Whether the machine of this slot answers its pool's probe; bounded in time, never raises."""


class Meter(Protocol):
    """Counters and durations of the processes, added up where a metrics process can read them."""

    def count(self, name: str, labels: Mapping[str, str], amount: float = 1) -> None:
        """Add to a counter; a lost count is no harm."""

    def observe(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """Add one observation to a histogram."""
