"""A stack for benches: one pool of warm slots, in a folder that is removed again."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter, sleep
from typing import Any

from leasehold.client.client import Client
from leasehold.stack import Stack
from testbed.guarding import take_signals_as_interrupts

SYSTEM = "bench"


@contextmanager
def open_stack(slots: int, leases_per_slot: int, database_url: str | None = None) -> Iterator[tuple[Stack, Client]]:
    """A running stack whose `slots` slots are all ready, and a client of it; on SQLite where no database is named.

    SIGTERM ends it in order.
    """
    pool = {
        "system": SYSTEM,
        "min_slots": slots,
        "max_slots": slots,
        "max_leases_per_slot": leases_per_slot,
        "ec2": {"image": "ami-0123456789abcdef0"},
    }
    with open_stack_with({"bench": pool}, database_url) as (stack, client):
        await_slots(client, slots)
        yield stack, client


@contextmanager
def open_stack_with(
    pools: Mapping[str, Mapping[str, Any]], database_url: str | None = None
) -> Iterator[tuple[Stack, Client]]:
    """A running stack with these pools, and a client of it. SIGTERM ends it in order."""
    take_signals_as_interrupts()
    with TemporaryDirectory(prefix="leasehold-bench-", ignore_cleanup_errors=True) as folder:
        config = _write_configuration(Path(folder), database_url)
        with (
            Stack(Path(folder), config=config, rules={"pools": pools}, emulator={"boot_seconds": 0.1}) as stack,
            stack.client() as client,
        ):
            yield stack, client


def await_slots(client: Client, slots: int) -> None:
    """Return when the view has this many ready slots."""
    until = monotonic() + 60
    while len(client.slots(state="ready")) < slots:
        assert monotonic() < until, "the slots do not get ready"
        sleep(0.1)


def _write_configuration(folder: Path, database_url: str | None) -> Path:
    """The stack's own file, as an operator writes it."""
    path = folder / "leasehold.toml"
    path.write_text(f"[database]\nurl = {json.dumps(database_url)}\n" if database_url else "")
    return path


def time_lease(client: Client) -> float:
    """Seconds from the call of `reserve` to the return of `wait`; then it is released."""
    began = perf_counter()
    reservation = client.reserve(system=SYSTEM)
    leased = client.wait(reservation.id, timeout=60)
    took = perf_counter() - began
    client.release(leased.id, leased.token)
    return took


def show_quantiles(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """Print p50, p95 and p99 in milliseconds, and give them back."""
    cuts = quantiles(seconds, n=100, method="inclusive")
    found = {"p50": cuts[49] * 1000, "p95": cuts[94] * 1000, "p99": cuts[98] * 1000}
    print(f"{name:<42}" + "".join(f"{key} {value:7.1f} ms   " for key, value in found.items()))
    return found
