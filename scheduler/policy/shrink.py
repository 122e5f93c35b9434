"""Step 8, shrink: what has been idle for too long is drained. Source: the autoscaler's tick."""

from scheduler.model.decisions import Drain
from scheduler.policy.draft import Draft
from scheduler.policy.keep import count_reserve, count_serving
from scheduler.policy.places import Place


def shrink(draft: Draft) -> None:
    """Drain ready slots without leases that were idle strictly longer than `idle_scale_down`.

    Only while more than `min_slots` serve and more than `target_warm_slots` are in reserve; the one that is
    idle longest goes first, then slot order. A leased slot never goes, whatever its age.
    """
    for name, places in draft.pools.items():
        pool = draft.rules.pools[name]
        idle = sorted((place for place in places if place.is_idle), key=_longest_first) if pool.is_elastic else ()
        if not idle:
            continue
        spare = min(count_serving(places) - pool.min_slots, count_reserve(places) - pool.target_warm_slots)
        for place in idle[: max(0, spare)]:
            if draft.is_past(place.idle_since, pool.idle_scale_down):
                draft.decide(Drain(slot=place.slot.id, reason="idle"))
                place.state = "draining"


def _longest_first(place: Place) -> tuple[float, object]:
    """Who has been idle longest goes first, then slot order."""
    return (place.idle_since, place.order)
