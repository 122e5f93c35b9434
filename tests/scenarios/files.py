"""Scenario files: how they are written, and the file of a difference that a tool found."""

import json
from pathlib import Path
from typing import Any

from tests.rules.playing import Document, play_out

FOLDER = Path(__file__).parent
WIDTH = 120


def format_file(value: Any, indent: str = "", taken: int = 0) -> str:
    """JSON with each part on one line if it fits there; `taken`: characters before and after it on its line."""
    flat = json.dumps(value)
    if (len(indent) + len(flat) + taken <= WIDTH and indent) or not isinstance(value, dict | list) or not value:
        return flat
    inner = f"{indent}  "
    if isinstance(value, dict):
        lines = [f"{json.dumps(key)}: {format_file(each, inner, len(key) + 5)}" for key, each in value.items()]
    else:
        lines = [format_file(each, inner, 1) for each in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}\n{inner}" + f",\n{inner}".join(lines) + f"\n{indent}{last}"


def keep_difference(folder: Path, name: str, document: Document, difference: str, **parts: Any) -> Path:
    """Write the file of a difference: the engine's decisions as `ticks`, and both sides' ones as `differs`.

    `test_scenarios.py` fails for a file with `differs`, until a person has corrected `ticks` and removed that key.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ticks = {f"{at:g}": lines for at, lines in play_out(document).ticks_at.items()}
    document = {"name": "State the rule here", **{key: each for key, each in document.items() if key != "name"}}
    path = folder / f"{name}.json"
    found = {"scenario": document, "ticks": ticks, **parts, "differs": difference.splitlines()}
    path.write_text(f"{format_file(found)}\n", encoding="utf-8")
    return path
