"""The tick's plan under `queue: quota` compared with a simple planner: `python -m bench.quota`; `--help` lists the
options.

The workload is that of qscheduler's own figures: 10 accounts, 20 models, 50 images, three labels on each slot, two
required labels and a preferred one in each request. Figures of the Go original on a similar machine for 10,000 slots
× 100,000 pending: 16 s cold, 70 ms for an unchanged tick, 240 ms at 1 % churn, 457 MiB. Must reach: ten times faster
cold.

Each fleet is planned in its own process, whose peak memory is printed; the simple planner has another one. Its
assignments, slot and level, must be those of the plan in every tick. Seconds are the processes' own.
"""

import json
import resource
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from random import Random
from time import process_time
from typing import Any

from msgspec.structs import replace

from scheduler.model.accounts import FREE, PAID, Account, Levels, add, at_level, level_of, subtract
from scheduler.model.decisions import Assign, Decision, Placement, Plan, Preempt
from scheduler.model.reservations import Component, Lease, Request, Reservation
from scheduler.model.rules import Rules, read_rules
from scheduler.model.slots import Slot
from scheduler.model.view import Row, View
from scheduler.model.waits import Waits
from scheduler.operations.paused_gc import PausedGC
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache
from scheduler.policy.quota.accounting import settle
from testbed.carrying import carry_out, charge_account, list_churn

# A simple planner of quota scheduling with floats, lists and nested loops.


@dataclass(frozen=True)
class _Victim:
    """Work that runs, and what it has cost so far."""

    cost: Levels
    slot: Slot
    level: int
    row: Reservation


def place_by_loops(view: View, now: float) -> dict[str, tuple[str, int]]:
    """Reservation -> (slot, level), for slots of one lease, accounts without limits, work that stays at its level."""
    balances = {name: charge_account(view, account, now).balance for name, account in view.accounts.items()}
    waiting = _list_waiting(view, balances)
    held = {slot_id for slot_id, leases in view.leases_on.items() if leases}
    idle = [slot for slot in _in_order(view.slots.values()) if slot.id not in held]
    victims = _list_victims(view, now)
    found: dict[str, tuple[str, int]] = {}
    for level in (*PAID, FREE):
        for is_preferred in (True, False):
            idle = [slot for slot in idle if not _give(slot, waiting[level], level, found, is_preferred=is_preferred)]
        if level != FREE:
            victims = _preempt(waiting[level], victims, level, found, balances)
    return found


def _list_waiting(view: View, balances: dict[str, Levels]) -> dict[int, list[Reservation]]:
    """Return the waiting reservations by level: those with most labels first, then the oldest."""
    waiting: dict[int, list[Reservation]] = {level: [] for level in (*PAID, FREE)}
    pending = view.by_phase["pending"].values()
    for row in sorted(pending, key=lambda row: (-len(row.request.labels), row.created_at, row.sequence)):
        account = row.request.account
        waiting[level_of(balances[account]) if account else FREE].append(row)
    return waiting


def _in_order(slots: Iterable[Slot]) -> list[Slot]:
    return sorted(slots, key=_number)


def _number(slot: Slot) -> int:
    return int(slot.id.split("-")[-1])


def _give(
    slot: Slot, waiting: list[Reservation], level: int, found: dict[str, tuple[str, int]], *, is_preferred: bool
) -> bool:
    """Give the slot to the first reservation that may have it. Return whether there was one.

    `is_preferred`: only a reservation whose preferred labels the slot has may have it.
    """
    for index, row in enumerate(waiting):
        if _has(slot, row.request.labels) and (not is_preferred or _has(slot, row.request.prefers)):
            found[row.id] = (slot.id, level)
            del waiting[index]
            return True
    return False


def _has(slot: Slot, labels: dict[str, str]) -> bool:
    for name, value in labels.items():  # noqa: SIM110 a generator takes twice as long, and this is most of the work
        if slot.labels.get(name) != value:
            return False
    return True


def _list_victims(view: View, now: float) -> list[_Victim]:
    """Cheapest first, then slot order."""
    running = [(lease, row) for row in view.by_phase["leased"].values() for lease in row.leases]
    found = [_Victim(settle(lease, now).cost, view.slots[lease.slot], lease.level, row) for lease, row in running]
    return sorted(found, key=lambda each: (each.cost, _number(each.slot)))


