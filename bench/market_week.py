"""A week of moving spot prices: a pool by requirement and prices, compared with a list of offerings that was ordered at
hour 0: `python -m bench.market_week`.

Must reach: at least 25 % fewer dollars, with the same waits. Both pools play the same jobs on the same simulated market
of 30 types with 4 vCPUs, whose spot prices move between 30 and 70 % of the on-demand price (5 % an hour) and which are
short of machines now and then. The bill is that of EC2: the price of each moment, whatever the price was at the launch.
The waits count as equal if their mean and their 95th percentile differ by at most 5 %, or by a second.

Two markets are played. `alike`: all types have the on-demand price that the EC2 emulator gives their size. `listed`:
the types have the on-demand prices of us-east-1. There a few types cost about half as much as others, so that the type
that was cheapest at hour 0 stays one of the cheapest. The column `ideal` is what a pool would save that paid the lowest
price of each moment, compared with the type that was cheapest at hour 0: no policy can save much more.
"""

from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from math import cos, pi
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from scheduler.model.rules import Rules
from scheduler.operations.paused_gc import PausedGC
from scheduler.simulation.cloud_documents import CloudDocument
from scheduler.simulation.fleet import make_fleet
from scheduler.simulation.market import SimulatedMarket
from scheduler.simulation.metrics import Summary
from scheduler.simulation.trace import TracePlay
from scheduler.simulation.workload import Job, Workload

HOUR, DAY = 3600.0, 86_400.0
MOST_RATIO: Final = 0.75
MOST_DIFFERENCE, A_SECOND = 0.05, 1.0
"""Share, or seconds, by which waits may differ and count as equal."""
_PRICES: Final = (
    "c5 0.17  c5a 0.154  c5d 0.192  c5n 0.216  c6a 0.153  c6i 0.17  c6id 0.2016  "
    "c6in 0.2268  c7a 0.20528  c7i 0.1785  m5 0.192  m5a 0.172  m5d 0.226  m5n 0.238  "
    "m5zn 0.3303  m6a 0.1728  m6i 0.192  m6id 0.2373  m7a 0.23184  m7i 0.2016  m7i-flex 0.19152  "
    "r5 0.252  r5a 0.226  r5b 0.298  r5d 0.288  r6a 0.2268  r6i 0.252  r6id 0.3024  "
    "r7a 0.30432  r7i 0.2646  "
)
ON_DEMAND: Final = dict(zip(_PRICES.split()[::2], map(float, _PRICES.split()[1::2]), strict=True))
"""Family -> on-demand price of its type `xlarge`."""
CPUS, MEMORY_MIB = 4, 8192
JOBS_AN_HOUR = 40.0
RUN_MEAN = 2400.0
"""Mean of the seconds that a job runs; the run times are exponential."""
DAILY = 0.8
"""Share by which the jobs of an hour are more at noon and fewer at midnight."""


MARKETS: Final[Mapping[str, Mapping[str, float]]] = {"alike": dict.fromkeys(ON_DEMAND, 0.16), "listed": ON_DEMAND}
"""By market: family -> on-demand price of its type `xlarge`, in dollars per hour."""


class Outcome(NamedTuple):
    """What one pool paid and how long its jobs waited."""

    name: str
    summary: Summary


def make_cloud(market: str, seed: int) -> CloudDocument:
    """Return the simulated cloud: machines that serve after 80 s, and one of MARKETS with a seed."""
    types = [
        {"name": f"{family}.xlarge", "cpus": CPUS, "memory_mib": MEMORY_MIB, "on_demand": price}
        for family, price in MARKETS[market].items()
    ]
    table = {"types": types, "seed": seed, "shortage_rate": 0.02, "shortage_seconds": 3600}
    return CloudDocument.model_validate({"launch": 5, "boot": 60, "bind": 15, "terminate": 30, "market": table})


def find_ideal(market: str, seed: int, days: float) -> float:
    """Return the share of dollars that an ideal pool saves (see above), for a load that does not change."""
    table = make_cloud(market, seed).market
    prices, names = SimulatedMarket(table, Rules()), [each.name for each in table.types]
    rows = [
        {name: prices.find_price(name, "spot", hour * HOUR) or 0.0 for name in names} for hour in range(int(days * 24))
    ]
    first = min(names, key=lambda name: rows[0][name])
    return 1 - sum(min(row.values()) for row in rows) / sum(row[first] for row in rows)


