"""The victims of a preemption on one slot: the fewest and cheapest reservations that free enough capacity.

Source: qscheduler, where a slot has one lease.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from math import comb
from typing import Final

from scheduler.model.accounts import NOTHING, Levels, add
from scheduler.model.resources import Resources
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.quota.run import fits_beside
from scheduler.policy.quota.running import RunningWork

MOST_SETS: Final = 2_000
"""The most sets of one size that are compared; if there are more, the cheapest work goes until the newcomer fits."""


def choose_victims(
    slot_info: SlotInfo,
    runs: Sequence[RunningWork],
    given: Sequence[Resources],
    wanted: Sequence[Resources],
    *,
    at_once: bool,
) -> list[RunningWork] | None:
    """Return the running work that has to go so that instances with the amounts `wanted` fit; None if they never fit.

    Fewest first, then the least cost together, then the order of `runs` (cheapest first). `given`: the amounts that
    this cycle has assigned there. With a grace (not `at_once`) the newcomer begins when revoking leases have ended.
    """

    def makes_room(victims: Iterable[RunningWork]) -> bool:
        gone = {run.reservation.id for run in victims}
        staying = [lease for (owner, _), lease in slot_info.leases.items() if owner not in gone]
        return fits_beside(slot_info, staying, given, wanted, at_once=at_once)

    if not makes_room(runs):
        return None
    for size in range(1, len(runs)):
        if comb(len(runs), size) > MOST_SETS:
            return _take_cheapest(runs, makes_room)
        if sets := [each for each in combinations(runs, size) if makes_room(each)]:
            return list(min(sets, key=sum_costs))
    return list(runs)


def sum_costs(runs: Iterable[RunningWork]) -> Levels:
    """Return the cost of several pieces of running work together."""
    cost = NOTHING
    for run in runs:
        cost = add(cost, run.cost)
    return cost


def _take_cheapest(
    runs: Sequence[RunningWork], makes_room: Callable[[Sequence[RunningWork]], bool]
) -> list[RunningWork]:
    chosen = list(runs)
    while len(chosen) > 1 and makes_room(chosen[:-1]):
        chosen.pop()
    return chosen
