"""The part of the store that holds the commands of reservations and their runs."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from scheduler.model.runs import Execution, StoredCommand


class RunWrites(Protocol):
    """The methods of a transaction that read and write commands and their runs. The rows belong to their reservation:
    lock it by `load_reservations` before its runs are read for writing. They are deleted with the reservation.
    """

    def save_commands(self, rows: Sequence[StoredCommand]) -> None:
        """Store the commands of reservations that this transaction has inserted."""

    def load_commands(self, reservations: Iterable[str]) -> dict[str, str]:
        """Return the commands of these reservations as JSON texts. Reservations without a command are missing."""

    def load_executions(self, reservations: Iterable[str]) -> list[Execution]:
        """Return the runs of the commands of these reservations, by reservation, time of the take and component."""

    def save_executions(self, rows: Sequence[Execution]) -> None:
        """Insert or replace runs of commands."""


class RunReads(Protocol):
    """The methods of a store that read commands and their runs, without locking."""

    def find_command(self, reservation: str) -> str | None:
        """Return the command of a reservation as JSON text; None: the reservation has none."""

    def find_executions(self, reservation: str) -> list[Execution]:
        """Return the runs of the command of a reservation, by time of the take and component."""
