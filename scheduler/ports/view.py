"""The ports to Redis: view cache, leader lock, cluster record, notifier, heartbeats, meter, and the dispatcher.

The view is a copy of the database's rows that may lag behind. Losing the contents of Redis costs time or counts, never
correctness.
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
from scheduler.model.waits import NO_WAITS, Waits
from scheduler.ports.store import OutboxMessage


class ViewUnavailableError(Exception):
    """The view, a copy of the database in Redis, cannot be read: Redis does not answer, or has no valid view. Try again
    later; no data is lost.
    """


class SetAside(msgspec.Struct, frozen=True):
    """A Redis key that had a wrong type or unreadable contents and was renamed."""

    key: str
    found: str
    """The type that the renamed key had, or `unreadable` if its contents could not be read."""
    record: bytes = b""
    """The entry in the list of renamed keys. It is removed when the event about the renamed key is committed."""


class ViewCache(Protocol):
    """The view: a lagging copy of the database's rows that every process can read, in Redis or in memory.

    Every method raises ViewUnavailableError when Redis does not answer. Ended reservations and tombstones of deleted
    rows expire 10 minutes after they were published.
    """

    def publish(self, changes: Sequence[Change]) -> bool:
        """Merge changed rows into the view; of two copies of a row the newer stays. Return whether there is a valid
        view.

        False: the view was flushed, lost in a restart, or never built. The next tick rebuilds it; no data is lost.
        """

    def catch_up(self) -> View | None:
        """Return this process's own copy of the view, brought up to date with the changes since the last call.

        None: the process has no valid copy or there is no valid view, and `load` or `rebuild` is needed. While the copy
        is valid, every call returns the same View object.
        """

    def load(self) -> View | None:
        """Read the whole view and keep it as this process's own copy. Return None when there is no valid view."""

    def read_kept(self) -> dict[str, Reservation]:
        """Return the reservations stored in the view, ended ones too, whether the view is valid or not. Rows that
        cannot be decoded are skipped.

        The restore of a backup looks there for reservations that the database lost.
        """

    def rebuild(self, rows: Iterable[Row]) -> View:
        """Replace the view by `rows`, read from the database. The generation, which makes the view valid, is written
        last.

        Changes that are published meanwhile are merged by version. The first of `rows` is requested after the old view
        was invalidated, so if `rows` is lazy (`Store.read_rows()`), no change is missed in between. Raises
        ViewUnavailableError when another process began a later rebuild: that one completes.
        """

    def matches_copy(self) -> bool:
        """Return whether the stored view has as many rows of each kind as this process's own copy at the same moment.

        False: the stored rows were damaged, or there is no valid copy. Then `rebuild` is needed.
        """

    def set_aside_wrong_keys(self) -> list[SetAside]:
        """Rename the Redis keys that have a wrong type or unreadable contents, and return the renamed keys.

        The next write to such a key creates it again. If a key of the view was renamed, the view is invalid until the
        next rebuild.
        """

    def list_set_aside(self) -> list[SetAside]:
        """Return the Redis keys (at most 100, the newest) that any process renamed and `forget_set_aside` did not
        remove.
        """

    def forget_set_aside(self, records: Sequence[SetAside]) -> None:
        """Remove these entries from the list of Redis keys that were renamed because their contents were wrong."""

    def publish_time(self, now: float) -> None:
        """Publish cluster time. Processes without a database connection continue the time from this value."""

    def write_report(self, report: Mapping[str, Any], waits: Waits = NO_WAITS) -> None:
        """Store the report of the last tick (counts of waiting codes, wake_at, term, duration) and the reservations
        that wait, for the CLI and the client.
        """

    def read_report(self) -> dict[str, Any]:
        """Return the report of the last tick, with `waiting`: reservation -> [code, detail] in queue order. {} before
        the first tick.
        """

    def read_reservations(self, ids: Iterable[str]) -> dict[str, Reservation]:
        """Return the reservations with these ids that the view has; ended ones stay for 10 minutes.

        Raises ViewUnavailableError if there is no valid view.
        """

    def read_slots(self, ids: Iterable[str]) -> dict[str, Slot]:
        """Return the slots with these ids that the view has. Raises ViewUnavailableError if there is no valid view."""


