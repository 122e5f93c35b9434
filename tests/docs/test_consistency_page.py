"""docs/reference/consistency.md names markers in the code and tests: each of them has to exist, and no other marker."""

import ast
import re
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("leasehold", "emulator", "tasks", "workers", "scheduler")
PAGE: Final = (ROOT / "docs" / "reference" / "consistency.md").read_text()
ROWS: Final = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| promise")
]
_NAMED: Final = re.compile(r"`([^`]+\.(?:py|lua|tmpl))`: `([a-z-]+)`(?: ×(\d+))?")
_MARKER: Final = re.compile(r"(?:#|--) promise: (.+)$", re.MULTILINE)
_TEST: Final = re.compile(r"`(tests/[^`]+\.py)::([^`]+)`")
_SWITCH: Final = re.compile(r"`make chaos OFF=(\w+)`")


def _list_markers() -> Counter[tuple[str, str]]:
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*"))
    sources = (path for path in files if path.suffix in {".py", ".lua", ".tmpl"})
    return Counter(
        (path.relative_to(ROOT).as_posix(), name)
        for path in sources
        for name in _MARKER.findall(path.read_text(encoding="utf-8"))
    )


def test_the_page_names_every_marker_of_the_code_and_every_marker_that_it_names_is_in_its_file() -> None:
    """When this fails: mark the line that keeps a promise with `# promise: NAME`, and name it in the page."""
    named = {(file, name): int(times or 1) for file, name, times in _NAMED.findall(PAGE)}
    assert named == _list_markers()


def test_each_marker_stands_for_one_promise() -> None:
    names = [name for _, name, _ in _NAMED.findall(PAGE)]
    assert [name for name, times in Counter(names).items() if times > 1] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:60])
def test_each_promise_names_a_marker_and_existing_tests(row: list[str]) -> None:
    from tests.chaos.switches import SWITCHES

    _, kept_by, proven_by = row
    assert _NAMED.sub("", kept_by).strip(", ") == ""
    assert _NAMED.findall(kept_by)
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
