"""The time that a trace takes to simulate, and its growth with the number of jobs.

Must reach: three months of the NASA iPSC/860 log (18,239 jobs, gangs of up to 128 processors) in under 60 s on one
core, with under 1 GB; growth about linear in the jobs. `python -m bench.traces` runs generated logs of growing
length on 128 hosts of one processor and on launched machines of 32, there also with half of each job elastic.
`python -m bench.traces --one-cpu [JOBS]` runs generated jobs of one processor on up to 40 launched machines of 32: by
default 188,000 jobs in eleven days, in at most 120 s; fewer jobs come at the same rate. The same number of jobs always
gives the same log. `python -m bench.traces FILE [CONFIG [SHARE]]` runs a given log on 128 hosts of one processor or on
the fleet of a leasehold.toml, with that share of each job elastic.
"""

import gc
import random
import resource
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

from examples.make_nasa_like import DAY, SEED, USERS, Row, draw_around, format_row, make_log
from scheduler.simulation.cloud_documents import CloudDocument
from scheduler.simulation.fleet import make_fleet
from scheduler.simulation.trace import TracePlay
from scheduler.simulation.workload import read_workload
from workers.configuration import read_configuration

SIZES = (500, 1000, 2000)
HOSTS: dict[str, Any] = {
    "pools": {"nodes": {"system": "x", "provider": "static", "max_slots": 128, "resources": {"cpus": 1}}}
}
OFFERING = {"name": "c32", "price": 0.5, "resources": {"cpus": 32}}
MACHINES: dict[str, Any] = {
    "scheduler": {"elastic": "flexible"},
    "pools": {"nodes": {"system": "x", "max_slots": 4, "offerings": [OFFERING], "launch_for_elastic": True}},
}
FLEETS = (("128 hosts of 1", HOSTS, 0.0), ("4 machines of 32", MACHINES, 0.0), ("4 of 32, half elastic", MACHINES, 0.5))
LAUNCHED: dict[str, Any] = {"pools": {"nodes": {"system": "x", "max_slots": 40, "offerings": [OFFERING]}}}
ONE_CPU_JOBS = 188_000
ONE_CPU_DAYS = 11
ONE_CPU_RUN = (1_800.0, 1.0)
"""Run times of the jobs of one processor: the median in seconds, and the spread of its logarithm."""
CLOUD = CloudDocument(launch=2, boot=60, bind=10, terminate=30)


def measure(path: Path, document: dict[str, Any], cloud: CloudDocument, share: float) -> tuple[int, int, float]:
    """Jobs that ended, ticks, and seconds of processor time of the play."""
    fleet = make_fleet(document, cloud)
    play = TracePlay(read_workload(path, fleet.most_processors, skip_bad=True), fleet, share)
    gc.collect()
    began = process_time()
    play.play()
    seconds = process_time() - began
    summary = play.sum_up()
    assert summary.finished + summary.skipped == summary.jobs
    return summary.finished, summary.ticks, seconds


def print_result(name: str, path: Path, document: dict[str, Any], cloud: CloudDocument, share: float = 0.0) -> None:
    """Measure one log and print a line."""
    jobs, ticks, seconds = measure(path, document, cloud, share)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{name:<24} {jobs:>7,} jobs {ticks:>8,} ticks {seconds:>8.1f} s"
        f" {seconds / jobs * 1000:>7.2f} ms a job {seconds / ticks * 1000:>7.2f} ms a tick {memory:>6.0f} MiB at most",
        flush=True,
    )


def measure_growth() -> None:
    """Generated logs, each twice as long as the one before."""
    with TemporaryDirectory(prefix="leasehold-bench-") as folder:
        path = Path(folder) / "log.swf"
        for name, document, share in FLEETS:
            for jobs in SIZES:
                path.write_text(make_log(jobs=jobs), encoding="utf-8")
                print_result(name, path, document, CLOUD, share)


def make_one_cpu_log(jobs: int) -> str:
    """Return a log of this number of jobs of one processor, which come at an even rate. The use of 1,280 processors is
    about a half.
    """
    rng = random.Random(SEED)
    seconds = ONE_CPU_DAYS * DAY * jobs / ONE_CPU_JOBS
    submits = sorted(int(rng.random() * seconds) for _ in range(jobs))
    rows = [
        Row(at, max(1, round(draw_around(rng, *ONE_CPU_RUN))), 1, rng.randint(1, USERS), application=1)
        for at in submits
    ]
    return "".join(f"{format_row(number, row)}\n" for number, row in enumerate(rows, start=1))


def measure_one_cpu(jobs: int) -> None:
    """Jobs of one processor on launched machines."""
    with TemporaryDirectory(prefix="leasehold-bench-") as folder:
        path = Path(folder) / "log.swf"
        path.write_text(make_one_cpu_log(jobs), encoding="utf-8")
        print_result("40 machines of 32", path, LAUNCHED, CLOUD)


def is_share(word: str) -> bool:
    """Whether it is a number from 0 to 1."""
    return word.replace(".", "", 1).isdigit() and float(word) <= 1


def main() -> None:
    """Growth, or one log."""
    match sys.argv[1:]:
        case []:
            measure_growth()
        case ["--one-cpu", *rest] if len(rest) <= 1 and all(each.isdigit() and int(each) for each in rest):
            measure_one_cpu(*map(int, rest or [str(ONE_CPU_JOBS)]))
        case [log] if not log.startswith("-"):
            print_result("128 hosts of 1", Path(log), HOSTS, CLOUD)
        case [log, config, *rest] if not log.startswith("-") and len(rest) <= 1 and all(map(is_share, rest)):
            found = read_configuration(Path(config))
            print_result(Path(config).name, Path(log), found.rules_document, found.cloud, *map(float, rest))
        case _:
            sys.exit("usage: python -m bench.traces [LOG [CONFIG [SHARE]] | --one-cpu [JOBS]]")


if __name__ == "__main__":
    main()
