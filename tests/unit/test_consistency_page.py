"""docs/consistency.md names lines of code and tests: all of them have to be there."""

import ast
import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "consistency.md").read_text()
ROWS: Final = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| promise")
]
_LINE: Final = re.compile(r"`([^`]+\.(?:py|lua|tmpl))`: `([^`]+)`")
_TEST: Final = re.compile(r"`(tests/[^`]+\.py)::([^`]+)`")
_SWITCH: Final = re.compile(r"`make chaos OFF=(\w+)`")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:60])
def test_each_promise_names_a_line_that_is_there_and_tests_that_are_there(row: list[str]) -> None:
    from tests.chaos.switches import SWITCHES

    _, kept_by, proven_by = row
    lines = _LINE.findall(kept_by)
    assert lines
    for file, code in lines:
        assert code in " ".join((ROOT / file).read_text().split()), f"{file} has no `{code}`"
    tests = _TEST.findall(proven_by)
    assert tests
    for file, name in tests:
        assert name in _list_functions(ROOT / file), f"{file} has no {name}"
    assert set(_SWITCH.findall(proven_by)) <= SWITCHES.keys()


def test_every_switch_of_chaos_is_a_promise_of_the_page() -> None:
    from tests.chaos.switches import SWITCHES

    assert set(_SWITCH.findall(PAGE)) == SWITCHES.keys()


def _list_functions(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}
