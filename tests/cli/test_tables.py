"""Tables: ids are never wrapped or cut at any width, and a pipe has no width."""

import re

import pytest
from rich.console import Console
from rich.segment import Segment

from leasehold.cli.output import Column, Grid
from scheduler.model.waits import Waits
from tests.builders import a_lease, a_slot
from tests.cli.conftest import Run
from tests.cli.terminal import run_on_terminal, strip_colours
from tests.client.intake import FakeIntake, a_row

LONG = "nightly/build-of-the-whole-distribution-for-x86_64-linux/" + "0123456789" * 8
SLOT = "linux-" + "7" * 60


@pytest.fixture
def stack(intake: FakeIntake, run: Run, monkeypatch: pytest.MonkeyPatch) -> FakeIntake:
    """Return a stand-in whose only lease has long names."""
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", intake.url)
    intake.handler = lambda _verb, _document: {"ok": True}
    lease = a_lease(SLOT, token=7)
    intake.publish(
        a_slot(SLOT, version=1), a_row(LONG, phase="leased", token=7, leases=(lease,)), a_row("second", sequence=2)
    )
    intake.view_cache.write_report({"at": 5.0}, Waits(["second"], [("at_max_slots", "pool linux has 1 slot")]))
    return intake


@pytest.mark.parametrize("columns", [80, 40])
@pytest.mark.parametrize("words", [("list",), ("get", LONG), ("slots",), ("explain", LONG)], ids=lambda each: each[0])
def test_ids_are_never_folded_nor_cut(
    words: tuple[str, ...], columns: int, stack: FakeIntake, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = strip_colours(run_on_terminal(monkeypatch, columns, *words))
    for name in (LONG, SLOT) if words[0] in {"get", "explain"} else (SLOT,) if words[0] == "slots" else (LONG,):
        assert any(name in line for line in shown.splitlines()), shown


def test_the_ids_that_wait_are_not_folded_in_the_status(stack: FakeIntake, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Waits(["second", LONG], [("at_max_slots", "full"), ("no_capacity", "full")])
    stack.view_cache.write_report({"at": 5.0, "term": 1}, waits)
    shown = strip_colours(run_on_terminal(monkeypatch, 80, "status"))
    assert any(LONG in line for line in shown.splitlines()), shown


@pytest.mark.parametrize("width", range(12, 40))
def test_a_text_is_never_cut_within_a_number(width: int) -> None:
    text = "cpus=0.125 memory_mib=65536 gpus=1,024"
    console = Console(width=200)
    drawn = Grid([Column("id"), Column("asked", "cut")], [("r1", text)], width + 4).__rich_console__(
        console, console.options
    )
    shown = "".join(part.text for part in drawn if isinstance(part, Segment))
    begin = shown.rstrip().splitlines()[-1].removeprefix("r1").strip().rstrip("…")
    assert begin
    assert text.startswith(begin)
    assert not (begin[-1].isdigit() and re.match(r"[.,]?[0-9]", text[len(begin) :]))


@pytest.mark.parametrize("words", [("list",), ("get", LONG), ("slots",), ("explain", LONG)], ids=lambda each: each[0])
def test_a_pipe_has_no_width(words: tuple[str, ...], stack: FakeIntake, run: Run) -> None:
    """Two long ids make the line longer than 200 characters."""
    stack.publish(a_row(LONG, version=2, phase="leased", token=7, leases=(a_lease(SLOT, token=7),), tags={"t": LONG}))
    lines = run(*words).out.splitlines()
    assert any(LONG in line for line in lines)
    assert any(SLOT in line for line in lines)
