"""The log of the EC2 emulator: every call with its result, and every background event, numbered in one order."""

import json
import re
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Final, Literal

import msgspec

from leasehold_emulator.calls import Call

MOST_KEPT: Final = 100_000
"""Most calls, and most events, that the log keeps in memory. The log file, if there is one, has all of them."""

_FOUND_ID: Final = re.compile(r"\bi-[0-9a-f]{8,17}\b")
_CODE: Final = re.compile(r"<(?:Code|errorCode)>([^<]+)<")

EventKind = Literal[
    "warned", "rebalance", "maintenance", "interrupted", "retired", "lost", "boot_failure", "ended", "step", "reset"
]


class CallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One EC2 call in the emulator's log. `time` is in seconds since the epoch."""

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
    """For a launch the ids of the instances that it created; for any other call the instance ids that the
    call named.
    """
    asked: int | None
    """For a launch the most instances that it asked for; None for any other call."""
    replayed: bool
    """Whether a launch repeated a known client token, so that it got the earlier answer and no new instance."""
    attempt: int
    """The number of this attempt among boto3's attempts of the call, from 1."""
    lost: bool
    """Whether the call was carried out, but its answer was lost. `status` and `code` are those of the lost answer."""
    faults: list[str]
    """The injected faults and limits that applied to the call. CODE is an EC2 error code. `error:CODE`: the whole call
    failed. `place:CODE`: an instance type in a zone failed. `quota:CODE`, `capacity:CODE`: this limit was reached.
    `machine:CODE`: an instance ends by itself. `power:CODE`: a stop, start or resize was refused. `protected:CODE`: one
    of the instances is protected, and the call was carried out for those of other zones only. `short`: a launch got
    fewer instances (`FaultRule.deliver`). `throttled`: a token bucket was empty. `lost:WAY`: the answer was lost in
    this way (`FaultRule.lost`).
    """


class EventRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One background event (which no call caused) in the emulator's log. `time` is in seconds since the epoch."""

    number: int
    time: float
    event: EventKind
    region: str | None
    instances: list[str]
    detail: str | None
    """For a failed boot: the kind of the failure. For the end by an injected fault: the state reason. For a scheduled
    change: its code. For a step of a script: its text. Else None.
    """
    deadline: float | None
    """For an interruption notice the announced end of the instance, and for a scheduled change its begin, in seconds
    since the epoch; else None.
    """
    notices: int | None
    """For a notice and for a scheduled change: how often it was sent (0: lost, 2: doubled); else None."""


class CallLog:
    """The EC2 calls and events of the emulator in order. The newest ones are in memory; a file of JSON lines, if there
    is one, has all.

    Each line is flushed before the next one, so that a killed emulator loses none. Not thread-safe; the middleware uses
    it under its lock.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._calls: deque[CallRecord] = deque(maxlen=MOST_KEPT)
        self._events: deque[EventRecord] = deque(maxlen=MOST_KEPT)
        self._numbers = count(1)

    def append(self, call: Call, status: int, answer: str, *, replayed: bool, lost: bool, faults: list[str]) -> None:
        """Record an EC2 call, with the HTTP status and the text of its answer. The other arguments are fields of
        CallRecord.
        """
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
            asked=call.wanted[1] if call.is_launch else None,
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
        """Record a background event, like an interruption, and return its record."""
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
        """Return the recorded EC2 calls whose number is greater than this one, oldest first, as far as they are in
        memory.
        """
        return [record for record in self._calls if record.number > number]

    def events_after(self, number: int) -> list[EventRecord]:
        """Return the recorded background events whose number is greater than this one, oldest first, as far as they are
        in memory.
        """
        return [record for record in self._events if record.number > number]

    def clear(self) -> None:
        """Remove the records of calls and events from memory. The numbering continues, and the log file stays."""
        self._calls.clear()
        self._events.clear()

    def _write(self, record: CallRecord | EventRecord) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(msgspec.to_builtins(record)) + "\n")


def find_instances(answer: str) -> list[str]:
    """Return the EC2 instance ids in the text of an answer, in their order, each once."""
    return list(dict.fromkeys(_FOUND_ID.findall(answer)))
