"""The smallest scenario that still shows a difference: parts are removed while it does."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

from scheduler.model.validation import InvalidInputError
from tests.reference_model.comparing import DifferenceError, compare
from tests.rules.playing import Document

Path = tuple[Any, ...]


def shrink(document: Document, differs: Callable[[Document], bool] | None = None) -> Document:
    """Remove one part after the other, again and again, until each is needed."""
    shows = differs or does_differ
    smaller: Document | None = document
    while smaller is not None:
        document, smaller = smaller, _find_smaller(smaller, shows)
    return document


def does_differ(document: Document) -> bool:
    """Whether the two ticks disagree; a scenario that is refused shows nothing."""
    try:
        compare(document)
    except DifferenceError:
        return True
    except InvalidInputError:
        return False
    return False


def _find_smaller(document: Document, shows: Callable[[Document], bool]) -> Document | None:
    """Try all parts in turn; None if none could be removed."""
    found = None
    for path in sorted(_list_parts(document), key=len):
        present = found or document
        if _has(present, path) and shows(less := _without(present, path)):
            found = less
    return found


def _list_parts(node: Any, path: Path = ()) -> Iterator[Path]:
    if isinstance(node, dict):
        children = list(node.items())
    else:
        children = list(reversed(list(enumerate(node)))) if isinstance(node, list) else []
    for key, child in children:
        yield (*path, key)
        yield from _list_parts(child, (*path, key))


def _has(node: Any, path: Path) -> bool:
    for key in path:
        keys = node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        if key not in keys:
            return False
        node = node[key]
    return True


def _without(document: Document, path: Path) -> Document:
    copy: Any = deepcopy(document)
    node = copy
    for key in path[:-1]:
        node = node[key]
    del node[path[-1]]
    return copy  # type: ignore[no-any-return]
