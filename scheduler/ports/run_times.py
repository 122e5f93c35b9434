"""The part of the store that counts released leases into the run times of their classes, each of them once."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from scheduler.model.reservations import Reservation
from scheduler.model.run_times import RunTimes


class Counted(NamedTuple):
    """The last ended reservation that was counted. Reservations are counted in the order of the time at which they
    ended (`changed_at`), and of their `sequence` if these are equal.
    """

    ended_at: float = 0.0
    sequence: int = 0


class RunTimeWrites(Protocol):
    """The methods of a transaction that count released leases. Rows of run times are written by `save` and `delete`,
    only after `load_counted`, which no two transactions pass at the same time.
    """

    def load_counted(self) -> Counted:
        """Lock and return the last ended reservation that was counted. Call it before any row is locked."""

    def save_counted(self, counted: Counted) -> None:
        """Store that all reservations up to this one are counted. Call `load_counted` first."""

    def find_ended(self, after: Counted, before: float, limit: int) -> list[Reservation]:
        """Return up to `limit` reservations that follow `after` and ended before the time `before`, in the order in
        which they are counted. Locks nothing.
        """

    def load_run_times(self, ids: Iterable[str]) -> dict[str, RunTimes]:
        """Lock the run times of the classes with these ids and return them by id. Unknown ids are missing."""

    def find_surplus_run_times(self, kept: int) -> list[RunTimes]:
        """Return the rows of run times without the `kept` ones with the latest releases, the oldest release first.
        Locks nothing.
        """


class RunTimeReads(Protocol):
    """The method of a store that reads run times."""

    def find_run_times(self, ids: Sequence[str] | None = None) -> list[RunTimes]:
        """Return the run times of the classes with these ids (None: of all classes) in the order of their ids, without
        locking.
        """
