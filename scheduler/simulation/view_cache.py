"""The view cache of a simulation: the process that publishes the view also reads it, so one copy suffices."""

from collections.abc import Iterable, Sequence

from scheduler.model.reservations import Reservation
from scheduler.model.view import Change, Row, View
from scheduler.ports import ViewUnavailableError
from scheduler.view.memory import MemoryViewCache


class SimulatedViewCache(MemoryViewCache):
    """The ViewCache of a simulation. Published changes are kept in order until the next tick applies them to the view.

    Unlike in Redis, ended reservations and deleted rows leave the view at once, so an id may be used again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._changes: list[Change] = []
        """The changes that were published since the last call of `catch_up`."""

    def publish(self, changes: Sequence[Change]) -> bool:
        """Keep changed rows for the next `catch_up`. See ViewCache."""
        if self._view is None:
            return False
        self._changes += changes
        return True

    def catch_up(self) -> View | None:
        """Return the view with all published changes. See ViewCache."""
        if self._view is not None:
            for change in self._changes:
                self._view.apply(change)
            self._changes.clear()
        return self._view

    def load(self) -> View | None:
        """Return the view with all published changes: it is stored nowhere else. See ViewCache."""
        return self.catch_up()

    def rebuild(self, rows: Iterable[Row]) -> View:
        """Replace the view by these rows. See ViewCache."""
        self._changes.clear()
        self._view = View(rows)
        return self._view

    def matches_copy(self) -> bool:
        """Return whether there is a view. It has no second copy that could differ. See ViewCache."""
        return self._view is not None

    def read_kept(self) -> dict[str, Reservation]:
        """Return the reservations of the view. See ViewCache."""
        view = self.catch_up()
        return {} if view is None else dict(view.reservations)

    def _valid_rows(self, kind: str) -> dict[str, Row]:
        view = self.catch_up()
        if view is None:
            raise ViewUnavailableError("there is no view yet: the first tick builds it")
        return dict(view.rows(kind))
