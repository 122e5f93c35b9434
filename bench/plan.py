"""The tick's plan compared with two simple planners: `python -m bench.plan`; `--help` lists the options to measure a
part of it.

Must reach: 1,000 slots × 10,000 pending in under 50 ms, 10,000 × 100,000 in under 1.5 s cold, growth about linear in
slots + reservations, and the same assignments as the simple planners. Figures are seconds of this process' own time,
the best of a few rounds. Each fleet is planned in its own process, whose peak memory is printed. A simple planner is
tried on the next larger fleet as long as it is not expected to take longer than LOOP_SECONDS there.
"""

import dataclasses
import json
import resource
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from random import Random
from time import process_time
from typing import Any

from msgspec.structs import replace

from scheduler.model.decisions import Assign, Launch, Plan
from scheduler.model.pools import Pool
from scheduler.model.reservations import Component, Lease, Request, Reservation
from scheduler.model.rules import Rules, read_rules
from scheduler.model.run_times import RunTimes, list_classes
from scheduler.model.slots import Slot
from scheduler.model.view import Row, View
from scheduler.operations.paused_gc import PausedGC
from scheduler.policy.cycle.work_budget import NEXT_TURN
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache
from testbed.carrying import list_churn, settle

# The fleets of `bench.plan`. More reservations wait than fit, so that every part of a tick has work.

NOW = 1_800_000_000.0
SYSTEMS = ("x86_64-linux", "aarch64-linux", "x86_64-windows")
ZONES = ("a", "b", "c")
LEASES_PER_SLOT = 4
GANG = 32
SMALL_ONES_A_GANG = 100
"""Slots per gang. Fleets with single reservations have ten of them for each slot."""


@dataclass(frozen=True)
class Fleet:
    """Rows and rules of one size, and the simple planners that place by the same rules."""

    slots: Sequence[Slot]
    reservations: Sequence[Reservation]
    rules: Rules
    now: float
    loops: tuple[str, ...]
    run_times: Sequence[RunTimes] = ()

    @property
    def rows(self) -> list[Row]:
        """Return the rows for a view."""
        return [*self.slots, *self.reservations, *self.run_times]


def make_counted(slots: int, pending: int) -> Fleet:
    """Return the autoscaler's fleet: three systems, slots that count leases only, equal requests
    except for the system.
    """
    random = Random(slots)
    pools = {_pool_of(system): {"system": system, "max_leases_per_slot": LEASES_PER_SLOT} for system in SYSTEMS}
    requests = [Request(system=system, components=(Component(name="main"),)) for system in SYSTEMS]
    return _make_fleet(
        pools,
        _make_slots(slots, lambda _: {"state": "ready"}),
        _make_reservations(random, pending, requests),
        ("first_fit", "sorting"),
    )


def make_sized(slots: int, pending: int, scheduler: dict[str, Any] | None = None) -> Fleet:
    """Orchard's: cpus and memory of different sizes, labels that some require and some prefer, many on one slot."""
    random = Random(slots)
    held: tuple[dict[str, float], ...] = ({"cpus": 8, "memory_mib": 16384}, {"cpus": 16, "memory_mib": 65536})
    sizes: tuple[dict[str, float], ...] = (
        {"cpus": 2, "memory_mib": 4096},
        {"cpus": 4, "memory_mib": 4096},
        {"memory_mib": 12288},
    )
    keys = {"default_resources": {"cpus": 1}, "resources": held[0]}
    pools = {_pool_of(system): {"system": system, **keys} for system in SYSTEMS}
    requests = [
        Request(
            system=system, components=(Component(name="main", resources=resources),), labels=labels, prefers=prefers
        )
        for system in SYSTEMS
        for resources in sizes
        for labels in ({}, {"zone": "a"}, {"disk": "ssd"})
        for prefers in ({}, {"zone": "b"})
    ]

    def describe(_: int) -> dict[str, Any]:
        labels = {"zone": random.choice(ZONES)} | random.choice(({}, {"disk": "ssd"}))
        return {"state": "ready", "resources": random.choice(held), "labels": labels}

    return _make_fleet(
        pools,
        _make_slots(slots, describe),
        _make_reservations(random, pending, requests),
        ("sorting",),
        {"scheduler": scheduler or {}},
    )


def make_prioritized(slots: int, pending: int) -> Fleet:
    """Return the fleet of `make_sized` under the queue `priority`, with nine priorities."""
    fleet, random = make_sized(slots, pending, {"queue": "priority"}), Random(pending)
    rows = [replace(each, priority=random.randint(1, 9)) for each in fleet.reservations]
    return dataclasses.replace(fleet, reservations=rows, loops=())


