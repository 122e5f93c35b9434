"""`python -m tests.docs.played`: write what `leasehold simulate` prints of each scenario to where it is shown.

A page shows a scenario by a block with the command `leasehold simulate examples/scenarios/NAME`, and a `text` block
with the output after it. The output of a scenario that a page only names stands beside the scenario, in `NAME.txt`.
"""

import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Final, NamedTuple

from scheduler.simulation.runner import run_file

ROOT: Final = Path(__file__).parents[2]
SCENARIOS: Final = ROOT / "examples" / "scenarios"
_SHOWN: Final = re.compile(
    r"(?P<command>^```\nleasehold simulate (?P<file>examples/scenarios/\S+)\n```\n\n```text\n)(?P<output>.*?)(?=^```$)",
    re.MULTILINE | re.DOTALL,
)


class Shown(NamedTuple):
    """A scenario with its recorded output. `page`: the page or the file that has the output."""

    page: Path
    file: str
    output: str


def list_shown() -> Iterator[Shown]:
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for found in _SHOWN.finditer(page.read_text(encoding="utf-8")):
            yield Shown(page, found["file"], found["output"])
    for output in sorted(SCENARIOS.glob("*.txt")):
        yield Shown(output, f"examples/scenarios/{output.stem}.toml", output.read_text(encoding="utf-8"))


def play(file: str) -> str:
    """Return what `leasehold simulate` prints of a scenario file; the path is relative to the repository."""
    out = StringIO()
    run_file(ROOT / file, json_lines=False, out=out)
    return out.getvalue()


def write_outputs() -> None:
    """Replace all outputs by the present ones."""
    for page in {shown.page for shown in list_shown()}:
        if page.suffix == ".txt":
            page.write_text(play(f"examples/scenarios/{page.stem}.toml"), encoding="utf-8")
            continue
        text = page.read_text(encoding="utf-8")
        page.write_text(_SHOWN.sub(lambda found: found["command"] + play(found["file"]), text), encoding="utf-8")


if __name__ == "__main__":
    write_outputs()
