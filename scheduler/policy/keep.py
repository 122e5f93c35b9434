"""Step 7, keep: the minimum and the warm reserve of each pool. Source: the autoscaler's tick."""

from scheduler.policy.draft import Draft
from scheduler.policy.limits import Limits
from scheduler.policy.offerings import list_choices, list_eligible
from scheduler.policy.places import Place


def keep(draft: Draft, limits: Limits) -> None:
    """Launch what each pool lacks of `min_slots` and then of `target_warm_slots`, within its limits."""
    for name, places in draft.pools.items():
        pool = draft.rules.pools[name]
        if pool.is_elastic:
            if pool.min_slots:
                _launch(limits, draft, name, "minimum", pool.min_slots - count_serving(places))
            if pool.target_warm_slots:
                _launch(limits, draft, name, "warm", pool.target_warm_slots - count_reserve(places))


def count_serving(places: list[Place]) -> int:
    """Slots that are ready or on their way and not cordoned: only these count towards `min_slots`."""
    return sum(place.is_serving for place in places)


def count_reserve(places: list[Place]) -> int:
    """Ready slots without a lease plus slots in flight, cordoned ones aside, that nobody waits for."""
    return sum(place.is_idle or (place.is_serving and place.is_coming and not place.wanted) for place in places)


def _launch(limits: Limits, draft: Draft, name: str, reason: str, lacking: int) -> None:
    """Launch so many, each the first choice that nothing holds back, as long as there is one.

    Where launches are withheld from those who wait, none is made that would be the next to make way for them.
    """
    if lacking <= 0 or draft.withheld_launches.get(name):
        return
    pool = draft.rules.pools[name]
    choices = list_eligible(list_choices(pool), pool)
    for _ in range(lacking):
        free = next((choice for choice in choices if limits.find_code(name, choice) is None), None)
        if free is None:
            return
        limits.launch(name, free, reason)
