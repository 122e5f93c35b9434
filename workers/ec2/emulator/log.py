"""The EC2 emulator's log: every call with its result and every background event, in one order."""

import json
import re
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Final, Literal

import msgspec

from workers.ec2.emulator.calls import Call

MOST_KEPT: Final = 100_000
"""Most calls, and most events, that the EC2 emulator's log keeps in memory. The log file, if there is one, has all."""

_FOUND_ID: Final = re.compile(r"\bi-[0-9a-f]{8,17}\b")
_CODE: Final = re.compile(r"<(?:Code|errorCode)>([^<]+)<")

EventKind = Literal["warned", "rebalance", "interrupted", "lost", "boot_failure", "reset"]


class CallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One EC2 call in the emulator's log. `time` in seconds since the epoch."""

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
    """EC2's error code in the answer; None without an error."""
    instances: list[str]
    """For a launch the ids of the instances that it created, for other calls the instance ids that they named."""
    replayed: bool
    """Whether the client token of a launch was known, so that no instance was launched."""
    attempt: int
    """Which of boto3's attempts of the call it is, from 1."""
    lost: bool
    """Whether the call was carried out and its answer was lost; status and code are those of the lost answer."""
    faults: list[str]
    """The injected faults and limits that applied to the call: `error:CODE`, `place:CODE`, `quota:CODE`, `short`,
    `throttled`, `lost:WAY`.
    """


class EventRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One background event (without a call) in the emulator's log. `time` in seconds since the epoch."""

    number: int
    time: float
    event: EventKind
    region: str | None
    instances: list[str]
    detail: str | None
    """For a failed boot: the kind of the boot failure."""
    deadline: float | None
    """For an interruption notice: the announced end of the instance, in seconds since the epoch."""
    notices: int | None
    """For an interruption or rebalance notice: how often it was sent (0: lost, 2: doubled)."""


class CallLog:
    """The emulator's EC2 calls and events in order: the newest ones in memory, all in a file of JSON lines if there is
    one.

    Each line is flushed before the next one, so that a killed emulator loses none. Not thread-safe; the middleware
    writes it under its lock.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._calls: deque[CallRecord] = deque(maxlen=MOST_KEPT)
        self._events: deque[EventRecord] = deque(maxlen=MOST_KEPT)
        self._numbers = count(1)

    def append(self, call: Call, status: int, answer: str, *, replayed: bool, lost: bool, faults: list[str]) -> None:
        """Record an EC2 call with the status and the text of its answer in the emulator's log."""
        # Most answers are long and have no code: the search for a plain text is faster.
        code = _CODE.search(answer) if "Code>" in answer else None
        record = CallRecord(
            number=next(self._numbers),
            time=datetime.now(UTC).timestamp(),
            action=call.action,
            region=call.region,
            token=call.token,
            types=[place.type for place in call.places if place.type],
            zones=[place.zone for place in call.places if place.zone],
            market=call.market,
            status=status,
            code=code[1] if code else None,
            instances=find_instances(answer) if call.is_launch else call.instances,
            replayed=replayed,
            attempt=call.attempt,
            lost=lost,
            faults=faults,
        )
        self._calls.append(record)
        self._write(record)

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
        """Record a background event, like an interruption, in the emulator's log, and return the record."""
        record = EventRecord(
            number=next(self._numbers),
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
        """Return the recorded EC2 calls with a number above this one that are still in memory, oldest first."""
        return [record for record in self._calls if record.number > number]

    def events_after(self, number: int) -> list[EventRecord]:
        """Return the recorded background events with a number above this one that are still in memory, oldest first."""
        return [record for record in self._events if record.number > number]

    def clear(self) -> None:
        """Remove the emulator's records of calls and events from memory. Their numbers continue, and the log file
        stays.
        """
        self._calls.clear()
        self._events.clear()

    def _write(self, record: CallRecord | EventRecord) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(msgspec.to_builtins(record)) + "\n")


def find_instances(answer: str) -> list[str]:
    """Return the EC2 instance ids in the text of an answer, each once, in their order."""
    return list(dict.fromkeys(_FOUND_ID.findall(answer)))