def make_jobs(seed: int, seconds: float) -> Iterator[Job]:
    """Yield jobs of 1 to 4 processors, which come at random: more of them at noon than at midnight."""
    random, at, number = Random(f"jobs {seed}"), 0.0, 0
    most = JOBS_AN_HOUR * (1 + DAILY)
    while True:
        at += random.expovariate(most / HOUR)
        if at >= seconds:
            return
        if random.random() * most > JOBS_AN_HOUR * (1 - DAILY * cos(2 * pi * at / DAY)):
            continue
        number += 1
        run = max(30.0, random.expovariate(1 / RUN_MEAN))
        yield Job(number, at, run, random.randint(1, CPUS), None, 1, -1, -1, -1)


def make_pool(**keys: Any) -> dict[str, Any]:
    """Return the rules of a pool of spot machines."""
    pool = {"system": "x86_64-linux", "max_slots": 100, "price_factor": 1.5, "capacity_hold": 600, **keys}
    return {"pools": {"linux": pool}}


def make_static(cloud: CloudDocument) -> dict[str, Any]:
    """Return a pool whose offerings have the prices of hour 0, which do not change."""
    market = SimulatedMarket(cloud.market, Rules())
    names = [each.name for each in cloud.market.types]
    offerings = [
        {
            "name": name,
            "price": market.find_price(name, "spot", 0.0),
            "resources": {"cpus": CPUS, "memory_mib": MEMORY_MIB},
        }
        for name in names
    ]
    return make_pool(offerings=offerings)


def make_priced() -> dict[str, Any]:
    """Return a pool that names what a machine must have, and follows the prices."""
    general = {"name": "general", "require": {"cpus": {"min": CPUS, "max": CPUS}}}
    return make_pool(offerings=[general], replacement={"min_saving": 0.15, "disruption_budget": "20%"})


def play(name: str, document: dict[str, Any], cloud: CloudDocument, jobs: Sequence[Job]) -> Outcome:
    """Play the jobs on one pool."""
    run = TracePlay(Workload(Path(name), tuple(jobs), ()), make_fleet(document, cloud))
    run.play()
    return Outcome(name, run.sum_up())


def compare(market: str, seed: int, days: float) -> tuple[Outcome, Outcome]:
    """Return what the static list and the pool by prices paid, with the market and the jobs of one seed."""
    cloud, jobs = make_cloud(market, seed), list(make_jobs(seed, days * DAY))
    with PausedGC():
        return play("list of hour 0", make_static(cloud), cloud, jobs), play("prices", make_priced(), cloud, jobs)


def are_equal(first: float, second: float) -> bool:
    """Return whether two waits in seconds count as equal."""
    return abs(first - second) <= max(A_SECOND, MOST_DIFFERENCE * first)


def main(arguments: Sequence[str] | None = None) -> None:
    """Play each market with each seed, and print a table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=7)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3, 4, 5])
    parser.add_argument("--markets", nargs="*", choices=MARKETS, default=[*MARKETS])
    chosen = parser.parse_args(arguments)
    rows: list[tuple[str, ...]] = [
        ("market", "seed", "pool", "dollars", "hours", "launches", "wait mean", "wait p95", "ideal", "saving"),
    ]
    for market in chosen.markets:
        spent = [0.0, 0.0]
        for seed in chosen.seeds:
            found, ideal = compare(market, seed, chosen.days), find_ideal(market, seed, chosen.days)
            saving = 1 - found[1].summary.cost / found[0].summary.cost
            rows.extend(_describe(market, seed, found, (f"{ideal:.1%}", f"{saving:.1%}")))
            spent = [before + each.summary.cost for before, each in zip(spent, found, strict=True)]
        total = f"{1 - spent[1] / spent[0]:.1%} (at least {1 - MOST_RATIO:.0%})"
        rows.append((market, "all", *[""] * 7, total))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _describe(
    market: str, seed: int, found: tuple[Outcome, Outcome], savings: tuple[str, str]
) -> Iterator[tuple[str, ...]]:
    pairs = [(getattr(found[0].summary.wait, key), getattr(found[1].summary.wait, key)) for key in ("mean", "p95")]
    differ = "" if all(are_equal(*pair) for pair in pairs) else ", the waits differ"
    for name, each in found:
        ends = (savings[0], savings[1] + differ) if name == found[1].name else ("", "")
        waits = (f"{each.wait.mean:.1f} s", f"{each.wait.p95:.1f} s")
        yield (
            market,
            str(seed),
            name,
            f"{each.cost:.2f}",
            f"{each.instance_hours:.0f}",
            f"{each.launches}",
            *waits,
            *ends,
        )


if __name__ == "__main__":
    main()
