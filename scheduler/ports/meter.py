"""Counters and durations, for a metrics process to read."""

from collections.abc import Mapping, Sequence
from typing import Protocol


class Meter(Protocol):
    """Counters and durations of the processes, added up where a metrics process can read them."""

    def count(self, name: str, labels: Mapping[str, str], amount: float = 1) -> None:
        """Add to a counter; a lost count is no harm."""

    def observe(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """Add one observation to a histogram."""

    def observe_all(self, name: str, labels: Mapping[str, str], values: Sequence[float]) -> None:
        """Add many observations to a histogram at once; of none nothing is written."""

    def note_probes(self, slots: Sequence[str], at: float) -> None:
        """The machines of these slots answered, or EC2 answered for them, at that time: the last time stands."""