def _preempt(
    waiting: list[Reservation],
    victims: list[_Victim],
    level: int,
    found: dict[str, tuple[str, int]],
    balances: dict[str, Levels],
) -> list[_Victim]:
    """Let each victim of a worse level be preempted by the first reservation whose account may and can pay for it.

    Return the remaining victims.
    """
    barred = {each.row.request.account for each in victims if each.level > level}
    left = []
    for victim in victims:
        index = None
        if victim.level > level and victim.row.request.preemptible:
            index = _find_payer(waiting, victim, barred, balances)
        if index is None:
            left.append(victim)
            continue
        row, loser = waiting.pop(index), victim.row.request.account
        found[row.id] = (victim.slot.id, level)
        payer = row.request.account or ""
        balances[payer] = subtract(balances[payer], victim.cost)
        if loser:
            balances[loser] = add(balances[loser], victim.cost)
    return left


def _find_payer(
    waiting: list[Reservation], victim: _Victim, barred: set[str | None], balances: dict[str, Levels]
) -> int | None:
    for index, row in enumerate(waiting):
        account = row.request.account
        may = account not in barred and _has(victim.slot, row.request.labels)
        if may and account and victim.cost < balances[account]:
            return index
    return None


# The fleets that `bench.quota` plans: the workload of qscheduler's own figures.

NOW = 1_800_000_000.0
TICK = 5.0
"""Seconds from one tick to the next."""
ACCOUNTS, MODELS, IMAGES = 10, 20, 50
SAVINGS = 1e9
"""Worker-seconds. More than a fleet uses during a measurement, so that every account keeps its level."""
SYSTEM, POOL = "x86_64-linux", "linux"


@dataclass(frozen=True)
class Fleet:
    """Rows of one size, and the rules that they are planned by."""

    slots: Sequence[Slot]
    reservations: Sequence[Reservation]
    accounts: Sequence[Account]
    rules: Rules

    @property
    def rows(self) -> list[Row]:
        """What a view is made of."""
        return [*self.slots, *self.accounts, *self.reservations]


def make_fleet(slots: int, pending: int, *, is_busy: bool) -> Fleet:
    """Slots with three labels; requests of ten accounts, two at each level, that require two of them and prefer the
    third. They find all slots idle, or (busy) all of them held by work of the free level, which they preempt.
    """
    random = Random(slots)
    keys = {"system": SYSTEM, "provider": "static", "max_leases_per_slot": 1, "offline_timeout": 1e9}
    rules = read_rules({"scheduler": {"queue": "quota", "preemption_grace": 0}, "pools": {POOL: keys}})
    found = [_make_slot(random, number) for number in range(1, slots + 1)]
    wishes = [_make_request(account, model, image) for account, model, image in _list_shapes()]
    holders = [_make_holder(number, slot) for number, slot in enumerate(found, start=1)] if is_busy else []
    waiting = [
        _make_waiting(len(holders) + index + 1, random.choice(wishes), index / pending) for index in range(pending)
    ]
    return Fleet(found, [*holders, *waiting], [_make_account(number) for number in range(ACCOUNTS)], rules)


def _list_shapes() -> Iterator[tuple[int, int, int]]:
    return (
        (account, model, image) for account in range(ACCOUNTS) for model in range(MODELS) for image in range(IMAGES)
    )


def _make_account(number: int) -> Account:
    balance: Levels = at_level(number % len(PAID), SAVINGS)
    return Account(
        id=f"account-{number}", charge_rate=(1.0,) * 5, max_charge_seconds=3600, balance=balance, charged_at=NOW
    )


def _make_request(account: int, model: int, image: int) -> Request:
    return Request(
        system=SYSTEM,
        account=f"account-{account}",
        components=(Component(name="main"),),
        labels={"role": "worker", "model": f"m{model}"},
        prefers={"image": f"i{image}"},
    )


