"""`leasehold simulate` on fleets of growing size: the time and the memory of its process.

`python -m bench.simulation` plays a generated log on 1,000 and on 10,000 slots, ten jobs a slot; `--large` plays
1,000,000 jobs on 100,000 slots. Each play is a process of its own. `--help` lists the options.
"""

import json
import os
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter

SIZES = (1_000, 10_000)
LARGEST = 100_000
JOBS_A_SLOT = 10
MEAN_RUN_SECONDS = 3_600.0
"""Of the exponential distribution, before the longest run times are cut."""
LONGEST_RUN_SECONDS = 14_400
"""As a queue limits its jobs: otherwise the play ends with many ticks for a few long jobs."""
LOAD = 0.9
"""Share of the slots that the jobs use on average, while they arrive."""
USERS = 200
SEED = 20
CLOCK_SECONDS = 60
"""Submit and run times are multiples of this, as in logs that have whole minutes: each tick then has many changes."""


@dataclass(frozen=True)
class Figures:
    """One play: seconds on the clock and of processor time, the peak memory of the process, and what the play did."""

    slots: int
    jobs: int
    wall: float
    cpu: float
    peak_mib: float
    finished: int
    ticks: int


def list_jobs(slots: int, jobs: int, clock: int) -> Iterator[str]:
    """Yield the lines of a log in the Standard Workload Format: jobs of one processor, arrivals at random."""
    random = Random(SEED)
    rate = slots * LOAD / MEAN_RUN_SECONDS
    at = 0.0
    for number in range(1, jobs + 1):
        at += random.expovariate(rate)
        seconds = min(random.expovariate(1 / MEAN_RUN_SECONDS), LONGEST_RUN_SECONDS)
        run = max(clock, round(seconds / clock) * clock)
        user = random.randint(1, USERS)
        yield f"{number} {int(at / clock) * clock} -1 {run} 1 -1 -1 1 {run} -1 1 {user} 1 -1 -1 -1 -1 -1\n"


def write_files(folder: Path, slots: int, jobs: int, clock: int = CLOCK_SECONDS) -> tuple[Path, Path]:
    """Write the log and the configuration of its fleet into the folder, and return both paths."""
    log, config = folder / f"{jobs}.swf", folder / f"{slots}.toml"
    with log.open("w", encoding="ascii") as file:
        file.writelines(list_jobs(slots, jobs, clock))
    config.write_text(
        f'[pools.nodes]\nsystem = "x"\nprovider = "static"\nmax_slots = {slots}\nresources = {{ cpus = 1 }}\n',
        encoding="ascii",
    )
    return log, config


def play(slots: int, jobs: int, clock: int, folder: Path) -> Figures:
    """Play a generated log with `leasehold simulate`, and return what its process used."""
    log, config = write_files(folder, slots, jobs, clock)
    words = [sys.executable, "-m", "leasehold.cli", "simulate", str(log), "--config", str(config), "--json"]
    began = perf_counter()
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall = perf_counter() - began
    assert process.returncode == 0, f"leasehold simulate ended with status {process.returncode}"
    summary = json.loads(output)
    assert summary["finished"] == jobs, f"{summary['finished']} of {jobs} jobs finished"
    cpu = used.ru_utime + used.ru_stime
    return Figures(slots, jobs, wall, cpu, used.ru_maxrss / 1024, summary["finished"], summary["ticks"])


def show(figures: Figures) -> None:
    """Print one line."""
    print(
        f"{figures.slots:>8,} slots × {figures.jobs:>9,} jobs: {figures.wall:8.1f} s, {figures.cpu:8.1f} s of CPU, "
        f"{figures.cpu / figures.jobs * 1e3:6.2f} ms a job, {figures.ticks:>8,} ticks, {figures.peak_mib:7,.0f} MiB",
        flush=True,
    )


def main() -> None:
    """Play each size and print what it used."""
    parser = ArgumentParser(prog="python -m bench.simulation", description="Time and memory of `leasehold simulate`.")
    parser.add_argument("--slots", nargs="+", type=int, help="sizes of the fleet; default: 1000 10000")
    parser.add_argument("--jobs-a-slot", type=int, default=JOBS_A_SLOT, help="default: %(default)s")
    parser.add_argument(
        "--clock", type=int, default=CLOCK_SECONDS, help="all times are multiples; default: %(default)s"
    )
    parser.add_argument("--large", action="store_true", help="100,000 slots with 1,000,000 jobs, and nothing else")
    parser.add_argument("--files", type=Path, metavar="FOLDER", help="write the logs and fleets here, and play nothing")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    sizes = [LARGEST] if options.large else options.slots or list(SIZES)
    if options.files:
        for slots in sizes:
            write_files(options.files, slots, slots * options.jobs_a_slot, options.clock)
        return
    found = []
    for slots in sizes:
        with TemporaryDirectory(prefix="leasehold-bench-") as folder:
            found.append(play(slots, slots * options.jobs_a_slot, options.clock, Path(folder)))
        if not options.json:
            show(found[-1])
    if options.json:
        print(json.dumps([asdict(each) for each in found]))


if __name__ == "__main__":
    main()
