"""The timeline of a simulation agrees with its figures, and stays small."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from scheduler.model.transitions import SLOT_STATES
from scheduler.simulation.runner import Runner
from scheduler.simulation.scenario import load_scenario
from scheduler.simulation.timeline import FULL, MOST_CELLS, LaneRecorder, Timeline, Waits
from scheduler.simulation.trace import TracePlay
from scheduler.simulation.workload import read_workload
from tests.traces.logs import Row, a_fleet, a_log, a_pool, an_ec2_pool

SCENARIO = Path(__file__).parents[1] / "rules" / "two_fit_one_launches.json"
ROWS: tuple[Row, ...] = ((0, 100, 1), (0, 100, 1), (1, 200, 1), (2, 10, 1), (3, 10, 1), (4, 10, 2))


def record(folder: Path, pool: dict[str, Any]) -> tuple[TracePlay, Timeline]:
    fleet = a_fleet(pool, {"launch": 1, "boot": 20, "bind": 5, "terminate": 10})
    played = TracePlay(read_workload(a_log(folder, *ROWS), fleet.most_processors), fleet, records=True)
    played.play()
    timeline = played.finish_timeline()
    assert timeline is not None
    return played, timeline


@pytest.mark.parametrize("pool", [a_pool(), an_ec2_pool(), a_pool(max_slots=1, resources={"cpus": 3})])
def test_the_timeline_of_a_trace_agrees_with_its_summary(pool: dict[str, Any], tmp_path: Path) -> None:
    played, timeline = record(tmp_path, pool)
    summary = played.sum_up()
    assert timeline.utilisation == pytest.approx(summary.utilisation)
    assert timeline.machine_seconds / 3600 == pytest.approx(summary.instance_hours)
    assert timeline.cost == pytest.approx(summary.cost)
    assert timeline.events.get("slot_launching", 0) == summary.launches
    assert (timeline.phases, timeline.still_waiting) == ({"released": summary.finished}, 0)
    assert (timeline.waits.count, timeline.waits.spread) == (summary.finished, summary.wait)


def test_a_run_records_no_timeline_unless_it_is_asked_for(tmp_path: Path) -> None:
    fleet = a_fleet()
    assert TracePlay(read_workload(a_log(tmp_path, *ROWS), 2), fleet).finish_timeline() is None


def test_the_timeline_of_a_scenario_has_each_change_of_a_slot() -> None:
    runner = Runner(load_scenario(SCENARIO), records=True)
    assert list(runner.play())
    timeline = runner.finish_timeline()
    assert timeline is not None
    first, second = timeline.lanes.lanes
    assert [(each.begin, each.end, each.state, each.load, each.holders) for each in first.steps] == [
        (0, 80, "ready", 0.5, ("r1",))
    ]
    assert [(each.begin, each.end, each.state, each.load, each.holders) for each in second.steps] == [
        (0, 60, "booting", 0, ()),
        (60, 65, "binding", 0, ()),
        (65, 70, "ready", 0, ()),
        (70, 80, "ready", 1, ("r2",)),
    ]
    assert [(each.id, each.wait, each.leased) for each in timeline.longest] == [("r2", 70, 70), ("r1", 0, 0)]
    assert timeline.waits == Waits(2, timeline.waits.spread, (1, 0, 0, 1, 0, 0, 0, 0), ((0, 0.5), (70, 1)))
    # booting, binding and ready slots have a machine: one is half used, the other is used for 10 of 80 seconds
    assert timeline.utilisation == pytest.approx((80 * 0.5 + 10) / (80 + 80))


@given(
    some.lists(some.tuples(some.sampled_from(SLOT_STATES), some.floats(0, 1), some.floats(0.01, 1e5)), min_size=1),
    some.integers(0, 5),
)
def test_a_lane_keeps_its_bounds_and_the_whole_life(steps: list[tuple[str, float, float]], most: int) -> None:
    recorder, now = LaneRecorder(most_lanes=1, most_steps=most), 0.0
    for state, load, seconds in steps:
        recorder.note("a-1", "a", state, load, (), now)
        recorder.note("a-2", "a", state, load, (), now)
        now += seconds
    found = recorder.finish(now)
    assert len(found.lanes) <= 1
    for lane in found.lanes:
        assert len(lane.steps) <= most
        assert len(lane.states) == len(lane.loads) <= MOST_CELLS
        assert len(lane.states) * found.width >= now
        assert {int(each) for each in lane.loads} <= set(range(FULL + 1))
        if found.is_exact:
            used = sum(step.end - step.begin for step in lane.steps)
            assert used == pytest.approx(sum(seconds for state, _, seconds in steps if state != "empty"))
