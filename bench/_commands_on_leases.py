"""What `bench.commands` measures on a whole stack: commands on the leases of hosts."""

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter, sleep
from typing import Final

from bench._command_hosts import Host, await_all_ended, open_hosts, submit_many
from bench._stack import SYSTEM
from leasehold.client.client import Client
from testbed.processes import wait_for

WARM_UP: Final = 5
PAUSE_SECONDS: Final = 0.1
"""Pause after each start, so that the end of one command does not meet the start of the next one."""


def read_pss(pid: int) -> float:
    """Return the memory of a process in MiB; pages that several processes share count in part."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def read_cpu(pid: int) -> float:
    """Return the CPU seconds of a process so far."""
    words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def show_times(times: list[float]) -> str:
    """Return a median and a 95 % quantile in milliseconds as text."""
    return f"median {median(times) * 1000:.1f} ms, 95 % {quantiles(times, n=20)[-1] * 1000:.1f} ms"


@contextmanager
def open_fifo() -> Iterator[Path]:
    """The path of a named pipe, to which commands write their first line."""
    with TemporaryDirectory(prefix="bench-fifo-") as folder:
        fifo = Path(folder) / "fifo"
        os.mkfifo(fifo)
        yield fifo


def time_line(start: Callable[[list[str]], object], fifo: Path) -> float:
    """Return the seconds from a call of `start` with the arguments of a command to the first line of the command."""
    begin = perf_counter()
    start(["/bin/sh", "-c", f"echo x > {fifo}"])
    with fifo.open(encoding="utf-8") as reader:
        reader.readline()
    return perf_counter() - begin


def time_by_hand(fifo: Path) -> float:
    """Return the seconds from a call of `subprocess` to the first line of the command."""
    started: list[subprocess.Popen[bytes]] = []
    took = time_line(lambda argv: started.append(subprocess.Popen(argv, start_new_session=True)), fifo)
    started[0].wait()
    return took


def measure_submits(count: int) -> str:
    """Return the time from the submission of a command to its first line, and that of `subprocess`, in turns."""
    ours, by_hand = [], []
    with open_hosts(1, 1) as (stack, client, _), open_fifo() as fifo:
        for number in range(WARM_UP + count):
            took = time_line(lambda argv: _submit(client, argv), fifo)
            await_all_ended(stack)
            sleep(PAUSE_SECONDS)
            if number >= WARM_UP:
                ours.append(took)
                by_hand.append(time_by_hand(fifo))
    above = (median(ours) - median(by_hand)) * 1000
    return f"{show_times(ours)}; by subprocess {show_times(by_hand)}; {above:.1f} ms above it"


def _submit(client: Client, argv: list[str]) -> None:
    client.submit({"system": SYSTEM}, run={"argv": argv})


def measure_rate(hosts: int, count: int, at_once: int, rounds: int) -> str:
    """Return the rate of short commands: from their submission to the end of the last reservation."""
    rates = []
    with open_hosts(hosts, at_once) as (stack, client, _):
        # The guards start with the first commands.
        for number in range(rounds + 1):
            begin = perf_counter()
            submit_many(client, f"round-{number}", count, {"argv": ["/bin/true"]})
            await_all_ended(stack)
            rates.append(count / (perf_counter() - begin))
    shown = ", ".join(f"{each:.1f}/s" for each in rates[1:])
    return f"{shown}; with the start of the guards {rates[0]:.1f}/s"


def measure_agent(count: int, seconds: float) -> list[str]:
    """Return memory and CPU of an agent, its guard and its keeper, without and with `count` quiet commands."""
    with open_hosts(1, count) as (_, client, (host,)):
        sleep(seconds / 2)
        lines = [f"no command: {_measure_load({'agent': host.agent.pid}, seconds)}"]
        submit_many(client, "quiet", count, {"argv": ["/bin/sleep", "1000"]})
        wait_for(lambda: _count_running(host) >= count, "the commands")
        sleep(seconds / 2)
        guard, keeper = host.find_guard()
        lines.append(
            f"{count} quiet commands: "
            + _measure_load({"agent": host.agent.pid, "guard": guard, "keeper": keeper}, seconds)
        )
    return lines


def _count_running(host: Host) -> int:
    return host.agent.log.read_text(encoding="utf-8").count('"command_started"')


def _measure_load(pids: Mapping[str, int], seconds: float) -> str:
    before, begin = {name: read_cpu(pid) for name, pid in pids.items()}, monotonic()
    sleep(seconds)
    took = monotonic() - begin
    cpu = {name: (read_cpu(pid) - before[name]) / took for name, pid in pids.items()}
    memory = {name: read_pss(pid) for name, pid in pids.items()}
    shown = [f"{name} {memory[name]:.1f} MiB, {cpu[name]:.2%} of a core" for name in pids]
    if len(pids) > 1:
        shown.append(f"together {sum(memory.values()):.1f} MiB, {sum(cpu.values()):.2%}")
    return "; ".join(shown)
