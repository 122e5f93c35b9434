"""What the console costs: `python -m bench.console [SLOTS] [RESERVATIONS] [SECONDS]`.

A real Redis has a view of SLOTS slots and RESERVATIONS reservations. A publisher changes 100 slots a second, as a tick
does. The console runs in a process of its own with 20 open streams. Printed are the time of the first page, the delay
from the publish to the event in a stream, the CPU time of the console, the Redis commands that it causes, the sizes of
all assets of a page, and those of the wheels that the extra adds.

`python -m bench.console --pictures [SLOTS] [WAITING]` prints in place of that how long a browser needs for the first
picture of Fleet and of Reservations, and what the history of the last hour costs a tick and Redis.
"""

import argparse
import gzip
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from examples.browser import open_browser
from leasehold.console.app import STATIC
from leasehold.stack.configuration import find_free_port
from leasehold.web.token_file import TOKEN_FILE, write_token
from scheduler.model.history import SAMPLE_SECONDS, SAMPLES, take_sample
from scheduler.model.reservations import Lease, Request, Reservation
from scheduler.model.slots import Slot
from scheduler.model.view import View
from scheduler.model.waits import Waits
from scheduler.protocol.names import RedisNames
from scheduler.store.migrating import migrate
from scheduler.view.connection import make_redis
from scheduler.view.redis_view_cache import RedisViewCache
from workers.embedded_redis import find_redis_server, start_redis

STREAMS: Final = 20
CHANGES_A_SECOND: Final = 100
PAGES: Final = 30
PICTURE_LOADS: Final = 7
PICTURES: Final = {
    "/fleet": "document.documentElement.dataset.revision",
    "/reservations": "document.readyState === 'complete' && document.querySelector('main table tbody tr')",
}
"""Path of a page -> a JavaScript expression that is true when the page is drawn."""
_EVENT: Final = re.compile(rb"event: fleet\ndata: (.*)\n\n")


