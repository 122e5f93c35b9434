"""Notes in the answer to an accepted request: what the request does not do although its sender may expect it."""

from collections.abc import Iterator
from typing import Any

import msgspec

from scheduler.model.command_schemas import ReservationDocument
from scheduler.model.reservations import Component, Request, Reservation
from scheduler.model.rules import Rules
from scheduler.model.validation import show
from scheduler.policy.queueing.ignored_fields import find_ignored

Note = dict[str, str]
"""A note: `path` is the field of the request, `text` a sentence about it."""


def note_ignored(rules: Rules, row: Reservation, priority: float, account: str | None) -> dict[str, str]:
    """Return sentences, by field, about fields of the request that the queue of this reservation ignores."""
    queue = rules.settings_of(row.request.pool, row.request.system).queue
    return find_ignored(queue, priority=priority, account=account)


def note_submitted(rules: Rules, word: ReservationDocument, row: Reservation, *, is_known: bool) -> list[Note]:
    """Return the notes on one submitted document. `row` is the stored reservation with its id.

    `is_known`: the row existed before this document. Where they differ, the content of the row stays.
    """
    found = note_ignored(rules, row, word.priority, word.account)
    if is_known:
        found |= dict(_list_differences(word, row))
    return list_notes(found)


def list_notes(found: dict[str, str]) -> list[Note]:
    """Return the notes in the form in which the answer contains them."""
    return [{"path": path, "text": text} for path, text in found.items()]


def _list_differences(word: ReservationDocument, row: Reservation) -> Iterator[tuple[str, str]]:
    """Yield (field, sentence) for each field in which the document differs from the stored reservation. A missing field
    has its default value.
    """
    asked, first = word.to_request(), row.request
    for name in Request.__struct_fields__:
        if getattr(asked, name) != getattr(first, name):
            field, value = _name_field(name, asked, first)
            yield field, f"{row.id} exists already and its first request stands: there it is {_show(value)}"
    if word.priority != row.priority:
        text = f"{row.id} exists already and its priority stays {row.priority:g}; the verb `priority` changes it"
        yield "priority", text
    if row.key_hash is not None and word.key_hash != row.key_hash:
        yield "key_hash", f"{row.id} exists already and the key of its first request stands"


def _name_field(name: str, asked: Request, first: Request) -> tuple[str, Any]:
    """Return the name of a field as documents have it, and its value in the stored request."""
    if name == "components" and _is_plain(asked.components) and _is_plain(first.components):
        return "resources", first.components[0].resources
    return name, getattr(first, name)


def _is_plain(components: tuple[Component, ...]) -> bool:
    """Return whether the components are those of a document without `components`."""
    return len(components) == 1 and components[0] == Component(name="main", resources=components[0].resources)


def _show(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "not set" if value is None else show(msgspec.to_builtins(value))
