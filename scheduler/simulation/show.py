"""Runs a scenario and prints the run: JSON lines for programs, sentences and a table for users."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from scheduler.model.accounts import PAID
from scheduler.model.view import View
from scheduler.operations.explain import explain_wait, find_applied
from scheduler.protocol.visible import escape_json, make_visible
from scheduler.simulation.cluster import SimulatedCluster
from scheduler.simulation.runner import Line, Runner
from scheduler.simulation.scenario import load_scenario

MOST_EXPLAINED: Final = 20
"""The most waiting reservations that are explained at the end of a scenario's run."""
DECIMALS_FOR_PEOPLE: Final = 6
"""Decimals of times in sentences about a run. JSON lines have all decimals, for example 180.00000000000003 for an event
strictly after 180 s, because programs compare the lines with another run.
"""


def simulate_file(path: Path, *, json_lines: bool, out: TextIO) -> int:
    """Run a scenario file and print its decisions to `out`, as JSON lines or as sentences. Return 0, the exit status.
    Raises InvalidInputError if the file has any fault.
    """
    run_file(path, json_lines=json_lines, out=out)
    return 0


def run_file(path: Path, *, json_lines: bool, out: TextIO, records: bool = False) -> Runner:
    """Run a scenario file and print its decisions to `out`, as JSON lines or as sentences. Return the finished Runner;
    with `records`, it has the timeline of the run.

    Raises InvalidInputError if the file has any fault; then nothing ran and nothing was printed.
    """
    player = Runner(load_scenario(path), records=records)
    for line in player.play():
        texts = [escape_json(json.dumps(tidy(line), ensure_ascii=False))] if json_lines else describe_line(line)
        for text in texts:
            print(make_visible(text), file=out)
    if not json_lines:
        for text in describe_waits(player.cluster):
            print(make_visible(text), file=out)
    return player


def describe_waits(cluster: SimulatedCluster) -> Iterator[str]:
    """Yield a sentence for each of the first MOST_EXPLAINED waiting reservations: the reason, and the smallest change
    that would end the wait.
    """
    now, applied = cluster.event_queue.now, find_applied(cluster.ports)
    rules = cluster.ports.rules_at(now).rules
    waiting = cluster.store.find_reservations(phases=["pending"], limit=MOST_EXPLAINED + 1)
    if waiting:
        yield ""
    for row in waiting[:MOST_EXPLAINED]:
        found = explain_wait(View(cluster.store.read_rows()), rules, row, now, applied=applied)
        why = found["waiting"]["code"] if found["waiting"] else "nothing: the next tick serves it"
        change = f"; smallest change: {found['change']['text']}" if found["change"] else ""
        needs = f"; needs {'; '.join(found['needs'])}" if found["needs"] else ""
        yield f"{row.id} waits: {why}{change}{needs}"
    if len(waiting) > MOST_EXPLAINED:
        yield "and other reservations wait"


def tidy(value: Any, decimals: int | None = None) -> Any:
    """Return the value, and values within it, with whole floats as integers (70 instead of 70.0). Other floats are
    rounded to `decimals`, or kept if it is None.
    """
    if isinstance(value, float):
        rounded = value if decimals is None else round(value, decimals)
        return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded
    if isinstance(value, dict):
        return {name: tidy(each, decimals) for name, each in value.items()}
    return [tidy(each, decimals) for each in value] if isinstance(value, list) else value


def describe_line(line: Line) -> Iterator[str]:
    """Yield the sentences for one line of a simulated run: a tick, an event, or the final state (as a table)."""
    line = tidy(line, DECIMALS_FOR_PEOPLE)
    at = f"{line['at']:>10} s"
    if "event" in line:
        yield f"{at}  {line.get('slot') or line.get('reservation')}: {line['event'].replace('_', ' ')}"
    elif "tick" in line:
        yield f"{at}  tick {line['tick']}" + ("" if line["decisions"] or line["waiting"] else ": nothing to do")
        for decision in line["decisions"]:
            yield f"{'':12}  {format_decision(decision)}"
        for each in line["waiting"]:
            yield f"{'':12}  {each['reservation']} waits: {each['code']} ({each['detail']})"
    else:
        yield ""
        yield from _describe_state(line["state"], line["at"])


def format_decision(decision: dict[str, Any]) -> str:
    """Return a decision of a tick, as `leasehold simulate` prints it, as one line of text for people."""
    fields = {name: value for name, value in decision.items() if name not in {"do", "skipped"} and value is not None}
    if "leases" in fields:
        fields["leases"] = ", ".join(f"{each['component']} on {each['slot']}" for each in fields["leases"])
    if "victims" in fields:
        fields["victims"] = ", ".join(fields["victims"])
    text = f"{decision['do']} " + ", ".join(f"{name} {value}" for name, value in fields.items())
    return f"{text} (skipped: {decision['skipped']})" if "skipped" in decision else text


def _describe_state(state: dict[str, Any], at: float) -> Iterator[str]:
    yield f"At {at} s:"
    rows = [
        (slot["id"], slot["state"], ", ".join(map(_describe_lease, slot["leases"])) or "-") for slot in state["slots"]
    ]
    yield from _describe_table(("SLOT", "STATE", "LEASES"), rows)
    yield ""
    rows = [
        (each["id"], each["phase"], ", ".join(lease["slot"] for lease in each["leases"]) or each["reason"] or "-")
        for each in state["reservations"]
    ]
    yield from _describe_table(("RESERVATION", "PHASE", "SLOTS"), rows)
    if state.get("bill"):
        yield ""
        bill = [(each["pool"], each["offering"], each["market"], *_show_bill(each)) for each in state["bill"]]
        yield from _describe_table(("POOL", "OFFERING", "MARKET", "HOURS", "DOLLARS"), bill)
    if state["accounts"]:
        yield ""
        balances = ((each["id"], each["balance"]) for each in state["accounts"])
        lines = [(name, " ".join(f"{amount:.6g}" for amount in balance)) for name, balance in balances]
        yield from _describe_table(("ACCOUNT", "BALANCE BY LEVEL"), lines)


def _describe_lease(lease: dict[str, Any]) -> str:
    """Return a text about this lease: its reservation, and its level if it is a paid level."""
    level = f" (level {lease['level']})" if lease["level"] in PAID else ""
    return f"{lease['reservation']}{level}"


def _show_bill(line: dict[str, Any]) -> tuple[str, str]:
    return f"{line['hours']:.2f}", f"{line['dollars']:.4f}"


def _describe_table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines of a table. A column without any value is left out."""
    shown = [column for column in range(len(heads)) if not rows or any(row[column] not in {"", "-"} for row in rows)]
    heads, rows = _take(heads, shown), [_take(row, shown) for row in rows]
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    for row in [heads, *rows]:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _take(row: tuple[str, ...], columns: Sequence[int]) -> tuple[str, ...]:
    return tuple(row[column] for column in columns)
