"""Events of the history as rows of a page."""

from collections.abc import Iterable
from dataclasses import dataclass

from leasehold.cli.event_sentences import describe_event
from scheduler.model.events import Event


@dataclass(frozen=True)
class EventRow:
    """One event, with its details as a text."""

    event: Event
    text: str


def make_rows(events: Iterable[Event]) -> list[EventRow]:
    """Return these events with their texts, in the same order."""
    return [EventRow(event, describe_event(event)) for event in events]
