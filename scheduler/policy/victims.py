"""Whom a preemption on one slot ends: the fewest, cheapest pieces of running work that make room. Source: qscheduler,
where a slot has one lease.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations
from math import comb
from typing import Final

from scheduler.model.accounts import NOTHING, Levels, add
from scheduler.model.resources import Resources, fits, subtract, total
from scheduler.policy.places import Place
from scheduler.policy.running import Run

MOST_SETS: Final = 2_000
"""So many sets of one size are compared; where there are more, the cheapest ones go until there is room."""


def choose_victims(
    place: Place, runs: Sequence[Run], wanted: Sequence[Resources], *, at_once: bool
) -> list[Run] | None:
    """Of these, cheapest first, who has to go so that instances with these amounts have room; None where all of them
    are not enough. Fewest first, then the least cost together, then the order given.

    With a grace (not `at_once`) those who are leaving already are as good as gone, and who claims the place as good as
    here.
    """
    if place.uses_left < len(wanted) or not _makes_room(place, runs, wanted, at_once=at_once):
        return None
    for size in range(1, len(runs)):
        if comb(len(runs), size) > MOST_SETS:
            return _take_cheapest(place, runs, wanted, at_once=at_once)
        sets = [each for each in combinations(runs, size) if _makes_room(place, each, wanted, at_once=at_once)]
        if sets:
            return list(min(sets, key=sum_costs))
    return list(runs)


def sum_costs(runs: Iterable[Run]) -> Levels:
    """What they cost together."""
    cost = NOTHING
    for run in runs:
        cost = add(cost, run.cost)
    return cost


def _take_cheapest(place: Place, runs: Sequence[Run], wanted: Sequence[Resources], *, at_once: bool) -> list[Run]:
    chosen = list(runs)
    while len(chosen) > 1 and _makes_room(place, chosen[:-1], wanted, at_once=at_once):
        chosen.pop()
    return chosen


def _makes_room(place: Place, victims: Iterable[Run], wanted: Sequence[Resources], *, at_once: bool) -> bool:
    """Whether the place has room for so much when these are gone."""
    gone = {run.reservation.id for run in victims}
    staying = [lease for (owner, _), lease in place.leases.items() if owner not in gone]
    if not at_once:
        staying = [lease for lease in staying if lease.state != "revoking"]
    if len(staying) + place.given + len(wanted) > place.pool.lease_limit:
        return False
    if place.capacity is None:
        return True
    taken = total(lease.resources for lease in staying)
    return fits(total(wanted), subtract(place.capacity, taken))
