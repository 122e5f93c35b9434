"""What a lost message costs its client: the delay of a request whose first copies vanish, beside one that arrives.

Must reach: at most the client's pause before each copy that is lost, plus one tick.
`python -m bench.resend --json` prints the figures as JSON.
"""

import json
import sys
from collections.abc import Mapping
from statistics import median
from time import time
from typing import Any

from bench._stack import open_stack, time_lease
from leasehold.client.backoff import Backoff
from leasehold.client.client import Client
from leasehold.client.exchange import LONGEST_RESEND_SECONDS, RESEND_SECONDS
from leasehold.client.transport import RequestTransport

ROUNDS = 10
MOST_LOST = 2
"""Copies of a request that vanish before one arrives."""


class LossyWire(RequestTransport):
    """Throws away the first copies of every request, as a broker does that dies at the wrong moment."""

    lost = 0
    """How many of the coming copies vanish."""

    def send(self, verb: str, document: Mapping[str, Any], patience: float | None = None) -> float:
        """Send it, or lose it."""
        if self.lost > 0:
            self.lost -= 1
            return time()
        return super().send(verb, document, patience)


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
        wire = LossyWire(stack.url, settings.view.prefix, settings.view_url)
        client._wire.close()  # noqa: SLF001 - this client's messages are to get lost
        client._wire = wire  # noqa: SLF001 - as above
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
