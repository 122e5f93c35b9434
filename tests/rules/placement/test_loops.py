"""The plan places as two plain loops do that look at every slot for every reservation."""

import pytest

from bench._fleets import FLEETS
from bench._loops import LOOPS
from bench.plan import find_assignments
from scheduler.model.view import View
from scheduler.policy.plan import plan

CASES = [(name, loop) for name, make in FLEETS.items() for loop in make(1, 1).loops]


@pytest.mark.parametrize(("name", "loop"), CASES)
@pytest.mark.parametrize("slots", range(1, 40, 3))
def test_the_plan_assigns_as_the_plain_loops_do(name: str, loop: str, slots: int) -> None:
    fleet = FLEETS[name](slots, slots * 7)
    found = find_assignments(plan(View(fleet.rows), fleet.rules, fleet.now))
    assert found == LOOPS[loop](fleet)
    assert found
