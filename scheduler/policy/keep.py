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
            while count_serving(places) < pool.min_slots and _launch(limits, draft, name, "minimum"):
                pass
            while count_reserve(places) < pool.target_warm_slots and _launch(limits, draft, name, "warm"):
                pass


def count_serving(places: list[Place]) -> int:
    """Slots that are ready or on their way and not cordoned: only these count towards `min_slots`."""
    return sum(place.is_serving for place in places)


def count_reserve(places: list[Place]) -> int:
    """Ready slots without a lease plus slots in flight, cordoned ones aside, that nobody waits for."""
    return sum(place.is_idle or (place.is_serving and place.is_coming and not place.wanted) for place in places)


def _launch(limits: Limits, draft: Draft, name: str, reason: str) -> bool:
    """Launch the first choice that nothing holds back; False when there is none.

    Where launches are withheld from those who wait, none is made that would be the next to make way for them.
    """
    pool = draft.rules.pools[name]
    for choice in list_eligible(list_choices(pool), pool):
        if limits.find_code(name, choice) is None and not draft.withheld_launches.get(name):
            limits.launch(name, choice, reason)
            return True
    return False
