"""Two changes at once that end a wait which no single one would: needs a label and a larger slot, say.

The first of them is one that is made or not; as if it were made, the second is looked for as a single one would be. So
nothing is known here of what the changes are.
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
"""Of one kind: each of them costs a whole search."""
TOGETHER: Final = "only together: "
Candidates = Callable[[Search], Iterable[Suggestion]]


def combine_two(search: Search, openers: Sequence[Candidates], kinds: Sequence[Kind]) -> Suggestion | None:
    """The first of the openers that serves it with another change; neither of the two would alone."""
    for first in _list_openers(search, openers):
        second = find_second(search, first, kinds)
        if second is not None:
            # Found beside the first one, it may be more than was thought of without it.
            is_enough = _are_apart(first, second) and search.serves(second)
            return second if is_enough else join(first, second, f"{first.kind} and {second.kind}")
        if search.is_cut_short:
            return None
    return None


def find_second(search: Search, first: Suggestion, kinds: Iterable[Kind]) -> Suggestion | None:
    """What would serve it if the first change were made; None where that would be refused."""
    with suppress(InvalidInputError), search.assuming(first):
        return find_of_kinds(search, kinds)
    return None


def join(first: Suggestion, second: Suggestion, kind: str) -> Suggestion:
    """Both: the second is what was found as if the first were made, and has what it changed of the same things."""
    return Suggestion(
        kind=kind,
        text=f"{TOGETHER}{first.text.removeprefix(TOGETHER)}; {second.text.removeprefix(TOGETHER)}",
        rows=tuple({_key_of(row): row for row in (*first.rows, *second.rows)}.values()),
        config=merge_rules(dict(first.config), dict(second.config)),
        wait_seconds=first.wait_seconds + second.wait_seconds,
    )


def _list_openers(search: Search, openers: Iterable[Candidates]) -> Iterator[Suggestion]:
    """Some of each kind; those of one kind are listed before the first of them is tried."""
    for list_changes in openers:
        yield from list(islice(list_changes(search), MOST_OPENERS))


def _are_apart(first: Suggestion, second: Suggestion) -> bool:
    """Whether the second changes nothing that the first one changes too."""
    rows = {_key_of(row) for row in first.rows} & {_key_of(row) for row in second.rows}
    return not rows and not set(_list_keys(first.config)) & set(_list_keys(second.config))


def _key_of(row: Row) -> tuple[type, str]:
    return type(row), row.id


def _list_keys(config: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The keys of a partial config whose values are no tables."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _list_keys(value, f"{path}{key}.")
        else:
            yield f"{path}{key}"
