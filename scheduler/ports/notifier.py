"""Kicks, notices and answers: short words to whoever waits for them."""

from collections.abc import Mapping
from typing import Any, Protocol


class ForeignAddressError(ValueError):
    """An answer was to be put somewhere else than where the answers to requests go; nothing was written."""


class Notifier(Protocol):
    """Kicks and notices: hints that make things quick. Losing one costs time, never correctness."""

    def kick(self) -> None:
        """Ask for a tick; who asks first within two seconds sends the message, the others are spared it.

        Raises what sending it raised; from then on the next one to ask sends it. Those who were spared it meanwhile
        have the periodic tick.
        """

    def hear(self) -> None:
        """A tick has begun: kicks from now on ask for another."""

    def notify(self, reservation: str, notice: Mapping[str, Any]) -> None:
        """Tell those who wait on this reservation's channel; nobody listening is fine."""

    def push(self, news: Mapping[str, Mapping[str, Any]]) -> None:
        """Send news to hosts, by slot: something of it changed, so that the host looks. No host has to listen."""

    def reply(self, address: str, answer: Mapping[str, Any]) -> None:
        """Put an answer where the client waits for it; it is kept for a minute.

        `address` came from outside: raises ForeignAddressError unless it is one of the reply addresses.
        """
