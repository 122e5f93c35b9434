"""The table of `bench.foresight`: its rows, its verdicts, and the waits on small logs."""

from math import inf
from pathlib import Path

import pytest

from bench._forecasts import WEEK, Cost, Judged, LastWaits, Played, judge, play_forecasts
from bench._guard import LEAST_JOBS, Waits, find_worst, play_easy, play_guard
from bench._live import HOSTS, Live, make_jobs
from bench._logs import Log
from bench._ticks_beside_forecasts import BesideForecasts
from bench.foresight import LIVE, PARTS, TICKS, Row, list_rows, list_steps, measure, show_table
from scheduler.foresight.margins import LEAST

MINUTE = 60
LOG = Path("any.swf")


def write_log(path: Path, jobs: list[tuple[int, int, int]]) -> Path:
    """Write a log of jobs (submit time, run time, processors) of two users."""
    lines = [
        f"{number} {at} -1 {run} {processors} -1 -1 {processors} {run} -1 1 {number % 2} 1 -1 -1 -1 -1 -1\n"
        for number, (at, run, processors) in enumerate(jobs, 1)
    ]
    path.write_text("".join(lines), encoding="ascii")
    return path


@pytest.mark.parametrize(
    ("row", "result"),
    [
        (Row("wait", 9_000, (-inf, 12_000), (-inf, 9_000)), "aim"),
        (Row("wait", 9_001, (-inf, 12_000), (-inf, 9_000)), "reached"),
        (Row("wait", 12_001, (-inf, 12_000), (-inf, 9_000)), "missed"),
        (Row("coverage", 0.76, (0.77, 0.83), unit="%"), "missed"),
        (Row("coverage", 0.84, (0.77, 0.83), unit="%"), "missed"),
        (Row("coverage", 0.8, (0.77, 0.83), unit="%"), "reached"),
    ],
)
def test_a_figure_is_compared_with_its_bounds(row: Row, result: str) -> None:
    assert row.result == result


def test_every_step_has_rows() -> None:
    steps = list_steps(LOG, LOG, 1, (*PARTS, LIVE, TICKS))
    waits, played = Waits(9_000, 100_000, {1: 30.0}), Played([], [], 0, 0.0)
    found = {name: played if "forecasts" in name else waits for name in steps} | {
        "cost": Cost(1, 2, 3, 4, 0.5),
        "live": Live(400, 0.75, 500, 0.81),
        "ticks": BesideForecasts(0.2, 0.21, 1.05),
    }
    rows = list(list_rows(found))
    assert len(rows) == 23
    assert all(row.what in show_table(rows) for row in rows)
    text = show_table(rows)
    assert "| KTH, 6,000, limits, against EASY: mean wait | 1.20 × | 1.00 × | 1.00 × | aim |" in text
    assert "| forecasts, KTH, requested times: coverage of 80 % | 77 % to 83 % |  | 0 % | missed |" in text


def test_the_live_stack_is_compared_with_the_simulation() -> None:
    _, apart = list_rows({"live": Live(300, 0.75, 500, 0.81)})
    assert (round(apart.reached, 6), apart.result) == (0.06, "missed")
    found = list_rows({"live": Live(299, 0.84, 500, 0.8)})
    assert [row.result for row in found] == ["missed", "reached"]


def test_the_jobs_of_the_live_stack_are_more_than_its_machines_can_do() -> None:
    seconds = 1_200.0
    work = sum(each.run_seconds * each.processors for each in make_jobs(seconds).jobs)
    assert seconds * HOSTS < work < 1.5 * seconds * HOSTS


def test_a_row_without_its_log_is_left_out() -> None:
    assert set(list_steps(None, None, 1, PARTS)) == {"cost"}
    assert set(list_steps(None, None, 1, [LIVE])) == {"live"}
    assert not set(list_steps(LOG, None, 1, PARTS)) & {"nasa strict", "nasa shadow", "nasa forecasts"}
    assert set(list_steps(LOG, LOG, 1, ("forecasts",))) == {"forecasts", "nasa forecasts"}
    assert list(list_rows({})) == []


def test_the_waits_of_a_log_are_as_computed_by_hand(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log.swf", [(100, 600, 2), (160, 300, 1), (220, 60, 2)])
    waits = play_guard(Log(path, 2), "shadow")
    assert waits.mean == pytest.approx((0 + 540 + 780) / 3, abs=1)
    assert play_easy(Log(path, 2)).mean == pytest.approx((0 + 540 + 780) / 3)
    assert waits.accounts == {}
    assert play_guard(Log(path, 2, limit=2, factor=2.0), "strict").mean == pytest.approx(480 / 2, abs=1)


def test_accounts_with_enough_jobs_are_compared(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log.swf", [(0, MINUTE, 1)] * (2 * LEAST_JOBS + 1))
    strict, shadow = (play_guard(Log(path, 100, 2 * LEAST_JOBS), guard) for guard in ("strict", "shadow"))
    assert set(strict.accounts) == {0, 1}
    assert find_worst(strict, shadow) == (0, 1)
    assert find_worst(Waits(0, 0, {1: 99.0, 2: 9.0}), Waits(0, 0, {1: 49.0, 2: 19.0})) == (10.0, 2.0)


def test_forecasts_are_compared_with_what_came(tmp_path: Path) -> None:
    jobs = [(85 * number, MINUTE + number * 37 % 60, 1) for number in range(4 * LEAST)]
    played = play_forecasts(Log(write_log(tmp_path / "log.swf", jobs), 1), 2, None)
    assert len(played.forecast) == len(played.baseline) > LEAST
    assert judge(played.forecast).coverage > 0.5
    assert judge(played.forecast).loss < judge(played.baseline).loss


def test_weeks_with_few_waits_are_not_judged() -> None:
    hits = [Judged(1.0, 100.0, 90.0, 110.0)] * 24 + [Judged(1.0, 100.0, 110.0, 120.0)] * 6
    found = judge([*hits, Judged(WEEK + 1, 100.0, 0.0, 1.0)])
    assert (found.count, found.weeks, found.near, found.nearer) == (31, 1, 1.0, 1.0)
    assert found.loss == pytest.approx((24 * 2 + 6 * 11 + 99.1) / 31, abs=2)


def test_the_baseline_knows_nothing_before_enough_waits() -> None:
    waits = LastWaits()
    assert waits.predict("a") is None
    for number in range(LEAST + 1):
        waits.predict(str(number))
        waits.note(str(number), 600.0)
    assert waits.predict("b") == pytest.approx((600.0, 600.0), abs=0.01)


def test_steps_are_measured_and_described(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = write_log(tmp_path / "log.swf", [(0, MINUTE, 1), (0, MINUTE, 1)])
    steps = {name: each for name, each in list_steps(path, None, 1, ("guard", "forecasts")).items() if name != "strict"}
    found = measure(steps)
    assert set(found) == set(steps)
    assert "shadow: waits, mean 0 s, p99 0 s, 0 accounts" in capsys.readouterr().out
