"""Events of the history as rows of a page."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from leasehold.texts.event_sentences import describe_event
from scheduler.model.events import Event

EVENTS: Final = "events"
"""Topic of the feed with the new events of the history."""


@dataclass(frozen=True)
class EventRow:
    """One event, with its details as a text, and the tick that caused it (`TERM.NUMBER`; "" for another cause)."""

    event: Event
    text: str
    tick: str


def make_rows(events: Iterable[Event]) -> list[EventRow]:
    """Return these events with their texts, in the same order."""
    return [_make_row(event) for event in events]


def _make_row(event: Event) -> EventRow:
    rest = {name: value for name, value in event.detail.items() if name not in {"term", "tick"}}
    tick = f"{event.detail['term']}.{event.detail['tick']}" if "tick" in event.detail else ""
    return EventRow(event, describe_event(structs.replace(event, detail=rest)), tick)
