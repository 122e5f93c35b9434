"""The table of `make bench`: its rows, its results, and the section of the page that it writes."""

import json
import subprocess
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from bench import targets
from bench._asked import FULL, QUICK, Row, Sizes, list_rows
from bench._steps import Step, list_panels, list_steps
from bench._table import BEGIN, END, Found, judge, list_cells, make_document
from bench.targets import PARTS, StepError, measure, read_command_line, report

ROOT = Path(__file__).parents[1]
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
    lease = {"rate": 950.0, "cpu_ms": 1.9, "requests": 0.3, "ticks": 0.1, "commands": 20.0, "cpu": {"clients": 0.5}}
    sizes = FULL.large_slots if step.name == "quota_large" else FULL.slots
    answers: dict[str, Any] = {
        "bench._others": {"celery": others, "dask": others, "ray": {"skipped": "no wheel"}},
        "bench._load": {"lease": 6_500.0, "lease_many": 2_000.0, "intake": 31_000.0, "renew": 1.0, "release": 2.0}
        | {"renew_on": 1.0},
        "bench.producers": [{"rate": 900.0, "cpu_us": {"producers": 10.0}}, {"rate": 1_100.0, "cpu_us": {}}],
        "bench.leases": dict.fromkeys(("threads", "asyncio", "calls"), lease),
        "bench.tick": dict.fromkeys(STAGES, stage),
        "bench.plan": plans,
        "bench.quota": [{"slots": sizes, "engine": {"seconds": SECONDS, "peak_mib": 900}}],
    }
    if step.name.startswith("idle"):
        return {"p50": 8.0, "p99": 30.0, "no_op": 3.0}
    return answers[step.module]


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


def test_every_row_has_a_step_that_measures_it() -> None:
    steps = list_steps(FULL)
    assert {row.step for row in list_rows(FULL)} == {step.name for step in steps} - {"others"}
    assert {step.part for step in steps} == set(PARTS)
    assert {row.step for row in list_rows(FULL) if row.needs_large} == {s.name for s in steps if s.needs_large}
    assert len({row.key for row in list_rows(FULL)}) == len(list_rows(FULL))


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
    assert ran == ["producers", "idle", "idle_postgresql", "leases", "fifo", "priority", "elastic", "quota"]
    assert found.failures["quota_large"] == "not run, needs --large"
    assert found.failures["sqlite"] == "not run"
    assert measure(list_steps(FULL), choose("--no-others"), answer).failures["others"] == "not run, --no-others"


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


def test_the_page_of_the_repository_has_the_section() -> None:
    section = targets.PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert any(all(row.what in section for row in list_rows(sizes)) for sizes in (QUICK, FULL))
    assert targets.PICTURE.is_file()


def test_a_part_of_the_table_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        choose("--write", "--only", "ticks")
    assert "--write needs all parts" in capsys.readouterr().err
    assert choose("--write").picture == targets.PICTURE


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
