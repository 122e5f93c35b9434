"""The ports to Redis: view cache, leader lock, cluster record, notifier, heartbeats, meter, and the dispatcher.

The view may lag behind the database. Losing any of these costs time or counts, never correctness.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

import msgspec

from leasehold.common.heartbeats import Heartbeat
from leasehold.common.names import RedisNames
from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from scheduler.model.view import Change, Row, View
from scheduler.ports.store import OutboxMessage


class ViewUnavailableError(Exception):
    """The view cannot be read: Redis does not answer, or has no valid view. Try again later; no data is lost."""


class SetAside(msgspec.Struct, frozen=True):
    """A Redis key that had a wrong type or unreadable contents and was renamed."""

    key: str
    found: str
    """The type that the key had, or `unreadable`."""
    record: bytes = b""
    """The entry in the list of renamed keys, which is removed when its event is committed."""


class ViewCache(Protocol):
    """The view: a lagging copy of the rows that every process can read. In Redis or in memory.

    Every method raises ViewUnavailableError when Redis does not answer. Ended reservations and tombstones of deleted
    rows expire 10 minutes after they were published.
    """

    def publish(self, changes: Sequence[Change]) -> bool:
        """Merge changed rows into the view; of two copies the newer stays. Return whether there is a valid view.

        False: the view was flushed, lost in a restart, or never built. The next tick rebuilds it; no data is lost.
        """

    def catch_up(self) -> View | None:
        """Return this process's own copy, brought up to date with the changes since the last call.

        None: the process has no valid copy or there is no valid view, and `load` or `rebuild` is needed. As long as
        the copy is valid, every call returns the same View object.
        """

    def load(self) -> View | None:
        """Read the whole view. Return None when there is no valid view."""

    def read_kept(self) -> dict[str, Reservation]:
        """Return the stored reservations, ended ones too, whether the view is valid or not. Unreadable rows are
        skipped.

        A restore looks there for what the database lost.
        """

    def rebuild(self, rows: Iterable[Row]) -> View:
        """Replace the view by these rows from the database. The generation, which makes the view valid, is written
        last.

        Changes that are published meanwhile are merged by version. The first of `rows` is requested after the old
        view was invalidated, so if they are read lazily (`Store.read_rows()`) no change is missed in between. Raises
        ViewUnavailableError when another process began a later rebuild: that one completes.
        """

    def matches_copy(self) -> bool:
        """Return whether Redis stores as many rows of each kind as this process's copy has at the same moment.

        False: the stored rows were damaged, or there is no valid copy. Then `rebuild` is needed.
        """

    def set_aside_wrong_keys(self) -> list[SetAside]:
        """Rename the keys that have a wrong type or unreadable contents, and return what was renamed.

        The keys are written again when they are needed. If a key of the view was renamed, the view is invalid until
        the next rebuild.
        """

    def list_set_aside(self) -> list[SetAside]:
        """Return the keys that any process renamed and `forget_set_aside` has not removed. At most 100, the newest."""

    def forget_set_aside(self, records: Sequence[SetAside]) -> None:
        """Remove these entries from the list of renamed keys."""

    def publish_time(self, now: float) -> None:
        """Publish cluster time. Processes without a database connection continue from this value."""

    def write_report(self, report: Mapping[str, Any]) -> None:
        """Store the report of the last tick (waiting codes, wake_at, term, duration) for the CLI and the client."""

    def read_report(self) -> dict[str, Any]:
        """Return the last report, {} before the first."""

    def read_reservations(self, ids: Iterable[str]) -> dict[str, Reservation]:
        """Return those of these reservations that the view has. Ended ones stay for 10 minutes.

        Raises ViewUnavailableError when there is no valid view.
        """

    def read_slots(self, ids: Iterable[str]) -> dict[str, Slot]:
        """Return those of these slots that the view has. Raises as `read_reservations` does."""


class LeaderLock(Protocol):
    """The lock of the leader. The lock in Redis decides which process tries to lead; the term in SQL decides which one
    writes.

    A process runs one tick at a time: `take` while the same process has the lock is refused and marked like any
    other. The methods raise ViewUnavailableError when Redis does not answer.
    """

    def take(self) -> bool:
        """Take the lock for its whole time. False: another process has it, and a mark (`again`) is left.

        The process that has the lock sees the mark at its release, and ticks once more. Taking the lock deletes the
        mark: the tick that begins now is the one that was requested.
        """

    def renew(self) -> bool:
        """Extend the lock to its whole time. False: this process does not have it any more."""

    def release(self) -> bool:
        """Release the lock if this process has it. Return whether a mark was left meanwhile: then tick once more.

        Only the next take deletes the mark, so a repeated release, or one whose answer was lost, loses no mark. If
        the lock ran out and no process has it, the mark is returned as well. The lock and mark of another process
        stay.
        """

    def seconds_until_free(self) -> float:
        """Return after how many seconds the lock runs out unless it is renewed; 0 when no process has it."""

    def seconds_left(self) -> float:
        """Return how many seconds of the lock's time are left since the last successful take or renewal *began*.

        Counted by this process's monotonic clock; 0 when this process does not have the lock.
        """


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the cluster record. An empty Redis gives the default values."""

    identity: str | None = None
    """The id of the cluster that this Redis belongs to."""
    term: int = 0
    token: int = 0
    is_restoring: bool = False
    """Whether a restore is under way, or was interrupted."""


