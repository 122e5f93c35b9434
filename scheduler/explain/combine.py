"""Two changes that end a wait together if no single one does, for example a label and a larger slot.

The first change is assumed, and the second one is searched like a single one. This module depends on no kind of change.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from scheduler.explain.search import Kind, Search, Suggestion, find_of_kinds
from scheduler.model.rules import merge_rules
from scheduler.model.validation import InvalidInputError
from scheduler.model.view import Row

MOST_OPENERS: Final = 3
"""First changes of one kind that are tried: each costs a whole search."""
TOGETHER: Final = "only together: "
Candidates = Callable[[Search], Iterable[Suggestion]]


def combine_two(search: Search, openers: Sequence[Candidates], kinds: Sequence[Kind]) -> Suggestion | None:
    """Return the first opener that serves the reservation together with another change; neither would alone."""
    for first in _list_openers(search, openers):
        second = find_second(search, first, kinds)
        if second is not None:
            # The search beside the first change tries more than the search without it, so the second may suffice alone.
            is_enough = _are_apart(first, second) and search.serves(second)
            return second if is_enough else join(first, second, f"{first.kind} and {second.kind}")
        if search.is_cut_short:
            return None
    return None


def find_second(search: Search, first: Suggestion, kinds: Iterable[Kind]) -> Suggestion | None:
    """Return the change that would serve the reservation after the first one; None if the first would be refused."""
    with suppress(InvalidInputError), search.assuming(first):
        return find_of_kinds(search, kinds)
    return None


def join(first: Suggestion, second: Suggestion, kind: str) -> Suggestion:
    """Return both changes as one. Where both change the same row or key, the second one contains the first."""
    return Suggestion(
        kind=kind,
        text=f"{TOGETHER}{first.text.removeprefix(TOGETHER)}; {second.text.removeprefix(TOGETHER)}",
        rows=tuple({_key_of(row): row for row in (*first.rows, *second.rows)}.values()),
        config=merge_rules(dict(first.config), dict(second.config)),
        wait_seconds=first.wait_seconds + second.wait_seconds,
    )


def _list_openers(search: Search, openers: Iterable[Candidates]) -> Iterator[Suggestion]:
    """Yield the first changes of each kind. The changes of a kind are listed before one of them is tried, because a
    trial changes the view.
    """
    for list_changes in openers:
        yield from list(islice(list_changes(search), MOST_OPENERS))


def _are_apart(first: Suggestion, second: Suggestion) -> bool:
    """Return whether the two changes have no row and no key in common."""
    rows = {_key_of(row) for row in first.rows} & {_key_of(row) for row in second.rows}
    return not rows and not set(_list_keys(first.config)) & set(_list_keys(second.config))


def _key_of(row: Row) -> tuple[type, str]:
    return type(row), row.id


def _list_keys(config: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the paths of the keys of a partial config whose values are not tables."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _list_keys(value, f"{path}{key}.")
        else:
            yield f"{path}{key}"