def main() -> None:
    """Run the bench and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", action="store_true")
    parser.add_argument("slots", nargs="?", type=int, default=10_000)
    parser.add_argument("reservations", nargs="?", type=int)
    parser.add_argument("seconds", nargs="?", type=float, default=20.0)
    given = parser.parse_args()
    if not given.pictures:
        print_assets()
        print_wheels()
    with TemporaryDirectory(prefix="leasehold-bench-") as name:
        folder, binary = Path(name), find_redis_server()
        assert binary is not None
        (folder / "redis").mkdir()
        server = start_redis(folder / "redis", binary=binary)
        try:
            if given.pictures:
                measure_pictures(folder, server.url, given.slots, given.reservations or 2_000)
            else:
                measure(folder, server.url, given.slots, given.reservations or 100_000, given.seconds)
        finally:
            server.stop()


def measure(folder: Path, redis_url: str, slots: int, reservations: int, seconds: float) -> None:
    """Fill the view, start the console, and print what it costs with and without open pages."""
    client = make_redis(redis_url)
    cache = RedisViewCache(client)
    rows = list(make_rows(slots, reservations))
    cache.rebuild(rows)
    fleet = [row for row in rows if isinstance(row, Slot)]
    with run_console(folder, redis_url) as console:
        began = time.monotonic()
        wait_for_view(console)
        print(f"the console has read the view after {time.monotonic() - began:.1f} s")
        with publishing(cache, fleet) as sent:
            time.sleep(2)  # the begin of the changes is not measured
            report("no page open", console, client, seconds)
            print_pages(console)
            streams = [Stream(console) for _ in range(STREAMS)]
            time.sleep(2)  # the opening of the streams is not measured
            for stream in streams:
                stream.delays.clear()
            report(f"{STREAMS} streams open", console, client, seconds)
            for stream in streams:
                stream.stop(sent)
        delays = sorted(delay for stream in streams for delay in stream.delays)
        p95 = delays[int(0.95 * len(delays))]
        print(
            f"from the publish to the event: p50 {1000 * statistics.median(delays):.0f} ms, p95 {1000 * p95:.0f} ms,"
            f" most {1000 * delays[-1]:.0f} ms ({len(delays)} changes in {STREAMS} streams)"
        )
        print_pages(console)
    client.close()


def measure_pictures(folder: Path, redis_url: str, slots: int, waiting: int) -> None:
    """Print the first pictures of pages in a browser, and the costs of the history of the last hour."""
    client = make_redis(redis_url)
    cache = RedisViewCache(client)
    rows, left = [], waiting
    for row in make_rows(slots, 2 * slots + waiting):
        if isinstance(row, Reservation) and row.phase == "pending":
            left -= 1
            if left < 0:
                continue
        rows.append(row)
    cache.rebuild(rows)
    names = [row.id for row in rows if isinstance(row, Reservation) and row.phase == "pending"]
    waits = Waits(names, [("no_capacity", "no slot is free")] * len(names))
    cache.write_report({"at": time.time(), "term": 1, "seconds": 0.1}, waits)
    print_history(View(rows), cache, waiting)
    print(f"  Redis: {client.memory_usage(RedisNames().history)} bytes")
    with run_console(folder, redis_url) as console:
        wait_for_view(console)
        with open_browser() as driver:
            driver.get(f"http://127.0.0.1:{console.port}/about?token={console.token}")
            for path, ready in PICTURES.items():
                print_pictures(driver, f"http://127.0.0.1:{console.port}{path}", path, ready)
    client.close()


def print_history(view: View, cache: RedisViewCache, waiting: int) -> None:
    """Print the CPU time of the samples of an hour, as a share of that hour."""
    begin, cpu = time.time() // SAMPLE_SECONDS * SAMPLE_SECONDS, time.process_time()
    for number in range(SAMPLES):
        cache.write_sample(take_sample(view, waiting, 1_000.5, begin - number * SAMPLE_SECONDS))
    spent = (time.process_time() - cpu) / SAMPLES
    print(f"a sample: {1000 * spent:.1f} ms of CPU, {100 * spent / SAMPLE_SECONDS:.2f} % of a core")


def print_pictures(driver: Any, url: str, path: str, ready: str) -> None:
    """Print the times of the first content and of the whole picture, in milliseconds since the begin of the load.
    `ready`: a JavaScript expression that is true when the page is drawn.
    """
    script = f"""const done = arguments[0];
      const look = () => {{
        if (!({ready})) return requestAnimationFrame(look);
        requestAnimationFrame(() => done([performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 0,
          performance.now()]));
      }};
      look();"""
    found = []
    for _ in range(PICTURE_LOADS):
        driver.get(url)
        found.append(driver.execute_async_script(script))
    first, whole = (sorted(each) for each in zip(*found, strict=True))
    middle = PICTURE_LOADS // 2
    print(f"{path}: first content {first[middle]:.0f} ms, drawn {whole[middle]:.0f} ms, most {whole[-1]:.0f} ms")


def make_rows(slots: int, reservations: int) -> Iterator[Slot | Reservation]:
    """Yield a fleet in five pools and three zones: most slots are ready, and four of five of these are leased."""
    for number in range(slots):
        state = "empty" if number % 10 == 0 else "booting" if number % 37 == 0 else "ready"
        yield Slot(
            version=1,
            id=f"linux{number % 5}-{number}",
            pool=f"linux{number % 5}",
            state=state,  # type: ignore[arg-type]
            zone=None if state == "empty" else f"us-east-1{'abc'[number % 3]}",
            epoch=1,
            resources={"cpus": 8.0, "memory_mib": 16000.0},
            price=0.1,
            instance_type="m5.2xlarge",
        )
    for number in range(reservations):
        slot = number % slots
        is_leased = number < 2 * slots and slot % 10 and slot % 37 and slot % 5
        request = Request(system="x86_64-linux", account=f"team-{number % 12}", tags={"build": str(number)})
        leases: tuple[Lease, ...] = ()
        if is_leased:
            lease = Lease(
                component="main",
                slot=f"linux{slot % 5}-{slot}",
                epoch=1,
                token=number + 1,
                resources={"cpus": 2.0, "memory_mib": 2000.0},
                assigned_at=1.0,
            )
            leases = (lease,)
        yield Reservation(
            version=1,
            id=f"r-{number}",
            sequence=number,
            created_at=1.0,
            phase="leased" if leases else "pending",
            request=request,
            leases=leases,
        )


class Console:
    """A running console: its port, token and process."""

    def __init__(self, port: int, token: str, process: "subprocess.Popen[bytes]") -> None:
        self.port, self.token, self.process = port, token, process

    def fetch(self, path: str, encoding: str = "gzip") -> tuple[bytes, float]:
        """Return the body of a page as it is sent, and the seconds until it was complete."""
        began = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {"Authorization": f"Bearer {self.token}", "Accept-Encoding": encoding}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        assert answer.status == 200, (path, answer.status)
        return body, time.perf_counter() - began

    def cpu_seconds(self) -> float:
        """Return the CPU time that the process has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def run_console(folder: Path, redis_url: str) -> Iterator[Console]:
    """Run the console in a process of its own."""
    database = f"sqlite:///{folder / 'bench.db'}"
    migrate(database)
    token, port = write_token(folder / TOKEN_FILE), find_free_port()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("LEASEHOLD_")},
        "LEASEHOLD_BROKER__URL": redis_url,
        "LEASEHOLD_DATABASE__URL": database,
        "LEASEHOLD_CONSOLE__PORT": str(port),
        "LEASEHOLD_CONSOLE__TOKEN_FILE": str(folder / TOKEN_FILE),
    }
    command = [sys.executable, "-m", "leasehold.console", "--local"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield Console(port, token, process)
    finally:
        process.terminate()
        process.wait(20)


def wait_for_view(console: Console) -> None:
    """Return when the console has read the view."""
    while True:
        with suppress(OSError, AssertionError):
            if console.fetch("/healthz")[0] == b"ok\n":
                return
        assert console.process.poll() is None
        time.sleep(0.05)


@contextmanager
def publishing(cache: RedisViewCache, fleet: list[Slot]) -> Iterator[dict[str, dict[int, float]]]:
    """Change CHANGES_A_SECOND slots a second, five in a publish. Yield when each slot got each version."""
    sent: dict[str, dict[int, float]] = {}
    ends = threading.Event()

    def run() -> None:
        number, due = 0, time.monotonic()
        while not ends.is_set():
            changed = []
            for _ in range(5):
                place = number * 7919 % len(fleet)
                slot = fleet[place]
                fleet[place] = msgspec.structs.replace(slot, version=slot.version + 1, cordoned=not slot.cordoned)
                changed.append(fleet[place])
                number += 1
            assert cache.publish(changed)
            now = time.monotonic()
            for slot in changed:
                sent.setdefault(slot.id, {})[int(slot.cordoned)] = now
            due += 5 / CHANGES_A_SECOND
            ends.wait(max(0.0, due - time.monotonic()))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield sent
    finally:
        ends.set()
        thread.join()


class Stream:
    """One open stream. It only reads; the delays are computed at the end, so that they cost nothing meanwhile."""

    def __init__(self, console: Console) -> None:
        self.delays: list[float] = []
        self._blocks: list[tuple[float, bytes]] = []
        self._connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=60)
        self._connection.request("GET", "/live?topic=fleet", headers={"Authorization": f"Bearer {console.token}"})
        self._answer = self._connection.getresponse()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self, sent: dict[str, dict[int, float]]) -> None:
        """Close the stream, and compute the delay of each change that is the last one of its slot in an event."""
        if self._connection.sock is not None:
            self._connection.sock.shutdown(2)
        self._thread.join(10)
        text = b"".join(block for _, block in self._blocks)
        ends, position = [], 0
        for at, block in self._blocks:
            position += len(block)
            ends.append((position, at))
        for found in _EVENT.finditer(text):
            at = next(at for end, at in ends if end >= found.end())
            for row in json.loads(found[1]).get("slots", []):
                published = sent.get(row[0], {}).get(row[4] & 1)
                if published is not None and self._began < published <= at:
                    self.delays.append(at - published)

    def _run(self) -> None:
        with suppress(OSError, ValueError, http.client.HTTPException):
            while block := self._answer.read1(65536):
                self._blocks.append((time.monotonic(), block))