def make_empty(slots: int, pending: int) -> Fleet:
    """Arvados': nothing runs yet, so that all that fits within `max_slots` is launched, by the cheapest offering."""
    random = Random(slots)
    offerings = [
        {
            "name": name,
            "market": market,
            "price": price * factor,
            "resources": {"cpus": cpus, "memory_mib": cpus * 2048},
        }
        for name, price, cpus in (("small", 0.1, 2), ("medium", 0.19, 4), ("large", 0.4, 8))
        for market, factor in (("spot", 0.4), ("on-demand", 1.0))
    ]
    pools = {_pool_of(system): {"system": system, "offerings": offerings} for system in SYSTEMS}
    requests = [
        Request(system=system, components=(Component(name="main", resources={"cpus": cpus, "memory_mib": memory}),))
        for system in SYSTEMS
        for cpus, memory in ((1, 1024), (2, 4096), (4, 2048), (8, 8192))
    ]
    return _make_fleet(
        pools, _make_slots(slots, lambda _: {"state": "empty"}), _make_reservations(random, pending, requests), ()
    )


def make_gangs(slots: int, pending: int) -> Fleet:
    """Zoe's: gangs of 32 instances, one for ten slots. A third of them fits where a slot takes one instance, by its
    leases or by its cpus; all of them do where it has four cpus. One principal has all gangs, and no work budget ends
    its tick.
    """
    return _make_gangs(slots, pending, (Component(name="rank", count=GANG),), {})


