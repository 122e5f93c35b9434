"""Running work moves to the level that its account can pay. Source: qscheduler: down below -600, up above +600.

A reservation with several leases moves as a whole, ordered by the cost of all its leases. With a `charge_by` other than
`lease`, a lease counts by its cost per second.
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
    """Move running work of each account at one paid level.

    If the account is overdrawn there and spends more than it earns, its cheapest leases at the level move one level
    down until it earns as much as it spends. If it has saved and earns more than it spends, its most expensive leases
    at worse levels move up to this level, as many as it can pay.
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
    """Yield runs in this order until their weights reach `wanted`."""
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
