"""`python -m tests.docs.played`: write what `leasehold simulate` prints of each scenario into the pages that show it.

A page shows a scenario by a block with the command `leasehold simulate examples/scenarios/NAME`, and a `text` block
with the output after it.
"""

import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Final, NamedTuple

from scheduler.simulation.show import simulate_file

ROOT: Final = Path(__file__).parents[2]
SCENARIOS: Final = ROOT / "examples" / "scenarios"
_SHOWN: Final = re.compile(
    r"(?P<command>^```\nleasehold simulate (?P<file>examples/scenarios/\S+)\n```\n\n```text\n)(?P<output>.*?)(?=^```$)",
    re.MULTILINE | re.DOTALL,
)


class Shown(NamedTuple):
    """A scenario that a page shows, with the output that stands below it."""

    page: Path
    file: str
    output: str


def list_shown() -> Iterator[Shown]:
    """Return all scenarios that the pages show."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for found in _SHOWN.finditer(page.read_text(encoding="utf-8")):
            yield Shown(page, found["file"], found["output"])


def play(file: str) -> str:
    """Return what `leasehold simulate` prints of a scenario file; the path is relative to the repository."""
    out = StringIO()
    assert simulate_file(ROOT / file, json_lines=False, out=out) == 0
    return out.getvalue()


def write_outputs() -> None:
    """Replace the outputs on all pages by the present ones."""
    for page in {shown.page for shown in list_shown()}:
        text = page.read_text(encoding="utf-8")
        page.write_text(_SHOWN.sub(lambda found: found["command"] + play(found["file"]), text), encoding="utf-8")


if __name__ == "__main__":
    write_outputs()
