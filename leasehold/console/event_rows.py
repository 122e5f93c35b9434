"""Events of the history as rows of a page."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from msgspec import structs

from leasehold.console.page import format_span
from leasehold.texts.event_sentences import describe_event, name_source
from leasehold.texts.values import format_amount
from scheduler.model.events import Event

EVENTS: Final = "events"
"""Topic of the feed with the new events of the history."""


CORES: Final = "reservation_cores"
"""Name of the events about the cores that a lease may use. They are many, so pages show them only on demand."""
_ORDER: Final = ("reason", "waited", "slots", "slot")
"""The details that stand first in a text."""


@dataclass(frozen=True)
class EventRow:
    """One event, with its name and its details in words, and what caused it, such as `tick 3.120` or `request ci`."""

    event: Event
    title: str
    text: str
    source: str


def make_rows(events: Iterable[Event]) -> list[EventRow]:
    """Return these events with their texts, in the same order."""
    return [_make_row(event) for event in events]


def _make_row(event: Event) -> EventRow:
    source = name_source(event)
    if "tick" in event.detail:
        source += f" {event.detail['term']}.{event.detail['tick']}"
    # The events before show from which phase or state an object came.
    rest = {name: value for name, value in event.detail.items() if name not in {"term", "tick", "from"}}
    has_sentence = event.name.endswith("_relevelled") or {"by", "preempted", "refusal"} & {*rest} or "message" in rest
    if has_sentence or event.name == CORES:
        text = describe_event(structs.replace(event, detail={**rest, **_keep_level(event)}))
    else:
        names = sorted(rest, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))
        text = ", ".join(_describe(name, rest[name]) for name in names if rest[name] not in (None, "", [], {}))
    return EventRow(event, event.name.replace("_", " "), text, source)


def _keep_level(event: Event) -> dict[str, Any]:
    return {"from": event.detail["from"]} if event.name.endswith("_relevelled") and "from" in event.detail else {}


def _describe(name: str, value: Any) -> str:
    """Return one detail in words, like `after 3 s` or `on linux-1, linux-2`."""
    match name:
        case "waited":
            return f"after {format_span(value)}"
        case "slots" | "slot":
            return f"on {_show(value)}"
        case "reason":
            return _show(value)
    return f"{name.replace('_', ' ')} {_show(value)}"


def _show(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_show, value))
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_show(each)}" for key, each in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format_amount(value) if isinstance(value, float) else str(value)
