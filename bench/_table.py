"""The table of `bench.targets`: what was asked, what was reached, and the other systems beside it."""

import os
import platform
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench._asked import COUNT, OTHERS, Row

BEGIN, END = "<!-- targets -->", "<!-- end of targets -->"
HEAD: Final = ("what", "at least", "aim", "reached", "result", *OTHERS.values())
NOT_MEASURED: Final = "not measured"
LONGEST_REASON: Final = 110
LONGEST_LINE: Final = 120
FOLDERS: Final = re.compile(r"(?<!\w)/(?:[\w.@+-]+/)+")
"""The folders of an absolute path."""

Points = list[tuple[float, float]]


@dataclass
class Found:
    """What one run measured. A step that failed, or was left out, has its reason in `failures`."""

    values: dict[str, float] = field(default_factory=dict)
    """STEP.FIGURE -> figure, in the unit of its row."""
    curves: dict[str, Points] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


def judge(row: Row, found: Found, *, is_quick: bool) -> str:
    """Return the result of a row: whether the least or the aim was reached, or why there is no figure."""
    value = found.values.get(row.key)
    if value is None:
        return found.failures.get(row.step, NOT_MEASURED)
    if is_quick and row.is_sized:
        return "smaller run"
    least, aim = row.find_bounds(found.values)
    if aim is not None and row.reaches(value, aim):
        return "aim"
    return "reached" if row.reaches(value, least) else "**missed**"


def list_cells(rows: Sequence[Row], found: Found, *, is_quick: bool) -> Iterator[tuple[str, ...]]:
    """Yield the texts of each row, in the order of HEAD."""
    for row in rows:
        least, aim = row.find_bounds(found.values)
        value = found.values.get(row.key)
        yield (
            row.what,
            _show_bound(row, least, 0, found),
            "" if aim is None else _show_bound(row, aim, 1, found),
            "" if value is None else show(value, row.unit),
            judge(row, found, is_quick=is_quick),
            *(_show_other(row, found, name) for name in OTHERS),
        )


def show(value: float, unit: str) -> str:
    """Return a figure with three significant digits, and its unit."""
    digits = f"{value:,.0f}" if abs(value) >= 100 or unit == COUNT else f"{value:.3g}"
    return f"{digits}{unit}" if unit.startswith(("/", "×")) else f"{digits} {unit}".strip()


def _show_bound(row: Row, bound: float, place: int, found: Found) -> str:
    shown = show(bound, row.unit)
    is_ratio = row.factors is not None and (row.least, row.aim) != row.find_bounds(found.values)
    return f"{row.factors[place]} × = {shown}" if is_ratio and row.factors else shown


def _show_other(row: Row, found: Found, name: str) -> str:
    value = found.values.get(f"others.{name}.{row.beside}") if row.beside else None
    return "" if value is None else show(value, row.unit)


def show_text(rows: Sequence[Row], found: Found, *, is_quick: bool) -> str:
    """Return the table for a terminal, with the notes below it."""
    lines = [HEAD, *list_cells(rows, found, is_quick=is_quick)]
    # A reason that is no figure would make its column wide for all rows.
    widths = [max(len(line[column]) for line in lines if ":" not in line[column][:8]) for column in range(len(HEAD))]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*shown, *found.notes]).replace("**", "")


def show_page(rows: Sequence[Row], found: Found, picture: str, *, is_quick: bool) -> str:
    """Return the section of the page: the machine, the table, the notes and the picture."""
    kind = "A **quick** run with smaller amounts of work: it shows the form, not what is reached." if is_quick else ""
    lines = ["| " + " | ".join(line) + " |" for line in (HEAD, *list_cells(rows, found, is_quick=is_quick))]
    lines.insert(1, "|" + "---|" * len(HEAD))
    notes = [textwrap.fill(f"- {note}", LONGEST_LINE, subsequent_indent="  ") for note in found.notes]
    head = textwrap.fill(f"{describe_machine()} {kind}", LONGEST_LINE)
    text = [head, "", *lines, "", *notes, "", f"![growth of the cost]({picture})"]
    return "\n".join(text)


def describe_machine() -> str:
    """Return a sentence about this machine, without its name."""
    load = os.getloadavg()[0]
    return (
        f"One run of `make bench` on {os.cpu_count()} cores, Python {platform.python_version()};"
        f" at its end {load:.1f} processes were ready to run."
    )


def write_section(page: Path, text: str) -> None:
    """Replace what stands between the marks of the page."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} does not have the marks {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def make_document(rows: Sequence[Row], found: Found, *, is_quick: bool) -> dict[str, Any]:
    """Return the run as a document for JSON."""
    return {
        "rows": [
            {
                "key": row.key,
                "what": row.what,
                "unit": row.unit,
                **dict(zip(("at_least", "aim"), row.find_bounds(found.values), strict=True)),
                "reached": found.values.get(row.key),
                "result": judge(row, found, is_quick=is_quick).strip("*"),
            }
            for row in rows
        ],
        "values": dict(sorted(found.values.items())),
        "curves": found.curves,
        "notes": found.notes,
        "failures": found.failures,
    }


def shorten(reason: str) -> str:
    """Return a reason as one line that fits into a cell of a table and names no folder of this machine."""
    text = " ".join(FOLDERS.sub("", reason).replace("|", "/").replace("`", "'").split())
    return text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 1] + "…"


def take_figures(found: Found, step: str, figures: Mapping[str, float]) -> None:
    """Add the figures of one step."""
    found.values |= {f"{step}.{name}": float(value) for name, value in figures.items()}
