"""The page on scheduling describes each step and decision in order; the reference pages have each code and rule."""

import ast
import re
from pathlib import Path
from typing import get_args

from examples import draw_architecture
from scheduler.model.decisions import Decision
from scheduler.model.waiting_codes import format_table
from scheduler.policy import plan as plan_module
from scheduler.policy.quota.preempt import OVERDRAWN, SAVED

ROOT = Path(__file__).parents[2]


def find_page(name: str) -> Path:
    """Return the page with this file name, in whichever folder of `docs/` it is."""
    [page] = (ROOT / "docs").rglob(name)
    return page


PAGE = find_page("scheduling.md").read_text(encoding="utf-8")
REFERENCE = {
    name: find_page(f"{name}.md").read_text(encoding="utf-8")
    for name in ("lifecycle", "queueing", "placement", "scaling", "elastic", "quota")
}
WAITS = REFERENCE["queueing"].partition("## Waiting codes")[2].partition("###")[0]


def list_rows(text: str) -> list[list[str]]:
    """Return the cells of all table rows, headings included."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


STEPS = [row for row in list_rows(PAGE.partition("## One tick")[2].partition("\n## ")[0]) if "`" in row[-1]]


def test_each_waiting_code_is_described_in_the_order_in_which_it_applies() -> None:
    assert format_table() in WAITS


def test_each_decision_is_described() -> None:
    described = re.findall(r"^\| `([a-z_]+)` \| \S", PAGE.partition("## Decisions")[2], re.MULTILINE)
    assert described
    assert sorted(described) == sorted(each.__struct_config__.tag for each in get_args(Decision))


def list_imports(file: Path) -> dict[str, str]:
    """Return the names that a module imports from the rules, each with its file as the pages write it."""
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("scheduler.policy."):
            path = str(node.module).removeprefix("scheduler.").replace(".", "/") + ".py"
            found.update({alias.asname or alias.name: path for alias in node.names})
    return found


MEASURES = {"find_headroom", "keep", "plan_again"}
"""Functions that `plan()` calls and that decide nothing."""


def list_steps() -> list[tuple[str, str]]:
    """Return (file, function) for each step that `plan()` calls, in the order of the calls."""
    source = Path(plan_module.__file__)
    files = list_imports(source)
    calls = [
        node
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id.islower()
        and node.func.id in files
    ]
    calls.sort(key=lambda node: node.lineno)
    names = [node.func.id for node in calls if isinstance(node.func, ast.Name) and node.func.id not in MEASURES]
    return [(files[name], name) for name in names]


def list_named(text: str) -> list[str]:
    return re.findall(r"`((?:policy|explain|operations)/[a-z_/]+\.py)`", text)


def test_the_steps_are_described_in_the_order_of_the_plan() -> None:
    """When this fails: a step was added to `plan()`, or moved."""
    steps = [(file, name) for file, name in list_steps() if file.count("/") > 1]  # the plan cache decides nothing
    assert [(file, name) for row in STEPS for file, name in re.findall(r"`([\w/]+\.py)` `(\w+)`", row[-1])] == steps


def test_the_drawing_has_the_steps_of_the_table() -> None:
    assert "(../pictures/tick.svg)" in PAGE
    assert [name for name, _ in draw_architecture.STEPS] == [row[0] for row in STEPS]


def test_each_step_links_a_section_with_its_exact_rules() -> None:
    links = dict(re.findall(r"^\[([^\]]+)\]: (\S+)$", PAGE, re.MULTILINE))
    for _, _, rules, _ in STEPS:
        file, _, anchor = links[rules.strip("[]")].partition("#")
        page = REFERENCE[Path(file).stem]
        titles = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
        assert not anchor or anchor in [title.lower().replace(" ", "-") for title in titles], rules


def test_each_file_that_a_page_names_exists() -> None:
    named = [name for text in (PAGE, *REFERENCE.values()) for name in list_named(text)]
    assert len(named) > 40
    for name in named:
        assert (ROOT / "scheduler" / name).is_file(), name


TOOLS = {"policy/quota/group_table.py"}
"""Modules that decide nothing."""


def test_each_module_with_a_rule_is_named() -> None:
    """When this fails: describe on a reference page what a new module decides, or list it in TOOLS."""
    modules = {
        f"policy/{room}/{path.name}"
        for room in REFERENCE
        for path in (ROOT / "scheduler" / "policy" / room).glob("*.py")
        if path.name != "__init__.py"
    }
    assert modules >= TOOLS
    assert modules - {name for text in REFERENCE.values() for name in list_named(text)} == TOOLS


def test_the_bounds_of_a_level_are_those_of_the_rule() -> None:
    page = REFERENCE["quota"]
    assert (f"below \u2212{-OVERDRAWN:g} and" in page, f"above {SAVED:g} and" in page) == (True, True)


def test_a_line_of_these_pages_has_at_most_120_characters() -> None:
    lines = [line for text in (PAGE, *REFERENCE.values()) for line in text.splitlines()]
    assert [line for line in lines if len(line) > 120] == []
