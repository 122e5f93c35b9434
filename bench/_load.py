"""What `bench.targets` measures through Celery on a whole stack.

`python -m bench._load bulk [--postgresql] [--count N] [--many N] [--seconds N]` prints, as JSON, rates of intake, of
leases, of releases and of renewals. `python -m bench._load idle [--rounds N]` prints the milliseconds of an idle lease.
"""

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from statistics import median, quantiles
from time import perf_counter
from typing import Any

from bench._stack import open_stack, time_lease
from bench.intake import rate_of_intake
from bench.latency import WARM_UP, time_no_op
from bench.throughput import SLOTS, lease_many
from leasehold.client.client import Client
from leasehold.client.redis.transport import RequestTransport
from leasehold.stack import Stack
from scheduler.ports import Store
from testbed.postgresql_server import open_postgresql

WARM_UP_COUNT = 200

Held = dict[str, int | None]
"""Reservations with the fencing tokens of their leases."""


def measure_bulk(count: int, many: int, rounds: int, seconds: float, database_url: str | None) -> dict[str, Any]:
    """Return the rates of one database, in reservations a second: medians of the rounds."""
    most = -(-(WARM_UP_COUNT + count * rounds + many) // SLOTS)
    with open_stack(slots=SLOTS, leases_per_slot=most, database_url=database_url) as (stack, client):
        return measure_leases(stack, client, count, many, rounds, seconds)


def measure_leases(stack: Stack, client: Client, count: int, many: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Return the rates of leases, renewals and releases. The leases are renewed again and again for `seconds`."""
    store = stack.open_store()
    lease_many(client, store, WARM_UP_COUNT, 0)
    leased = [count / lease_many(client, store, count, number + 1)["leased"] for number in range(rounds)]
    _show(f"{count:,} leases: " + ", ".join(f"{rate:,.0f}/s" for rate in leased))
    held = list_held(store, count)
    renewed = [_rate(client.renew_many, held) for _ in range(rounds)]
    renewed_on = renew_on(client, held, seconds)
    released = [_rate(client.release_many, list_held(store, count)) for _ in range(rounds)]
    _show(f"renewals {median(renewed):,.0f}/s, slowest {min(renewed_on):,.0f}/s")
    _show(f"releases {', '.join(f'{rate:,.0f}/s' for rate in released)}")
    lease_rate = many / lease_many(client, store, many, rounds + 1)["leased"]
    store.close()
    return {
        "lease": median(leased),
        "lease_many": lease_rate,
        "renew": median(renewed),
        "renew_on": min(renewed_on),
        "release": median(released),
    }


def renew_on(client: Client, held: Held, seconds: float) -> list[float]:
    """Renew all these leases again and again for `seconds`. Return the renewals a second of each call."""
    until, rates = perf_counter() + seconds, [_rate(client.renew_many, held)]
    while perf_counter() < until:
        rates.append(_rate(client.renew_many, held))
    _show(f"{len(rates)} calls of {len(held):,} renewals: median {median(rates):,.0f}/s, slowest {min(rates):,.0f}/s")
    return rates


def list_held(store: Store, count: int) -> Held:
    """Return some leased reservations with their tokens."""
    rows = store.find_reservations(phases=["leased"], limit=count)
    return {row.id: row.token for row in rows}


def measure_intake(count: int, rounds: int, database_url: str | None) -> float:
    """Return the reservations a second that one call has accepted: the median of the rounds."""
    with open_stack(slots=1, leases_per_slot=1, database_url=database_url) as (_, client):
        rate_of_intake(client, 0, WARM_UP_COUNT)
        rates = [rate_of_intake(client, number + 1, count) for number in range(rounds)]
    _show(f"intake of {count:,}: " + ", ".join(f"{rate:,.0f}/s" for rate in rates))
    return median(rates)


def measure_idle(rounds: int, database_url: str | None) -> dict[str, float]:
    """Return the milliseconds of an idle lease, and those of a Celery task on the same stack."""
    with open_stack(slots=4, leases_per_slot=4, database_url=database_url) as (stack, client):
        view = stack.configuration.settings.view
        wire = RequestTransport(stack.url, view.prefix, stack.configuration.settings.view_url)
        for _ in range(WARM_UP):
            time_lease(client)
            time_no_op(wire)
        leases = [time_lease(client) for _ in range(rounds)]
        no_ops = [time_no_op(wire) for _ in range(rounds)]
        wire.close()
    ours, raw = (quantiles(each, n=100, method="inclusive") for each in (leases, no_ops))
    return {"p50": ours[49] * 1000, "p99": ours[98] * 1000, "no_op": raw[49] * 1000}


def _rate(act: Callable[[Held], Any], held: Held) -> float:
    began = perf_counter()
    answers = act(held)
    seconds = perf_counter() - began
    assert all(answer.ok for answer in answers)
    return len(held) / seconds


def _show(text: str) -> None:
    print(f"- {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Measure what the command line asks for, and print it as JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench._load", description="Rates and waits through Celery.")
    parser.add_argument("what", choices=("bulk", "idle"))
    parser.add_argument("--postgresql", action="store_true", help="on PostgreSQL; default: SQLite")
    parser.add_argument("--count", type=int, default=10_000, help="reservations in one call; default: %(default)s")
    parser.add_argument("--many", type=int, default=100_000, help="the same, for one large call; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, or single leases; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=60.0, help="of renewals without a pause; default: %(default)s")
    options = parser.parse_args()
    if options.what == "idle":
        with open_postgresql() if options.postgresql else nullcontext() as url:
            json.dump(measure_idle(options.rounds, url), sys.stdout)
        return
    with open_postgresql() if options.postgresql else nullcontext() as url:
        found = {"intake": measure_intake(options.count, options.rounds, url)}
    with open_postgresql() if options.postgresql else nullcontext() as url:
        found |= measure_bulk(options.count, options.many, options.rounds, options.seconds, url)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
