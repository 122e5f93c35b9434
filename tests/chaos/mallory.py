"""A hostile producer: it has its own key and access to Redis, and sends what its role does not permit.

The checker reports each event that its messages caused (`find_violations`).
"""

import random
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Final
from uuid import uuid4

from leasehold.client.credentials import Credentials
from leasehold.client.redis.transport import RequestTransport
from scheduler.ports import StoredPrincipal
from scheduler.protocol.signing import make_key, read_key

NAME: Final = "mallory"
FOREIGN: Final = "stolen"
"""Prefix of the ids of reservations that are submitted under another principal's name."""
GUESSES: Final = 50
"""Number of guessed fencing tokens in one message."""

Sender = Callable[[str, dict[str, Any]], object]


class Mallory:
    """A sender of hostile messages to the broker at `url`. It never waits for an answer."""

    def __init__(self, url: str, own: StoredPrincipal, victim: str, dice: random.Random) -> None:
        self._url, self._dice, self._victim = url, dice, victim
        self._own = Credentials(NAME, read_key(own.key))
        self._forged = Credentials(victim, read_key(make_key()))

    def attack(self, reservations: Sequence[str], slots: Sequence[str]) -> str:
        """Send one or several hostile messages, and return a description of them."""
        reservation, slot = self._dice.choice(reservations), self._dice.choice(slots)
        by, credentials = self._dice.choice([("signed", self._own), ("forged", self._forged), ("unsigned", None)])
        verb, documents = self._dice.choice(list(self._list_attempts(reservation, slot).items()))
        if by != "signed" and self._dice.random() < 0.2:
            verb, documents = "submit", [{"id": f"{FOREIGN}-{uuid4().hex}", "system": "single"}]
        with closing(RequestTransport(self._url, credentials=credentials)) as wire:
            for document in documents:
                wire.send(verb, {"request": uuid4().hex, **document})
        return f"{by} {verb} about {reservation} and {slot}"

    def _list_attempts(self, reservation: str, slot: str) -> dict[str, list[dict[str, Any]]]:
        """Return verb -> documents about a reservation or slot of another principal."""
        first = self._dice.randrange(1, 1000)
        guesses = [{"reservation": reservation, "token": token} for token in range(first, first + GUESSES)]
        plain: list[dict[str, Any]] = [{"reservation": reservation}]
        return {
            "release": [{"items": guesses}],
            "surrender": [{"items": guesses}],
            "fail": [{"items": guesses}],
            "decline": [{"items": guesses}],
            "cancel": plain,
            "suspend": plain,
            "priority": [{"reservation": reservation, "priority": 0}],
            "absent": plain,
            "confirm": [{"reservation": reservation, "token": first, "slot": slot}],
            "idle": [{"slot": slot}],
            "cordon": [{"slot": slot}],
            "drain": [{"slot": slot}],
            "remove": [{"slot": slot}],
            "register": [{"slot": slot, "pool": "single", "machine": NAME}],
            "leave": [{"slot": slot, "machine": NAME}],
            "account": [{"account": NAME, "balance": [1e9]}],
        }
