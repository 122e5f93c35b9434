"""What was asked of Leasehold's speed, and what this machine reaches, in one table.

Each step is a bench of its own in a process of its own, so a bench that fails is a line of the table. Raw Celery, Dask
and Ray run the same number of trivial tasks in the same run. `--help` has the options.
"""

import json
import subprocess
import sys
import threading
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from time import perf_counter
from typing import IO, Any, Final

from bench._asked import FULL, QUICK, Row, Sizes, list_rows
from bench._picture import draw
from bench._steps import Step, list_panels, list_steps
from bench._table import Found, make_document, shorten, show_page, show_text, write_section
from testbed.guarding import Guarded, take_signals_as_interrupts

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "explanation" / "performance.md"
PICTURE: Final = PAGE.with_name("growth.svg")
PARTS: Final = ("sqlite", "postgresql", "singles", "ticks", "plans", "others")
STEP_SECONDS: Final = 3_600
PROGRESS: Final = "- "
"""Start of the lines on standard error that are no errors."""
EXAMPLES: Final = """examples:
  python -m bench.targets --quick                     small amounts of work, to see the table
  python -m bench.targets --only ticks                one part; may be repeated
  python -m bench.targets --large --json > run.json   also 100,000 slots and 1,000,000 reservations
  python -m bench.targets --large --write             write the table and the picture into the page
"""

Run = Callable[[Step], Any]
"""Runs a step and returns its JSON."""


class StepError(Exception):
    """A bench that did not print its figures; the text is its last line."""


def run_step(step: Step) -> Any:
    """Run the bench of a step in a process and return what it prints as JSON. Show its progress."""
    words = [sys.executable, "-m", step.module, *step.arguments]
    with TemporaryFile() as output, Guarded(words, cwd=ROOT, stdout=output, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        lines: list[str] = []
        reader = threading.Thread(target=_follow, args=(process.stderr, lines), daemon=True)
        reader.start()
        try:
            status = process.wait(STEP_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise StepError(f"no end within {STEP_SECONDS} s") from None
        reader.join(1)
        if status:
            raise StepError(lines[-1] if lines else f"status {status}")
        output.seek(0)
        try:
            return json.loads(output.read())
        except ValueError as error:
            raise StepError(f"no JSON: {error}") from None


def _follow(source: IO[bytes], lines: list[str]) -> None:
    """Keep the lines that a bench writes to standard error, and show those of its progress."""
    for line in source:
        if text := line.decode(errors="replace").rstrip():
            lines.append(text)
            if text.startswith(PROGRESS):
                _show(text)


def measure(steps: Sequence[Step], chosen: Namespace, run: Run = run_step) -> Found:
    """Run the chosen steps. A step that fails leaves its reason, and the run goes on."""
    found = Found()
    for number, step in enumerate(steps, 1):
        if reason := find_reason_to_omit(step, chosen):
            found.failures[step.name] = reason
            continue
        _show(f"{number} of {len(steps)}: {step.name}")
        began = perf_counter()
        try:
            step.read(found, run(step))
        except (StepError, KeyError, ValueError, TypeError, OSError) as error:
            reason = str(error) if isinstance(error, StepError) else f"{type(error).__name__}: {error}"
            found.failures[step.name] = shorten(f"failed: {reason}")
            _show(f"  {found.failures[step.name]}")
        _show(f"  {perf_counter() - began:.0f} s")
    if reason := found.failures.get("others"):
        found.notes.append(f"Celery, Dask and Ray: {reason}.")
    return found


def find_reason_to_omit(step: Step, chosen: Namespace) -> str | None:
    """Return why this step is not run, or None."""
    if step.needs_large and not chosen.large:
        return "not run, needs --large"
    if step.part == "others" and not chosen.others:
        return "not run, --no-others"
    return "not run" if chosen.only and step.part not in chosen.only else None


def report(chosen: Namespace, sizes: Sizes, found: Found) -> None:
    """Print the table or the document, and write the page and the picture where this was requested."""
    rows = choose_rows(sizes, chosen)
    if chosen.json:
        print(json.dumps(make_document(rows, found, is_quick=chosen.quick), indent=2))
    else:
        print(show_text(rows, found, is_quick=chosen.quick))
    if chosen.picture:
        chosen.picture.write_text(draw(list_panels(found)), encoding="utf-8")
    if chosen.write:
        write_section(chosen.page, show_page(rows, found, PICTURE.name, is_quick=chosen.quick))


def choose_rows(sizes: Sizes, chosen: Namespace) -> list[Row]:
    """Return the rows of the chosen parts."""
    return [row for row in list_rows(sizes) if not chosen.only or row.part in chosen.only]


def read_command_line(words: Sequence[str] | None = None) -> Namespace:
    """Return the options. `--write` without `--picture` writes the picture of the page too."""
    parser = ArgumentParser(
        prog="python -m bench.targets",
        description="What was asked of Leasehold's speed, and what this machine reaches.",
        epilog=EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--quick", action="store_true", help="smaller amounts of work: minutes, no verdict for most rows"
    )
    parser.add_argument("--large", action="store_true", help="also plans of the largest fleet: some GB of memory")
    parser.add_argument("--only", action="append", choices=PARTS, help="this part; may be repeated; default: all")
    parser.add_argument("--no-others", dest="others", action="store_false", help="without raw Celery, Dask and Ray")
    parser.add_argument("--write", action="store_true", help="write the table into docs/explanation/performance.md")
    parser.add_argument("--picture", type=Path, metavar="PATH", help="write the growth curves to this SVG file")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the table")
    parser.set_defaults(page=PAGE)
    chosen = parser.parse_args(words)
    if chosen.write and chosen.only:
        parser.error("--write needs all parts, so --only cannot be used with it")
    if chosen.write and chosen.picture is None:
        chosen.picture = PICTURE
    return chosen


def _show(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Measure and report what the command line asks for."""
    chosen = read_command_line()
    take_signals_as_interrupts()
    sizes = QUICK if chosen.quick else FULL
    report(chosen, sizes, measure(list_steps(sizes), chosen))


if __name__ == "__main__":
    main()
