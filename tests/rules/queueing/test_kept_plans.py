"""A plan without decisions is kept until something changes or falls due."""

import pytest

from scheduler.model.view import View
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache
from tests.builders import NOW, a_reservation, some_rules


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
