"""The time of `reserve` over HTTP beside the Celery client's, on one running stack, in turns.

Must reach: the p50 over HTTP is at most 3 ms above the Celery client's.

The HTTP API is the stack's own: the process `python -m leasehold.console`, which uvicorn serves.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, process_time
from typing import Final

from bench._stack import SYSTEM, open_stack, show_quantiles
from leasehold.client.client import Client
from leasehold.stack import Stack
from leasehold.stack.configuration import TOKEN_VARIABLE

ROUNDS: Final = 400
WARM_UP: Final = 30
MOST_ADDED_MS: Final = 3.0


@contextmanager
def open_http(stack: Stack) -> Iterator[Client]:
    """A client of this stack over HTTP."""
    token = Path(stack.configuration.environment[TOKEN_VARIABLE]).read_text(encoding="utf-8").strip()
    with Client(stack.urls["console"], token=token) as client:
        yield client


def time_reserve(client: Client) -> tuple[float, float]:
    """Seconds of one `reserve`, and the seconds of the processor that this process spent on it. The reservation is
    cancelled afterwards.
    """
    began, spent = perf_counter(), process_time()
    found = client.reserve(system=SYSTEM, priority=0)
    taken = perf_counter() - began, process_time() - spent
    client.cancel(found.id)
    return taken


def read_cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure both in turns. The processor time of the server covers a `reserve` and a `cancel`."""
    with open_stack(slots=2, leases_per_slot=1) as (stack, celery), open_http(stack) as http:
        for _ in range(WARM_UP):
            time_reserve(celery)
            time_reserve(http)
        server = stack.pids()["console"]
        before = read_cpu_seconds(server)
        pairs = [(time_reserve(celery), time_reserve(http)) for _ in range(ROUNDS)]
        spent_by_server = (read_cpu_seconds(server) - before) / ROUNDS
    ours = show_quantiles("reserve by a Celery message", [first for (first, _), _ in pairs])
    other = show_quantiles("reserve over HTTP", [second for _, (second, _) in pairs])
    show_quantiles("  processor time of the client, Celery", [spent for (_, spent), _ in pairs])
    show_quantiles("  processor time of the client, HTTP", [spent for _, (_, spent) in pairs])
    print(f"{'processor time of the server for two requests':<48}{spent_by_server * 1000:.1f} ms")
    added = other["p50"] - ours["p50"]
    print(f"{'added by HTTP, p50':<42}{added:.2f} ms (must: at most {MOST_ADDED_MS:g} ms)")


if __name__ == "__main__":
    main()
