"""The ports to Redis: view cache, leader lock, cluster record, notifier, heartbeats, meter; and the dispatcher of
tasks.

The view is a copy of the database's rows that may lag behind the database. The loss of everything in Redis costs time
or metrics, never correctness.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Literal, Protocol, Self

import msgspec
from typing_extensions import override

from scheduler.model.history import Sample
from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from scheduler.model.view import Change, Row, View
from scheduler.model.waits import NO_WAITS, Waits
from scheduler.ports.stored import OutboxMessage
from scheduler.protocol.heartbeats import Heartbeat
from scheduler.protocol.names import REPLY_WORD, RedisNames


class ViewUnavailableError(Exception):
    """Raised when the view, a copy of the database in Redis, cannot be read: Redis does not answer, or the view is not
    valid. Try again later; no data is lost.
    """


class SetAside(msgspec.Struct, frozen=True):
    """A Redis key that was renamed, because it had a wrong type or contents that cannot be read."""

    key: str
    found: str
    """The type that the renamed key had, or `unreadable` if its contents could not be read."""
    record: bytes = b""
    """The entry in the list of renamed keys. It is deleted when an event about the renamed key is committed."""


class ViewCache(Protocol):
    """The port to the view: a copy of the database's rows, in Redis or in memory, that every process can read.

    Every method raises ViewUnavailableError when Redis does not answer. Ended reservations and tombstones of deleted
    rows stay in the view for 10 minutes.
    """

    def publish(self, changes: Sequence[Change]) -> bool:
        """Write changed rows into the view; a row that is older than its copy in the view is ignored. Return whether
        the view is valid.

        False: the view was deleted, lost in a restart of Redis, or never built. The next tick rebuilds it; no data is
        lost.
        """

    def catch_up(self) -> View | None:
        """Update this process's own copy of the view with the changes since the last call, and return it.

        None: this process has no valid copy, or the view is not valid; then call `load` or `rebuild`. While the copy is
        valid, every call returns the same View object.
        """

    def load(self) -> View | None:
        """Read the whole view and keep it as this process's own copy. Return the copy, or None if the view is not
        valid.
        """

    def read_kept(self) -> dict[str, Reservation]:
        """Return all reservations stored in the view, ended ones too, even if the view is not valid. Rows that cannot
        be decoded are skipped. The restore of a backup uses it to find reservations that the database lost.
        """

    def rebuild(self, rows: Iterable[Row]) -> View:
        """Replace the contents of the view by `rows`, which come from the database. Return this process's new copy.

        The view is valid while Redis has its generation, an id that is written last. This method first makes the old
        view invalid, and only then takes the first row of `rows`. So no change is missed if `rows` reads the database
        lazily, as `Store.read_rows()` does. Changes that are published meanwhile are merged by version. Raises
        ViewUnavailableError if another process began a later rebuild; that rebuild then completes.
        """

    def matches_copy(self) -> bool:
        """Return whether the stored view has as many rows of each kind as this process's own copy. Return False if rows
        of the view were lost or damaged, or if there is no valid copy: then call `rebuild`.
        """

    def set_aside_wrong_keys(self) -> list[SetAside]:
        """Rename the Redis keys that have a wrong type or unreadable contents, and return the renamed keys.

        The next write to such a key creates it again. If a key of the view was renamed, the view is not valid until it
        is rebuilt.
        """

    def list_set_aside(self) -> list[SetAside]:
        """Return the Redis keys that any process has renamed and `forget_set_aside` has not removed: the newest 100."""

    def forget_set_aside(self, records: Sequence[SetAside]) -> None:
        """Remove these entries (`SetAside.record`) from the list of Redis keys that were renamed because their contents
        were wrong.
        """

    def publish_time(self, now: float) -> None:
        """Publish cluster time, for processes that have no database connection."""

    def write_report(self, report: Mapping[str, Any], waits: Waits = NO_WAITS) -> None:
        """Store the report of the last tick (counts of waiting codes, `wake_at`, term, duration), and `waits`, the
        reservations that wait with their waiting codes. The command line and the client read the report.
        """

    def read_report(self) -> dict[str, Any]:
        """Return the report of the last tick; {} before the first tick. Its key `waiting` has, in queue order,
        reservation id -> [waiting code, sentence].
        """

    def write_sample(self, sample: Sample) -> None:
        """Store a sample of the history of the last hour at its place in the ring (`find_place`)."""

    def read_history(self) -> list[Sample]:
        """Return all samples of the history in any order, older ones than an hour too. Samples that cannot be decoded
        are omitted.
        """


class LeaderLock(Protocol):
    """The port to the lock in Redis that a process takes before it runs a tick as the leader. The leader term in SQL,
    not this lock, decides which process may write.

    A process runs one tick at a time, so a second `take` is refused even to the process that has the lock. The methods
    raise ViewUnavailableError when Redis does not answer.
    """

    def take(self) -> bool:
        """Take the leader lock for its full duration, and return True. If a process has the lock already, return False
        and store a mark, the key `again`.

        The process that has the lock finds the mark when it releases the lock, and runs one more tick. A `take` that
        succeeds deletes the mark, because the tick that begins now is the requested one. A `take` that succeeds also
        records in the notifier that a tick has begun, as `Notifier.hear` does: the next kick requests another tick.
        """

    def renew(self) -> bool:
        """Extend the leader lock to its full duration, and return True. If this process has lost the lock, return
        False.
        """

    def release(self) -> bool:
        """Release the leader lock if this process has it. Return True if a refused `take` has stored the mark (the key
        `again`), which requests one more tick; else False.

        If the lock has expired and no process has it, the result is the same. If another process has the lock, return
        False and change nothing. This method does not delete the mark; only the next `take` that succeeds does. So no
        mark is lost if a release is repeated or its answer is lost.
        """

    def seconds_until_free(self) -> float:
        """Return the seconds until the leader lock expires if it is not renewed; 0 if no process has it."""

    def seconds_left(self) -> float:
        """Return for how many seconds this process still has the leader lock; 0 if it does not have the lock. The time
        is counted by this process's monotonic clock, from the *begin* of its last `take` or `renew`.
        """


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the cluster record in Redis: the identity of the cluster, and its highest term and fencing token.
    An empty Redis gives the default values.
    """

    identity: str | None = None
    """The id of the cluster that this Redis belongs to."""
    term: int = 0
    token: int = 0
    is_restoring: bool = False
    """Whether the restore of a database backup is under way, or was interrupted."""


