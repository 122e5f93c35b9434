"""The port for kicks, notices and answers: short messages to processes that wait for them."""

from collections.abc import Mapping
from typing import Any, Protocol


class ForeignAddressError(ValueError):
    """An answer's address is not one of the reply addresses. Nothing was written."""


class Notifier(Protocol):
    """Kicks and notices are hints that make things quick. A lost one costs time, never correctness."""

    def kick(self) -> None:
        """Request a tick. The first call sends a message; further calls within two seconds send none.

        Raises what sending raised; then the next call sends. Callers that sent no message because of a kick that
        failed rely on the periodic tick.
        """

    def hear(self) -> None:
        """Note that a tick has begun. Later kicks request another one."""

    def notify(self, reservation: str, notice: Mapping[str, Any]) -> None:
        """Publish a notice on this reservation's channel. The channel may have no subscribers."""

    def push(self, news: Mapping[str, Mapping[str, Any]]) -> None:
        """Send a hint to each of these slots' hosts that the slot changed, so the host should ask for it. A hint may be
        lost.
        """

    def reply(self, address: str, answer: Mapping[str, Any]) -> None:
        """Write an answer to the reply address, where it is kept for a minute.

        `address` came from outside: raises ForeignAddressError unless it is one of the reply addresses.
        """
