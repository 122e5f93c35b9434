"""What it takes to start each process of the Procfile and two short commands, and the memory of the processes.

Each process starts alone, with a Redis of its own and a new SQLite database: a worker is ready when it has answered a
canary task, beat when it has written its file, Flower and the metrics process when they accept connections. CPU times
and memory include child processes. Memory is read a second after the process was ready: `uss` is the memory that only
this process and its children have, `rss` counts libraries on disk that they share in each of them. Of `--rounds` starts
the one with the least CPU time counts; the start before them fills the caches of Python's bytecode.
"""

import argparse
import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import NamedTuple

from leasehold.canaries import Canaries
from leasehold.client.redis.transport import RequestTransport
from leasehold.stack.programs import find_procfile, read_procfile
from scheduler.protocol.names import QUEUE_NAMES
from scheduler.store.migrating import migrate
from testbed.guarding import take_signals_as_interrupts
from testbed.servers import start_own_redis

ROOT = Path(__file__).parents[1]
COMMANDS = {"leasehold --help": ("--help",), "leasehold status": ("status",), "leasehold list": ("list",)}
PEAK = """
import sys
from leasehold.cli.program import run_safely
run_safely(sys.argv[1:])
sys.stderr.write(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])
"""
READY_SECONDS = 60.0
SETTLING_SECONDS = 1.0
POLL_SECONDS = 0.005
Check = Callable[[], bool]


class Cost(NamedTuple):
    """What one start took: seconds until it was ready (of a command: until it ended), and MiB."""

    wall: float
    cpu: float
    uss: float
    rss: float


def list_family(pid: int) -> list[int]:
    """Return the process and all its descendants."""
    found = [pid]
    for each in found:
        with suppress(OSError):
            for task in Path(f"/proc/{each}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def read_cpu(pid: int) -> float:
    """Return the seconds of CPU time of this process, all its threads, and its children that have ended."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def read_memory(pid: int) -> tuple[float, float]:
    """Return the MiB that only this process has, and those that it shares as well."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {name: int(rest.split()[0]) / 1024 for name, _, rest in (line.partition(":") for line in lines)}
    return sizes["Private_Clean"] + sizes["Private_Dirty"], sizes["Rss"]


def measure_start(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, make_check: Callable[[], Check]
) -> Cost:
    """Start a process, wait until it is ready, and end it."""
    is_ready = make_check()
    began = monotonic()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=dict(environment), stdout=log, stderr=log)
    try:
        while not is_ready():
            assert process.poll() is None, (folder / "log").read_text()
            assert monotonic() - began < READY_SECONDS, f"{command} is not ready in time"
            sleep(POLL_SECONDS)
        wall, family = monotonic() - began, list_family(process.pid)
        cpu = sum(map(read_cpu, family))
        sleep(SETTLING_SECONDS)
        memory = [read_memory(pid) for pid in list_family(process.pid)]
    finally:
        process.terminate()
        process.wait()
    return Cost(wall, cpu, sum(uss for uss, _ in memory), sum(rss for _, rss in memory))


def measure_command(words: Sequence[str], environment: Mapping[str, str], folder: Path) -> Cost:
    """Run a command of the command line to its end, twice. Its memory is its peak, which the second one writes down."""
    began = monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "leasehold.cli", *words],
        cwd=folder,
        env=dict(environment),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, _, used = os.wait4(process.pid, 0)
    process.returncode, wall = 0, monotonic() - began
    # The peak that the kernel reports to the parent includes the parent's own memory at the fork.
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *words],
        cwd=folder,
        env=dict(environment),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    peak = int(done.stderr.splitlines()[-1]) / 1024
    return Cost(wall, used.ru_utime + used.ru_stime, peak, peak)


def listens(port: int) -> bool:
    """Return whether a process accepts connections at this port."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def find_port() -> int:
    """Return a free port."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port: int = listener.getsockname()[1]
        return port


