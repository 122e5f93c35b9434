"""Odd command lines end with a status and with one line for each fault."""

from pathlib import Path
from typing import Any

import pytest

from tests.client.intake import accept
from tests.fuzz.command_line import find_failures, list_commands, play, write_files

FILES = [
    ["config", "check", "/dev/zero"],
    ["config", "check", "fifo"],
    ["config", "check", "folder"],
    ["config", "check", "huge"],
    ["config", "check", "deep.toml"],
    ["config", "check", "dots.toml"],
    ["config", "check", "long.toml"],
    ["reserve", "--file", "/dev/zero"],
    ["reserve", "--file", "fifo"],
    ["reserve", "--file", "deep.json"],
    ["simulate", "fifo"],
    ["simulate", "folder"],
    ["simulate", "/dev/zero", "--config", "fifo"],
    ["prices", "import", "/dev/zero"],
    ["prices", "import", "fifo"],
    ["apply", "fifo", "--yes"],
    ["restore", "fifo", "--yes"],
    ["backup", "/", "--force"],
    ["get", "\udcff"],
    ["list", "--tag", "a=\udcff"],
    ["rules", "rollback", "9" * 22],
    ["rules", "show", "--version", "9" * 22],
    ["doctor", "--timeout", "9" * 22],
    ["doctor", "--timeout", "nan"],
    ["doctor", "--timeout", "inf"],
    ["alive", "ticks", "--timeout", "inf"],
    ["drain", "linux-1", "--timeout", "inf"],
    ["costs", "--watch", "inf"],
    ["\x1b[2J"],
]


@pytest.mark.parametrize("words", FILES, ids=lambda words: ascii(" ".join(words))[:60])
def test_an_odd_argument_ends_in_a_line(words: list[str], run: object, tmp_path: Path, database: str) -> None:
    write_files(tmp_path)
    assert play(words) is None


def answer(verb: str, document: Any) -> dict[str, Any] | None:
    """Return the answer of a worker which refuses every second request."""
    if not isinstance(document, dict):
        # The request for a tick has no answer.
        return None
    if len(str(document)) % 2 or not isinstance(document.get("items", []), list):
        return {"ok": False, "errors": [{"index": 0, "path": "\x1b[2J", "expected": "\u202e", "got": "\x9b"}]}
    return accept(verb, document)


@pytest.mark.parametrize("with_stack", [False, True])
def test_no_odd_command_line_fails(with_stack: bool, request: pytest.FixtureRequest, run: object) -> None:
    """`make fuzz` draws thousands of them."""
    if with_stack:
        request.getfixturevalue("stack").handler = answer
        request.getfixturevalue("database")
    files = write_files(Path.cwd())
    assert find_failures(range(60), files) == []


def test_all_commands_are_drawn() -> None:
    assert len(list_commands()) > 50
