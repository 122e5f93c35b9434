"""Print a play: JSON lines for machines, sentences and a table for people."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from scheduler.simulation.play import Line, play
from scheduler.simulation.scenario import load_scenario


def simulate_file(path: Path, *, json_lines: bool, out: TextIO) -> int:
    """Play a scenario file and print what was decided; 0 when it was played.

    Raises InvalidInputError, with nothing played or printed, when the file is wrong anywhere.
    """
    scenario = load_scenario(path)
    for line in play(scenario):
        texts = [json.dumps(tidy(line), ensure_ascii=False)] if json_lines else describe_line(line)
        for text in texts:
            print(text, file=out)
    return 0


def tidy(value: Any) -> Any:
    """The value with whole floats as whole numbers: 70 instead of 70.0."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {name: tidy(each) for name, each in value.items()}
    return [tidy(each) for each in value] if isinstance(value, list) else value


def describe_line(line: Line) -> Iterator[str]:
    """One line of a play as sentences, the final state as a table."""
    line = tidy(line)
    at = f"{line['at']:>10} s"
    if "event" in line:
        yield f"{at}  {line.get('slot') or line.get('reservation')}: {line['event'].replace('_', ' ')}"
    elif "tick" in line:
        yield f"{at}  tick {line['tick']}" + ("" if line["decisions"] or line["waiting"] else ": nothing to do")
        for decision in line["decisions"]:
            yield f"{'':12}  {_describe_decision(decision)}"
        for each in line["waiting"]:
            yield f"{'':12}  {each['reservation']} waits: {each['code']} ({each['detail']})"
    else:
        yield ""
        yield from _describe_state(line["state"], line["at"])


def _describe_decision(decision: dict[str, Any]) -> str:
    fields = {name: value for name, value in decision.items() if name not in {"do", "skipped"} and value is not None}
    if "leases" in fields:
        fields["leases"] = ", ".join(f"{each['component']} on {each['slot']}" for each in fields["leases"])
    text = f"{decision['do']} " + ", ".join(f"{name} {value}" for name, value in fields.items())
    return f"{text} (skipped: {decision['skipped']})" if "skipped" in decision else text


def _describe_state(state: dict[str, Any], at: float) -> Iterator[str]:
    yield f"At {at} s:"
    rows = [
        (slot["id"], slot["state"], ", ".join(lease["reservation"] for lease in slot["leases"]) or "-")
        for slot in state["slots"]
    ]
    yield from _describe_table(("SLOT", "STATE", "LEASES"), rows)
    yield ""
    rows = [
        (each["id"], each["phase"], ", ".join(lease["slot"] for lease in each["leases"]) or each["reason"] or "-")
        for each in state["reservations"]
    ]
    yield from _describe_table(("RESERVATION", "PHASE", "SLOTS"), rows)


def _describe_table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    for row in [heads, *rows]:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
