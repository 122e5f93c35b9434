"""The page on elastic components: its example plays as shown, and its table has every setting."""

import re
from io import StringIO
from pathlib import Path
from typing import get_args

from scheduler.model.rules import SchedulerKeys
from scheduler.simulation.runner import run_file

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "elastic.md").read_text(encoding="utf-8")


def find_block(language: str) -> str:
    return PAGE.partition(f"```{language}\n")[2].partition("```")[0]


def test_the_example_plays_as_shown(tmp_path: Path) -> None:
    """When this fails: put the output of `leasehold simulate` under it, and read whether the text is still true."""
    path, out = tmp_path / "yield.json", StringIO()
    path.write_text(find_block("json"), encoding="utf-8")
    run_file(path, json_lines=False, out=out)
    assert out.getvalue() == find_block("text")


def test_every_setting_of_elastic_is_described() -> None:
    settings = get_args(SchedulerKeys.model_fields["elastic"].annotation)
    assert set(re.findall(r"^\| `([a-z]+)`", PAGE, re.MULTILINE)) == set(settings)
