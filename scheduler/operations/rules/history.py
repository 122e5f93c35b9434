"""The history of the rules: which versions were applied, when, by what source, and with which changes."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from scheduler.model.rules import read_rules
from scheduler.model.validation import InvalidInputError, show
from scheduler.operations.rules.apply import RULES_CHANGED
from scheduler.ports import EventFilter, Store


def describe_history(store: Store, limit: int) -> list[dict[str, Any]]:
    """Return the newest `limit` versions of the rules, oldest first, each with its changes to the version before."""
    # One version more is read, so that the oldest of them has one to be compared with.
    found = store.read_rules_history(limit=limit + 1)
    events = store.read_events(EventFilter(name=RULES_CHANGED, newest=True, limit=10_000))
    # A version whose event has been deleted has no source.
    sources = {int(str(each.detail["version"])): each.detail.get("source") for each in events}
    before: dict[str, Any] = {}
    images: dict[str, str] = {}
    described = []
    for each in found:
        described.append(
            {
                "version": each.version,
                "applied_at": each.applied_at,
                "source": sources.get(each.version),
                "changes": [
                    *(str(change) for change in list_changes(before, each.document)),
                    *(
                        f"image {source}: {images.get(source, 'none')} -> {image}"
                        for source, image in each.images.items()
                        if images.get(source) != image
                    ),
                ],
            }
        )
        before, images = each.document, each.images
    return described[-limit:]


_TABLES: Final = (("pools",), ("accounts",), ("scheduler", "system"))
"""Paths of tables in the rules whose entries are tables, such as pools. An added or removed entry counts
as one change.
"""
_OFFERINGS: Final = "offerings"
_IDENTITY: Final = ("name", "market", "zone")
_HIDDEN: Final = "user_data"
"""Name of a key whose value may be a long text. Only the length of the text is shown."""
_ABSENT: Final = object()

Path = tuple[str, ...]


class RuleChange(msgspec.Struct, frozen=True, kw_only=True):
    """One key of the rules whose value differs between two versions. `before` or `after` None: the key has no value in
    that version.
    """

    path: str
    before: Any
    after: Any
    kind: str = "changed"
    """`changed`, or `added` or `removed` for a whole pool, account, offering or table of a system."""

    def __str__(self) -> str:
        if self.kind != "changed":
            return f"{self.path}: {self.kind}"
        return f"{self.path}: {_show(self.path, self.before)} -> {_show(self.path, self.after)}"


def list_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[RuleChange]:
    """Return the differences between two versions of the rules, sorted by path.

    A key that is missing has its default value. So a key that is set to its default value is no difference.
    """
    found = _compare((), _complete(before), _complete(after))
    return [_describe(*each) for each in sorted(found, key=lambda each: each[0])]


def _complete(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return rules in which missing keys have their default values. Rules that this version of the program cannot read
    are returned unchanged.
    """
    try:
        return read_rules(dict(document)).model_dump(mode="json")
    except InvalidInputError:
        return document


def _compare(path: Path, before: Any, after: Any) -> Iterator[tuple[Path, Any, Any]]:
    if path[-1:] == (_OFFERINGS,):
        before, after = _by_name(before), _by_name(after)
    if not (isinstance(before, Mapping) and isinstance(after, Mapping)):
        if before != after:
            yield path, before, after
        return
    for key in {*before, *after}:
        yield from _compare((*path, str(key)), before.get(key, _ABSENT), after.get(key, _ABSENT))


def _by_name(offerings: Any) -> Any:
    """Return a list of offerings as a table with name, market and zone as keys, so that single offerings can be
    compared. Return any other value unchanged.
    """
    if not isinstance(offerings, list) or not all(isinstance(each, Mapping) for each in offerings):
        return offerings
    named = {"/".join(str(each[key]) for key in _IDENTITY if each.get(key)): each for each in offerings}
    return named if len(named) == len(offerings) else offerings


def _describe(path: Path, before: Any, after: Any) -> RuleChange:
    known = [None if each is _ABSENT else each for each in (before, after)]
    kind = "changed"
    if path[:-1] in _TABLES or path[-2:-1] == (_OFFERINGS,):
        kind = "added" if before is _ABSENT else "removed"
    return RuleChange(path=".".join(path), before=known[0], after=known[1], kind=kind)


def _show(path: str, value: Any) -> str:
    if value is None:
        return "not set"
    if path.endswith(f".{_HIDDEN}"):
        return f"{len(str(value))} characters"
    return f"{value:g}" if isinstance(value, float) else show(_mask(value))


def _mask(value: Any) -> Any:
    """Return a value of the rules without the keys of tables that have no value, and with the length of each user data
    in place of the data. Whole tables are shown if they are new, or if one of two versions was written by another
    version of this program.
    """
    if not isinstance(value, Mapping):
        return value
    return {
        key: f"{len(each)} characters" if key == _HIDDEN and isinstance(each, str) else _mask(each)
        for key, each in value.items()
        if each is not None and each not in ([], {}, "")
    }
