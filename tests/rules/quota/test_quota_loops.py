"""Under `queue: quota` the plan assigns as a plain planner does that looks at every slot for every reservation."""

import pytest

from bench.quota import WORKLOADS, run


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize(("slots", "pending"), [(1, 7), (3, 60), (40, 30), (100, 700)])
def test_the_plan_assigns_as_the_plain_planner_does(workload: str, slots: int, pending: int) -> None:
    """Cold, settled, unchanged and churned; some slots are left idle where few wait."""
    engine, plain = (run(planner, workload, slots, pending) for planner in ("engine", "plain"))
    assert engine.assigned == plain.assigned
    assert engine.assigned["cold"]
