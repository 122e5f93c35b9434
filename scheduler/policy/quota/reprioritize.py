"""Running work moves to the level that its account can pay. Source: qscheduler: down below -600, up above +600.

A reservation with several leases moves as a whole, in the order of what it cost in all. With a `charge_by` other than
`lease` an account's leases count as much as they cost a second.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from scheduler.model.accounts import FREE, Account
from scheduler.model.decisions import Relevel
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.quota.running import RunningIndex, RunningWork

OVERDRAWN: Final = -600.0
SAVED: Final = 600.0
"""Balances (worker-seconds) between which, both included, a lease keeps its level."""


def relevel(cycle: CycleState, running: RunningIndex, level: int) -> None:
    """At one paid level: of each account that is overdrawn there and earns less than it spends, the cheapest leases at
    the level go one down, as many as it takes to earn as much as it spends; of each that has saved and earns more than
    it spends, the most expensive ones at any worse level come straight up, as many as it could pay for.
    """
    for name, account in sorted(cycle.balances.accounts.items()):
        balance = cycle.balances.left[name][level]
        if not OVERDRAWN <= balance <= SAVED and name in running.of_account:
            _relevel_account(cycle, running, account, level)


def _relevel_account(cycle: CycleState, running: RunningIndex, account: Account, level: int) -> None:
    runs = list(running.list_metered(account.id))
    net = account.charge_rate[level] - sum(run.weight for run in runs if run.level == level)
    balance = cycle.balances.left[account.id][level]
    movable = [run for run in runs if run.state == "held"]
    if balance < OVERDRAWN and net < 0:
        cheapest = [run for run in movable if run.level == level]
        _move(cycle, _choose(cheapest, lambda run: run.rank, -net), level + 1)
    elif balance > SAVED and net > 0:
        dearest = [run for run in movable if run.level > level]
        _move(cycle, _choose(dearest, lambda run: run.rank_down, net), level)


def _choose(runs: list[RunningWork], rank: Callable[[RunningWork], Any], wanted: float) -> Iterable[RunningWork]:
    """In this order, until they weigh so much together; all of them if they never do."""
    weight = 0.0
    for run in sorted(runs, key=rank):
        if weight >= wanted:
            return
        weight += run.weight
        yield run


def _move(cycle: CycleState, runs: Iterable[RunningWork], to: int) -> None:
    for run in runs:
        cycle.decide(Relevel(reservation=run.reservation.id, source=run.level, to=min(to, FREE)))
        run.level = to