class LeaderLock(Protocol):
    """The lock in Redis that decides which process tries to lead. The leader term in SQL decides which process writes.

    A process runs one tick at a time: `take` while the same process has the lock is refused and marked like the `take`
    of another process. The methods raise ViewUnavailableError when Redis does not answer.
    """

    def take(self) -> bool:
        """Take the leader lock for its full duration. False: a process has it already, and a mark (`again`) is left.

        The process that has the lock sees the mark at its release, and ticks once more. Taking the lock deletes the
        mark: the tick that begins now is the one that was requested.
        """

    def renew(self) -> bool:
        """Extend the leader lock to its full duration. False: this process does not have the lock any more."""

    def release(self) -> bool:
        """Release the leader lock if this process has it. True: another `take` left a mark meanwhile, so tick once
        more.

        Only the next take deletes the mark, so a repeated release, or one whose answer was lost, loses no mark. If the
        lock ran out and no process has it, the mark is returned as well. The lock and mark of another process stay.
        """

    def seconds_until_free(self) -> float:
        """Return after how many seconds the leader lock runs out unless it is renewed; 0 when no process has it."""

    def seconds_left(self) -> float:
        """Return how many seconds this process still has the lock, counted from the *begin* of its last take or
        renewal.

        Counted by this process's monotonic clock; 0 when this process does not have the lock.
        """


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the cluster record in Redis: the identity, highest term and highest fencing token of the cluster.
    An empty Redis gives the default values.
    """

    identity: str | None = None
    """The id of the cluster that this Redis belongs to."""
    term: int = 0
    token: int = 0
    is_restoring: bool = False
    """Whether the restore of a database backup is under way, or was interrupted."""


class ClusterRecord(Protocol):
    """The cluster's record in Redis: identity, highest term and highest fencing token, to notice an older database.

    Every method raises ViewUnavailableError when Redis cannot be reached.
    """

    def read(self) -> Remembered:
        """Return the contents of the cluster record. Contents that cannot be read count as missing."""

    def keep(self, identity: str, term: int, token: int) -> str:
        """Write the cluster's identity if Redis has none, and raise the stored term and token to at least these values.
        Return the stored identity. If it is another cluster's, the term and token are not raised.
        """

    def begin_restore(self) -> None:
        """Mark in Redis that a restore is under way. No process of the cluster works until `end_restore`."""

    def end_restore(self, identity: str, term: int, token: int) -> None:
        """Replace the contents of the cluster record by these values and remove the mark of `begin_restore`."""


class ForeignAddressError(ValueError):
    """The address for an answer is not one of the reply addresses in Redis, so nothing was written."""


_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


def check_reply_address(address: str, prefix: str) -> None:
    """Raise ForeignAddressError unless the address is `<prefix>reply:<word>`, with a word of up to 100
    plain characters.
    """
    start = RedisNames(prefix).reply_start
    if not address.startswith(start) or not _NAME.fullmatch(address.removeprefix(start)):
        raise ForeignAddressError(f"reply_to: expected {start}<word>, got {address[:200]!r}")


class Notifier(Protocol):
    """Kicks (requests for a tick) and notices (messages to holders and hosts): hints that make changes arrive earlier.
    A lost hint costs time, never correctness.
    """

    def kick(self) -> None:
        """Request a tick. The first call sends a message; further calls within two seconds send none.

        Raises the error of the sending; then the next call sends a message. A caller that sent none because an earlier
        kick had claimed to send it relies on the periodic tick if that kick failed.
        """

    def hear(self) -> None:
        """Record that a tick has begun, so that the next kick sends a message for another tick."""

    def notify(self, notices: Mapping[str, Mapping[str, Any]]) -> None:
        """Publish a notice for the holder of each of these reservations on its channel, all in one round trip for each
        thousand. A channel may have no subscribers.
        """

    def push(self, news: Mapping[str, Mapping[str, Any]]) -> None:
        """Send a hint to the host of each of these slots: the slot changed, so the host should ask for it. A hint may
        be lost.
        """

    def reply(self, address: str, answer: Mapping[str, Any]) -> None:
        """Write an answer to a request under its reply address, where it is kept for a minute.

        `address` came from outside: raises ForeignAddressError unless it is one of the reply addresses.
        """


class Heard(msgspec.Struct, frozen=True):
    """The heartbeats of static hosts that one call of `Heartbeats.listen` read.

    `ages`: seconds since the last heartbeat of each slot's machine; slots without a heartbeat are missing.
    `kept_for`: seconds for which the storage has kept heartbeats (short after Redis was flushed).
    `versions`: the version (`heartbeat_intake.name_version`) of its slot that each host knows; hosts that sent none are
    missing.
    `signed`: the heartbeats with a counter and a MAC. The port does not verify them: `operations.heartbeats` does.
    """

    ages: dict[str, float]
    kept_for: float
    versions: dict[str, str] = {}
    signed: dict[str, Heartbeat] = {}


class Heartbeats(Protocol):
    """The heartbeats of static hosts, which do not pass through a queue. The loss of all stored heartbeats never fails
    a host.
    """

    def listen(self, hosts: Mapping[str, str]) -> Heard:
        """Return the heartbeats of the slots in `hosts` (slot -> machine). Heartbeats from other machines are ignored.

        The storage's clock counts the ages, not the clock of a host; a heartbeat from the future is ignored. Reading
        changes nothing, so any number of processes may read. Raises ViewUnavailableError if Redis does not answer.
        """


Defect = Literal["envelope", "task", "arguments", "document", "address", "signature"]
"""What is wrong with a refused message.

