"""Each scenario file decides what it expects, in the engine and in the reference model.

A file has the scenario (`scenario`, its name is the rule), and what is expected: `ticks` (time -> the decisions of the
ticks at that time, then the waits with their codes, as in `tests/rules/playing.py`) and, where accounts pay, the final
`balances` without zeros at their ends. With `"plain": true` the plain scheduler of `tests/reference_model/quota`
agrees, too.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.reference_model import comparing
from tests.reference_model.quota import playing
from tests.rules.playing import Document, a_scenario, play_out, submit, tick
from tests.rules.qscheduler import balances
from tests.scenarios.files import FOLDER, format_file, keep_difference

FILES = sorted(FOLDER.glob("*.json"))


def is_known_to_the_reference_model(scenario: Document) -> bool:
    """The model has neither accounts that pay nor elastic components."""
    is_quota = scenario["config"].get("scheduler", {}).get("queue") == "quota"
    return not is_quota and '"elastic"' not in json.dumps(scenario)


def check(document: dict[str, Any]) -> None:
    assert "differs" not in document, "correct `ticks` by the sources of the rules, then remove `differs`"
    played = play_out(document["scenario"])
    assert {f"{at:g}": lines for at, lines in played.ticks_at.items()} == document["ticks"]
    if "balances" in document:
        assert balances(played) == document["balances"]
    if is_known_to_the_reference_model(document["scenario"]):
        comparing.compare(document["scenario"])
    if document.get("plain"):
        assert playing.compare(document["scenario"]) is None


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_scenario_decides_what_its_file_expects(path: Path) -> None:
    check(json.loads(path.read_text(encoding="utf-8")))


def test_the_file_of_a_difference_holds_once_a_person_has_decided_it(tmp_path: Path) -> None:
    scenario = a_scenario(submit(0, "r1"), tick(1))
    path = keep_difference(tmp_path / "new", "difference-7", scenario, "at 1\n  engine: launch\n  naive: nothing")
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["ticks"] == {"1": ["launch linux-1 demand", "r1 waits booting"]}
    with pytest.raises(AssertionError, match="remove `differs`"):
        check(document)
    assert document.pop("differs") == ["at 1", "  engine: launch", "  naive: nothing"]
    check(document)
    document["ticks"] = {}
    with pytest.raises(AssertionError):
        check(document)


def test_each_part_of_a_scenario_file_is_on_one_line_if_it_fits_there() -> None:
    document = {"ticks": {"0": ["x" * 30]}, "wide": ["z" * 70, "w" * 70], "empty": {}}
    assert format_file(document).splitlines() == [
        "{",
        f'  "ticks": {{"0": ["{"x" * 30}"]}},',
        '  "wide": [',
        f'    "{"z" * 70}",',
        f'    "{"w" * 70}"',
        "  ],",
        '  "empty": {}',
        "}",
    ]
