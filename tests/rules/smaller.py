"""Less of a change as it is printed: it must not suffice where the change is the smallest one of its kind."""

from collections.abc import Iterator

from tests.rules.playing import Document
from tests.rules.waits import Look

STEPS = {"max_slots": 1, "price_factor": 0.0002, "cpus": 0.25, "memory_mib": 1, "per_hour": 0.01}
"""The next smaller value."""


def list_smaller(look: Look, change: Document) -> Iterator[Document]:
    """The same change without one of its parts, or with a little less of one."""
    if change["wait_seconds"]:
        yield {**change, "wait_seconds": change["wait_seconds"] / 2}
    for number, action in enumerate(change["actions"]):
        before, after = change["actions"][:number], change["actions"][number + 1 :]
        for less in _list_less_of(look, action):
            yield {**change, "actions": [*before, *less, *after]}


def _list_less_of(look: Look, action: Document) -> Iterator[list[Document]]:
    _, rules, _ = look
    if "rules" in action:
        yield from ([{"rules": less}] for less in list_less(rules.model_dump(), action["rules"]))
        return
    yield []


def list_less(known: Document, wanted: Document) -> Iterator[Document]:
    """A partial document with one key as before, or with a little less in it; a new table is removed as a whole."""
    for key, value in wanted.items():
        rest = {name: each for name, each in wanted.items() if name != key}
        before = known.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            yield from ({**rest, key: less} for less in list_less(before, value))
        elif key in STEPS and value > (before or 0) and value - STEPS[key] > 0:
            yield {**rest, key: value - STEPS[key]}
        elif value != before:
            yield rest
