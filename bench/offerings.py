"""The tick's plan with 30 offerings in a pool, compared with 3: `python -m bench.offerings`.

Must reach: at most 1.3 times the time. The offerings are resolved from requirements, so each type has its own labels.
Two fleets are planned: `empty`, where all machines are launched, and `running`, where half of the slots run machines of
all types. Figures are seconds of this process' own time, the best of some rounds, with both numbers in turns.
"""

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from random import Random
from time import process_time

from scheduler.model.decisions import Launch
from scheduler.model.market import InstanceType, Price, StoredMarket
from scheduler.model.reservations import Component, Request, Reservation
from scheduler.model.rules import Rules, read_rules
from scheduler.model.slots import Slot
from scheduler.model.view import Row, View
from scheduler.operations.market import resolve_rules
from scheduler.operations.paused_gc import PausedGC
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache

NOW = 1_800_000_000.0
FEW, MANY = 3, 30
MOST_RATIO = 1.3
SIZES = ((2, 4096), (2, 8192), (4, 8192), (4, 16384), (8, 32768), (8, 65536))
REQUESTS = ((1, 1024), (2, 4096), (2, 6000), (4, 8192))
PENDING_A_SLOT = 3


def make_rules(offerings: int, slots: int) -> Rules:
    """Return rules with one pool that has this number of offerings by requirement."""
    types, prices = [], []
    for number in range(offerings):
        cpus, memory = SIZES[number % len(SIZES)]
        name = f"m{number}.size{number % len(SIZES)}"
        types.append(
            InstanceType(name=name, cpus=cpus, memory_mib=memory, architectures=("x86_64",), zones=("a",), seen_at=NOW)
        )
        price = 0.02 * cpus + 0.000002 * memory + 0.0001 * number
        prices.append(Price(type=name, zone="a", market="spot", price=price, seen_at=NOW, source="file"))
    pool = {
        "system": "x86_64-linux",
        "max_slots": slots,
        "price_factor": 2.0,
        "offerings": [{"name": "general", "require": {"cpus": {"min": 1}, "type_labels": True}}],
    }
    return resolve_rules(read_rules({"pools": {"linux": pool}}), StoredMarket(types=tuple(types), prices=tuple(prices)))


def make_rows(rules: Rules, slots: int, *, running: bool) -> Iterator[Row]:
    """Yield slots, of which half run machines of all offerings if `running`, and reservations that wait."""
    random, offerings = Random(slots), list(rules.pools["linux"].offerings)
    for number in range(1, slots + 1):
        name = f"linux-{number}"
        if running and number % 2:
            offering = offerings[number // 2 % len(offerings)]
            yield Slot(
                id=name,
                pool="linux",
                state="ready",
                since=NOW,
                idle_since=NOW,
                last_seen=NOW,
                epoch=1,
                offering=offering.name,
                market="spot",
                price=offering.price,
                resources=offering.resources,
                labels=offering.labels or {},
                instance_id=f"i-{number}",
            )
        else:
            yield Slot(id=name, pool="linux", since=NOW)
    for number in range(slots * PENDING_A_SLOT):
        cpus, memory = random.choice(REQUESTS)
        component = Component(name="main", resources={"cpus": float(cpus), "memory_mib": float(memory)})
        request = Request(system="x86_64-linux", components=(component,))
        yield Reservation(id=f"r{number}", sequence=number + 1, request=request, created_at=NOW, changed_at=NOW)


def time_plan(offerings: int, slots: int, *, running: bool) -> tuple[float, int]:
    """Return the CPU seconds of one plan on a new view, and the number of its launches."""
    rules = make_rules(offerings, slots)
    view, cache = View(list(make_rows(rules, slots, running=running))), PlanCache()
    with PausedGC():
        began = process_time()
        outcome = plan(view, rules, NOW + 1, cache)
        seconds = process_time() - began
    return seconds, sum(isinstance(each, Launch) for each in outcome.decisions)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure both fleets, and print a table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args(arguments)
    rows = []
    for running in (False, True):
        best = {FEW: float("inf"), MANY: float("inf")}
        launches = {}
        for _ in range(chosen.rounds):
            for number in (FEW, MANY):
                seconds, launches[number] = time_plan(number, chosen.slots, running=running)
                best[number] = min(best[number], seconds)
        ratio = best[MANY] / best[FEW]
        for number in (FEW, MANY):
            shown = f"{ratio:.2f} (at most {MOST_RATIO})" if number == MANY else ""
            fleet = "running" if running else "empty"
            rows.append((fleet, str(number), f"{best[number] * 1000:.1f} ms", str(launches[number]), shown))
    for row in (("fleet", "offerings", "plan", "launches", "ratio"), *rows):
        print("  ".join(text.ljust(width) for text, width in zip(row, (8, 9, 10, 8, 20), strict=True)).rstrip())


if __name__ == "__main__":
    main()
