"""The command that lists how long work has run."""

import csv
import json
from io import StringIO

import pytest
import yaml

from scheduler.model.run_times import ALL, RunTimes
from tests.cli.conftest import Run
from tests.client.intake import FakeIntake

CLASSES = ('["ci","ann","build","x86_64-linux",1,3]', '["ci","ann"]', '["lab",null]', ALL)


@pytest.fixture
def stack(intake: FakeIntake, run: Run, monkeypatch: pytest.MonkeyPatch) -> FakeIntake:
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", intake.url)
    return intake


def publish(stack: FakeIntake) -> None:
    times = (60.0, 61.0, 600.0, 62.0, 7200.0)
    stack.publish(*(RunTimes(id=name, version=1, seconds=times, released_at=9.0) for name in CLASSES))


def test_classes_are_listed_with_their_quantiles(stack: FakeIntake, run: Run) -> None:
    publish(stack)
    head, _, first, *others = run("runtimes", "-o", "wide").out.splitlines()
    assert head.split()[:6] == ["account", "principal", "job", "system", "size", "number"]
    assert first.split()[:10] == ["ci", "ann", "build", "x86_64-linux", "1", "x,", "4-7", "cpus", "5", "1"]
    assert "10 min" in first
    assert "2.0 h" in first
    assert [line.split()[:3] for line in others] == [["ci", "ann", "any"], ["lab", "any", "any"], ["any"] * 3]


def test_they_can_be_narrowed(stack: FakeIntake, run: Run) -> None:
    publish(stack)
    assert [each["id"] for each in json.loads(run("runtimes", "--account", "ci", "--json").out)] == [*CLASSES[:2]]
    assert [each["id"] for each in json.loads(run("runtimes", "--job", "build", "--json").out)] == [CLASSES[0]]


def test_programs_read_them_as_json_yaml_and_csv(stack: FakeIntake, run: Run) -> None:
    publish(stack)
    found = json.loads(run("runtimes", "--json").out)
    assert yaml.safe_load(run("runtimes", "-o", "yaml").out) == found
    assert found[0] == {
        "id": CLASSES[0],
        "account": "ci",
        "principal": "ann",
        "job": "build",
        "system": "x86_64-linux",
        "size": "1 x, 4-7 cpus",
        "instances": [1, 1],
        "cpus": [4, 7],
        "number": 5,
        "median": 62.0,
        "p80": 600.0,
        "p90": 7200.0,
        "released_at": 9.0,
        "seconds": [60.0, 61.0, 600.0, 62.0, 7200.0],
        "ratios": [],
    }
    rows = list(csv.DictReader(StringIO(run("runtimes", "-o", "csv").out)))
    assert [(row["account"], row["principal"], row["number"]) for row in rows] == [
        *[("ci", "ann", "5")] * 2,
        ("lab", "", "5"),
        ("", "", "5"),
    ]


def test_without_any_the_reason_is_printed(stack: FakeIntake, run: Run) -> None:
    assert "no run times are known" in run("runtimes").out
    assert json.loads(run("runtimes", "--json").out) == []
