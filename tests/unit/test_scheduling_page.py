"""docs/scheduling.md tells every step in its order, every code and every key that a rule reads."""

import re
from pathlib import Path

from scheduler.model.decisions import WAITING_CODES
from scheduler.policy import plan as plan_module
from scheduler.policy.relevel import OVERDRAWN, SAVED

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "scheduling.md").read_text(encoding="utf-8")


def test_every_code_is_told_in_the_order_in_which_it_applies() -> None:
    told = PAGE.partition("## Why one waits")[2].partition("`on_hold`")[2].partition(". Under the queue")[0]
    assert ["on_hold", *re.findall(r"`([a-z_]+)`", told)] == list(WAITING_CODES)


def test_the_steps_are_told_in_the_order_of_the_plan() -> None:
    """When this fails: a step was added to `plan()`, or moved."""
    source = Path(plan_module.__file__).read_text(encoding="utf-8").partition("draft = Draft")[2]
    steps = re.findall(r"\b([a-z_]+)\(draft", source)
    named = re.findall(r"`(?:policy/)?([a-z]+)\.py`", "\n".join(re.findall(r"^## \d.*$", PAGE, re.MULTILINE)))
    assert [step for step in steps if step in named] == [step for step in named if step in steps], (
        "the headings name the files of the steps in the order in which they run"
    )
    assert {
        "expire",
        "heal",
        "charge",
        "order",
        "place",
        "launch",
        "keep",
        "shrink",
        "release",
        "share",
        "wake",
    } <= set(named) & set(steps)


def test_every_file_that_is_named_is_there() -> None:
    for name in re.findall(r"`(?:policy/)?([a-z_]+\.py)`", PAGE):
        assert (ROOT / "scheduler" / "policy" / name).is_file(), name


def test_every_file_of_a_rule_of_quota_is_named() -> None:
    """When this fails: say what a new file decides, in its place, or why it decides nothing, here."""
    tools = {"accounts", "asks", "lots", "rounds", "running", "forecast", "changes_of_accounts"}
    imported = {
        name
        for file in ("quota", "charge")
        for name in re.findall(
            r"^from scheduler\.policy\.([a-z_]+) import",
            (ROOT / "scheduler" / "policy" / f"{file}.py").read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    }
    assert imported - tools - {"draft", "order"} <= set(re.findall(r"`(?:policy/)?([a-z_]+)\.py`", PAGE))


def test_the_bounds_of_a_level_are_those_of_the_rule() -> None:
    assert (f"below \u2212{-OVERDRAWN:g} and" in PAGE, f"above {SAVED:g} and" in PAGE) == (True, True)
