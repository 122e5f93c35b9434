"""Measure the guard of a host's commands: `python -m bench.commands [--count 50] [--seconds 20]`.

It prints (1) the time from the start of a command to its first line of output, which arrives in a named pipe, by the
guard and by `subprocess`; (2) memory (PSS) and CPU time of the guard and its keeper while commands run; (3) the rate at
which one command's output is kept.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Final
from uuid import uuid4

from leasehold.work import guard
from leasehold.work.guard_client import Exited, GuardClient
from testbed.processes import wait_for

QUIET: Final = ("sleep", "1000")


def read_pss(pid: int) -> float:
    """Return the memory of a process in MiB; pages that several processes share count in part."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def read_cpu(pid: int) -> float:
    """Return the CPU seconds of a process so far."""
    words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


class Bench:
    """A guard in a temporary folder, with one connection."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.client = GuardClient(folder / "guard")
        self.guard = self.client.connect().pid
        process = guard.find_process(self.guard)
        assert process is not None
        self.keeper = process.parent

    def start(self, argv: Sequence[str]) -> str:
        name = uuid4().hex
        (self._folder / name).mkdir()
        env = {"PATH": os.environ["PATH"], guard.TAG: name}
        self.client.send(
            {"do": "start", "id": name, "argv": argv, "env": env, "folder": str(self._folder / name)}
            | {"deadline": guard.read_boot_clock() + 1000}
        )
        return name

    def await_end(self, name: str) -> None:
        while not any(isinstance(each, Exited) and each.id == name for each in self.client.wait(1.0)):
            pass

    def close(self) -> None:
        self.client.send({"do": "end"})
        wait_for(lambda: guard.find_process(self.guard) is None, "the end of the guard")
        self.client.close()


def measure_starts(start: Callable[[], float], count: int) -> str:
    times = [start() * 1000 for _ in range(count)]
    return f"median {median(times):.1f} ms, 95 % {quantiles(times, n=20)[-1]:.1f} ms"


def start_by_guard(bench: Bench, fifo: Path) -> float:
    begin = time.perf_counter()
    name = bench.start(["sh", "-c", f"echo x > {fifo}"])
    with fifo.open(encoding="utf-8") as reader:
        reader.readline()
    took = time.perf_counter() - begin
    bench.await_end(name)
    bench.client.send({"do": "ack", "id": name})
    return took


def start_by_hand(fifo: Path) -> float:
    begin = time.perf_counter()
    with subprocess.Popen(["/bin/sh", "-c", f"echo x > {fifo}"], start_new_session=True):
        with fifo.open(encoding="utf-8") as reader:
            reader.readline()
        return time.perf_counter() - begin


def measure_load(bench: Bench, argv: Sequence[str], count: int, seconds: float) -> str:
    """Return memory and CPU of the guard and its keeper while `count` commands run."""
    names = [bench.start(argv) for _ in range(count)]
    wait_until = time.monotonic() + 2
    while time.monotonic() < wait_until:
        bench.client.wait(0.1)
    pids = (bench.guard, bench.keeper)
    before, begin = sum(map(read_cpu, pids)), time.monotonic()
    while time.monotonic() - begin < seconds:
        bench.client.wait(0.5)
    cpu = (sum(map(read_cpu, pids)) - before) / (time.monotonic() - begin)
    memory = [read_pss(pid) for pid in pids]
    for name in names:
        bench.client.send({"do": "kill", "id": name})
    for name in names:
        bench.client.send({"do": "ack", "id": name})
    left = set(names)
    while left:
        left -= {each.id for each in bench.client.wait(1.0) if isinstance(each, Exited)}
    for name in names:
        bench.client.send({"do": "ack", "id": name})
    return f"guard {memory[0]:.1f} MiB, keeper {memory[1]:.1f} MiB, {cpu:.2%} of a core"


def measure_rate(bench: Bench, mib: int) -> str:
    begin = time.monotonic()
    name = bench.start(["head", "-c", str(mib * 1024 * 1024), "/dev/zero"])
    bench.await_end(name)
    folder = bench._folder / name  # noqa: SLF001 - the bench's own class
    kept = sum((folder / each).stat().st_size for each in (guard.OUTPUT, guard.OLDER_OUTPUT)) / 1024 / 1024
    return f"{mib / (time.monotonic() - begin):.0f} MiB/s, {kept:.1f} MiB kept, guard {read_pss(bench.guard):.1f} MiB"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--starts", type=int, default=100)
    parser.add_argument("--mib", type=int, default=2048)
    options = parser.parse_args()
    print(f"{sys.version.split()[0]}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(prefix="bench-commands-") as name:
        bench, fifo = Bench(Path(name)), Path(name) / "fifo"
        os.mkfifo(fifo)
        try:
            print(f"start by the guard: {measure_starts(lambda: start_by_guard(bench, fifo), options.starts)}")
            print(f"start by subprocess: {measure_starts(lambda: start_by_hand(fifo), options.starts)}")
            print(f"no command: {measure_load(bench, QUIET, 0, options.seconds)}")
            print(f"{options.count} quiet commands: {measure_load(bench, QUIET, options.count, options.seconds)}")
            chatty = ["sh", "-c", "while true; do echo a line of output; sleep 1; done"]
            found = measure_load(bench, chatty, options.count, options.seconds)
            print(f"{options.count} commands with a line a second: {found}")
            print(f"output of {options.mib} MiB: {measure_rate(bench, options.mib)}")
        finally:
            bench.close()


if __name__ == "__main__":
    main()