envelope: its headers or body. task: the task name. arguments: their number or types. document: its content, when the
message has no reply address. address: the reply address. signature: missing although one is required, not valid, or of
a principal whose role does not allow the task.
"""
MOST_REFUSED: Final = 10
"""Most refused messages with the same defect that are kept within REFUSED_SECONDS, by all processes together. Further
ones are only counted.
"""
REFUSED_SECONDS: Final = 60
MOST_KEPT: Final = 1000
"""Most refused messages that are kept until `take_refused`. If there are more, the oldest ones are dropped."""


class RefusedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A task message that was refused without an answer: its queue, task and first fault; no secrets and no body."""

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
    """Number of faults of the refused message after the first one."""


class Meter(Protocol):
    """Counters and histograms of all processes, summed up for the process that exports metrics. Lost values are
    acceptable.
    """

    def count(self, name: str, labels: Mapping[str, str], amount: float = 1) -> None:
        """Add `amount` to the counter with this name and these labels."""

    def observe(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """Add one observation to the histogram with this name and these labels."""

    def observe_all(self, name: str, labels: Mapping[str, str], values: Sequence[float]) -> None:
        """Add many observations to the histogram with this name and these labels. An empty sequence writes nothing."""

    def note_probes(self, slots: Sequence[str], at: float) -> None:
        """Record that the machines of these slots answered a probe, or that EC2 reported them, at the time `at`. Only
        the last time of each slot is kept.
        """

    def note_refused(self, refused: RefusedMessage) -> None:
        """Count a refused message, and keep it for `take_refused` unless MOST_REFUSED messages with the same defect
        were kept within REFUSED_SECONDS. Needs no database.
        """

    def take_refused(self) -> list[RefusedMessage]:
        """Return and remove the stored reports of task messages that workers refused, oldest first; [] if Redis does
        not answer. Each report goes to only one process.
        """

    def put_back_refused(self, refused: Sequence[RefusedMessage]) -> None:
        """Store these reports of refused task messages again, because they could not be written to the database."""


class Dispatcher(Protocol):
    """Sends slow work (calls of the cloud, checks, callbacks) to its Celery queues after the commit. Lost messages are
    sent again by `recover`.
    """

    def send_launches(self, slots: Sequence[Slot]) -> None:
        """Send one task for each of these slots, which launches a machine, to the launch queue."""

    def send_terminations(self, slots: Sequence[Slot]) -> None:
        """Send one task for each slot to the terminate queue, which ends the machine of the slot's present epoch."""

    def send_checks(self, slots: Sequence[str]) -> None:
        """Send tasks that check the machines of these slots to the health queue."""

    def send_callback(self, outgoing: OutboxMessage) -> None:
        """Send a callback from the outbox to its queue. Raises ConnectionError if the broker does not accept it."""

    def wake_at(self, due: float | None, now: float) -> None:
        """Schedule a tick for the time `due`, in place of the time of the previous call (None: no scheduled tick)."""
