"""The time of one page of each list of the HTTP API: `python -m bench.http_lists [RESERVATIONS...]`.

The server is the console's process, on a view of a tenth as many slots and a history with as many events. Printed are
the wall time of a page and the CPU time of the server, for each number of reservations (default: 10,000 and 100,000).
"""

import json
import statistics
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlencode

from bench.console import Console, make_rows, run_console, wait_for_view
from scheduler.model.events import Event
from scheduler.protocol.http_routes import API
from scheduler.store.migrating import migrate
from scheduler.store.opening import open_store
from scheduler.view.connection import make_redis
from scheduler.view.redis_view_cache import RedisViewCache
from workers.embedded_redis import find_redis_server, start_redis

PAGES: Final = 40
EVENTS_A_WRITE: Final = 1000


def main() -> None:
    """Run the bench and print its figures."""
    for reservations in [int(each) for each in sys.argv[1:]] or [10_000, 100_000]:
        with TemporaryDirectory(prefix="leasehold-bench-") as name:
            folder, binary = Path(name), find_redis_server()
            assert binary is not None
            (folder / "redis").mkdir()
            server = start_redis(folder / "redis", binary=binary)
            try:
                measure(folder, server.url, reservations)
            finally:
                server.stop()


def measure(folder: Path, redis_url: str, reservations: int) -> None:
    """Fill the view and the history, start the server, and print a line for each list."""
    database = f"sqlite:///{folder / 'bench.db'}"
    migrate(database)
    RedisViewCache(make_redis(redis_url)).rebuild(make_rows(reservations // 10, reservations))
    write_events(database, reservations)
    with run_console(folder, redis_url) as console:
        wait_for_view(console)
        for name, path in list_paths(console, reservations):
            report(f"{reservations:>7,} {name}", console, path)


def write_events(database: str, count: int) -> None:
    """Write a history with this number of events."""
    with closing(open_store(database)) as store:
        for begin in range(0, count, EVENTS_A_WRITE):
            numbers = range(begin, min(begin + EVENTS_A_WRITE, count))
            with store.transaction() as transaction:
                transaction.append_events([make_event(number) for number in numbers])


def make_event(number: int) -> Event:
    """Return an event about one of the reservations."""
    return Event(at=float(number), name="reservation_submitted", cause="holder", reservation=f"r-{number}")


def list_paths(console: Console, reservations: int) -> Iterator[tuple[str, str]]:
    """Yield the name and the path of each page."""
    middle = reservations // 2
    yield "reservations, first page", "/reservations"
    yield "reservations, middle page", f"/reservations?{urlencode({'cursor': find_cursor(console, middle)})}"
    yield "reservations of one account", "/reservations?account=team-3"
    yield "reservations, 1000 a page", "/reservations?limit=1000"
    yield "reservations, one by its tag", f"/reservations?tag.build={middle}"
    yield "slots, first page", "/slots"
    yield "slots of one pool", "/slots?pool=linux3"
    yield "events, oldest", "/events"
    yield "events, after the middle", f"/events?after={middle}"
    yield "events of one reservation", f"/events?reservation=r-{middle}"


def find_cursor(console: Console, number: int) -> str:
    """Return the cursor after at least `number` reservations."""
    query: dict[str, Any] = {"limit": 1000}
    for _ in range(number // 1000):
        query["cursor"] = json.loads(fetch(console, f"/reservations?{urlencode(query)}")[0])["next"]
    return str(query["cursor"])


def fetch(console: Console, path: str) -> tuple[bytes, float]:
    """Return the body of a page of the API, and the seconds until it was complete."""
    return console.fetch(f"{API}{path}", encoding="identity")


def report(name: str, console: Console, path: str) -> None:
    """Print the times of one page."""
    before = console.cpu_seconds()
    found = [fetch(console, path) for _ in range(PAGES)]
    cpu = (console.cpu_seconds() - before) / PAGES
    times = sorted(each for _, each in found)
    items = len(json.loads(found[-1][0])["items"])
    print(
        f"{name:<40} p50 {1000 * statistics.median(times):6.1f} ms  p95 {1000 * times[int(0.95 * PAGES)]:6.1f} ms"
        f"  CPU {1000 * cpu:6.1f} ms  {items} items, {len(found[-1][0]) / 1000:.0f} kB",
        flush=True,
    )


if __name__ == "__main__":
    main()
