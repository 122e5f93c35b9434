"""The time that a trace takes to simulate, and its growth with the number of jobs.

Must reach: three months of the NASA iPSC/860 log (18,239 jobs, gangs of up to 128 processors) in under 60 s on one
core, with under 1 GB; growth about linear in the jobs. `python -m bench.traces` runs generated logs of growing
length on 128 hosts of one processor and on launched machines of 32, there also with half of each job elastic.
`python -m bench.traces FILE [CONFIG [SHARE]]` runs a given log on such hosts or on the fleet of a leasehold.toml,
with that share of each job elastic.
"""

import gc
import resource
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

from examples.make_nasa_like import make_log
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


def is_share(word: str) -> bool:
    """Whether it is a number from 0 to 1."""
    return word.replace(".", "", 1).isdigit() and float(word) <= 1


def main() -> None:
    """Growth, or one log."""
    match sys.argv[1:]:
        case []:
            measure_growth()
        case [log] if not log.startswith("-"):
            print_result("128 hosts of 1", Path(log), HOSTS, CLOUD)
        case [log, config, *rest] if len(rest) <= 1 and all(map(is_share, rest)):
            found = read_configuration(Path(config))
            print_result(Path(config).name, Path(log), found.rules_document, found.cloud, *map(float, rest))
        case _:
            sys.exit("usage: python -m bench.traces [LOG [CONFIG [SHARE]]]")


if __name__ == "__main__":
    main()
