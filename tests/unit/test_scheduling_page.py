"""docs/scheduling.md tells every step in its order, every code and every key that a rule reads."""

import re
from pathlib import Path

from scheduler.model.decisions import WAITING_CODES
from scheduler.policy import plan as plan_module

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "scheduling.md").read_text(encoding="utf-8")


def test_every_code_is_told_in_the_order_in_which_it_applies() -> None:
    told = re.findall(r"`([a-z_]+)`", PAGE.partition("## Why one waits")[2].partition("`on_hold`")[2])
    codes = ["on_hold", *told]
    rest = ["no_quota", "account_limit"]
    assert codes == [code for code in WAITING_CODES if code not in rest] + rest


def test_the_steps_are_told_in_the_order_of_the_plan() -> None:
    """When this fails: a step was added to `plan()`, or moved."""
    source = Path(plan_module.__file__).read_text(encoding="utf-8").partition("draft = Draft")[2]
    steps = re.findall(r"\b([a-z_]+)\(draft", source)
    named = re.findall(r"`(?:policy/)?([a-z]+)\.py`", "\n".join(re.findall(r"^## \d.*$", PAGE, re.MULTILINE)))
    assert [step for step in steps if step in named] == [step for step in named if step in steps], (
        "the headings name the files of the steps in the order in which they run"
    )
    assert {"expire", "heal", "order", "place", "launch", "keep", "shrink", "release", "wake"} <= set(named) & set(
        steps
    )


def test_every_file_that_is_named_is_there() -> None:
    for name in re.findall(r"`(?:policy/)?([a-z_]+\.py)`", PAGE):
        assert (ROOT / "scheduler" / "policy" / name).is_file(), name
