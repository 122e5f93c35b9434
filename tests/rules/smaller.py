"""Less of a change as it is printed: it must not suffice where the change is the smallest one of its kind."""

import re
from collections.abc import Iterator

from tests.rules.playing import Document
from tests.rules.waits import Look

STEPS = {"max_slots": 1, "price_factor": 0.0002, "cpus": 0.25, "memory_mib": 1, "per_hour": 0.01}
"""The next smaller value."""
WITH_SIZE = re.compile(r"more hosts? with ")
"""Hosts of a size of their own, neither like another host nor as in the rules."""


def list_smaller(look: Look, change: Document) -> Iterator[Document]:
    """The same change without one of its parts, or with a little less of one."""
    if change["wait_seconds"]:
        yield {**change, "wait_seconds": change["wait_seconds"] / 2}
    for number, action in enumerate(change["actions"]):
        before, after = change["actions"][:number], change["actions"][number + 1 :]
        for less in _list_less_of(look, action):
            yield {**change, "actions": [*before, *less, *after]}
    if WITH_SIZE.search(change["text"]):
        yield from _list_smaller_hosts(look, change)


def _list_smaller_hosts(look: Look, change: Document) -> Iterator[Document]:
    """New hosts are all alike: a little less of each of them."""
    actions = change["actions"]
    new = [each["slot"] for each in actions if "slot" in each and each["slot"]["id"] not in look[0].slots]
    nothing: Document = {"resources": {}, "labels": {}}
    for less in list_less(nothing, {key: new[0].get(key) or {} for key in nothing}):
        made = [{"slot": {**each["slot"], **less}} if each.get("slot") in new else each for each in actions]
        yield {**change, "actions": made}


def _list_less_of(look: Look, action: Document) -> Iterator[list[Document]]:
    view, rules, _ = look
    if "rules" in action:
        yield from ([{"rules": less}] for less in list_less(rules.model_dump(), action["rules"]))
        return
    yield []
    known = view.slots.get(action["slot"]["id"]) if "slot" in action else None
    if known is None:
        return
    wanted = action["slot"]
    before = {"resources": known.resources or rules.pools[known.pool].resources or {}, "labels": known.labels}
    changed = {key: wanted.get(key) or {} for key in before}
    yield from ([{"slot": {**wanted, **less}}] for less in list_less(before, changed))
    if known.cordoned and not wanted.get("cordoned"):
        yield [{"slot": {**wanted, "cordoned": True}}]


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
