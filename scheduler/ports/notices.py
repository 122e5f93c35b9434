"""The port that reads the cloud's notices about machines before their end."""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

INTERRUPTION_SECONDS = 120.0


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """A notice about one machine: it will be interrupted, or it has a higher risk of interruption than others."""

    machine: str
    kind: Literal["interruption", "rebalance"]
    at: float
    """When the cloud sent the notice, by the cloud's clock."""

    @property
    def gone_at(self) -> float:
        """Return when an interrupted machine is gone: two minutes after its notice.

        Source: EC2, "Spot interruption notices".
        """
        return self.at + INTERRUPTION_SECONDS


class Message(msgspec.Struct, frozen=True):
    """One message of the feed: the receipt that deletes it, and its notice (None: a message that we do not handle)."""

    receipt: str
    notice: Notice | None


class NoticeFeed(Protocol):
    """Interruption and rebalance notices from a queue that delivers each at least once, in any order.

    Both methods may raise CloudError.
    """

    def receive(self, wait_seconds: float = 0.0) -> list[Message]:
        """Return up to one batch of messages, as soon as one is there; [] when none arrived within `wait_seconds`.

        A message that is not deleted is delivered again after a while.
        """

    def delete(self, receipts: Sequence[str]) -> None:
        """Delete these messages. Receipts that were deleted already, or delivered again, are ignored."""
