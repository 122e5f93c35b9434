"""docs/scheduling.md tells every step in its order, every code and every key that a rule reads."""

import ast
import re
from pathlib import Path

from scheduler.model.decisions import WAITING_CODES
from scheduler.policy import plan as plan_module
from scheduler.policy.quota.reprioritize import OVERDRAWN, SAVED

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "scheduling.md").read_text(encoding="utf-8")


def test_every_code_is_told_in_the_order_in_which_it_applies() -> None:
    told = PAGE.partition("## Why one waits")[2].partition("`on_hold`")[2].partition(". Under the queue")[0]
    assert ["on_hold", *re.findall(r"`([a-z_]+)`", told)] == list(WAITING_CODES)


def list_imports(file: Path) -> dict[str, str]:
    """The names that a module imports from the rules, each with the file that it comes from, as the page names it."""
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("scheduler.policy."):
            path = str(node.module).removeprefix("scheduler.").replace(".", "/") + ".py"
            found.update({alias.asname or alias.name: path for alias in node.names})
    return found


def list_steps() -> list[str]:
    """The files of the functions that `plan()` calls with the cycle, in the order of each one's last call."""
    source = Path(plan_module.__file__)
    files = list_imports(source)
    calls = [
        node
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id.islower()
        and any(isinstance(each, ast.Name) and each.id == "cycle" for each in node.args)
    ]
    calls.sort(key=lambda node: node.lineno)
    found = [files[node.func.id] for node in calls if isinstance(node.func, ast.Name)]
    return list(reversed(dict.fromkeys(reversed(found))))


def list_named(text: str) -> list[str]:
    return re.findall(r"`((?:policy|explain)/[a-z_/]+\.py)`", text)


def test_the_steps_are_told_in_the_order_of_the_plan() -> None:
    """When this fails: a step was added to `plan()`, or moved."""
    named = list_named("\n".join(re.findall(r"^## \d.*$", PAGE, re.MULTILINE)))
    steps = list_steps()
    assert [step for step in steps if step in named] == [step for step in named if step in steps]
    assert set(steps) <= set(named)


def test_every_file_that_is_named_is_there() -> None:
    named = list_named(PAGE)
    assert len(named) > 20
    for name in named:
        assert (ROOT / "scheduler" / name).is_file(), name


def test_every_file_of_a_rule_of_quota_is_named() -> None:
    """When this fails: say what a new file decides, in its place, or why it decides nothing, here."""
    tools = {"requirements", "pending_groups", "run", "running"}
    imported = {
        path
        for file in ("step", "charge")
        for path in list_imports(ROOT / "scheduler" / "policy" / "quota" / f"{file}.py").values()
        if path.startswith("policy/quota/") and Path(path).stem not in tools
    }
    assert imported
    assert imported <= set(list_named(PAGE))


def test_the_bounds_of_a_level_are_those_of_the_rule() -> None:
    assert (f"below \u2212{-OVERDRAWN:g} and" in PAGE, f"above {SAVED:g} and" in PAGE) == (True, True)
