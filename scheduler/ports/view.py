"""Belief: the lagging view of the cluster, and the lock that decides who tries to lead. Both may be lost."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from scheduler.model.view import Change, Row, View


class ViewUnavailableError(Exception):
    """The view cannot be reached or read: no Redis, or no valid view in it. Try later; nothing is lost."""


class SetAside(msgspec.Struct, frozen=True):
    """A key that had a wrong type or unreadable contents and was renamed."""

    key: str
    found: str
    """The type that it had, or `unreadable`."""
    record: bytes = b""
    """As it is listed until its event is committed."""


class ViewCache(Protocol):
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

    def read_kept(self) -> dict[str, Reservation]:
        """The reservations that are kept, ended ones too, whether the view is valid or not: a restore looks there for
        what the database lost. Rows that cannot be read are left out.
        """

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

    def set_aside_wrong_keys(self) -> list[SetAside]:
        """Rename the keys that have a wrong type or unreadable contents, so that they are made again. After a key of
        the view was renamed, there is no valid view until the next rebuild. What this call renamed.
        """

    def list_set_aside(self) -> list[SetAside]:
        """What any process renamed, without what `forget_set_aside` was given. The oldest are dropped beyond 100."""

    def forget_set_aside(self, records: Sequence[SetAside]) -> None:
        """List these no more."""

    def publish_time(self, now: float) -> None:
        """Publish cluster time, for processes that open no database: they take it from here, and carry it on."""

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


class LeaderLock(Protocol):
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

    def seconds_until_free(self) -> float:
        """After how long whoever holds it loses it if it is not renewed; 0 when nobody holds it."""

    def seconds_left(self) -> float:
        """How much of the lock's time is left since the last successful take or renewal *began*, by this
        process's monotonic clock; 0 when it is not held.
        """
