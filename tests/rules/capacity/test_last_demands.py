"""The demands of a cycle are used again in the next one under the same rules."""

from scheduler.model.view import View
from scheduler.policy.cycle.state import UNUSED_DEMANDS, CycleState
from scheduler.policy.plan_cache import PlanCache
from tests.builders import NOW, a_reservation, some_rules


def test_the_next_cycle_has_the_same_demands_until_the_rules_change() -> None:
    view, rules, cache = View([a_reservation("r1")]), some_rules(), PlanCache()
    cache.follow(view)
    shape = view.shapes["r1"]
    known = CycleState(view, rules, NOW, cache).demands[shape]
    assert CycleState(view, rules, NOW, cache).demands[shape] is known
    assert CycleState(view, some_rules(), NOW, cache).demands[shape] is not known


def test_demands_are_dropped_when_many_are_no_longer_in_use() -> None:
    view, rules, cache = View([a_reservation("r1")]), some_rules(), PlanCache()
    cache.follow(view)
    shape = view.shapes["r1"]
    demands = CycleState(view, rules, NOW, cache).demands
    known = demands[shape]
    demands.update({object(): known for _ in range(UNUSED_DEMANDS + 2)})  # type: ignore[misc]
    assert list(CycleState(view, rules, NOW, cache).demands) == []
