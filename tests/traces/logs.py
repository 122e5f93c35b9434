"""Builders of small logs in the Standard Workload Format and of fleets, and functions that replay a log."""

from pathlib import Path
from typing import Any

import msgspec

from scheduler.simulation.cloud_documents import CloudDocument
from scheduler.simulation.fleet import Fleet, make_fleet
from scheduler.simulation.metrics import Summary
from scheduler.simulation.trace import TracePlay
from scheduler.simulation.workload import Workload, read_workload

Document = dict[str, Any]
Row = tuple[float, float, int]
"""Submit and run time in seconds, processors."""
FIELDS = (
    *("number", "submit", "wait", "run", "processors", "cpu", "memory", "asked_processors", "requested"),
    *("asked_memory", "status", "user", "group", "application", "queue", "partition", "preceding", "think"),
)
"""The fields of a line, in the order of the format."""
USUAL = {**dict.fromkeys(FIELDS, -1), "status": 1, "user": 1, "group": 1, "application": 1, "queue": 1}


def a_line(number: int, row: Row, /, **fields: float | str) -> str:
    """Return one job as a line of a log. `fields` sets further fields; all others are unknown (-1)."""
    submit, run, processors = row
    values = {**USUAL, "number": number, "submit": submit, "run": run, "processors": processors, **fields}
    assert len(values) == len(FIELDS), f"one of {FIELDS}"
    return " ".join(str(values[name]) for name in FIELDS)


def write_log(folder: Path, *lines: str | bytes) -> Path:
    path = folder / "log.swf"
    path.write_bytes(b"\n".join([*(line if isinstance(line, bytes) else line.encode() for line in lines), b""]))
    return path


def a_log(folder: Path, *rows: Row | str) -> Path:
    """Write a log of these jobs below a comment; a string is written unchanged as a line."""
    lines = [row if isinstance(row, str) else a_line(number, row) for number, row in enumerate(rows, start=1)]
    return write_log(folder, "; Version: 2.2", *lines)


def a_pool(**changes: Any) -> Document:
    """Return a pool of two static hosts with one CPU each."""
    return {"system": "x", "provider": "static", "max_slots": 2, "resources": {"cpus": 1}, **changes}


def an_ec2_pool(**changes: Any) -> Document:
    """Return a pool of up to two EC2 machines with one CPU each; each costs 3.60 an hour."""
    offering = {"name": "c1", "price": 3.6, "resources": {"cpus": 1}}
    return {"system": "x", "max_slots": 2, "offerings": [offering], **changes}


def a_fleet(pool: Document | None = None, cloud: Document | None = None, **scheduler: Any) -> Fleet:
    document = {"scheduler": scheduler, "pools": {"p": pool or a_pool()}}
    return make_fleet(document, CloudDocument.model_validate(cloud or {}))


def play(workload: Workload, fleet: Fleet) -> Summary:
    """Replay the workload and return the summary with `wall_seconds` set to 0."""
    played = TracePlay(workload, fleet)
    played.play()
    return msgspec.structs.replace(played.sum_up(), wall_seconds=0.0)


def play_rows(folder: Path, fleet: Fleet, *rows: Row | str) -> Summary:
    """Replay a log of these jobs and return the summary."""
    return play(read_workload(a_log(folder, *rows), fleet.most_processors), fleet)