def _make_slot(random: Random, number: int) -> Slot:
    labels = {"role": "worker", "model": f"m{random.randrange(MODELS)}", "image": f"i{random.randrange(IMAGES)}"}
    return Slot(id=f"{POOL}-{number}", pool=POOL, state="ready", epoch=1, since=NOW, last_seen=NOW, labels=labels)


def _make_waiting(sequence: int, request: Request, share: float) -> Reservation:
    created_at = NOW - 600 * (1 - share)
    return Reservation(id=f"r{sequence}", sequence=sequence, request=request, created_at=created_at)


def _make_holder(sequence: int, slot: Slot) -> Reservation:
    """Return a leased reservation of the free level without an account."""
    request = Request(system=SYSTEM, components=(Component(name="main"),))
    lease = Lease(component="main", slot=slot.id, epoch=slot.epoch, token=1, assigned_at=NOW - 900, charged_at=NOW)
    row = _make_waiting(sequence, request, 0)
    return replace(row, phase="leased", token=1, leased_at=NOW - 900, leases=(lease,))


SIZES = ((1_000, 10_000), (10_000, 100_000))
SIZE_OF_GO = (10_000, 100_000)
LARGEST = (100_000, 1_000_000)
WORKLOADS = {"idle": False, "busy": True}
"""All slots are idle at first, or all are held by free work that the paid ones preempt."""
PLAIN_MOST = 100_000_000
"""Most slots × pending for which the simple planner runs."""
CHURN = 0.01
TICKS = ("cold", "settled", "unchanged", "churned")
GO = {"cold": 16.0, "unchanged": 0.070, "churned": 0.240}
"""Seconds of the Go original at 10,000 × 100,000, as qscheduler's page has them; not measured here."""

Assignments = dict[str, tuple[str, int | None]]
Planner = Callable[[PlanCache, View, Fleet, float], Plan]


@dataclass(frozen=True)
class Ticks:
    """The ticks of one planner: their seconds, what they assigned, and the peak memory of the process."""

    seconds: dict[str, float]
    assigned: dict[str, Assignments]
    waiting: int
    peak_mib: float


@dataclass(frozen=True)
class Figures:
    """The figures of one fleet of one size.

    cold: the first plan on a new view, in a new process. settled: the next tick's plan, after the first was
    carried out. unchanged: the one after that; in between only the accounts were charged.
    churned: the plan after 1 % of the leased and pending reservations were replaced.
    """

    workload: str
    slots: int
    pending: int
    engine: Ticks
    plain: Ticks | None
    """None where it would take too long."""


