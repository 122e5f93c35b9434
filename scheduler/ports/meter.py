"""Counters and durations, for a metrics process to read; refused messages, until they are events in the database."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, Protocol

import msgspec

Defect = Literal["envelope", "task", "arguments", "document", "address", "signature"]
"""What is wrong with a refused message: its envelope, headers or body; the task that it names; the number or types of
its arguments; the content of its document, where no place for an answer is named; the place for the answer; its
signature (missing where one is required, not valid, or of a principal whose role does not allow the task).
"""
MOST_REFUSED: Final = 10
"""Refused messages with the same kind of defect that are noted in a minute, over all processes; all are counted."""
REFUSED_SECONDS: Final = 60
MOST_KEPT: Final = 1000
"""Noted messages that are kept until they are taken; the oldest ones are dropped."""


class RefusedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was refused without an answer: where it came from, and its first fault. No secrets, no body."""

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
    """How many faults it has beside this one."""


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

    def note_refused(self, refused: RefusedMessage) -> None:
        """Count a refused message, and keep it for `take_refused` unless MOST_REFUSED with its kind of defect were
        kept within REFUSED_SECONDS. Needs no database; a lost note is no harm.
        """

    def take_refused(self) -> list[RefusedMessage]:
        """The refused messages that were kept, oldest first; each is taken by one process only. [] without Redis."""

    def put_back_refused(self, refused: Sequence[RefusedMessage]) -> None:
        """Keep again what was taken and could not be written."""
