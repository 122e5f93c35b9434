"""Silent static hosts are found from what is kept between ticks as from all rows."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.slots import Slot
from scheduler.model.view import Gone, View
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache
from tests.builders import NOW, a_reservation, a_slot, some_rules

HOSTS = ("lab-1", "lab-2", "lab-3")
RULES = some_rules(
    {"pools": {"lab": {"system": "x86_64-linux", "provider": "static", "max_slots": 3, "offline_timeout": 60}}}
)
CHANGES = st.tuples(
    st.sampled_from(HOSTS), st.sampled_from(["heard", "drains", "leaves", "deleted"]), st.integers(0, 90)
)


def a_host(name: str, last_seen: float) -> Slot:
    return a_slot(name, pool="lab", state="ready", last_seen=last_seen, machine=name, launch_id=None)


def change(view: View, name: str, what: str, now: float) -> None:
    """Change a host as reports and operators do; a host that was deleted registers again when it is heard."""
    known = view.slots.get(name)
    version = 1 if known is None else known.version + 1
    if what == "deleted":
        view.apply(Gone("slots", name, version))
    elif what == "heard":
        view.apply(msgspec.structs.replace(known or a_host(name, now), version=version, state="ready", last_seen=now))
    elif known is not None:
        state = {"drains": "draining", "leaves": "empty"}[what]
        view.apply(msgspec.structs.replace(known, version=version, state=state, marked_at=now))


@settings(deadline=None)  # a busy machine may take long for the first one
@given(st.lists(CHANGES, max_size=12))
def test_a_kept_heartbeat_never_changes_a_plan(changes: list[tuple[str, str, int]]) -> None:
    # The pool begins without hosts, so that the first tick knows of no heartbeat.
    view = View([a_reservation("r1"), a_reservation("r2")])
    # Without the cycle that goes on, each tick searches for silent hosts.
    cache, now = PlanCache(least_kept=10**9), NOW
    for name, what, seconds in changes:
        now += seconds
        change(view, name, what, now)
        warm, cold = plan(view, RULES, now, cache), plan(view, RULES, now)
        assert (warm.decisions, warm.wake_at) == (cold.decisions, cold.wake_at)
        assert dict(warm.waiting.items()) == dict(cold.waiting.items())


def test_a_host_that_registers_and_falls_silent_is_found_by_a_warm_tick() -> None:
    view, cache = View([a_reservation("r1", pool="lab", system=None)]), PlanCache()
    assert not plan(view, RULES, NOW, cache).decisions
    view.apply(a_host("lab-1", NOW))
    assert plan(view, RULES, NOW + 59, cache).decisions
    assert plan(view, RULES, NOW + 61, cache).decisions == plan(view, RULES, NOW + 61).decisions
    assert not plan(view, RULES, NOW + 61, cache).decisions
