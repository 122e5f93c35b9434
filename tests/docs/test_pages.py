"""Commands on the pages: each line to type is valid, and each command is described on its page."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_commands import list_commands

ROOT = Path(__file__).parents[2]
TOP_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
COMMANDS: dict[tuple[str, ...], Any] = dict(list_commands())
TYPED_LINE = re.compile(r"^(?:\$ )?(?:docker compose exec \S+ )?leasehold (.+)")
"""A line to type in a block of code."""
QUOTED_TEXT = re.compile(r"`leasehold ([a-z][^`]*)`")
"""A command within a sentence, perhaps without all of its arguments."""


def read_pages() -> Iterator[tuple[str, str, bool]]:
    """Yield every line of the pages with its position, and whether it is code."""
    for page in (*(ROOT / name for name in TOP_PAGES), *sorted((ROOT / "docs").rglob("*.md"))):
        is_code = False
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            if line.lstrip().startswith("```"):
                is_code = not is_code
            else:
                yield f"{page.relative_to(ROOT)}:{number}", line, is_code


LINES = list(read_pages())
TYPED = {place: found[1] for place, line, is_code in LINES if is_code and (found := TYPED_LINE.match(line))}
QUOTED = {
    f"{place} {text}": text
    for place, line, is_code in LINES
    if not is_code and not place.startswith("CHANGELOG.md")
    for text in QUOTED_TEXT.findall(line)
}
"""The changelog may name commands of earlier versions."""


def split(text: str) -> tuple[Any, list[str]]:
    """Return the command of a line, and its arguments."""
    words = shlex.split(text, comments=True)
    for length in (2, 1):
        if tuple(words[:length]) in COMMANDS:
            return COMMANDS[tuple(words[:length])], words[length:]
    raise AssertionError(f"no command is called {words[:2]}")


def find_unknown(text: str) -> set[str]:
    """Return the options of a line that its command does not have."""
    command, words = split(text)
    # Behind -- there is another program with its own options.
    words = words[: words.index("--")] if "--" in words else words
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {"--help"}
    return {word for word in words if word.startswith("--")} - known


@pytest.mark.parametrize("place", TYPED)
def test_a_command_to_type_is_valid(place: str) -> None:
    command, words = split(TYPED[place])
    with command.make_context("leasehold", words):
        pass


@pytest.mark.parametrize("place", QUOTED)
def test_a_command_of_a_sentence_exists(place: str) -> None:
    assert find_unknown(QUOTED[place]) == set()


def test_a_request_with_resources_in_a_sentence_names_a_pool_or_a_system() -> None:
    """Without one of them it is refused."""
    requests = [text for text in QUOTED.values() if re.match(r"(reserve|run|submit) .*--cpus", text)]
    assert requests
    assert [text for text in requests if "--pool" not in text and "--system" not in text] == []


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_is_on_its_page(path: tuple[str, ...]) -> None:
    reported = [text for place, text in (TYPED | QUOTED).items() if place.startswith("docs/reference/cli.md")]
    assert COMMANDS[path] in [split(text)[0] for text in reported]


def test_an_unknown_command_or_option_is_found() -> None:
    """Otherwise the tests above could never fail."""
    assert find_unknown("slots --everything   # no such option") == {"--everything"}
    with pytest.raises(AssertionError, match="no command"):
        split("slot --all")


def test_every_test_that_a_page_names_exists() -> None:
    """The threat model names the tests of its rows."""
    named = {(place, name) for place, line, _ in LINES for name in re.findall(r"`(tests/[a-z0-9_/]+\.py)`", line)}
    assert {name for place, name in named if place.startswith("docs/explanation/security.md")}
    assert [(place, name) for place, name in sorted(named) if not (ROOT / name).is_file()] == []


def test_every_file_that_the_table_of_speed_measures_names_exists() -> None:
    """When this fails: change or remove the row of docs/adr/0020-cost-follows-change.md with the code."""
    page = (ROOT / "docs" / "adr" / "0020-cost-follows-change.md").read_text(encoding="utf-8")
    rows = [line for line in page.partition("## The measures")[2].splitlines() if line.startswith("| ")]
    named = {
        name for row in rows for name in re.findall(r"`((?:leasehold|scheduler|tasks|tests|workers)/[\w/.]+)`", row)
    }
    assert len(named) > 30
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_a_line_of_a_page_has_at_most_120_characters() -> None:
    """A row of a table cannot be wrapped."""
    long = [(place, line) for place, line, is_code in LINES if not is_code and len(line) > 120]
    assert [place for place, line in long if line.lstrip()[:1] != "|"] == []
