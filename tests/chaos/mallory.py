"""A hostile producer: it has a key of its own and access to Redis, and tries what its role does not allow.

The checker looks for what it did: `find_violations` names each event that its messages caused.
"""

import random
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Final
from uuid import uuid4

from leasehold.client.credentials import Credentials
from leasehold.client.transport import RequestTransport
from leasehold.common.signing import make_key, read_key
from scheduler.ports import StoredPrincipal

NAME: Final = "mallory"
FOREIGN: Final = "stolen"
"""What the ids of reservations begin with that are submitted in another principal's name."""
GUESSES: Final = 50
"""Fencing tokens in one message."""

Sender = Callable[[str, dict[str, Any]], object]


class Mallory:
    """Sends hostile messages to the broker at `url`. It never waits for an answer."""

    def __init__(self, url: str, own: StoredPrincipal, victim: str, dice: random.Random) -> None:
        self._url, self._dice, self._victim = url, dice, victim
        self._own = Credentials(NAME, read_key(own.key))
        self._forged = Credentials(victim, read_key(make_key()))

    def attack(self, reservations: Sequence[str], slots: Sequence[str]) -> str:
        """Send one hostile message, or several; what was tried, for people."""
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
        """The documents by verb: each is about what is not this principal's."""
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
