"""The delay of a request whose first copies are lost, compared with a request that arrives.

Must reach: at most the client's pause before each lost copy, plus one tick.
`python -m bench.resend --json` prints the figures as JSON.
"""

import json
import sys
from statistics import median
from typing import Any

from bench._stack import open_stack, time_lease
from leasehold.client.backoff import Backoff
from leasehold.client.client import Client
from leasehold.client.redis.exchange import LONGEST_RESEND_SECONDS, RESEND_SECONDS
from leasehold.client.redis.lines import Commands, Lines

ROUNDS = 10
MOST_LOST = 2
"""Copies of a request that are lost before one arrives."""


class LossyWire:
    """Throws away the first copies of every request, as a broker does that dies at the wrong moment."""

    def __init__(self, lines: Lines) -> None:
        self._ask = lines.ask
        self.lost = 0
        """How many of the coming copies vanish."""
        lines.ask = self.ask  # type: ignore[method-assign]

    async def ask(self, commands: Commands, seconds: float) -> list[Any]:
        """Send the commands, without the message if it is to be lost."""
        if self.lost > 0 and commands[0][0] == "LPUSH":
            self.lost -= 1
            commands = [("PING",), *commands[1:]]
        return await self._ask(commands, seconds)


def measure(client: Client, wire: LossyWire) -> dict[int, list[float]]:
    """The delays by how many copies were lost; the kinds take turns, so that each meets the same load."""
    time_lease(client)
    found: dict[int, list[float]] = {lost: [] for lost in range(MOST_LOST + 1)}
    for _ in range(ROUNDS):
        for lost, delays in found.items():
            wire.lost = lost
            delays.append(time_lease(client))
    return found


def longest_pauses(copies: int) -> float:
    """The seconds until this many copies are sent after the first message, when chance shortens no pause."""
    backoff = Backoff(RESEND_SECONDS, LONGEST_RESEND_SECONDS, draw=lambda: 0.0)
    return sum(backoff.take() for _ in range(copies))


def main() -> None:
    """Measure all in one run."""
    with open_stack(slots=2, leases_per_slot=4) as (stack, client):
        settings = stack.configuration.settings
        core: Any = client._core  # noqa: SLF001 - this client's messages are to get lost
        wire = LossyWire(core._wire.view)  # noqa: SLF001 - as above
        found = measure(client, wire)
        interval = settings.ticks.interval
    base = median(found[0])
    rows = [
        {
            "lost": lost,
            "median": median(delays),
            "longest": max(delays),
            "over_undisturbed": max(delays) - base,
            "allowed": longest_pauses(lost) + interval,
        }
        for lost, delays in found.items()
    ]
    if "--json" in sys.argv:
        print(json.dumps({"rounds": ROUNDS, "resend_seconds": RESEND_SECONDS, "tick_seconds": interval, "rows": rows}))
        return
    for row in rows:
        print(
            f"{row['lost']} copies lost: median {row['median']:6.3f} s, longest {row['longest']:6.3f} s;"
            f" {row['over_undisturbed']:6.3f} s over the undisturbed median, {row['allowed']:g} s are allowed"
        )


if __name__ == "__main__":
    main()