class ClusterRecord(Protocol):
    """The port to the cluster's record in Redis: identity, highest term and highest fencing token. A database with
    lower numbers is an older state of the cluster. Every method raises ViewUnavailableError when Redis cannot be
    reached.
    """

    def read(self) -> Remembered:
        """Return the contents of the cluster record. Contents that cannot be decoded count as missing."""

    def keep(self, identity: str, term: int, token: int) -> str:
        """Store the cluster's identity if Redis has none, and increase the stored term and token to at least these
        values. Return the stored identity.

        If the stored identity is another one than `identity`, term and token are not changed.
        """

    def name_installation(self) -> str:
        """Return the name of this installation of the cluster, a random text that is made once for each Redis. A copy
        of the database that is used with another Redis has another name.
        """

    def take_turn(self, seconds: float) -> bool:
        """Return True once in this number of seconds, over all processes, and False otherwise."""

    def has_compared_tags(self) -> bool:
        """Return whether `keep_compared_tags` was called since Redis was empty."""

    def keep_compared_tags(self) -> None:
        """Record that the database was compared with the numbers in the machines' tags."""

    def begin_restore(self) -> None:
        """Mark in Redis that a backup is being restored. No process of the cluster works until `end_restore`."""

    def end_restore(self, identity: str, term: int, token: int) -> None:
        """Replace the contents of the cluster record by these values and remove the mark of `begin_restore`."""


class ForeignAddressError(ValueError):
    """Raised when the address for an answer is not one of Leasehold's reply addresses in Redis. Nothing was written."""


def check_reply_address(address: str, prefix: str) -> None:
    """Raise ForeignAddressError unless the address is `<prefix>reply:<word>`, with a word of up to 100
    plain characters.
    """
    start = RedisNames(prefix).reply_start
    if not address.startswith(start) or not REPLY_WORD.fullmatch(address.removeprefix(start)):
        raise ForeignAddressError(f"reply_to: expected {start}<word>, got {address[:200]!r}")


