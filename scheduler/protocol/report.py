"""The report of the last tick in Redis. It has two keys: the head, and blocks of waiting reservations.

    <prefix>view:report  string  the head, as JSON: term, time, duration, counts, and `blocks`: the fields of
                                 `view:waits` in queue order
    <prefix>view:waits   hash    block -> JSON `[names, reasons, numbers]`

`names`: the reservations of the block in queue order. `reasons`: the different reasons of these waits, each as
`[code, detail]`. `numbers`: for each name the index of its reason in `reasons`, from 0; an empty list means that all
names have the reason 0. E.g. `[["a", "b"], [["no_capacity", "…"], ["on_hold", "…"]], [0, 1]]`.

A block is never changed. A tick writes new blocks for the part of the queue that changed, and deletes the blocks that
the head no longer lists. So a tick over a long queue sends only the changed part of the queue.
"""

import json
from collections.abc import Generator, Sequence
from typing import Any, Final, Protocol

from scheduler.protocol.names import RedisNames

READS: Final = 4
"""Most attempts to read the report. If a tick deletes a block after the head was read and before the blocks are read,
the whole report is read again.
"""


class Reads(Protocol):
    """The part of a Redis client that `read_report` uses: two commands that read."""

    def get(self, name: str) -> Any:
        """Return the value of the key `name`; None if the key is missing."""

    def hmget(self, name: str, keys: Sequence[str]) -> Any:
        """Return the values of these fields of a hash, in the same order; None for a missing field."""


def read_head(client: Reads, names: RedisNames) -> dict[str, Any]:
    """Return the report of the last tick without the names of the waiting reservations; {} before the first tick. It
    has the number of waiting reservations. Raises the errors of `client`.

    This read takes about the same time for a queue of any length: only the list of the queue's blocks grows with the
    queue.
    """
    body: bytes | None = client.get(names.report)
    return json.loads(body) if body else {}


Steps = Generator[tuple[str, ...], Any, dict[str, Any]]
"""Yields commands of Redis and receives their replies."""


def read_report(client: Reads, names: RedisNames) -> dict[str, Any]:
    """Return the whole report of the last tick; {} before the first tick. `waiting` maps the name of each waiting
    reservation to its reason [code, detail], in queue order.

    Blocks that are still missing after READS attempts are omitted. Raises the errors of `client`.
    """
    steps = list_report_steps(names)
    try:
        command = next(steps)
        while True:
            name, key, *fields = command
            command = steps.send(client.get(key) if name == "GET" else client.hmget(key, fields))
    except StopIteration as stop:
        report: dict[str, Any] = stop.value
        return report


def list_report_steps(names: RedisNames) -> Steps:
    """Yield the commands that read the whole report, and return the report, as `read_report` does."""
    report: dict[str, Any] = {}
    found: list[bytes | None] = []
    for _ in range(READS):
        body: bytes | None = yield ("GET", names.report)
        report = json.loads(body) if body else {}
        if "blocks" not in report:  # there was no tick yet, or an older version wrote the report as one text
            return report
        blocks = report.pop("blocks")
        found = (yield ("HMGET", names.waits, *blocks)) if blocks else []
        if None not in found:
            break
    waiting: dict[str, list[str]] = {}
    for each in found:
        if each is not None:
            waited, reasons, numbers = json.loads(each)
            waiting.update(zip(waited, (reasons[number] for number in numbers or [0] * len(waited)), strict=True))
    return {**report, "waiting": waiting}


class KnownReport:
    """The report of the last tick, kept by a process that looks up many reservations in it. The whole report is read
    only after another tick.
    """

    def __init__(self) -> None:
        self._known: tuple[bytes, dict[str, Any]] | None = None

    def list_steps(self, names: RedisNames) -> Steps:
        """Yield the commands that read the whole report if it changed, and return the report."""
        body: bytes | None = yield ("GET", names.report)
        if body is None:
            return {}
        known = self._known
        if known is None or known[0] != body:
            # If another tick came in between, the next call finds another head and reads the report again.
            known = self._known = (body, (yield from list_report_steps(names)))
        return known[1]
