"""The table of `make bench`: its rows, its results, and the section of the page that it writes."""

import json
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from bench import targets
from bench._asked import FULL, QUICK, Row, Sizes, list_rows
from bench._others import describe
from bench._picture import Curve, Panel, draw
from bench._steps import Step, list_panels, list_steps
from bench._table import BEGIN, END, Found, judge, list_cells, make_document, show, write_section
from bench._trivial_tasks import measure as measure_tasks
from bench.targets import PARTS, StepError, measure, read_command_line, report, run_step

ROOT = Path(__file__).parents[2]
RATE = Row("sqlite", "sqlite.lease", "leases", "/s", 7_000, 15_000, (3, 6), "rate")
DELAY = Row("ticks", "tick.arrival", "arrival", "ms", 20, 5)
SECONDS = {"cold": 0.4, "unchanged": 0.003, "churned": 0.03}
STAGES = (
    "one arrival, nothing to decide",
    "one release, one decision",
    "new leader",
    "nothing changed, kicked",
    "nothing changed, look-back",
    "1 % churn",
    "40,000 leases",
    "1,000 leases",
)


def make_found(**values: float) -> Found:
    return Found(values={name.replace("__", "."): value for name, value in values.items()})


def choose(*words: str) -> Namespace:
    return read_command_line(list(words))


def answer(step: Step) -> Any:
    """Return what the bench of a step prints when everything works, for FULL."""
    figures = {"rates": {"1000": 900.0, "10000": 1_000.0}, "p50": 4.0, "p99": 9.0}
    others = {"version": "1", "settings": "a thread a core", **figures}
    plans = [{"slots": slots, "cold": 0.1 * slots, "best": slots / 1000, "churned": 0.03} for slots in (1_000, 10_000)]
    stage = {"seconds": 0.004, "bytes": 900, "statements": 20, "round_trips": 9, "messages": 1}
    sizes = FULL.large_slots if step.name == "quota_large" else FULL.slots
    answers: dict[str, Any] = {
        "bench._others": {"celery": others, "dask": others, "ray": {"skipped": "no wheel"}},
        "bench._load": {"lease": 6_500.0, "lease_many": 2_000.0, "intake": 31_000.0, "renew": 1.0, "release": 2.0}
        | {"renew_on": 1.0},
        "bench.producers": [{"rate": 900.0, "cpu_us": {"producers": 10.0}}, {"rate": 1_100.0, "cpu_us": {}}],
        "bench.tick": dict.fromkeys(STAGES, stage),
        "bench.plan": plans,
        "bench.quota": [{"slots": sizes, "engine": {"seconds": SECONDS, "peak_mib": 900}}],
    }
    return {"p50": 8.0, "p99": 30.0, "no_op": 3.0} if step.name == "idle" else answers[step.module]


@pytest.mark.parametrize(
    ("row", "value", "result"),
    [
        (RATE, 15_000, "aim"),
        (RATE, 14_999, "reached"),
        (RATE, 6_999, "**missed**"),
        (DELAY, 5, "aim"),
        (DELAY, 20, "reached"),
        (DELAY, 20.1, "**missed**"),
    ],
)
def test_a_figure_is_compared_with_the_least_and_the_aim(row: Row, value: float, result: str) -> None:
    assert judge(row, Found(values={row.key: value}), is_quick=False) == result


def test_the_bounds_are_multiples_of_the_faster_other_system_of_the_run() -> None:
    found = make_found(sqlite__lease=6_500, others__dask__rate=2_000, others__ray__rate=1_000, others__celery__rate=9e9)
    assert RATE.find_bounds(found.values) == (6_000, 12_000)
    assert judge(RATE, found, is_quick=False) == "reached"
    assert judge(RATE, make_found(sqlite__lease=6_500), is_quick=False) == "**missed**"


def test_a_smaller_amount_of_work_has_no_verdict() -> None:
    found = make_found(tick__arrival=1, tick__costs=34)
    assert judge(DELAY, found, is_quick=True) == "smaller run"
    costs = Row("ticks", "tick.costs", "costs", "", 60, 30, is_sized=False)
    assert judge(costs, found, is_quick=True) == "reached"


