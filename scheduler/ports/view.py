"""The ports to the view, which may lag behind the database, and to the leader lock. Losing both is harmless."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from scheduler.model.view import Change, Row, View


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
