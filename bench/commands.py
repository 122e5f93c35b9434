"""Measure commands on leases: `python -m bench.commands [FIGURE...] [--count 50] [--seconds 20]`.

`submit`: the time from the submission of a command to its first line of output, which arrives in a named pipe, on a
stack with one ready host, and that of `subprocess`, in turns. Must reach: p50 30 ms above `subprocess`.
`rate`: 200 short commands on 20 hosts. Must reach: 60 a second.
`agent`: memory (PSS) and CPU time of an agent, its guard and its keeper with 50 quiet commands. Must reach: an agent
with 40 MiB and 1 % of a core.
`guard`: without a stack: (1) the time from the start of a command to its first line of output, by the guard and by
`subprocess`; (2) memory and CPU time of the guard and its keeper while commands run; (3) the rate at which a command's
output is kept.
`dask`: 50 Dask workers without nannies on leases, and the same by hand. It needs `distributed`: run it by
`build/integrations/bin/python` after `make integrations`. Must reach: 1.5 times the time by hand.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from uuid import uuid4

from bench import _commands_on_leases as on_leases
from bench._commands_on_leases import open_fifo, read_cpu, read_pss, show_times, time_by_hand, time_line
from leasehold.work import guard
from leasehold.work.guard_client import Exited, GuardClient
from testbed.processes import wait_for

QUIET: Final = ("sleep", "1000")


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


def measure_starts(bench: Bench, count: int) -> list[str]:
    """Return the time from the start of a command to its first line, by the guard and by `subprocess`, in turns."""
    ours, by_hand = [], []
    with open_fifo() as fifo:
        for _ in range(count):
            names: list[str] = []
            ours.append(time_line(lambda argv: names.append(bench.start(argv)), fifo))  # noqa: B023 - called at once
            bench.await_end(names[0])
            bench.client.send({"do": "ack", "id": names[0]})
            by_hand.append(time_by_hand(fifo))
    return [f"start by the guard: {show_times(ours)}", f"start by subprocess: {show_times(by_hand)}"]


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


def measure_guard(options: argparse.Namespace) -> Iterator[str]:
    """Yield the figures of a guard without a stack."""
    with tempfile.TemporaryDirectory(prefix="bench-commands-") as name:
        bench = Bench(Path(name))
        try:
            yield from measure_starts(bench, options.starts)
            yield f"no command: {measure_load(bench, QUIET, 0, options.seconds)}"
            yield f"{options.count} quiet commands: {measure_load(bench, QUIET, options.count, options.seconds)}"
            chatty = ["sh", "-c", "while true; do echo a line of output; sleep 1; done"]
            found = measure_load(bench, chatty, options.count, options.seconds)
            yield f"{options.count} commands with a line a second: {found}"
            yield f"output of {options.mib} MiB: {measure_rate(bench, options.mib)}"
        finally:
            bench.close()


def measure_dask(options: argparse.Namespace) -> Iterator[str]:
    """Yield the figures of Dask workers, if Dask is installed."""
    if find_spec("distributed") is None:
        yield "not measured: `distributed` is not installed"
        return
    from bench._dask_workers import measure_workers  # noqa: PLC0415 - as above

    yield measure_workers(options.hosts, options.count, options.rounds)


FIGURES: Final[Mapping[str, Callable[[argparse.Namespace], Iterable[str]]]] = {
    "submit": lambda options: [on_leases.measure_submits(options.starts)],
    "rate": lambda options: [on_leases.measure_rate(options.hosts, options.short, options.at_once, options.rounds)],
    "agent": lambda options: on_leases.measure_agent(options.count, options.seconds),
    "guard": measure_guard,
    "dask": measure_dask,
}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.commands", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"{', '.join(FIGURES)}; default: all")
    parser.add_argument("--count", type=int, default=50, help="quiet commands, or workers; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measured load; default: %(default)s")
    parser.add_argument("--starts", type=int, default=50, help="commands one after the other; default: %(default)s")
    parser.add_argument("--hosts", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--short", type=int, default=200, help="short commands in a round; default: %(default)s")
    parser.add_argument("--at-once", type=int, default=10, help="leases of a host; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--mib", type=int, default=2048, help="output of one command; default: %(default)s")
    options = parser.parse_args()
    # Without stored bytecode each process compiles its modules, which takes time and memory.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if unknown := set(options.figures) - set(FIGURES):
        parser.error(f"unknown figures: {', '.join(sorted(unknown))}")
    print(f"{sys.version.split()[0]}, {os.cpu_count()} cores, {os.getloadavg()[0]:.1f} processes ready to run")
    for name in options.figures or FIGURES:
        for line in FIGURES[name](options):
            print(f"{name}: {line}", flush=True)


if __name__ == "__main__":
    main()