class Bench:
    """Starts the programs of the Procfile one after the other, in one folder."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self._folder, self._wire = folder, RequestTransport(redis_url)
        self._beat, self._alive = folder / "beat", folder / "alive"
        self._ports = {name: find_port() for name in ("flower", "console", "metrics")}
        database = f"sqlite:///{folder / 'bench.db'}"
        migrate(database)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LEASEHOLD_")},
            "PYTHONPATH": str(ROOT),
            "PYTHONSAFEPATH": "1",
            "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
            "PYTHONDONTWRITEBYTECODE": "",
            "LEASEHOLD_BROKER__URL": redis_url,
            "LEASEHOLD_DATABASE__URL": database,
            "LEASEHOLD_AWS__REGION": "us-east-1",
            "LEASEHOLD_AWS__ACCESS_KEY_ID": "bench",
            "LEASEHOLD_AWS__SECRET_ACCESS_KEY": secrets.token_hex(8),
            **{f"LEASEHOLD_{name.upper()}__PORT": str(port) for name, port in self._ports.items()},
            "LEASEHOLD_CELERY__BEAT_FILE": str(self._beat),
            "LEASEHOLD_CELERY__ALIVE_FILE": str(self._alive),
        }

    def close(self) -> None:
        """Close the connection."""
        self._wire.close()

    def make_check(self, name: str) -> Check:
        """Return a function that returns whether the process of this name, which starts now, is ready."""
        if name in QUEUE_NAMES:
            self._wire.redis.delete(name)
            canaries = Canaries(self._wire)
            canaries.send([name])
            return lambda: canaries.answered(name)
        if name == "beat":
            self._beat.unlink(missing_ok=True)
            return self._beat.exists
        if name == "foresight":
            self._alive.unlink(missing_ok=True)
            return self._alive.exists
        return lambda: listens(self._ports[name])

    def run(self, rounds: int, only: Sequence[str]) -> Iterator[tuple[str, Cost]]:
        """Yield the name and the cost of each process and command."""
        programs = read_procfile(find_procfile().read_text(encoding="utf-8"))
        starts: dict[str, Callable[[], Cost]] = {
            each.name: lambda each=each: measure_start(  # type: ignore[misc]
                (*each.command, *(("--local",) if each.name in {"flower", "console"} else ())),
                self.environment,
                self._folder,
                lambda: self.make_check(each.name),
            )
            for each in programs
        }
        starts |= {
            name: lambda words=words: measure_command(words, self.environment, self._folder)  # type: ignore[misc]
            for name, words in COMMANDS.items()
        }
        for name, start in starts.items():
            if not only or name in only:
                start()
                costs = [start() for _ in range(rounds)]
                yield name, min(costs, key=lambda cost: cost.cpu)


@contextmanager
def open_bench() -> Iterator[Bench]:
    """Open a bench with a new Redis and a new database."""
    take_signals_as_interrupts()
    with TemporaryDirectory(prefix="leasehold-bench-") as folder:
        server = start_own_redis(Path(folder))
        try:
            with closing(Bench(Path(folder), server.url)) as bench:
                yield bench
        finally:
            server.stop()


def main() -> None:
    """Measure each process and print a table."""
    parser = argparse.ArgumentParser(description="Start time and memory of each process and of short commands.")
    parser.add_argument("names", nargs="*", help="names of the Procfile, or commands; default: all")
    parser.add_argument("--rounds", type=int, default=3, help="starts of each process, of which the cheapest counts")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    found = {}
    with open_bench() as bench:
        for name, cost in bench.run(options.rounds, options.names):
            found[name] = cost._asdict()
            if not options.json:
                print(
                    f"{name:<20}{cost.wall:>8.2f} s until ready{cost.cpu:>8.2f} s of CPU"
                    f"{cost.uss:>8.1f} MiB alone{cost.rss:>8.1f} MiB with shared pages",
                    flush=True,
                )
    if options.json:
        json.dump(found, sys.stdout, indent=2)


if __name__ == "__main__":
    main()
