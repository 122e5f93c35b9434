"""A plan without decisions is kept until something changes or falls due."""

import pytest
from msgspec.structs import replace

from scheduler.model.decisions import Assign
from scheduler.model.view import View
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache
from tests.builders import NOW, SYSTEM, a_component, a_lease, a_reservation, a_slot, some_rules


@pytest.mark.parametrize(
    ("waited", "later", "is_kept"),
    [
        # The guard protects a reservation that has waited for more than 10 seconds.
        ([5], 4, True),
        ([5], 5, False),
        # It protects the first one already, and the second one after 5 more seconds.
        ([100, 5], 4, True),
        ([100, 5], 5, False),
        ([100, 50], 9999, True),
    ],
)
def test_a_plan_is_kept_until_the_guard_protects_another_reservation(
    waited: list[float], later: float, is_kept: bool
) -> None:
    pending = [
        a_reservation(f"r{number}", created_at=NOW - seconds, sequence=number) for number, seconds in enumerate(waited)
    ]
    rules = some_rules({"scheduler": {"starvation_guard": 10}, "pools": {"linux": {"max_slots": 0}}})
    view, cache = View(pending), PlanCache()
    first = plan(view, rules, NOW, cache)
    assert (plan(view, rules, NOW + later, cache) is first) is is_kept


@pytest.mark.parametrize("waits", [["held", "big", "small"], ["big", "small"]])
@pytest.mark.parametrize(("later", "leased"), [(5.0, ["small"]), (6.0, [])])
def test_a_kept_cycle_ends_when_the_guard_protects_a_reservation(
    later: float, leased: list[str], waits: list[str]
) -> None:
    """`big` waits since 5 s for the whole slot, one half of which is given back meanwhile. `held` has waited for
    longer, but is on hold.
    """
    half, whole = (a_component(resources={"cpus": cpus}) for cpus in (2.0, 4.0))
    holders = [
        a_reservation(name, phase="leased", leases=(a_lease("linux-1", epoch=1, resources=half.resources),))
        for name in ("stays", "goes")
    ]
    waiting = [
        a_reservation("held", created_at=NOW - 99, sequence=1, suspended=True, components=(whole,)),
        a_reservation("big", created_at=NOW - 5, sequence=2, components=(whole,)),
        a_reservation("small", created_at=NOW - 1, sequence=3, components=(half,)),
    ]
    pool = {"system": SYSTEM, "provider": "static", "resources": {"cpus": 4}, "max_slots": 1}
    rules = some_rules({"scheduler": {"starvation_guard": 10, "guard": "strict"}, "pools": {"linux": pool}})
    slot = a_slot("linux-1", resources={"cpus": 4.0})
    view, cache = View([slot, *holders, *(each for each in waiting if each.id in waits)]), PlanCache(least_kept=0)
    assert plan(view, rules, NOW, cache).decisions == ()
    cache.prepare()
    view.apply(replace(holders[1], version=holders[1].version + 1, phase="released", leases=()))
    found = [each.reservation for each in plan(view, rules, NOW + later, cache).decisions if isinstance(each, Assign)]
    assert found == leased
