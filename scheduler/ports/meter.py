"""The port for counters and durations, and for refused messages until they are stored as events."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, Protocol

import msgspec

Defect = Literal["envelope", "task", "arguments", "document", "address", "signature"]
"""What is wrong with a refused message.

envelope: its headers or body. task: the task name. arguments: their number or types. document: its content, when the
message has no reply address. address: the reply address. signature: missing although one is required, not valid, or of
a principal whose role does not allow the task.
"""
MOST_REFUSED: Final = 10
"""Refused messages with the same defect that are kept in REFUSED_SECONDS, over all processes. All are counted."""
REFUSED_SECONDS: Final = 60
MOST_KEPT: Final = 1000
"""Refused messages that are kept until `take_refused`. Beyond that the oldest ones are dropped."""


class RefusedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was refused without an answer: its origin and its first fault. Contains no secrets and no body."""

    at: float
    queue: str
    task: str
    message: str
    """Its Celery message id."""
    defect: Defect
    path: str
    expected: str
    got: str
    more_faults: int = 0
    """Number of its other faults."""


class Meter(Protocol):
    """Counters and durations of the processes, summed up for a metrics process. Lost values are acceptable."""

    def count(self, name: str, labels: Mapping[str, str], amount: float = 1) -> None:
        """Add `amount` to a counter."""

    def observe(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """Add one observation to a histogram."""

    def observe_all(self, name: str, labels: Mapping[str, str], values: Sequence[float]) -> None:
        """Add many observations to a histogram at once. An empty sequence writes nothing."""

    def note_probes(self, slots: Sequence[str], at: float) -> None:
        """Note that the machines of these slots answered at that time, or that EC2 reported them. Only the last time of
        each slot is kept.
        """

    def note_refused(self, refused: RefusedMessage) -> None:
        """Count a refused message, and keep it for `take_refused` unless MOST_REFUSED messages with the same defect
        were kept within REFUSED_SECONDS. Needs no database.
        """

    def take_refused(self) -> list[RefusedMessage]:
        """Return and remove the refused messages that were kept, oldest first. Only one process gets each. [] without
        Redis.
        """

    def put_back_refused(self, refused: Sequence[RefusedMessage]) -> None:
        """Keep these messages again. Used when they could not be written after `take_refused`."""
