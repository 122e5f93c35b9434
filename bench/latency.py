"""Submit to leased on a ready slot, as the client's `wait()` sees it, compared with a raw Celery task on the same
broker; then the hops of the way, with what each adds.

Must reach: p50 at most 10 ms, p99 at most 40 ms.
"""

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from time import perf_counter, sleep, time

import redis

from bench._stack import SYSTEM, open_stack, show_quantiles, time_lease
from leasehold.client.client import Client
from leasehold.client.redis.transport import RequestTransport

# The hops of one idle lease, from the commands that Redis receives: when each begins, in milliseconds from the call.

HOPS = (
    ("the client sent the request", "LPUSH reservations "),
    ("the intake's main process took it", "HSET unacked "),
    ("the intake committed, and publishes", "EVALSHA *{prefix}view:building "),
    ("the intake kicks", "SET {prefix}kick "),
    ("the message for a tick is sent", "LPUSH ticks "),
    ("the answer is sent", "RPUSH {prefix}reply:"),
    ("the tick's process takes the lock", "SET {prefix}leader "),
    ("the tick reads the view", "XRANGE {prefix}view:deltas "),
    ("the tick committed, and publishes", "XADD {prefix}view:deltas "),
    ("the notice is sent", "PUBLISH {prefix}notice:"),
)
"""What each hop ends with: a name, and the start of the command that Redis then receives, or its start, `*`, and a text
that it contains. Each is searched after the one before it, but the answer, which is sent beside the tick.

The main process of the ticks has no hop: it gives a message to a process of its pool before it sends a command, and
stores the record of the message with later acknowledgements, or not at all.
"""
ASIDE = "the answer is sent"


PAUSE_SECONDS = 0.05
"""Pause after each round, so that the tick after the release does not meet the next lease."""


class Monitor:
    """The commands that a Redis receives, with their times, while the `with` block of `watch_commands` is open."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, str]] = []

    def read_hops(self, began: float, ended: float, prefix: str) -> dict[str, float]:
        """Return when each hop of the lease between these two times was reached, in seconds after `began`.

        A hop that was not seen is missing.
        """
        found: dict[str, float] = {}
        place = 0
        seen = [each for each in self.seen if began <= each[0] <= ended]
        for name, start in HOPS:
            wanted, _, inner = start.format(prefix=prefix).partition("*")
            for number in range(place, len(seen)):
                at, command = seen[number]
                if command.startswith(wanted) and inner in command:
                    found[name] = at - began
                    place = place if name == ASIDE else number + 1
                    break
        return found


@contextmanager
def watch_commands(url: str) -> Iterator[Monitor]:
    """Record the commands that this Redis receives, for the `with` block."""
    client, monitor = redis.Redis.from_url(url), Monitor()
    with client.monitor() as source:  # type: ignore[no-untyped-call]

        def listen() -> None:
            for command in source.listen():
                monitor.seen.append((command["time"], command["command"]))
                if command["command"] == "ECHO end-of-monitor":
                    return

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        yield monitor
        client.echo("end-of-monitor")
        thread.join(10)
    client.close()


def show_hops(url: str, prefix: str, rounds: int, lease: Callable[[], object], release: Callable[[], object]) -> str:
    """Take and release `rounds` leases, one after the other. Return a table of the median time of each hop and of what
    the hop adds.
    """
    spans: list[tuple[float, float]] = []
    with watch_commands(url) as monitor:
        for _ in range(rounds):
            began = time()
            lease()
            spans.append((began, time()))
            release()
            sleep(PAUSE_SECONDS)
    found = [monitor.read_hops(*span, prefix) for span in spans]
    lines = [f"{'hop of one lease (median), while Redis reports its commands':<66}{'at ms':>8}{'adds':>8}"]
    before = 0.0
    for name, _ in HOPS:
        times = [each[name] for each in found if name in each]
        if not times:
            continue
        at = median(times) * 1000
        lines.append(f"{name:<66}{at:>8.1f}" + ("" if name == ASIDE else f"{at - before:>8.1f}"))
        before = before if name == ASIDE else at
    total = median(ended - began for began, ended in spans) * 1000
    lines.append(f"{'the holder has the lease':<66}{total:>8.1f}{total - before:>8.1f}")
    return "\n".join(lines)


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