def report(name: str, console: Console, client: Any, seconds: float) -> None:
    """Print the CPU time of the console and the Redis commands of all clients for some seconds."""
    before, commands = console.cpu_seconds(), count_commands(client)
    time.sleep(seconds)
    share = (console.cpu_seconds() - before) / seconds
    after = count_commands(client)
    shown = {name: (after[name] - commands.get(name, 0)) / seconds for name in after}
    listed = ", ".join(f"{name} {rate:.1f}" for name, rate in sorted(shown.items()) if rate >= 0.1)
    print(f"{name}: {100 * share:.1f} % of a core; Redis commands a second: {listed}")


def count_commands(client: Any) -> dict[str, int]:
    """Return how often Redis has run each command."""
    return {name.removeprefix("cmdstat_"): found["calls"] for name, found in client.info("commandstats").items()}


def print_pages(console: Console) -> None:
    """Print how long the first page and the document of all slots take, while slots change."""
    for path in ("/fleet", "/fleet/slots.json", "/fleet/table?text=r-77"):
        before = console.cpu_seconds()
        found = [console.fetch(path) for _ in range(PAGES)]
        cpu = (console.cpu_seconds() - before) / PAGES
        times = sorted(each for _, each in found)
        print(
            f"{path}: p50 {1000 * statistics.median(times):.0f} ms, p95 {1000 * times[int(0.95 * PAGES)]:.0f} ms,"
            f" CPU {1000 * cpu:.0f} ms, {len(found[-1][0]) / 1000:.0f} kB"
        )


def print_assets() -> None:
    """Print the sizes of the static files, compressed as they are sent."""
    sizes = {
        str(path.relative_to(STATIC)): len(gzip.compress(path.read_bytes(), 5, mtime=0))
        for path in sorted(STATIC.rglob("*"))
        if path.suffix in {".js", ".css", ".svg"}
    }
    print(f"all assets, compressed: {sum(sizes.values()) / 1000:.0f} kB: {sizes}")


def print_wheels() -> None:
    """Print the sizes of the wheels that the extra adds, if pip can fetch them."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
        libraries = ["starlette", "uvicorn", "jinja2", "markupsafe", "anyio", "idna", "h11"]
        if subprocess.run([*command, *libraries], check=False, capture_output=True).returncode:
            print("wheels: no package index can be reached")
            return
        sizes = {path.name: path.stat().st_size for path in sorted(Path(folder).iterdir())}
    print(f"wheels: {sum(sizes.values()) / 1000:.0f} kB: {sizes}")


if __name__ == "__main__":
    main()
