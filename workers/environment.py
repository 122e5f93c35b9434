"""Settings from the environment: `LEASEHOLD_SECTION__KEY`, unknown names refused like unknown keys."""

import os
import re
from collections.abc import Iterator
from typing import Any, Final, get_args

from scheduler.model.json_text import parse_json
from scheduler.model.validation import Document, Fault, inner_model

PREFIX: Final = "LEASEHOLD_"
DELIMITER: Final = "__"
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,9})?")


def read_environment(settings: type[Document]) -> dict[str, Any]:
    """Return the variables as a nested document; unknown ones are in it too, so that the settings refuse them.

    Shorter names are read first, so that a table given as JSON is laid under its keys given one by one.
    """
    document: dict[str, Any] = {}
    for name, path in sorted(list_variables(settings), key=lambda each: len(each[1])):
        table = document
        for part in path[:-1]:
            inner = table.get(part)
            table[part] = table = dict(inner) if isinstance(inner, dict) else {}
        table[path[-1]] = _decode(os.environ[name], _annotation(settings, path))
    return document


def list_variables(settings: type[Document]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each variable that sets a key, with the key's path; an empty one sets nothing.

    Names without the delimiter count only if they are a key: container platforms put names like
    LEASEHOLD_PORT into the environment on their own.
    """
    for name, value in os.environ.items():
        path = tuple(name.removeprefix(PREFIX).lower().split(DELIMITER))
        if name.startswith(PREFIX) and value and (len(path) > 1 or path[0] in settings.model_fields):
            yield name, path


def name_origin(found: Fault, settings: type[Document]) -> Fault:
    """The fault with the variable that brought the value in place of its path, if one did."""
    for name, parts in list_variables(settings):
        path = ".".join(parts)
        if found.path == path or path.startswith(f"{found.path}."):
            return Fault(name, found.expected, found.got)
        if found.path.startswith(f"{path}."):
            return Fault(name + found.path.removeprefix(path), found.expected, found.got)
    return found


def _annotation(settings: type[Document], path: tuple[str, ...]) -> object:
    """The type of the key at `path`; None for one that there is not."""
    found: object = settings
    for part in path:
        fields = getattr(inner_model(found), "model_fields", {})
        found = fields[part].annotation if part in fields else None
    return found


def _decode(text: str, annotation: object) -> object:
    """A variable's text as what its key takes: numbers, true and false, tables as JSON; else as it is."""
    inside = [annotation, *get_args(annotation)]
    plain = {get_args(each)[0] if get_args(each) else each for each in inside}
    if plain & {int, float} and _NUMBER.fullmatch(text):
        return float(text) if {".", "e", "E"} & set(text) else int(text)
    if bool in plain and text in {"true", "false"}:
        return text == "true"
    return _parse_table(text) if hasattr(annotation, "model_fields") else text


def _parse_table(text: str) -> object:
    try:
        return parse_json(text)
    except (ValueError, RecursionError):
        return text
