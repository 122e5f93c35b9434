"""Make the two pictures of the README: the end of a demo, and `leasehold explain` of a reservation that waits.

    python -m examples.make_pictures          # from the recorded summary and the scenario below
    python -m examples.make_pictures --play   # play the demo first and record its summary

The pictures are what the commands print, exported by rich as SVG. The demo's figures depend on the machine, so its
summary is recorded in docs/pictures/demo.json. The explanation comes from the engine: the scenario is played and
its waiting reservation is explained. A test makes both pictures again and compares them with the files.
"""

import argparse
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.terminal_theme import MONOKAI

from leasehold.client.models import read_explanation
from leasehold.demo.run import Summary, report
from scheduler.operations.costs import CostSum
from scheduler.operations.explain import explain
from scheduler.simulation.runner import Runner
from scheduler.simulation.scenario import load_scenario

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "pictures"
SUMMARY = FOLDER / "demo.json"
SCENARIO = ROOT / "examples" / "full-fleet.toml"
WAITS = "build-7"
COLUMNS = 92
STYLE = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: {char_height}px;
line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: arial; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""rich's own form without its web fonts: a picture loads nothing."""


def draw_demo(console: Console) -> None:
    """The end of a demo, from the recorded summary."""
    recorded: dict[str, Any] = json.loads(SUMMARY.read_text())
    lists = {name: tuple(recorded[name]) for name in ("differences", "errors")}
    console.print("$ make demo", style="bold")
    costs = {"costs": msgspec.convert(recorded["costs"], CostSum)}
    report(Summary(**recorded | lists | costs), console)


def draw_explanation(console: Console) -> None:
    """The explanation of the reservation that waits at the end of the scenario."""
    player = Runner(load_scenario(SCENARIO))
    for _line in player.play():
        pass
    found = read_explanation(explain(player.cluster.ports, WAITS))
    console.print(f"$ leasehold explain {WAITS}", style="bold")
    console.print(str(found), markup=False)


PICTURES: dict[str, Callable[[Console], None]] = {"demo": draw_demo, "explain": draw_explanation}


def make_picture(name: str) -> str:
    """The SVG of one picture; the same input gives the same text."""
    console = Console(record=True, width=COLUMNS, force_terminal=True, highlight=False, file=io.StringIO())
    PICTURES[name](console)
    text = console.export_svg(
        title=f"leasehold {name}", theme=MONOKAI, code_format=STYLE, unique_id=f"leasehold-{name}"
    )
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def main(arguments: list[str]) -> None:
    """Write both pictures."""
    parser = argparse.ArgumentParser(description="Make the two pictures of the README.")
    parser.add_argument("--play", action="store_true", help="play the demo first and record its summary")
    if parser.parse_args(arguments).play:
        command = [sys.executable, "-m", "leasehold.cli", "demo", "--json"]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)  # noqa: S603 - our own command
        del found["good"]
        SUMMARY.write_text(json.dumps(found, indent=2) + "\n")
    for name in PICTURES:
        (FOLDER / f"{name}.svg").write_text(make_picture(name))
        print(f"docs/pictures/{name}.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
