"""The steps of `bench.targets`: the bench that each of them runs, and what is read from its JSON."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bench._asked import OTHERS, Sizes
from bench._picture import Curve, Panel
from bench._table import Found, take_figures

Read = Callable[[Found, Any], None]
"""Adds what is read from the JSON of a bench."""
PLAN, LEASES = "plan", "leases"


class Step(NamedTuple):
    """One process that measures: a bench with its arguments."""

    part: str
    name: str
    module: str
    arguments: tuple[str, ...]
    read: Read
    needs_large: bool = False


def list_steps(sizes: Sizes) -> tuple[Step, ...]:
    """Return all steps in the order in which they run."""
    counts_of_bulk = ("--count", f"{sizes.count}", "--many", f"{sizes.many}", "--rounds", f"{sizes.rounds}")
    bulk = ("bulk", *counts_of_bulk, "--seconds", f"{sizes.renewal_seconds}")
    singles = ("--producers", f"{sizes.producers}", "--seconds", f"{sizes.seconds}", "--rounds", f"{sizes.rounds}")
    idle = ("idle", "--rounds", f"{sizes.idle_rounds}")
    leases = ("--count", f"{sizes.single_leases}", "--at-once", f"{sizes.at_once}", "--rounds", f"{sizes.rounds}")
    counts = [f"{count}" for count in sorted({1_000, sizes.count, sizes.many})]
    tick = ("--slots", f"{sizes.slots}", "--pending", f"{sizes.pending}", "--rounds", f"{sizes.rounds}", "--json")
    return (
        Step("others", "others", "bench._others", ("--counts", *counts, "--json"), _make_others_reader(sizes)),
        Step("sqlite", "sqlite", "bench._load", bulk, _make_bulk_reader("sqlite", "SQLite", sizes)),
        Step(
            "postgresql",
            "postgresql",
            "bench._load",
            (*bulk, "--postgresql"),
            _make_bulk_reader("postgresql", "PostgreSQL", sizes),
        ),
        Step("singles", "producers", "bench.producers", (*singles, "--json"), _read_producers),
        Step("singles", "idle", "bench._load", idle, _read_idle),
        Step("singles", "idle_postgresql", "bench._load", (*idle, "--postgresql"), _read_idle_on_postgresql),
        Step("singles", "leases", "bench.leases", (*leases, "--json"), _read_single_leases),
        Step("ticks", "tick", "bench.tick", tick, _make_tick_reader(sizes)),
        *_list_plans(sizes),
    )


def _list_plans(sizes: Sizes) -> Iterator[Step]:
    grown = [f"{slots}" for slots in (*sizes.smaller_slots, sizes.slots)]
    for name, fleet in {"fifo": "sized", "priority": "prioritized", "elastic": "elastic"}.items():
        words = ("--fleets", fleet, "--slots", *grown, "--no-loops", "--rounds", f"{sizes.rounds}", "--json")
        yield Step("plans", name, "bench.plan", words, _make_plan_reader(name))
    pairs = [f"{slots}x{slots * sizes.pending // sizes.slots}" for slots in (*sizes.smaller_slots, sizes.slots)]
    common = ("--workloads", "idle", "--no-plain", "--json")
    yield Step("plans", "quota", "bench.quota", ("--sizes", *pairs, *common), _make_quota_reader("quota", sizes.slots))
    rounds = ("--rounds", f"{sizes.rounds}")
    large = ("--fleets", "sized", "--slots", f"{sizes.large_slots}", "--no-loops", *rounds, "--json")
    yield Step("plans", "fifo_large", "bench.plan", large, _make_plan_reader("fifo_large"), needs_large=True)
    pair = f"{sizes.large_slots}x{sizes.large_pending}"
    yield Step(
        "plans",
        "quota_large",
        "bench.quota",
        ("--sizes", pair, *common),
        _make_quota_reader("quota_large", sizes.large_slots),
        needs_large=True,
    )


def _make_others_reader(sizes: Sizes) -> Read:
    def read(found: Found, document: Mapping[str, Any]) -> None:
        for name, shown in OTHERS.items():
            figures = document[name]
            if "skipped" in figures:
                found.notes.append(f"{shown} was skipped: {figures['skipped']}")
                continue
            rates: dict[str, float] = figures["rates"]
            asked = {"rate": rates.get(str(sizes.count)), "rate_many": rates.get(str(sizes.many))}
            asked |= {"p50": figures["p50"], "p99": figures["p99"]}
            take_figures(found, f"others.{name}", {key: value for key, value in asked.items() if value is not None})
            found.curves[f"{LEASES}/{shown}, tasks"] = [
                (int(count), int(count) / rate) for count, rate in rates.items()
            ]
        used = [
            f"{shown} {document[name]['version']} ({document[name]['settings']})"
            for name, shown in OTHERS.items()
            if "skipped" not in document[name]
        ]
        found.notes.append(
            f"Trivial tasks, not durable, in the same run, each with the best of its settings: {', '.join(used)}."
        )

    return read


def _make_bulk_reader(step: str, shown: str, sizes: Sizes) -> Read:
    def read(found: Found, document: Mapping[str, float]) -> None:
        take_figures(found, step, document)
        found.curves[f"{LEASES}/Leasehold on {shown}"] = [
            (count, count / document[key]) for count, key in ((sizes.count, "lease"), (sizes.many, "lease_many"))
        ]

    return read


def _read_producers(found: Found, document: Sequence[Mapping[str, Any]]) -> None:
    best = max(document, key=lambda each: float(each["rate"]))
    take_figures(found, "producers", {"rate": best["rate"]})
    cpu = ", ".join(f"{name} {used:,.0f}" for name, used in best["cpu_us"].items())
    found.notes.append(f"Single reservations, µs of CPU for each: {cpu}.")


def _read_idle(found: Found, document: Mapping[str, float]) -> None:
    take_figures(found, "idle", document)
    found.notes.append(f"A Celery task without work through the same stack: {document['no_op']:.1f} ms at p50.")


def _read_idle_on_postgresql(found: Found, document: Mapping[str, float]) -> None:
    take_figures(found, "idle_postgresql", {"p50": document["p50"]})


def _read_single_leases(found: Found, document: Mapping[str, Mapping[str, Any]]) -> None:
    take_figures(found, "leases", {way: each["rate"] for way, each in document.items()})
    figures = document["threads"]
    take_figures(found, "leases", {"threads_cpu": figures["cpu_ms"]})
    cpu = ", ".join(f"{name} {used * 1e3:,.0f}" for name, used in figures["cpu"].items())
    work = f"{figures['requests']:.2f} requests, {figures['ticks']:.2f} ticks, {figures['commands']:.0f} Redis commands"
    found.notes.append(f"Single leases by threads, µs of CPU for each: {cpu}; {work} for each.")


def _make_tick_reader(sizes: Sizes) -> Read:
    stages = {
        "arrival": ("one arrival, nothing to decide", 1e3),
        "release": ("one release, one decision", 1e3),
        "leader": ("new leader", 1.0),
        "unchanged": ("nothing changed, kicked", 1e3),
        "look_back": ("nothing changed, look-back", 1e3),
        "churn": ("1 % churn", 1e3),
        "leases": (f"{4 * sizes.slots:,} leases", 1.0),
    }

    def read(found: Found, document: Mapping[str, Mapping[str, float]]) -> None:
        take_figures(found, "tick", {key: document[name]["seconds"] * by for key, (name, by) in stages.items()})
        for key in ("arrival", "release"):
            take_figures(found, "tick", {f"{key}_kb": document[stages[key][0]]["bytes"] / 1e3})
        leases = document["1,000 leases"]
        take_figures(found, "tick", {"costs": sum(leases[key] for key in ("statements", "round_trips", "messages"))})

    return read


def _make_plan_reader(step: str) -> Read:
    in_seconds = step.endswith("_large")

    def read(found: Found, document: Sequence[Mapping[str, Any]]) -> None:
        last = document[-1]
        figures = {"cold": last["cold"], "churned": last["churned"] * (1 if in_seconds else 1e3)}
        if len(document) > 1:
            first = document[0]
            figures["growth"] = last["best"] / first["best"] * first["slots"] / last["slots"]
        take_figures(found, step, figures)
        seconds = [(each["slots"], {"cold": each["cold"], "churned": each["churned"]}) for each in document]
        _add_curves(found, step, seconds)

    return read


def _make_quota_reader(step: str, slots: int) -> Read:
    in_seconds = step.endswith("_large")

    def read(found: Found, document: Sequence[Mapping[str, Any]]) -> None:
        (last,) = (each for each in document if each["slots"] == slots)
        seconds = last["engine"]["seconds"]
        figures = {"cold": seconds["cold"], "unchanged": seconds["unchanged"] * 1e3}
        figures |= {"churned": seconds["churned"] * (1 if in_seconds else 1e3)}
        take_figures(found, step, figures | {"memory": last["engine"]["peak_mib"] / 1024 * 1.073741824})
        _add_curves(found, step, [(each["slots"], each["engine"]["seconds"]) for each in document])

    return read


def _add_curves(found: Found, step: str, fleets: Iterable[tuple[int, Mapping[str, float]]]) -> None:
    """Add (slots, milliseconds) to the curves of this step. A large fleet continues the curves of the smaller ones."""
    for slots, seconds in fleets:
        for key, shown in (("cold", "cold"), ("churned", "1 % churn")):
            curve = found.curves.setdefault(f"{PLAN}/{step.removesuffix('_large')}, {shown}", [])
            curve.append((slots, seconds[key] * 1e3))


def list_panels(found: Found) -> list[Panel]:
    """Return the panels of the picture. Figures of 0 have no place on a logarithmic axis."""

    def pick(kind: str) -> list[Curve]:
        return [
            Curve(name.partition("/")[2], [(x, y) for x, y in points if y > 0])
            for name, points in found.curves.items()
            if name.startswith(f"{kind}/")
        ]

    return [
        Panel("One plan, ten reservations a slot", "slots", "ms", pick(PLAN)),
        Panel("Until all are leased (tasks: done)", "reservations or tasks", "s", sorted(pick(LEASES), key=_is_other)),
    ]


def _is_other(curve: Curve) -> bool:
    return curve.name.endswith("tasks")