class ClusterRecord(Protocol):
    """The record of the cluster in Redis. Every method raises ViewUnavailableError when Redis cannot be reached."""

    def read(self) -> Remembered:
        """Return the contents of the record. Contents that cannot be read count as missing."""

    def keep(self, identity: str, term: int, token: int) -> str:
        """Write the identity if none is stored, and raise the stored term and token to these values. Return the stored
        identity, which may be another one: then nothing is raised.
        """

    def begin_restore(self) -> None:
        """Mark that a restore is under way. No process of the cluster works until `end_restore`."""

    def end_restore(self, identity: str, term: int, token: int) -> None:
        """Replace the contents of the record by these values and remove the mark of `begin_restore`."""


class ForeignAddressError(ValueError):
    """An answer's address is not one of the reply addresses. Nothing was written."""


_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


def check_reply_address(address: str, prefix: str) -> None:
    """Raise ForeignAddressError unless the address is `<prefix>reply:<word>`, with a word of up to 100
    plain characters.
    """
    start = RedisNames(prefix).reply_start
    if not address.startswith(start) or not _NAME.fullmatch(address.removeprefix(start)):
        raise ForeignAddressError(f"reply_to: expected {start}<word>, got {address[:200]!r}")


class Notifier(Protocol):
    """Kicks and notices are hints that make things quick. A lost one costs time, never correctness."""

    def kick(self) -> None:
        """Request a tick. The first call sends a message; further calls within two seconds send none.

        Raises what sending raised; then the next call sends. Callers that sent no message because of a kick that
        failed rely on the periodic tick.
        """

    def hear(self) -> None:
        """Note that a tick has begun. Later kicks request another one."""

    def notify(self, reservation: str, notice: Mapping[str, Any]) -> None:
        """Publish a notice on this reservation's channel. The channel may have no subscribers."""

    def push(self, news: Mapping[str, Mapping[str, Any]]) -> None:
        """Send a hint to each of these slots' hosts that the slot changed, so the host should ask for it. A hint may be
        lost.
        """

    def reply(self, address: str, answer: Mapping[str, Any]) -> None:
        """Write an answer to the reply address, where it is kept for a minute.

        `address` came from outside: raises ForeignAddressError unless it is one of the reply addresses.
        """