def test_every_row_has_a_step_that_measures_it() -> None:
    steps = list_steps(FULL)
    assert {row.step for row in list_rows(FULL)} == {step.name for step in steps} - {"others"}
    assert {step.part for step in steps} == set(PARTS)
    assert {row.step for row in list_rows(FULL) if row.needs_large} == {s.name for s in steps if s.needs_large}
    assert len({row.key for row in list_rows(FULL)}) == len(list_rows(FULL))


def test_every_step_prints_json() -> None:
    assert {step.module for step in list_steps(FULL) if "--json" not in step.arguments} == {"bench._load"}


def test_every_row_has_its_figure_when_all_steps_work() -> None:
    found = measure(list_steps(FULL), choose("--large"), answer)
    assert found.failures == {}
    assert {row.key for row in list_rows(FULL)} <= set(found.values)
    cells = {line[0]: line[1:] for line in list_cells(list_rows(FULL), found, is_quick=False)}
    rates = ("3 × = 3,000/s", "6 × = 6,000/s", "6,500/s", "aim", "1,000/s", "1,000/s", "")
    assert cells["submit → leased, 10,000, SQLite"] == rates
    assert cells["idle, submit → leased: p50"] == ("10 ms", "7 ms", "8 ms", "reached", "4 ms", "4 ms", "")
    assert found.values["elastic.growth"] == pytest.approx(1)
    assert found.values["tick.costs"] == 30
    assert any("Ray was skipped: no wheel" in note for note in found.notes)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            StepError("AssertionError: the fleets cause no decision such as Revoke"),
            "failed: AssertionError: the fleets",
        ),
        (KeyError("seconds"), "failed: KeyError: 'seconds'"),
        (StepError("x | y\nz" * 100), "failed: x / y z"),
        (StepError("/opt/a/bin/python: no module"), "failed: python: no module"),
    ],
)
def test_a_step_that_fails_is_a_line_of_the_table(error: Exception, reason: str) -> None:
    def run(step: Step) -> Any:
        if step.name == "elastic":
            raise error
        return answer(step)

    found = measure(list_steps(FULL), choose("--large"), run)
    results = {row.key: judge(row, found, is_quick=False) for row in list_rows(FULL)}
    assert {key for key, result in results.items() if result.startswith("failed")} == {"elastic.cold", "elastic.growth"}
    assert results["elastic.cold"].startswith(reason)
    assert all(
        len(line[4]) <= 110 and "\n" not in line[4] for line in list_cells(list_rows(FULL), found, is_quick=False)
    )


def test_steps_that_were_not_requested_are_not_run() -> None:
    ran: list[str] = []

    def run(step: Step) -> Any:
        ran.append(step.name)
        return answer(step)

    found = measure(list_steps(FULL), choose("--only", "singles", "--only", "plans"), run)
    assert ran == ["producers", "idle", "fifo", "priority", "elastic", "quota"]
    assert found.failures["quota_large"] == "not run, needs --large"
    assert found.failures["sqlite"] == "not run"
    assert measure(list_steps(FULL), choose("--no-others"), answer).failures["others"] == "not run, --no-others"


def test_a_process_that_fails_gives_its_last_line() -> None:
    def make(module: str, *arguments: str) -> Step:
        return Step("plans", "a", module, arguments, lambda found, document: None)

    with pytest.raises(StepError, match="No module named bench"):
        run_step(make("bench.no_such_bench"))
    with pytest.raises(StepError, match="no JSON"):
        run_step(make("bench.plan", "--help"))
    assert run_step(make("json.tool", str(Path(__file__).parents[1] / "durations.json")))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            subprocess.CalledProcessError(1, "pip", stderr="a\nERROR: No matching distribution\n\n"),
            "ERROR: No matching",
        ),
        (subprocess.CalledProcessError(1, "pip", stderr=""), "CalledProcessError"),
        (subprocess.TimeoutExpired("ray", 1_200), "no end within 1200 s"),
        (AssertionError("a task of raw Celery does not answer"), "a task of raw Celery"),
    ],
)
def test_another_system_is_skipped_with_its_reason(error: Exception, reason: str) -> None:
    assert describe(error).startswith(reason)


