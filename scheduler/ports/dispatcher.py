"""Slow work and callbacks on their way to the queues."""

from collections.abc import Sequence
from typing import Protocol

from scheduler.model.slots import Slot
from scheduler.ports.store import OutboxMessage


class Dispatcher(Protocol):
    """Sends the slow work to its queues, after commit. A message lost is sent again by `recover`."""

    def send_launches(self, slots: Sequence[Slot]) -> None:
        """Ask the launch queue to carry out these slots' launches."""

    def send_terminations(self, slots: Sequence[Slot]) -> None:
        """Ask the terminate queue to end the machines of these slots, in these epochs."""

    def send_checks(self, slots: Sequence[str]) -> None:
        """Ask the health queue to look at these slots."""

    def send_callback(self, outgoing: OutboxMessage) -> None:
        """Send a callback to its task and queue; raises ConnectionError when the broker did not take it."""

    def wake_at(self, due: float | None, now: float) -> None:
        """Have a tick sent at `due` (None: at no particular time); replaces what was asked before."""
