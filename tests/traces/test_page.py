"""The commands of docs/how-to/simulation.md and of the README work in a copy of the repository's examples."""

import shlex
import shutil
from pathlib import Path

import msgspec
import pytest

from leasehold.cli.program import run_safely
from scheduler.simulation.metrics import Summary

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "simulation.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line.removeprefix("$ ")
    for line in [*PAGE.splitlines(), *README.splitlines()]
    if line.removeprefix("$ ").startswith("leasehold simulate examples/")
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_works(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--plot" in command:
        pytest.importorskip("matplotlib")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    # 40 of the 300 jobs are enough to show that the command works.
    words = shlex.split(command.replace("--limit 300", "--limit 40"))
    assert (run_safely(words[1:]), capsys.readouterr().err) == (0, "")


def test_the_page_shows_every_option_that_needs_an_example() -> None:
    assert len(COMMANDS) >= 6
    for option in ("--json", "--slots", "--compare", "--plot"):
        assert any(option in command for command in COMMANDS), option


def test_the_page_explains_every_figure() -> None:
    section = PAGE.partition("## The figures")[2].partition("## Compare")[0]
    assert [field.name for field in msgspec.structs.fields(Summary) if f"`{field.name}`" not in section] == []