def test_the_trivial_tasks_are_counted_and_timed() -> None:
    ran: list[int] = []
    found = measure_tasks(ran.append, 5, [10, 20])
    assert ran == [1] * 20 + [200] + [1] * 5 + [10, 20]
    assert set(found["rates"]) == {"10", "20"}
    assert found["p50"] <= found["p99"]


def test_the_document_has_all_rows(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = choose("--json", "--large")
    report(chosen, FULL, measure(list_steps(FULL), chosen, answer))
    document = json.loads(capsys.readouterr().out)
    (row,) = (each for each in document["rows"] if each["key"] == "sqlite.lease")
    assert row["at_least"] == 3_000
    assert (row["reached"], row["result"]) == (6_500, "aim")
    assert len(document["rows"]) == len(list_rows(FULL))
    assert make_document([DELAY], Found(), is_quick=False)["rows"][0]["reached"] is None


def test_the_page_and_the_picture_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{BEGIN}\nearlier text\n{END}\n\n## Next\n", encoding="utf-8")
    chosen = choose("--write", "--picture", str(tmp_path / "growth.svg"))
    chosen.page = page
    report(chosen, FULL, measure(list_steps(FULL), chosen, answer))
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# Title\n\n{BEGIN}\n\nOne run of `make bench`")
    assert text.endswith(f"{END}\n\n## Next\n")
    assert "earlier text" not in text
    assert "| submit → leased, 10,000, SQLite | 3 × = 3,000/s |" in text
    assert "![growth of the cost](growth.svg)" in text
    assert "submit → leased, 10,000, SQLite" in capsys.readouterr().out
    assert (tmp_path / "growth.svg").read_text(encoding="utf-8").startswith("<svg")


def test_a_page_without_the_marks_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n{BEGIN}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="does not have the marks"):
        write_section(page, "text")


def test_the_page_of_the_repository_has_the_section() -> None:
    section = targets.PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert any(all(row.what in section for row in list_rows(sizes)) for sizes in (QUICK, FULL))
    assert targets.PICTURE.is_file()


def test_a_part_of_the_table_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        choose("--write", "--only", "ticks")
    assert "--write needs all parts" in capsys.readouterr().err
    assert choose("--write").picture == targets.PICTURE


def test_help_has_examples(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.targets", "--help"])
    with pytest.raises(SystemExit):
        targets.main()
    assert "python -m bench.targets --only ticks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (7_140.4, "/s", "7,140/s"),
        (0.0046, "s", "0.0046 s"),
        (99.96, "ms", "100 ms"),
        (34.0, "", "34"),
        (1.3, "×", "1.3×"),
    ],
)
def test_figures_have_three_digits(value: float, unit: str, text: str) -> None:
    assert show(value, unit) == text


def test_the_points_of_a_curve_stand_on_logarithmic_axes() -> None:
    text = draw([Panel("a & b", "x", "y", [Curve("one", [(10, 1), (100, 10), (1_000, 100)])]), Panel("c", "", "", [])])
    (places,) = re.findall(r'class="curve" stroke="[^"]+" points="([^"]+)"', text)
    points = [tuple(map(float, place.split(","))) for place in places.split()]
    assert points[1] == pytest.approx([(points[0][at] + points[2][at]) / 2 for at in (0, 1)], abs=0.1)
    assert "a &amp; b" in text
    assert "not measured" in text


def test_the_picture_shows_plans_and_leases_of_all_systems() -> None:
    plans, leases = list_panels(measure(list_steps(FULL), choose("--large"), answer))
    assert {curve.name for curve in leases.curves} >= {"Leasehold on SQLite", "Celery, tasks", "Dask, tasks"}
    assert {"quota, cold", "elastic, 1 % churn"} <= {curve.name for curve in plans.curves}
    assert Sizes() == FULL


@pytest.mark.parametrize(("option", "size"), [("", "--large"), ("QUICK=1", "--quick")])
def test_make_bench_measures_the_sizes_that_were_asked_for(option: str, size: str) -> None:
    words = ["make", "--dry-run", "bench", *option.split()]
    printed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"bench.targets {size} " in printed
