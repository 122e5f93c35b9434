"""Submit to leased on a ready slot, as the client's `wait()` sees it, beside a raw Celery no-op on the same broker.

Must reach: p50 under 50 ms, p99 under 200 ms.
"""

import secrets
from time import perf_counter

from bench._stack import open_stack, show_quantiles, time_lease
from leasehold.client.transport import RequestTransport

ROUNDS = 300
WARM_UP = 20


def time_no_op(wire: RequestTransport) -> float:
    """Seconds from sending a task that does nothing to its answer."""
    address = f"{wire.prefix}reply:bench-{secrets.token_hex(6)}"
    began = perf_counter()
    wire.send_canary("reservations", address)
    assert wire.redis.blpop([address], timeout=30)
    return perf_counter() - began


def main() -> None:
    """Measure both in one run."""
    with open_stack(slots=4, leases_per_slot=4) as (stack, client):
        wire = RequestTransport(
            stack.url, stack.configuration.settings.view.prefix, stack.configuration.settings.view_url
        )
        for _ in range(WARM_UP):
            time_lease(client)
            time_no_op(wire)
        leases = [time_lease(client) for _ in range(ROUNDS)]
        no_ops = [time_no_op(wire) for _ in range(ROUNDS)]
        wire.close()
    ours = show_quantiles("submit to leased on a ready slot", leases)
    raw = show_quantiles("a Celery no-op, there and back", no_ops)
    print(f"{'ratio':<42}p50 {ours['p50'] / raw['p50']:7.1f}      p99 {ours['p99'] / raw['p99']:10.1f}")


if __name__ == "__main__":
    main()
