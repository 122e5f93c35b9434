"""Compare rigid, malleable, flexible and yielding: `python -m examples.flexible`; `--help` lists the options.

This repeats the comparison of the paper on the flexible heuristic (Pace, Venzano, Carra, Michiardi, arXiv
1611.09528) on a workload like theirs, with the simulator, and so with the plan and the operations of production.
Must reach: under `size`, at loads of 0.8 and 0.9, a mean turnaround that is less under `flexible` than under
`malleable`, and less there than under `rigid`. `--write` writes the results to docs/explanation/flexible.md, with
its picture (needs the extra `plot`).
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from time import monotonic

import msgspec

from examples.flexible.figures import Case, Figures, measure
from examples.flexible.page import draw, list_table, write_page
from examples.flexible.play import Setting
from examples.flexible.workload import SIZES

ELASTIC = ("rigid", "malleable", "flexible", "yielding")
QUEUES = ("fifo", "size")
STUDIES = ("loads", "sizes", "preemption")
"""All settings under `fifo` and `size`; other meanings of size; the second mix, with and without preemption."""
LOAD_OF_OTHERS = 0.9
"""The load of the studies other than `loads`."""
PAGE, PICTURE = Path("docs/explanation/flexible.md"), Path("docs/explanation/flexible.png")


def list_cases(asked: Namespace) -> Iterator[Case]:
    """Return the cases of one seed after the other, so that an early end leaves complete comparisons."""
    for seed, study in product(range(asked.seeds), asked.studies):
        mix = "interactive" if study == "preemption" else "batch"
        loads = asked.loads if study == "loads" else [LOAD_OF_OTHERS]
        for load, setting in product(loads, list_settings(study, asked.queues, backfill=asked.backfill)):
            yield Case(study, load, setting, seed, asked.machines, asked.applications, mix)


def list_settings(study: str, queues: Sequence[str], *, backfill: bool) -> Iterator[Setting]:
    """Return the settings that a study compares. `queues`: the queues of the study over loads."""
    match study:
        case "loads":
            for queue, elastic in product(queues, ELASTIC):
                yield Setting(elastic, queue, backfill=backfill)
        case "sizes":
            for size, elastic in product(SIZES[1:], ELASTIC):
                yield Setting(elastic, "size", size, backfill=backfill)
        case _:
            for queue in ("size", "priority"):
                for elastic in ELASTIC:
                    yield Setting(elastic, queue, backfill=backfill)
                yield Setting("flexible", queue, preemption=True, backfill=backfill)


def play_all(cases: Sequence[Case], jobs: int) -> Iterator[Figures]:
    """Return the figures of each case as soon as it has ended. Print the progress to the error output."""
    began = monotonic()
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(measure, case) for case in cases]
        for number, done in enumerate(as_completed(waiting), start=1):
            yield done.result()
            left = (monotonic() - began) / number * (len(cases) - number)
            print(f"\r{number} of {len(cases)} plays, {left:.0f} s left ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def read_all(path: Path) -> list[Figures]:
    """Figures that `--json` printed."""
    return [msgspec.json.decode(line, type=Figures) for line in path.read_text(encoding="utf-8").splitlines()]


def read_arguments() -> Namespace:
    """Return the command line's options."""
    parser = ArgumentParser(prog="python -m examples.flexible", description=__doc__)
    parser.add_argument("--machines", type=int, default=2, help="of 32 cores and 128 GiB (default: 2)")
    parser.add_argument("--applications", type=int, default=100, help="of each seed (default: 100)")
    parser.add_argument("--seeds", type=int, default=10, help="workloads to play (default: 10)")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.8, 0.9, 1.0], help="default: 0.8 0.9 1.0")
    parser.add_argument("--queues", nargs="+", choices=QUEUES, default=list(QUEUES), help="default: fifo size")
    parser.add_argument("--studies", nargs="+", choices=STUDIES, default=["loads"], help="default: loads")
    parser.add_argument(
        "--backfill", action="store_true", help="skip reservations that do not fit (the paper does not)"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--json", action="store_true", help="print a line with the figures of each run, not the table")
    parser.add_argument("--read", type=Path, metavar="FILE", help="read such lines from a file and run nothing")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE} and {PICTURE}")
    return parser.parse_args()


def main() -> None:
    """Run the cases and print or write the figures."""
    asked = read_arguments()
    figures = []
    for each in read_all(asked.read) if asked.read else play_all(list(list_cases(asked)), asked.jobs):
        figures.append(each)
        if asked.json:
            print(msgspec.json.encode(each).decode(), flush=True)
    if not asked.json:
        print("\n".join(list_table(figures)))
    if asked.write:
        PAGE.write_text(write_page(figures), encoding="utf-8")
        draw(figures, PICTURE)


if __name__ == "__main__":
    main()
