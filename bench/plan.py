"""The tick's plan compared with two simple planners: `python -m bench.plan`; `--help` lists the options to measure a
part of it.

Must reach: 1,000 slots × 10,000 pending in under 50 ms, 10,000 × 100,000 in under 1.5 s cold, growth about linear in
slots + reservations, and the same assignments as the simple planners. Figures are seconds of this process' own time,
the best of a few rounds. Each fleet is planned in its own process, whose peak memory is printed. A simple planner is
tried on the next larger fleet as long as it is not expected to take longer than LOOP_SECONDS there.
"""

import json
import resource
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from time import process_time

from bench._carrying import list_churn, settle
from bench._fleets import FLEETS, Fleet
from bench._loops import LOOPS
from scheduler.model.decisions import Assign, Launch, Plan
from scheduler.model.view import View
from scheduler.operations.paused_gc import PausedGC
from scheduler.policy.cycle.work_budget import NEXT_TURN
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache

SIZES = (250, 500, 1_000, 2_000, 5_000, 10_000)
"""Slots; ten times as many reservations wait for them."""
PENDING_PER_SLOT = 10
LOOP_SECONDS = 60.0
"""A loop is not tried where it would take longer, growing with slots × reservations from the next smaller fleet."""
ROUNDS = 3
CHURN = 0.01
"""Share of the leased and of the pending reservations that is replaced from one tick to the next."""


@dataclass(frozen=True)
class Figures:
    """What was measured on one fleet of one size; a loop that was not tried has no figure."""

    fleet: str
    slots: int
    pending: int
    cold: float
    """Seconds of the first plan on a new view under new rules, in a new process."""
    best: float
    """Seconds of the quickest of several such plans; all but the cold one find the process warm."""
    again: float
    """Seconds of the quickest second plan on the same view, as that of a leader that knows it already."""
    unchanged: float
    """Seconds of the quickest tick that finds its view as the last one left it, and decides nothing."""
    churned: float
    """Seconds of the quickest tick after 1 % of the leased and pending reservations were replaced."""
    assigned: int
    launched: int
    waiting: int
    peak_mib: float
    """Most memory that the process ever had, the view and its rows included."""
    loops: Mapping[str, float]


