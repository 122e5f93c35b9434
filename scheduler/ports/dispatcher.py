"""The port that sends slow work and callbacks to the queues."""

from collections.abc import Sequence
from typing import Protocol

from scheduler.model.slots import Slot
from scheduler.ports.store import OutboxMessage


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
