"""The view of a simulation: one process publishes and reads it, so the view is stored once."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from scheduler.model.view import Change, Row, View
from scheduler.model.waits import NO_WAITS, Waits
from scheduler.ports import SetAside, ViewUnavailableError


class SimulatedViewCache:
    """The ViewCache of a simulation. Published changes are kept in order until the next tick applies them to the view.

    Unlike in Redis, ended reservations and deleted rows leave the view at once, so an id may be used again.
    """

    def __init__(self) -> None:
        self._view: View | None = None
        self._changes: list[Change] = []
        """The changes that were published since the last call of `catch_up`."""
        self._report: dict[str, Any] = {}

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
        """Return whether there is a view: it is its own copy. See ViewCache."""
        return self._view is not None

    def read_kept(self) -> dict[str, Reservation]:
        """Return the reservations of the view. See ViewCache."""
        view = self.catch_up()
        return {} if view is None else dict(view.reservations)

    def read_reservations(self, ids: Iterable[str]) -> dict[str, Reservation]:
        """Return the reservations with these ids that the view has. See ViewCache."""
        known = self._read().reservations
        return {id_: known[id_] for id_ in ids if id_ in known}

    def read_slots(self, ids: Iterable[str]) -> dict[str, Slot]:
        """Return the slots with these ids that the view has. See ViewCache."""
        known = self._read().slots
        return {id_: known[id_] for id_ in ids if id_ in known}

    def _read(self) -> View:
        view = self.catch_up()
        if view is None:
            raise ViewUnavailableError("there is no view yet: the first tick builds it")
        return view

    def set_aside_wrong_keys(self) -> list[SetAside]:
        """Return []: a simulation has no Redis keys. See ViewCache."""
        return []

    def list_set_aside(self) -> list[SetAside]:
        """Return []: a simulation has no Redis keys. See ViewCache."""
        return []

    def forget_set_aside(self, records: Sequence[SetAside]) -> None:
        """Do nothing: a simulation has no Redis keys. See ViewCache."""

    def publish_time(self, now: float) -> None:
        """Do nothing: a simulation has one clock. See ViewCache."""

    def write_report(self, report: Mapping[str, Any], waits: Waits = NO_WAITS) -> None:
        """Store the report of the last tick, and the reservations that wait. See ViewCache."""
        self._report = {**report, "waiting": {name: list(reason) for name, reason in waits.items()}}

    def read_report(self) -> dict[str, Any]:
        """Return the report of the last tick; {} before the first tick. See ViewCache."""
        return dict(self._report)
