"""Submit to leased on a ready slot, as the client's `wait()` sees it, compared with a raw Celery task on the same
broker; then the hops of the way, with what each adds.

Must reach: p50 at most 10 ms, p99 at most 40 ms.
"""

import secrets
from collections.abc import Callable
from time import perf_counter

from bench._hops import show_hops
from bench._stack import SYSTEM, open_stack, show_quantiles, time_lease
from leasehold.client.client import Client
from leasehold.client.transport import RequestTransport

ROUNDS = 300
HOP_ROUNDS = 100
WARM_UP = 20


def time_no_op(wire: RequestTransport) -> float:
    """Seconds from sending a task that does nothing to its answer."""
    address = f"{wire.prefix}reply:bench-{secrets.token_hex(6)}"
    began = perf_counter()
    wire.send_canary("reservations", address)
    assert wire.redis.blpop([address], timeout=30)
    return perf_counter() - began


def lease_once(client: Client) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return two functions: one takes a lease and waits for it, the other releases what is held."""
    held: list[tuple[str, int]] = []

    def lease() -> None:
        found = client.wait(client.reserve(system=SYSTEM).id, timeout=60)
        held.append((found.id, found.token))

    def release() -> None:
        while held:
            client.release(*held.pop())

    return lease, release


def main() -> None:
    """Measure both in one run, and then the hops."""
    with open_stack(slots=4, leases_per_slot=4) as (stack, client):
        view = stack.configuration.settings.view
        wire = RequestTransport(stack.url, view.prefix, stack.configuration.settings.view_url)
        for _ in range(WARM_UP):
            time_lease(client)
            time_no_op(wire)
        leases = [time_lease(client) for _ in range(ROUNDS)]
        no_ops = [time_no_op(wire) for _ in range(ROUNDS)]
        wire.close()
        hops = show_hops(stack.url, view.prefix, HOP_ROUNDS, *lease_once(client))
    ours = show_quantiles("submit to leased on a ready slot", leases)
    raw = show_quantiles("a Celery no-op, there and back", no_ops)
    print(f"{'ratio':<42}p50 {ours['p50'] / raw['p50']:7.1f}      p99 {ours['p99'] / raw['p99']:10.1f}")
    print(hops)


if __name__ == "__main__":
    main()
