"""Each step of `plan()` has its entry in the table of steps, from which a kept cycle takes when a step may decide."""

import ast
import inspect
from math import inf

import pytest

import scheduler.policy.plan as module
from scheduler.policy.plan import plan
from scheduler.policy.steps import STEPS
from tests.builders import a_reservation, a_slot
from tests.rules.test_kept_cycle import Ticks

COLLECTING = {"keep", "wake"}
"""They take the cycle when it has decided."""


def list_calls(source: str) -> list[str]:
    """Return the functions that `plan` calls with the cycle, in order."""
    calls = (each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.Call))
    with_cycle = [each for each in calls if each.args and ast.unparse(each.args[0]) == "cycle"]
    names = [ast.unparse(each.func) for each in sorted(with_cycle, key=lambda each: each.lineno)]
    return [name for name in names if name[0].islower() and name not in COLLECTING]


def test_each_step_of_the_plan_is_in_the_table_at_its_place() -> None:
    source = inspect.getsource(plan)
    assert list_calls(source) == [step.run.__name__ for step in STEPS]
    assert all(getattr(module, step.run.__name__) is step.run for step in STEPS)
    forgotten = source.replace("    replace(cycle, limits)", "    replace(cycle, limits)\n    defragment(cycle)")
    assert "defragment" in list_calls(forgotten)


@pytest.mark.parametrize("number", [number for number, step in enumerate(STEPS) if step.due is not None])
def test_a_kept_cycle_leaves_a_tick_to_a_full_cycle_if_one_step_may_decide(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = Ticks(a_slot(), a_reservation("r1"))
    ticks.tick(a_reservation("r2"))
    assert ticks.has_gone_on
    steps = [*STEPS[:number], STEPS[number]._replace(due=lambda _: -inf), *STEPS[number + 1 :]]
    monkeypatch.setattr("scheduler.policy.replan.kept_cycle.STEPS", steps)
    ticks.tick(a_reservation("r3"))
    assert not ticks.has_gone_on
