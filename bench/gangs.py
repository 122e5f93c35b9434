"""Plans with gangs of different parts: `python -m bench.gangs`; `--help` lists the options.

Must reach: 100 gangs of two parts take at most 1.5 times as long as 100 gangs of one part, and 100 gangs that fit in no
way, each of another size, at most twice as long as a search in order of writing alone. Figures are milliseconds of this
process' own time, the least of a few rounds.
"""

from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from time import process_time
from typing import Any, Final
from unittest.mock import patch

from bench.plan import NOW
from scheduler.model.decisions import Assign
from scheduler.model.reservations import Component, Request, Reservation
from scheduler.model.rules import read_rules
from scheduler.model.slots import Slot
from scheduler.model.view import View
from scheduler.operations.paused_gc import PausedGC
from scheduler.policy.capacity import gang
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache

SYSTEM: Final = "x86_64-linux"
CPUS: Final = 16
Parts = Callable[[int], Sequence[tuple[float, int]]]
"""The parts of the gang with this number, as (cpus, count)."""
LAUNCHING: Final = "no offering for one part"
"""The load whose pool can launch machines: nine of ten slots are ready, and the others are empty."""
LOADS: Final[dict[str, Parts]] = {
    "one part": lambda _: [(14, 10)],
    "two parts": lambda _: [(14, 5), (13, 5)],
    "no room for one part": lambda number: [(8, 4), (16.5 + number / 1000, 4)],
    LAUNCHING: lambda number: [(8, 4), (16.5 + number / 1000, 4)],
    "too few slots": lambda number: [(9, 600), (10 + number / 100, 600)],
    "one slot too few": lambda number: [(2, 2), (15 + number / 1000, 1_000)],
}


def measure(name: str, slots: int, gangs: int, rounds: int) -> tuple[float, int]:
    """Return (milliseconds of the quickest plan of this load, number of gangs that it assigns). A cordoned slot could
    hold the larger parts, so that they are tried.
    """
    parts, ready = LOADS[name], slots * 9 // 10 if name == LAUNCHING else slots
    pool: dict[str, Any] = {"system": SYSTEM, "max_leases_per_slot": 99}
    if name == LAUNCHING:
        pool |= {"max_slots": slots + 1, "offerings": [{"name": "small", "resources": {"cpus": CPUS}}]}
    else:
        pool |= {"provider": "static", "offline_timeout": 1e9}
    rules = read_rules({"pools": {"lab": pool}})
    best, assigned = float("inf"), 0
    for _ in range(rounds):
        view, cache = View([*_make_slots(slots, ready), *_make_gangs(parts, gangs)]), PlanCache()
        with PausedGC():
            began = process_time()
            found = plan(view, rules, NOW, cache)
            best = min(best, process_time() - began)
        assigned = sum(isinstance(each, Assign) for each in found.decisions)
    return best * 1000, assigned


def _make_slots(count: int, ready: int) -> list[Slot]:
    large = Slot(id="lab-0", pool="lab", epoch=1, since=NOW, state="ready", cordoned=True, resources={"cpus": 64.0})
    keys: dict[str, Any] = {"pool": "lab", "epoch": 1, "since": NOW, "state": "ready", "resources": {"cpus": CPUS}}
    empty = (Slot(id=f"lab-{number}", pool="lab") for number in range(ready + 1, count + 1))
    return [large, *(Slot(id=f"lab-{number}", **keys) for number in range(1, ready + 1)), *empty]


def _make_gangs(parts: Parts, count: int) -> list[Reservation]:
    return [
        Reservation(
            id=f"g{number}",
            sequence=number,
            request=Request(
                system=SYSTEM,
                components=tuple(
                    Component(name=f"c{index}", count=size, resources={"cpus": cpus})
                    for index, (cpus, size) in enumerate(parts(number))
                ),
            ),
            created_at=NOW - 600 + number,
            changed_at=NOW,
        )
        for number in range(count)
    ]


def main() -> None:
    """Measure what the command line asks for, and each load with a search in order of writing alone."""
    parser = ArgumentParser(prog="python -m bench.gangs", description="Time plans with gangs of different parts.")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS), help="which ones (default: all)")
    parser.add_argument("--slots", type=int, default=1_000, help="slots of the fleet (default: 1,000)")
    parser.add_argument("--gangs", type=int, default=100, help="gangs that wait (default: 100)")
    parser.add_argument("--rounds", type=int, default=5, help="plans of each load (default: 5)")
    chosen = parser.parse_args()
    for name in chosen.loads:
        took, assigned = measure(name, chosen.slots, chosen.gangs, chosen.rounds)
        with patch.object(gang, "place", gang.place_as_written):
            before, _ = measure(name, chosen.slots, chosen.gangs, chosen.rounds)
        alone = f"as written alone {before:8.1f} ms ({took / before:.2f} ×)"
        print(f"{name:<24} {took:8.1f} ms, {alone}; {assigned} assigned", flush=True)


if __name__ == "__main__":
    main()