def run(planner: str, workload: str, slots: int, pending: int) -> Ticks:
    """TICKS of one of PLANNERS, each on the view as the one before leaves it.

    The time that a leader takes to prepare the next plan, after a commit, is not included.
    """
    make, cache = PLANNERS[planner], PlanCache()
    fleet = make_fleet(slots, pending, is_busy=WORKLOADS[workload])
    view, now = View(fleet.rows), NOW
    seconds, assigned = {}, {}
    waiting = 0
    for name in TICKS:
        if name == "churned":
            for row in list(list_churn(view, CHURN, now)):
                view.apply(row)
        began = process_time()
        outcome = make(cache, view, fleet, now)
        seconds[name] = process_time() - began
        assigned[name] = find_assignments(outcome)
        waiting = waiting or len(outcome.waiting)
        cache.prepare()
        carry_out(view, fleet.rules, outcome, now)
        now += TICK
    return Ticks(seconds, assigned, waiting, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def find_assignments(outcome: Plan) -> Assignments:
    """Reservation -> the slot and the level that its one component gets."""
    return {
        each.reservation: (each.leases[0].slot, each.level) for each in outcome.decisions if isinstance(each, Assign)
    }


def _plan_by_engine(cache: PlanCache, view: View, fleet: Fleet, now: float) -> Plan:
    with PausedGC():
        return plan(view, fleet.rules, now, cache)


def _plan_by_loops(_cache: PlanCache, view: View, _: Fleet, now: float) -> Plan:
    decisions: list[Decision] = []
    for name, (slot, level) in place_by_loops(view, now).items():
        leases = (Placement(component="main", slot=slot, epoch=view.slots[slot].epoch),)
        victims = tuple(owner for owner, _ in view.leases_of(slot))
        if victims:
            decisions.append(Preempt(reservation=name, slot=slot, victims=victims, level=level, leases=leases))
        decisions.append(Assign(reservation=name, leases=leases, level=level))
    return Plan(tuple(decisions), Waits(), None, tuple(view.accounts))


PLANNERS: dict[str, Planner] = {"engine": _plan_by_engine, "plain": _plan_by_loops}


def measure_all(chosen: Namespace) -> Iterator[Figures]:
    """These workloads in these sizes, one process after the other; fails where the two planners differ."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn"), max_tasks_per_child=1) as processes:
        for workload in chosen.workloads:
            for slots, pending in chosen.sizes:
                engine = processes.submit(run, "engine", workload, slots, pending).result()
                plain = None
                if chosen.plain and slots * pending <= chosen.plain_most:
                    plain = processes.submit(run, "plain", workload, slots, pending).result()
                    assert plain.assigned == engine.assigned, f"the plain planner differs: {workload}, {slots} slots"
                yield Figures(workload, slots, pending, engine, plain)


def show(figures: Figures) -> None:
    """Two lines: the engine with what it assigned, and the plain planner with how many times as long it took."""
    size = f"{figures.workload:<5}{figures.slots:>8,} × {figures.pending:>9,}"
    engine, plain = figures.engine, figures.plain
    times = ", ".join(f"{name} {took * 1000:9.1f}" for name, took in engine.seconds.items())
    counts = "/".join(f"{len(each)}" for each in engine.assigned.values())
    print(
        f"{size}  engine: {times} ms   {counts} assigned, {engine.waiting} wait   {engine.peak_mib:5.0f} MiB",
        flush=True,
    )
    if plain:
        ratios = ", ".join(f"{name} {took / engine.seconds[name]:8.1f}×" for name, took in plain.seconds.items())
        print(f"{'':{len(size)}}  plain:  {ratios}      the same assignments   {plain.peak_mib:5.0f} MiB", flush=True)
    if (figures.slots, figures.pending) == SIZE_OF_GO:
        ratios = ", ".join(f"{name} {took / engine.seconds[name]:8.1f}×" for name, took in GO.items())
        print(f"{'':{len(size)}}  Go:     {ratios}      (its page's figures)", flush=True)


def main() -> None:
    """Measure and show what the command line asks for."""
    chosen = _read_command_line()
    found = []
    for figures in measure_all(chosen):
        if chosen.json:
            found.append(_describe(figures))
        else:
            show(figures)
    if chosen.json:
        print(json.dumps(found))


def _describe(figures: Figures) -> dict[str, Any]:
    """As a document; of the assignments their numbers."""
    document = asdict(figures)
    for planner in filter(None, (document["engine"], document["plain"])):
        planner["assigned"] = {name: len(each) for name, each in planner["assigned"].items()}
    return document


def _read_command_line() -> Namespace:
    parser = ArgumentParser(prog="python -m bench.quota", description="Time the plan of quota beside a plain planner.")
    parser.add_argument(
        "--sizes", nargs="+", type=_read_size, default=SIZES, help="SLOTSxPENDING …; default 1000x10000 10000x100000"
    )
    parser.add_argument("--large", action="store_true", help="100000x1000000 too: takes a few GiB")
    parser.add_argument(
        "--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), help="which; default both"
    )
    parser.add_argument("--no-plain", dest="plain", action="store_false", help="leave the plain planner out")
    parser.add_argument(
        "--plain-most",
        type=int,
        default=PLAIN_MOST,
        help="slots × pending up to which it is tried; default %(default)s",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of lines")
    chosen = parser.parse_args()
    chosen.sizes = [*chosen.sizes, *([LARGEST] if chosen.large else [])]
    return chosen


def _read_size(word: str) -> tuple[int, int]:
    slots, _, pending = word.partition("x")
    if not (slots.isdecimal() and pending.isdecimal() and int(slots) and int(pending)):
        raise ArgumentTypeError(f"expected SLOTSxPENDING, as 1000x10000, got {word!r}")
    return int(slots), int(pending)


if __name__ == "__main__":
    main()