class Heard(msgspec.Struct, frozen=True):
    """The heartbeats that were read.

    `ages`: seconds since the last heartbeat of each slot's machine; slots without a heartbeat are missing.
    `kept_for`: seconds for which the storage has kept heartbeats (short after Redis was flushed).
    `versions`: the version (`heartbeat_intake.name_version`) that each host knows; hosts that sent none are missing.
    `signed`: the heartbeats with a counter and a MAC. The port does not verify them: `operations.heartbeats` does.
    """

    ages: dict[str, float]
    kept_for: float
    versions: dict[str, str] = {}
    signed: dict[str, Heartbeat] = {}


class Heartbeats(Protocol):
    """The heartbeats of static hosts. They do not pass through a queue. Losing them never fails a host."""

    def listen(self, hosts: Mapping[str, str]) -> Heard:
        """Return the heartbeats of these slots, each from the machine that it is given with. Other machines are
        ignored.

        The storage's clock counts the ages, not the clock of a host; a heartbeat from the future is ignored. Reading
        changes nothing, so any number of processes may read. Raises ViewUnavailableError.
        """


Defect = Literal["envelope", "task", "arguments", "document", "address", "signature"]
"""What is wrong with a refused message.

envelope: its headers or body. task: the task name. arguments: their number or types. document: its content, when the
message has no reply address. address: the reply address. signature: missing although one is required, not valid, or of
a principal whose role does not allow the task.
"""
MOST_REFUSED: Final = 10
"""Refused messages with the same defect that are kept in REFUSED_SECONDS, over all processes. All are counted."""
REFUSED_SECONDS: Final = 60
MOST_KEPT: Final = 1000
"""Refused messages that are kept until `take_refused`. If there are more, the oldest ones are dropped."""


class RefusedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was refused without an answer: its origin and its first fault. Contains no secrets and no body."""

    at: float
    queue: str
    task: str
    message: str
    """The Celery id of the refused message."""
    defect: Defect
    path: str
    expected: str
    got: str
    more_faults: int = 0
    """Number of the other faults of the refused message."""


class Meter(Protocol):
    """Counters and durations of the processes, summed up for a metrics process. Lost values are acceptable."""

    def count(self, name: str, labels: Mapping[str, str], amount: float = 1) -> None:
        """Add `amount` to a counter."""

    def observe(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """Add one observation to a histogram."""

    def observe_all(self, name: str, labels: Mapping[str, str], values: Sequence[float]) -> None:
        """Add many observations to a histogram at once. An empty sequence writes nothing."""

    def note_probes(self, slots: Sequence[str], at: float) -> None:
        """Note that the machines of these slots answered at that time, or that EC2 reported them. Only the last time of
        each slot is kept.
        """

    def note_refused(self, refused: RefusedMessage) -> None:
        """Count a refused message, and keep it for `take_refused` unless MOST_REFUSED messages with the same defect
        were kept within REFUSED_SECONDS. Needs no database.
        """

    def take_refused(self) -> list[RefusedMessage]:
        """Return and remove the refused messages that were kept, oldest first. Only one process gets each. [] without
        Redis.
        """

    def put_back_refused(self, refused: Sequence[RefusedMessage]) -> None:
        """Keep these messages again. Used when they could not be written after `take_refused`."""


class Dispatcher(Protocol):
    """Sends slow work to its queues after the commit. `recover` sends lost messages again."""

    def send_launches(self, slots: Sequence[Slot]) -> None:
        """Send the launches of these slots to the launch queue."""

    def send_terminations(self, slots: Sequence[Slot]) -> None:
        """Send the terminations of these slots' machines, in these epochs, to the terminate queue."""

    def send_checks(self, slots: Sequence[str]) -> None:
        """Send checks of these slots to the health queue."""

    def send_callback(self, outgoing: OutboxMessage) -> None:
        """Send a callback to its task and queue. Raises ConnectionError when the broker did not accept it."""

    def wake_at(self, due: float | None, now: float) -> None:
        """Schedule a tick for `due` (None: no scheduled tick). Replaces the time of the previous call."""