def measure(name: str, size: int, rounds: int, loops: Sequence[str]) -> Figures:
    """Plan this fleet a few times, and let its simple planners place the same reservations."""
    timed = [_time_plans(FLEETS[name](size, size * PENDING_PER_SLOT)) for _ in range(rounds)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    outcome = timed[0].outcome
    assert all(each.outcome == outcome for each in timed), "the same view gave different plans"
    assignments = find_assignments(outcome)
    return Figures(
        fleet=name,
        slots=size,
        pending=timed[0].pending,
        cold=timed[0].first,
        best=min(each.first for each in timed),
        again=min(each.again for each in timed),
        unchanged=min(each.unchanged for each in timed),
        churned=min(each.churned for each in timed),
        assigned=len(assignments),
        launched=sum(isinstance(each, Launch) for each in outcome.decisions),
        waiting=len(outcome.waiting),
        peak_mib=peak,
        loops=dict(_time_loops(name, size, loops, assignments)),
    )


def find_assignments(outcome: Plan) -> dict[str, str]:
    """Reservation → the slot that its one component gets."""
    return {each.reservation: each.leases[0].slot for each in outcome.decisions if isinstance(each, Assign)}


@dataclass(frozen=True)
class _Timed:
    """The plans of one fleet: the first result, and the seconds of each plan."""

    outcome: Plan
    pending: int
    first: float
    again: float
    unchanged: float
    churned: float


def _time_plans(fleet: Fleet) -> _Timed:
    """Time four plans: on a new view, again on the same view, after all decisions are carried out, and
    after some churn.
    """
    view, cache = View(fleet.rows), PlanCache()
    outcome, first = _time_plan(view, fleet, cache)
    second, again = _time_plan(view, fleet, cache)
    # Where a work budget was spent, the second plan goes on with the reservations that had no turn.
    has_turns_left = any(NEXT_TURN in each.detail for each in outcome.waiting)
    assert second == outcome or has_turns_left, "the same view gave different plans"
    settle(view, fleet.rules, fleet.now, cache)
    _, unchanged = _time_plan(view, fleet, cache)
    cache.prepare()  # as a leader does after each tick
    for row in list(list_churn(view, CHURN, fleet.now)):
        view.apply(row)
    _, churned = _time_plan(view, fleet, cache)
    return _Timed(outcome, len(fleet.reservations), first, again, unchanged, churned)


def _time_plan(view: View, fleet: Fleet, cache: PlanCache) -> tuple[Plan, float]:
    with PausedGC():
        # Inside the pause: a collection that an earlier plan still owes starts with the block.
        began = process_time()
        outcome = plan(view, fleet.rules, fleet.now, cache)
        seconds = process_time() - began
    return outcome, seconds


def _time_loops(
    name: str, size: int, loops: Sequence[str], assignments: Mapping[str, str]
) -> Iterator[tuple[str, float]]:
    """Seconds of each loop; fails unless it assigns what the plan does."""
    fleet = FLEETS[name](size, size * PENDING_PER_SLOT)
    for loop in loops:
        began = process_time()
        found = LOOPS[loop](fleet)
        yield loop, process_time() - began
        assert found == assignments, f"{loop} assigns otherwise than the plan on {name}, {size} slots"


def measure_all(chosen: Namespace) -> Iterator[Figures]:
    """These fleets in these sizes, one process after the other."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn"), max_tasks_per_child=1) as processes:
        for name in chosen.fleets:
            smaller: Figures | None = None
            for size in sorted(chosen.slots):
                loops = _list_loops(name, size, smaller) if chosen.loops else []
                smaller = processes.submit(measure, name, size, chosen.rounds, loops).result()
                yield smaller


def _list_loops(name: str, size: int, smaller: Figures | None) -> list[str]:
    """The loops that are to be tried on a fleet of this size."""
    if smaller is None:
        return list(FLEETS[name](1, 1).loops)
    factor = (size / smaller.slots) ** 2
    return [loop for loop, took in smaller.loops.items() if took * factor <= LOOP_SECONDS]


def show(figures: Figures, smaller: Figures | None) -> None:
    """One line; growth is against the next smaller size: 1.0 = exactly linear."""
    ratio = figures.slots / smaller.slots if smaller else 0.0
    growth = f"growth {figures.best / smaller.best / ratio:4.2f}" if smaller else " " * 11
    loops = ""
    for name, took in figures.loops.items():
        grown = f", growth {took / smaller.loops[name] / ratio:.2f}" if smaller else ""
        loops += f"   {name} {took:7.3f} s (×{took / figures.best:.0f}{grown})"
    times = ", ".join(
        f"{name} {getattr(figures, name) * 1000:7.1f}" for name in ("cold", "best", "again", "unchanged", "churned")
    )
    counts = f"{figures.assigned:>6} assigned {figures.launched:>6} launched {figures.waiting:>6} wait"
    print(
        f"{figures.fleet:<8}{figures.slots:>6} × {figures.pending:>7,}: {times} ms   {growth}   {counts}"
        f"   {figures.peak_mib:5.0f} MiB{loops}",
        flush=True,
    )


def main() -> None:
    """Measure and show what the command line asks for."""
    chosen = _read_command_line()
    found: list[Figures] = []
    for figures in measure_all(chosen):
        if not chosen.json:
            show(figures, found[-1] if found and found[-1].fleet == figures.fleet else None)
        found.append(figures)
    if chosen.json:
        print(json.dumps([asdict(each) for each in found]))


def _read_command_line() -> Namespace:
    parser = ArgumentParser(
        prog="python -m bench.plan", description="Time the tick's plan beside straightforward loops."
    )
    parser.add_argument("--fleets", nargs="+", choices=FLEETS, default=list(FLEETS), help="which ones; all if left out")
    parser.add_argument(
        "--slots", nargs="+", type=_read_count, default=SIZES, help=f"sizes; ten times as many wait; default {SIZES}"
    )
    parser.add_argument(
        "--rounds", type=_read_count, default=ROUNDS, help=f"new views that are planned; default {ROUNDS}"
    )
    parser.add_argument("--no-loops", dest="loops", action="store_false", help="leave the loops out: they take longest")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of lines")
    return parser.parse_args()


def _read_count(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise ArgumentTypeError(f"expected a whole number from 1 on, got {word!r}")
    return int(word)


if __name__ == "__main__":
    main()
