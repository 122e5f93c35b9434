"""Each scenario file decides what it expects.

A file has the scenario (`scenario`, its name is the rule), and what is expected: `ticks` (time -> the decisions of the
ticks at that time, then the waits with their codes, as in `tests/rules/playing.py`) and, where accounts pay, the final
`balances` without zeros at their ends.
"""

import json
from pathlib import Path

import pytest

from tests.rules.playing import play_out
from tests.rules.qscheduler import balances

FILES = sorted(Path(__file__).parent.glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_scenario_decides_what_its_file_expects(path: Path) -> None:
    document = json.loads(path.read_text())
    played = play_out(document["scenario"])
    assert {f"{at:g}": lines for at, lines in played.ticks_at.items()} == document["ticks"]
    if "balances" in document:
        assert balances(played) == document["balances"]
