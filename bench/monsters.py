"""Plans with the largest reservations that the limits allow: `python -m bench.monsters`; `--help` lists the loads.

One principal submits the largest reservations, another one has small reservations behind all of them. Must reach: no
plan takes two seconds, and the first plan assigns every small reservation that fits. Figures are CPU seconds of this
process.
"""

from argparse import ArgumentParser
from collections.abc import Callable, Iterable
from time import process_time
from typing import Any

from bench.plan import NOW, Fleet
from scheduler.model.decisions import Assign, Grant, Launch, Plan
from scheduler.model.reservations import Component, Request, Reservation
from scheduler.model.rules import read_rules
from scheduler.model.slots import Slot
from scheduler.model.view import View
from scheduler.operations.paused_gc import PausedGC
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache

# The loads that `bench.monsters` plans: the largest requests of one producer before small ones of others.

MOST_INSTANCES = 10_000
"""Instances that one reservation may ask for (`limits.instances_per_reservation`)."""
CPUS = 16
POOL = "monsters"
OTHERS = 100
"""Small reservations that wait behind the monsters."""


def make_equal_gangs(slots: int, monsters: int) -> Fleet:
    """Return a fleet with gangs of 10,000 equal instances, none of which fits."""
    return _make(slots, [_gang(0.01 * slots * CPUS * 1.2 / 160) for _ in range(monsters)])


def make_different_gangs(slots: int, monsters: int) -> Fleet:
    """Return a fleet with gangs of different sizes, the largest first, so that the result of one is no use for the next
    one.
    """
    return _make(slots, [_gang(slots * CPUS * 1.2 / MOST_INSTANCES * (1 - at / 10_000)) for at in range(monsters)])


def make_fitting_gangs(slots: int, monsters: int) -> Fleet:
    """Gangs of 10,000 instances, of which about five fit."""
    return _make(slots, [_gang(slots * CPUS / 5 / MOST_INSTANCES) for _ in range(monsters)])


def make_mixed_gangs(slots: int, monsters: int) -> Fleet:
    """Gangs of 100 components of 100 instances, each component of a size of its own."""

    def parts(at: int) -> Iterable[Component]:
        for number in range(100):
            cpus = slots * CPUS * 1.2 / MOST_INSTANCES * (1 - at / 10_000) * (1 - number / 100_000)
            yield Component(name=f"part{number}", count=100, resources={"cpus": cpus})

    return _make(slots, [tuple(parts(at)) for at in range(monsters)])


def make_launched_gangs(slots: int, monsters: int) -> Fleet:
    """Gangs of 10,000 instances before an empty fleet, none of which fits within `max_slots`."""
    return _make(
        slots,
        [_gang(slots * CPUS * 1.2 / MOST_INSTANCES * (1 - at / 10_000)) for at in range(monsters)],
        state="empty",
    )


def make_elastic(slots: int, monsters: int) -> Fleet:
    """One essential instance that fits, and 9,999 elastic ones, which mostly do not."""
    parts = (
        Component(name="main", resources={"cpus": 0.1}),
        Component(name="more", kind="elastic", count=MOST_INSTANCES - 1, resources={"cpus": 0.1}),
    )
    return _make(slots, [parts for _ in range(monsters)])


def make_elastic_different(slots: int, monsters: int) -> Fleet:
    """The same, each of a size of its own."""

    def parts(at: int) -> tuple[Component, ...]:
        size = {"cpus": 0.1 + at / 100_000}
        return (
            Component(name="main", resources=size),
            Component(name="more", kind="elastic", count=MOST_INSTANCES - 1, resources=size),
        )

    return _make(slots, [parts(at) for at in range(monsters)])


def make_elastic_launching(slots: int, monsters: int) -> Fleet:
    """The same where elastic instances alone may cause launches."""
    fleet = make_elastic(slots, monsters)
    return _make(
        slots, [each.request.components for each in fleet.reservations[:monsters]], keys={"launch_for_elastic": True}
    )


MONSTERS: dict[str, Callable[[int, int], Fleet]] = {
    "equal": make_equal_gangs,
    "different": make_different_gangs,
    "fitting": make_fitting_gangs,
    "mixed": make_mixed_gangs,
    "launched": make_launched_gangs,
    "elastic": make_elastic,
    "elastic-different": make_elastic_different,
    "elastic-launching": make_elastic_launching,
}


def _gang(cpus: float) -> tuple[Component, ...]:
    return (Component(name="rank", count=MOST_INSTANCES, resources={"cpus": cpus}),)


def _make(
    slots: int, monsters: list[tuple[Component, ...]], state: Any = "ready", keys: dict[str, Any] | None = None
) -> Fleet:
    pool = {"system": "x86_64-linux", "max_slots": slots, "resources": {"cpus": CPUS}, **(keys or {})}
    small = (Component(name="main", resources={"cpus": 0.01}),)
    requests = [*monsters, *(small for _ in range(OTHERS))]
    reservations = [
        Reservation(
            id=f"r{number}",
            sequence=number,
            request=Request(system="x86_64-linux", components=components),
            created_at=NOW - 600 + number / 1000,
            changed_at=NOW,
            principal="greedy" if number < len(monsters) else "other",
        )
        for number, components in enumerate(requests)
    ]
    rows = [
        Slot(id=f"{POOL}-{number}", pool=POOL, epoch=int(state == "ready"), state=state, since=NOW)
        for number in range(1, slots + 1)
    ]
    return Fleet(rows, reservations, read_rules({"pools": {POOL: pool}}), NOW, ())


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
