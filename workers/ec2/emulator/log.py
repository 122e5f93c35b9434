"""The log: every call with what came of it, and everything that EC2 did by itself, in one order."""

import json
import re
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from workers.ec2.emulator.calls import Call

MOST_KEPT: Final = 100_000
"""Records that are kept in memory, calls and events each; the file, if one is asked for, has them all."""

_FOUND_ID: Final = re.compile(r"\bi-[0-9a-f]{8,17}\b")
_CODE: Final = re.compile(r"<(?:Code|errorCode)>([^<]+)<")

EventKind = Literal["warned", "rebalance", "interrupted", "lost", "boot_failure", "reset"]


class CallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the log: a call. `time` in seconds since the epoch."""

    number: int
    time: float
    action: str
    region: str
    token: str | None
    types: list[str]
    zones: list[str]
    market: str | None
    status: int
    code: str | None
    """EC2's error code; None when all went well."""
    instances: list[str]
    """For a launch the ids that it gave, for other calls the ids that they named."""
    replayed: bool
    """Whether the client token was known, so that nothing new was launched."""
    attempt: int
    """1, or more for boto3's own repeats of a call."""
    lost: bool
    """Whether the call was carried out without its caller being told so: status and code are what was lost."""
    faults: list[str]
    """What met it: `error:CODE`, `place:CODE`, `quota:CODE`, `short`, `throttled`, `lost:WAY`."""


class EventRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the log: something that EC2 did by itself. `time` in seconds since the epoch."""

    number: int
    time: float
    event: EventKind
    region: str | None
    instances: list[str]
    detail: str | None
    """Which boot failure it is."""
    deadline: float | None
    """Of a warning: when the instance ends, in seconds since the epoch."""
    notices: int | None
    """Of a warning or hint: how often it was sent (0 = dropped, 2 = doubled)."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a call."""

    status: int
    answer: str
    replayed: bool = False
    lost: bool = False
    faults: Sequence[str] = ()


class CallLog:
    """Every EC2 call and event in order: the newest in memory, all of them in a JSON-lines file if one is asked for.

    A line is the system's before the next one begins, so that a killed emulator has lost none. Not
    thread-safe by itself: the layer writes it under its lock.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._calls: deque[CallRecord] = deque(maxlen=MOST_KEPT)
        self._events: deque[EventRecord] = deque(maxlen=MOST_KEPT)
        self._last = 0

    def append(self, call: Call, outcome: Outcome) -> CallRecord:
        """Write down a call and what came of it."""
        record = CallRecord(
            number=self._count(),
            time=datetime.now(UTC).timestamp(),
            action=call.action,
            region=call.region,
            token=call.token,
            types=[place.type for place in call.places if place.type],
            zones=[place.zone for place in call.places if place.zone],
            market=call.market,
            status=outcome.status,
            code=_find_code(outcome.answer),
            instances=find_instances(outcome.answer) if call.is_launch else call.instances,
            replayed=outcome.replayed,
            attempt=call.attempt,
            lost=outcome.lost,
            faults=list(outcome.faults),
        )
        self._calls.append(record)
        self._write(record)
        return record

    def append_event(
        self,
        event: EventKind,
        region: str | None = None,
        instances: Sequence[str] = (),
        *,
        detail: str | None = None,
        deadline: float | None = None,
        notices: int | None = None,
    ) -> EventRecord:
        """Write down something that EC2 did by itself."""
        record = EventRecord(
            number=self._count(),
            time=datetime.now(UTC).timestamp(),
            event=event,
            region=region,
            instances=list(instances),
            detail=detail,
            deadline=deadline,
            notices=notices,
        )
        self._events.append(record)
        self._write(record)
        return record

    def after(self, number: int) -> list[CallRecord]:
        """The calls after this number that are still in memory, oldest first."""
        return [record for record in self._calls if record.number > number]

    def events_after(self, number: int) -> list[EventRecord]:
        """The events after this number that are still in memory, oldest first."""
        return [record for record in self._events if record.number > number]

    def clear(self) -> None:
        """Forget the records in memory; numbers go on, the file stays."""
        self._calls.clear()
        self._events.clear()

    def _count(self) -> int:
        self._last += 1
        return self._last

    def _write(self, record: CallRecord | EventRecord) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(_line(msgspec.to_builtins(record)))


def find_instances(answer: str) -> list[str]:
    """The instance ids in an answer, each once, in their order."""
    return list(dict.fromkeys(_FOUND_ID.findall(answer)))


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record) + "\n"


def _find_code(answer: str) -> str | None:
    if "Code>" not in answer:
        return None
    found = _CODE.search(answer)
    return found[1] if found else None
