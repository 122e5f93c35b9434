"""Builders: small logs in the Standard Workload Format, fleets for them, and one play."""

from pathlib import Path
from typing import Any

import msgspec

from scheduler.simulation.cloud_documents import CloudDocument
from scheduler.simulation.figures import Summary
from scheduler.simulation.fleet import Fleet, make_fleet
from scheduler.simulation.trace import TracePlay
from scheduler.simulation.workload import Workload, read_workload

Document = dict[str, Any]
Row = tuple[float, float, int]
"""Submit and run time in seconds, processors."""


def a_line(number: int, row: Row, *, user: int = 1, requested: float = -1, status: int = 1) -> str:
    """One job as a line of a log."""
    submit, run, processors = row
    return f"{number} {submit} -1 {run} {processors} -1 -1 -1 {requested} -1 {status} {user} 1 1 1 -1 -1 -1"


def a_log(folder: Path, *rows: Row | str) -> Path:
    """A log of these jobs; a text is a line as it stands."""
    lines = [row if isinstance(row, str) else a_line(number, row) for number, row in enumerate(rows, start=1)]
    path = folder / "log.swf"
    path.write_text("\n".join(["; Version: 2.2", *lines, ""]), encoding="utf-8")
    return path


def a_pool(**changes: Any) -> Document:
    """Two static hosts with one cpu each."""
    return {"system": "x", "provider": "static", "max_slots": 2, "resources": {"cpus": 1}, **changes}


def an_ec2_pool(**changes: Any) -> Document:
    """Up to two machines with one cpu each, 3.60 an hour."""
    offering = {"name": "c1", "price": 3.6, "resources": {"cpus": 1}}
    return {"system": "x", "max_slots": 2, "offerings": [offering], **changes}


def a_fleet(pool: Document | None = None, cloud: Document | None = None, **scheduler: Any) -> Fleet:
    """A fleet of one pool."""
    document = {"scheduler": scheduler, "pools": {"p": pool or a_pool()}}
    return make_fleet(document, CloudDocument.model_validate(cloud or {}))


def play(workload: Workload, fleet: Fleet) -> Summary:
    """What the play of it comes to, the time that it took left out."""
    played = TracePlay(workload, fleet)
    played.play()
    return msgspec.structs.replace(played.sum_up(), wall_seconds=0.0)


def play_rows(folder: Path, fleet: Fleet, *rows: Row | str) -> Summary:
    """The same of a log of these jobs."""
    return play(read_workload(a_log(folder, *rows), fleet.most_processors), fleet)
