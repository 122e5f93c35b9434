"""Plans before the largest reservations that the limits allow: `python -m bench.monsters`; `--help` names the loads.

One principal has the monsters, another one has small reservations behind all of them. The aim: no plan takes two
seconds, and every small reservation that fits is assigned in the first one. Figures are seconds of CPU of this process.
"""

from argparse import ArgumentParser
from time import process_time

from bench._monster_fleets import MONSTERS, OTHERS
from scheduler.model.decisions import Assign, Grant, Launch, Plan
from scheduler.model.view import View
from scheduler.operations.paused_gc import PausedGC
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache

SLOTS, COUNT, TICKS = 1_000, 200, 3


def measure(name: str, slots: int, count: int, ticks: int) -> None:
    """Plan a few times on one view, which no decision changes, so that turns go on; print a line for each tick."""
    fleet = MONSTERS[name](slots, count)
    view, cache = View(fleet.rows), PlanCache()
    for tick in range(ticks):
        began = process_time()
        with PausedGC():
            found = plan(view, fleet.rules, fleet.now + tick, cache)
        took = process_time() - began
        print(f"{name:<18} tick {tick}: {took:6.2f} s   {describe(found, view)}", flush=True)


def describe(found: Plan, view: View) -> str:
    """What it decided, and how many of the small reservations are assigned."""
    counts = {kind: sum(isinstance(each, kind) for each in found.decisions) for kind in (Assign, Grant, Launch)}
    assigned = [each.reservation for each in found.decisions if isinstance(each, Assign)]
    others = sum(view.reservations[name].principal == "other" for name in assigned)
    decided = ", ".join(f"{kind.__name__.lower()} {count}" for kind, count in counts.items())
    later = sum(code == "behind_queue" for _, (code, _) in found.waiting.items())
    return f"{decided}; {others} of {OTHERS} small ones assigned; {later} wait for their turn"


def main() -> None:
    """Measure what the command line asks for."""
    parser = ArgumentParser(prog="python -m bench.monsters", description="Time plans before the largest reservations.")
    parser.add_argument(
        "--loads", nargs="+", choices=MONSTERS, default=list(MONSTERS), help="which ones (default: all)"
    )
    parser.add_argument("--slots", type=int, default=SLOTS, help=f"slots of the fleet (default: {SLOTS})")
    parser.add_argument("--count", type=int, default=COUNT, help=f"monsters (default: {COUNT})")
    parser.add_argument("--ticks", type=int, default=TICKS, help=f"plans of each load (default: {TICKS})")
    chosen = parser.parse_args()
    for name in chosen.loads:
        measure(name, chosen.slots, chosen.count, chosen.ticks)


if __name__ == "__main__":
    main()
