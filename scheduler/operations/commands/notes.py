"""Notes: what an accepted request does not do, although its sender may expect it. They come with the answer."""

from collections.abc import Iterator
from typing import Any

import msgspec

from scheduler.model.command_schemas import ReservationDocument
from scheduler.model.reservations import Component, Request, Reservation
from scheduler.model.rules import Rules
from scheduler.model.validation import show
from scheduler.policy.queueing.order import find_ignored

Note = dict[str, str]
"""`path`: the field of the request; `text`: a sentence about it."""


def note_ignored(rules: Rules, row: Reservation, priority: float, account: str | None) -> dict[str, str]:
    """Field -> sentence for what the queue of this reservation does not read."""
    queue = rules.settings_of(row.request.pool, row.request.system).queue
    return find_ignored(queue, priority=priority, account=account)


def note_submitted(rules: Rules, word: ReservationDocument, row: Reservation, *, is_known: bool) -> list[Note]:
    """The notes on one submitted document; `row` is the reservation of its id as it is stored.

    `is_known`: the row was there before this document: where their contents differ, those of the row stand.
    """
    found = note_ignored(rules, row, word.priority, word.account)
    if is_known:
        found |= dict(_list_differences(word, row))
    return list_notes(found)


def list_notes(found: dict[str, str]) -> list[Note]:
    """The notes as they travel."""
    return [{"path": path, "text": text} for path, text in found.items()]


def _list_differences(word: ReservationDocument, row: Reservation) -> Iterator[tuple[str, str]]:
    """(field, sentence) of each field whose value differs; a field that was left out has its default value."""
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
    """The field as a document names it, and its value in the first request."""
    if name == "components" and _is_plain(asked.components) and _is_plain(first.components):
        return "resources", first.components[0].resources
    return name, getattr(first, name)


def _is_plain(components: tuple[Component, ...]) -> bool:
    """Whether a document without `components` has these."""
    return len(components) == 1 and components[0] == Component(name="main", resources=components[0].resources)


def _show(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "not set" if value is None else show(msgspec.to_builtins(value))