class Notifier(Protocol):
    """The port for kicks (requests for a tick) and notices (messages to holders and hosts). Both are hints that make a
    change arrive earlier; a lost hint costs time, never correctness.
    """

    def kick(self) -> None:
        """Request a tick. The first call sends a message; calls within the next two seconds send none.

        If the message cannot be sent, the error is raised, and the next call sends a message. If the sent message is
        lost, the calls that sent none because of it have no effect: the next periodic tick serves them.
        """

    def hear(self) -> None:
        """Record that a tick has begun, so that the next `kick` sends a message for another tick."""

    def await_kick(self, seconds: float) -> bool:
        """Wait at most `seconds` for a kick, and return whether one came. Such a kick has sent no message: the caller
        runs the tick. Return False at once if the message of an earlier kick is under way, or if this notifier cannot
        wait.
        """

    def notify(self, notices: Mapping[str, Mapping[str, Any]]) -> None:
        """Publish one notice for each of these reservations (id -> notice) on the reservation's channel, in one round
        trip for each thousand. A channel may have no subscribers.
        """

    def push(self, news: Mapping[str, Mapping[str, Any]]) -> None:
        """Send a hint to the host of each of these slots (slot id -> hint), because the slot has changed. The host then
        reads the slot and its leases again. A hint may be lost.
        """

    def reply(self, address: str, answer: Mapping[str, Any]) -> None:
        """Write the answer to a request under its reply address, where it is kept for a minute. Raises
        ForeignAddressError if `address`, which came from outside, is not one of Leasehold's reply addresses.
        """

    def reply_to_all(self, answers: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
        """Write these answers, each with its reply address, in one round trip. See `reply`. Return the addresses at
        which no answer can be written, because something else is stored there.
        """


LATE_SECONDS: Final = 60.0
"""Twice the longest interval between two heartbeats."""


class Heard(msgspec.Struct, frozen=True):
    """The heartbeats of static hosts that one call of `Heartbeats.listen` has read.

    `ages`: slot id -> seconds since the last heartbeat; slots without a heartbeat are missing. `kept_for`: seconds for
    which the storage has kept heartbeats, which is short after Redis was flushed. `versions`: slot id -> the version of
    the slot that its host knows (`heartbeat_intake.name_version`); hosts that sent no version are missing. `signed`:
    slot id -> its heartbeat, if it has a counter and a MAC, which `operations.heartbeats` verifies. `ignored`: why a
    value does not count -> the number of such values: `garbage`, or `machine` for the heartbeat of another machine.
    """

    ages: dict[str, float]
    kept_for: float
    versions: dict[str, str] = {}
    signed: dict[str, Heartbeat] = {}
    ignored: dict[str, int] = {}

    @classmethod
    def of(
        cls, hosts: Mapping[str, str], found: Iterable[tuple[str, Heartbeat | None, float]], kept_for: float
    ) -> Self:
        """Return the heartbeats that count. `hosts`: slot id -> machine id. `found`: the slot id, heartbeat (None: a
        value that is none) and age of each value that was read, for each slot that of its agent's run first. A later
        one counts only if it is more than LATE_SECONDS younger: a process of an earlier version has registered the
        agent, and did not note its run.
        """
        chosen: dict[str, tuple[Heartbeat, float]] = {}
        ignored: dict[str, int] = {}
        for slot, beat, age in found:
            if beat is None or beat.machine != hosts[slot]:
                reason = "garbage" if beat is None else "machine"
                ignored[reason] = ignored.get(reason, 0) + 1
            elif slot not in chosen or age + LATE_SECONDS < chosen[slot][1]:
                chosen[slot] = (beat, age)
        return cls(
            {slot: age for slot, (_, age) in chosen.items()},
            kept_for,
            {slot: beat.version for slot, (beat, _) in chosen.items() if beat.version is not None},
            {slot: beat for slot, (beat, _) in chosen.items() if beat.counter is not None},
            ignored,
        )


class Heartbeats(Protocol):
    """The port to the heartbeats of static hosts, which do not pass through a queue. If all stored heartbeats are lost,
    no host counts as offline because of the loss.
    """

    def listen(self, hosts: Mapping[str, str], runs: Mapping[str, str] | None = None) -> Heard:
        """Return the heartbeats of these hosts (slot id -> machine id). Heartbeats of another machine are ignored.
        `runs`: slot id -> the run of the agent that has registered; hosts without one are missing.

        The ages are computed by the clock of the storage, not that of the host; a heartbeat from the future is ignored.
        Reading changes nothing, so any number of processes may read. Raises ViewUnavailableError if Redis does not
        answer.
        """


Defect = Literal["envelope", "task", "arguments", "document", "address", "signature"]
"""What is wrong with a message that was refused.

envelope: its headers or body. task: the name of its task. arguments: their number or types. document: its content, if
it has no reply address. address: its reply address. signature: it is missing, not valid, or of a principal whose role
does not allow the task.
"""
MOST_REFUSED: Final = 10
"""For each defect: the greatest number of refused messages that are kept in REFUSED_SECONDS, by all processes together.
Further messages with this defect are only counted.
"""
REFUSED_SECONDS: Final = 60
MOST_KEPT: Final = 1000
"""The most refused messages that are kept until `take_refused`. If there are more, the oldest are dropped."""


class RefusedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A report about a task message that was refused without an answer: its queue, task and first fault. It contains no
    secrets and no body.
    """

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
    """The port to counters and histograms that all processes add to, and that the metrics process exports. Lost values
    are acceptable.
    """

    def count(self, name: str, labels: Mapping[str, str], amount: float = 1) -> None:
        """Add `amount` to the counter with this name and these labels."""

    def observe(self, name: str, labels: Mapping[str, str], *values: float) -> None:
        """Add each of these values to the histogram with this name and these labels. If there are no values, write
        nothing.
        """

    def note_probes(self, slots: Sequence[str], at: float) -> None:
        """Record that the machines of these slots answered a probe, or that EC2 reported them, at the time `at`. Only
        the last time is kept for each slot.
        """

    def note_refused(self, refused: RefusedMessage) -> None:
        """Count a refused message. Also keep it for `take_refused`, unless MOST_REFUSED messages with the same defect
        were kept within REFUSED_SECONDS. Needs no database.
        """

    def take_refused(self) -> list[RefusedMessage]:
        """Return and remove the kept reports about refused messages, oldest first; [] if Redis does not answer. Each
        report is returned to one process only.
        """

    def put_back_refused(self, refused: Sequence[RefusedMessage]) -> None:
        """Keep these reports about refused messages again, because they could not be written to the database."""


class Dispatcher(Protocol):
    """The port that sends slow work as tasks to Celery queues after a commit: calls of the cloud, checks of machines,
    and callbacks to producers. The periodic task `recover` sends lost messages again.
    """

    def send_launches(self, slots: Sequence[Slot]) -> None:
        """For each of these slots, send a task to the launch queue that launches the slot's machine."""

    def send_terminations(self, slots: Sequence[Slot]) -> None:
        """For each of these slots, send a task to the terminate queue that terminates the machine of the slot's present
        epoch.
        """

    def send_power(self, slots: Sequence[Slot]) -> None:
        """For each of these slots, send a task that starts or stops the slot's machine, as the slot's `power` states:
        `start` to the launch queue, `stop` to the terminate queue. Slots without `power` are ignored.
        """

    def send_checks(self, slots: Sequence[str]) -> None:
        """Send tasks to the health queue that check the machines of these slots."""

    def send_callback(self, outgoing: OutboxMessage) -> None:
        """Send a callback from the outbox, a Celery task, to its queue, which a producer reads. Raises ConnectionError
        if the broker does not accept it.
        """

    def wake_at(self, due: float | None, now: float) -> None:
        """Schedule a tick for the time `due`, in place of the tick that the previous call scheduled. None: no tick is
        scheduled.
        """


class Waiting(msgspec.Struct, frozen=True):
    """The messages that wait in a queue."""

    count: int = 0
    since: float | None = None
    """Cluster time at which the oldest of them was sent. None: no message waits, or its time is unknown."""


class Work(msgspec.Struct, frozen=True):
    """The slow work that was sent and has not ended, as far as it is known."""

    under_way: frozenset[str] = frozenset()
    """The names of the work that workers carry out now."""
    waiting: Mapping[str, Waiting] = {}
    """Queue → its waiting messages. Messages of a queue are taken in the order in which they were sent."""


class WorkWatch(Protocol):
    """The port to the slow work (launches, checks, terminations) that waits or is under way, so that it is not sent
    again.

    It is a hint: if Redis does not answer, or a worker stops without a word, work counts as neither waiting nor under
    way. It is then sent again, and has no effect twice.
    """

    def begin(self, names: Collection[str]) -> AbstractContextManager[frozenset[str]]:
        """Return a context in which the work with these names is under way. The context is entered with the names that
        were not under way before. Some time after the death of a process none of its work is under way.
        """

    def read(self, queues: Sequence[str]) -> Work:
        """Return the work that is under way in any process, and the messages that wait in these queues."""


class NoWorkWatch(WorkWatch):
    """Knows of no work that waits or is under way: for a process without other processes, like a simulation."""

    @override
    def begin(self, names: Collection[str]) -> AbstractContextManager[frozenset[str]]:
        return nullcontext(frozenset(names))

    @override
    def read(self, queues: Sequence[str]) -> Work:
        return Work()
