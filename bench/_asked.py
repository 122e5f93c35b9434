"""What was asked of Leasehold's speed: a row for each figure, with the least that must be reached and the aim."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

SECOND, MILLISECOND, RATE, KILOBYTES, TIMES, COUNT, GIGABYTES = "s", "ms", "/s", "kB", "×", "", "GB"
OTHERS: Final = {"celery": "Celery", "dask": "Dask", "ray": "Ray"}
"""Key -> name of the systems that run the same number of trivial tasks in the same run."""


@dataclass(frozen=True)
class Sizes:
    """The amounts of work of one run."""

    count: int = 10_000
    """Reservations of one call."""
    many: int = 100_000
    slots: int = 10_000
    pending: int = 100_000
    producers: int = 100
    smaller_slots: tuple[int, ...] = (1_000, 2_000, 5_000)
    """Further sizes of fleets, for the growth."""
    large_slots: int = 100_000
    large_pending: int = 1_000_000
    rounds: int = 3
    idle_rounds: int = 300
    single_leases: int = 2_000
    """Leases of a round that are taken one by one."""
    at_once: int = 50
    """Threads or tasks that take them."""
    seconds: float = 10.0
    """Duration of a round with concurrent producers."""
    renewal_seconds: float = 60.0
    """Duration of the renewals without a pause."""


FULL: Final = Sizes()
QUICK: Final = Sizes(
    count=1_000,
    many=5_000,
    slots=500,
    pending=5_000,
    smaller_slots=(250,),
    large_slots=2_000,
    large_pending=20_000,
    rounds=1,
    idle_rounds=60,
    single_leases=500,
    seconds=3.0,
    renewal_seconds=3.0,
)


@dataclass(frozen=True)
class Row:
    """One figure that was asked for. `key` is STEP.FIGURE of the step that measures it.

    `factors` are the bounds as multiples of the faster one of Dask and Ray. They replace `least` and `aim` in a run
    that measured these two.
    """

    part: str
    key: str
    what: str
    unit: str
    least: float
    aim: float | None
    factors: tuple[float, float] | None = None
    beside: str | None = None
    """Figure of the other systems that is comparable."""
    is_sized: bool = True
    """Whether a quick run measures a smaller amount of work here."""
    needs_large: bool = False

    @property
    def step(self) -> str:
        """Return the name of the step that measures this figure."""
        return self.key.partition(".")[0]

    @property
    def more_is_better(self) -> bool:
        """Return whether the bounds are lower ones."""
        return self.unit == RATE

    def find_bounds(self, values: Mapping[str, float]) -> tuple[float, float | None]:
        """Return the least and the aim, given all figures of the run."""
        rates = [found for name in ("dask", "ray") if (found := values.get(f"others.{name}.{self.beside}"))]
        if self.factors is None or not rates:
            return self.least, self.aim
        return self.factors[0] * max(rates), self.factors[1] * max(rates)

    def reaches(self, found: float, bound: float) -> bool:
        """Return whether this figure meets the bound."""
        return found >= bound if self.more_is_better else found <= bound


def list_rows(sizes: Sizes) -> tuple[Row, ...]:
    """Return all rows in the order of the table."""
    size = f"{sizes.slots:,} × {sizes.pending:,}"
    large = f"{sizes.large_slots:,} × {sizes.large_pending:,}"
    return (
        *_list_bulk("sqlite", "SQLite", sizes, {"lease": (7_000, 15_000), "intake": (20_000, 30_000)}, (3, 6)),
        Row("sqlite", "sqlite.release", f"release of {sizes.count:,}, SQLite", RATE, 10_000, 20_000),
        Row("sqlite", "sqlite.renew", f"renewals of {sizes.count:,} leases, SQLite", RATE, 5_000, 10_000),
        Row(
            "sqlite",
            "sqlite.renew_on",
            f"the same, again and again for {sizes.renewal_seconds:g} s: the slowest call",
            RATE,
            5_000,
            None,
        ),
        *_list_bulk("postgresql", "PostgreSQL", sizes, {"lease": (5_000, 10_000), "intake": (12_000, 20_000)}, (2, 4)),
        *_list_singles(sizes),
        *_list_ticks(sizes, size),
        *_list_plans(size, f"{max(1, sizes.pending // 100):,} gangs, half elastic, {sizes.slots:,} slots"),
        *_list_large(large),
    )


def _list_bulk(
    part: str, name: str, sizes: Sizes, bounds: Mapping[str, tuple[float, float]], factors: tuple[float, float]
) -> tuple[Row, ...]:
    return (
        Row(
            part, f"{part}.lease", f"submit → leased, {sizes.count:,}, {name}", RATE, *bounds["lease"], factors, "rate"
        ),
        Row(
            part,
            f"{part}.lease_many",
            f"submit → leased, {sizes.many:,}, {name}",
            RATE,
            *bounds["lease"],
            factors,
            "rate_many",
        ),
        Row(part, f"{part}.intake", f"intake of {sizes.count:,} in one call, {name}", RATE, *bounds["intake"]),
    )


def _list_singles(sizes: Sizes) -> tuple[Row, ...]:
    whats = (
        f"single `reserve()` by {sizes.producers} producers, SQLite",
        "idle, submit → leased: p50",
        "the same: p99",
        "idle, submit → leased, PostgreSQL: p50",
    )
    return (
        Row("singles", "producers.rate", whats[0], RATE, 1_000, 2_000, is_sized=False),
        Row("singles", "idle.p50", whats[1], MILLISECOND, 10, 7, beside="p50", is_sized=False),
        Row("singles", "idle.p99", whats[2], MILLISECOND, 40, None, beside="p99", is_sized=False),
        Row("singles", "idle_postgresql.p50", whats[3], MILLISECOND, 10, 7, beside="p50", is_sized=False),
        *_list_single_leases(sizes),
    )


def _list_single_leases(sizes: Sizes) -> tuple[Row, ...]:
    threads = f"single leases, `with client.lease()` by {sizes.at_once} threads, SQLite"
    asked: tuple[tuple[str, str, str, float, float | None], ...] = (
        ("threads", threads, RATE, 900, 2_000),
        ("threads_cpu", "the same: CPU of all processes for a lease", MILLISECOND, 2, None),
        ("asyncio", f"single leases by one asyncio client, {sizes.at_once} at once", RATE, 1_200, 2_500),
        ("calls", f"single leases, `reserve`, wait, `release` by {sizes.at_once} threads", RATE, 1_200, 2_500),
    )
    return tuple(
        Row("singles", f"leases.{key}", what, unit, least, aim, is_sized=False) for key, what, unit, least, aim in asked
    )


def _list_ticks(sizes: Sizes, size: str) -> tuple[Row, ...]:
    asked: tuple[tuple[str, str, str, float, float | None], ...] = (
        ("arrival", "one arrival, nothing to decide", MILLISECOND, 20, 5),
        ("arrival_kb", "one arrival, to Redis", KILOBYTES, 20, None),
        ("release", "one release, one decision", MILLISECOND, 20, 5),
        ("release_kb", "one release, to Redis", KILOBYTES, 20, None),
        ("leader", "new leader", SECOND, 2, 1),
        ("unchanged", "unchanged", MILLISECOND, 10, 2),
        ("look_back", "look for unpublished rows", MILLISECOND, 50, 10),
        ("churn", "1 % churn", MILLISECOND, 100, 50),
        ("leases", f"{4 * sizes.slots:,} leases", SECOND, 3, 2.2),
    )
    costs = "statements + Redis round trips + messages of a tick that leases 1,000"
    return (
        *(
            Row("ticks", f"tick.{key}", f"whole tick, {size}: {what}", unit, least, aim)
            for key, what, unit, least, aim in asked
        ),
        Row("ticks", "tick.costs", costs, COUNT, 60, 30, is_sized=False),
    )


def _list_plans(size: str, gangs: str) -> tuple[Row, ...]:
    asked: tuple[tuple[str, str, str, float, float], ...] = (
        ("quota.cold", f"plan, quota, {size}: cold", SECOND, 0.5, 0.25),
        ("quota.unchanged", f"plan, quota, {size}: unchanged", MILLISECOND, 5, 1),
        ("quota.churned", f"plan, quota, {size}: 1 % churn", MILLISECOND, 40, 20),
        ("fifo.churned", f"plan, fifo, {size}: 1 % churn", MILLISECOND, 40, 20),
        ("priority.churned", f"plan, priority, {size}: 1 % churn", MILLISECOND, 40, 20),
        ("elastic.cold", f"plan, {gangs}: cold", SECOND, 0.4, 0.2),
        ("elastic.growth", "the same: growth (1 = linear)", TIMES, 1.3, 1.3),
    )
    return tuple(Row("plans", *each) for each in asked)


def _list_large(size: str) -> tuple[Row, ...]:
    asked: tuple[tuple[str, str, str, float, float], ...] = (
        ("fifo_large.cold", f"plan, fifo, {size}: cold", SECOND, 2.6, 2),
        ("fifo_large.churned", f"plan, fifo, {size}: 1 % churn", SECOND, 0.2, 0.1),
        ("quota_large.cold", f"plan, quota, {size}: cold", SECOND, 6, 4),
        ("quota_large.unchanged", f"plan, quota, {size}: unchanged", MILLISECOND, 20, 5),
        ("quota_large.churned", f"plan, quota, {size}: 1 % churn", SECOND, 0.3, 0.15),
        ("quota_large.memory", "the same: peak memory", GIGABYTES, 1.5, 1),
    )
    return tuple(Row("plans", *each, needs_large=True) for each in asked)