def make_elastic(slots: int, pending: int) -> Fleet:
    """The same with half of each gang elastic, under `flexible`: what is left of the room goes to these."""
    parts = (
        Component(name="rank", count=GANG // 2),
        Component(name="more", count=GANG // 2, kind="elastic"),
    )
    return _make_gangs(slots, pending, parts, {"elastic": "flexible"})


def make_guarded(slots: int, pending: int) -> Fleet:
    """A full fleet: single leases, one on a slot, whose classes have run times. The first 1 % of the waiting ones are
    gangs that have waited for two hours, so that the starvation guard protects them; the rest wait for one slot.
    """
    random = Random(slots)
    pools = {_pool_of(system): {"system": system, "resources": {"cpus": 4}} for system in SYSTEMS}
    ready = _make_slots(slots, lambda _: {"state": "ready"})
    single = Component(name="main", resources={"cpus": 4})
    wide = replace(single, name="rank", count=GANG)
    requests = [
        Request(system=system, account=f"a{number}", components=(single,)) for system in SYSTEMS for number in range(50)
    ]
    leased = [
        replace(each, id=f"l{index}", phase="leased", leased_at=each.created_at, leases=(_fill(slot, single),))
        for index, (slot, each) in enumerate(zip(ready, _make_reservations(random, slots, requests), strict=True))
    ]
    waiting = _make_reservations(random, pending, requests)
    protected = [
        replace(
            each,
            request=replace(each.request, components=(wide,)),
            created_at=NOW - 7200 + index / 1000,
        )
        for index, each in enumerate(waiting[: pending // 100])
    ]
    fleet = _make_fleet(pools, ready, [*leased, *protected, *waiting[len(protected) :]], ())
    times = {name for each in requests for name in list_classes(each, None)}
    known = [
        RunTimes(id=name, seconds=tuple(random.expovariate(1 / 3600) for _ in range(30))) for name in sorted(times)
    ]
    return dataclasses.replace(fleet, run_times=known)


def _fill(slot: Slot, part: Component) -> Lease:
    return Lease(
        component=part.name, slot=slot.id, epoch=slot.epoch, token=1, resources=part.resources, assigned_at=NOW - 600
    )


def _make_gangs(slots: int, pending: int, parts: tuple[Component, ...], scheduler: dict[str, Any]) -> Fleet:
    cpus = dict(zip(SYSTEMS, (None, 1, 4), strict=True))
    pools: dict[str, dict[str, Any]] = {
        _pool_of(system): {"system": system} if held is None else {"system": system, "resources": {"cpus": held}}
        for system, held in cpus.items()
    }
    requests = [
        Request(system=system, components=tuple(replace(part, resources={"cpus": 1} if held else {}) for part in parts))
        for system, held in cpus.items()
    ]
    return _make_fleet(
        pools,
        _make_slots(slots, lambda _: {"state": "ready"}),
        _make_reservations(Random(slots), max(1, pending // SMALL_ONES_A_GANG), requests),
        (),
        {"scheduler": scheduler, "limits": {"work_per_tick": 0}},
    )


FLEETS: dict[str, Callable[[int, int], Fleet]] = {
    "counted": make_counted,
    "sized": make_sized,
    "prioritized": make_prioritized,
    "empty": make_empty,
    "gangs": make_gangs,
    "elastic": make_elastic,
    "guarded": make_guarded,
}


def _pool_of(system: str) -> str:
    return f"pool-{system}"


def _make_fleet(
    pools: dict[str, dict[str, Any]],
    slots: list[Slot],
    reservations: list[Reservation],
    loops: tuple[str, ...],
    settings: dict[str, Any] | None = None,
) -> Fleet:
    """Each pool is as large as the slots that it has here, so that none may be launched beyond them."""
    for name, keys in pools.items():
        keys["max_slots"] = sum(slot.pool == name for slot in slots)
    return Fleet(slots, reservations, read_rules({**(settings or {}), "pools": pools}), NOW, loops)


def _make_slots(count: int, describe: Callable[[int], dict[str, Any]]) -> list[Slot]:
    pools = [_pool_of(system) for system in SYSTEMS]
    found = []
    for index in range(count):
        number, pool = index // len(pools) + 1, pools[index % len(pools)]
        keys = describe(index)
        found.append(Slot(id=f"{pool}-{number}", pool=pool, epoch=int(keys["state"] == "ready"), since=NOW, **keys))
    return found


def _make_reservations(random: Random, count: int, requests: Sequence[Request]) -> list[Reservation]:
    """One after the other, each with a request of its own, as they come out of a database."""
    return [
        Reservation(
            id=f"r{index}",
            sequence=index,
            request=random.choice(requests),
            created_at=NOW - 600 + index * 600 / count,
            changed_at=NOW,
        )
        for index in range(count)
    ]


# Two simple planners as nested loops, which place by the same rules as the plan.


@dataclass
class _Worker:
    """A slot with what is left of it."""

    slot: Slot
    pool: Pool
    order: int
    leases: int
    free: dict[str, float] | None


def place_by_first_fit(fleet: Fleet) -> dict[str, str]:
    """The autoscaler's page: for each reservation the first slot in the list that has room."""
    workers = _open_workers(fleet)
    found = {}
    for reservation in _queue(fleet):
        for worker in workers:
            if _has_room(worker, reservation):
                found[reservation.id] = _give(worker, reservation)
                break
    return found


def place_by_sorting(fleet: Fleet) -> dict[str, str]:
    """Orchard's page: for each reservation all workers are sorted, and the first with room is taken."""
    workers = _open_workers(fleet)
    found = {}
    for reservation in _queue(fleet):
        for worker in sorted(workers, key=partial(_rank, reservation.request)):
            if _has_room(worker, reservation):
                found[reservation.id] = _give(worker, reservation)
                break
    return found


def _rank(request: Request, worker: _Worker) -> tuple[int, int, int, int]:
    """Most preferred labels, fewest beyond those required, most leases, slot order."""
    labels = worker.slot.labels
    preferred = sum(labels.get(name) == value for name, value in request.prefers.items())
    surplus = sum(name not in request.labels for name in labels)
    return (-preferred, surplus, -worker.leases, worker.order)


LOOPS: dict[str, Callable[[Fleet], dict[str, str]]] = {"first_fit": place_by_first_fit, "sorting": place_by_sorting}


def _open_workers(fleet: Fleet) -> list[_Worker]:
    """Pools as configured, slots by number, as the plan has them."""
    ordered = sorted(
        fleet.slots, key=lambda slot: (list(fleet.rules.pools).index(slot.pool), int(slot.id.split("-")[-1]))
    )
    return [
        _Worker(slot, fleet.rules.pools[slot.pool], index, 0, dict(slot.resources) if slot.resources else None)
        for index, slot in enumerate(ordered)
        if slot.state == "ready"
    ]


def _queue(fleet: Fleet) -> list[Reservation]:
    return sorted(fleet.reservations, key=lambda each: (each.created_at, each.sequence))


def _has_room(worker: _Worker, reservation: Reservation) -> bool:
    request = reservation.request
    if worker.pool.system != request.system or worker.leases >= worker.pool.lease_limit:
        return False
    if any(worker.slot.labels.get(name) != value for name, value in request.labels.items()):
        return False
    free = worker.free
    return free is None or all(amount <= free.get(name, 0) for name, amount in _asked(worker, reservation).items())


def _give(worker: _Worker, reservation: Reservation) -> str:
    worker.leases += 1
    if worker.free is not None:
        for name, amount in _asked(worker, reservation).items():
            worker.free[name] -= amount
    return worker.slot.id


def _asked(worker: _Worker, reservation: Reservation) -> dict[str, float]:
    return {**worker.pool.default_resources, **reservation.request.components[0].resources}


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
