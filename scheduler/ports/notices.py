"""What the cloud says ahead of a machine's end, and the queue that it says it in."""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

INTERRUPTION_SECONDS = 120.0


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """What the cloud says ahead of one machine: that it will be taken, or that it is at a higher risk than others."""

    machine: str
    kind: Literal["interruption", "rebalance"]
    at: float
    """When the cloud said so, by its own clock."""

    @property
    def gone_at(self) -> float:
        """When an interrupted machine is gone: two minutes after the notice (EC2, "Spot interruption notices")."""
        return self.at + INTERRUPTION_SECONDS


class Message(msgspec.Struct, frozen=True):
    """One message of the feed: what to delete it by, and the notice in it; None: it is none of ours to heed."""

    receipt: str
    notice: Notice | None


class NoticeFeed(Protocol):
    """Interruption and rebalance notices, from a queue that gives each at least once, in no particular order.

    Both methods may raise CloudError.
    """

    def receive(self, wait_seconds: float = 0.0) -> list[Message]:
        """A handful of messages, as soon as there is one; [] when none came in time. A message that is not deleted
        comes again after a while.
        """

    def delete(self, receipts: Sequence[str]) -> None:
        """These messages are done with; one that is deleted already, or was given out again, is no error."""
