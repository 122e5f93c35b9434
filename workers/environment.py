"""Read settings from variables `LEASEHOLD_SECTION__KEY` of the environment. A variable with an unknown name is an
error, like an unknown key in a file.
"""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, get_args

from scheduler.model.input_texts import parse_json
from scheduler.model.validation import Document, Fault

PREFIX: Final = "LEASEHOLD_"
DELIMITER: Final = "__"
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,9})?")


def read_environment(settings: type[Document]) -> dict[str, Any]:
    """Return the LEASEHOLD_ variables of the environment as a nested document for the model `settings`.

    Unknown variables are included, so that the check of the settings refuses them. A variable may have a whole table as
    JSON; a variable for a single key of the table overrides it.
    """
    document: dict[str, Any] = {}
    for name, path in sorted(list_variables(settings), key=lambda each: len(each[1])):
        table = document
        for part in path[:-1]:
            inner = table.get(part)
            table[part] = table = dict(inner) if isinstance(inner, dict) else {}
        annotation: object = settings
        for part in path:
            fields = getattr(inner_model(annotation), "model_fields", {})
            annotation = fields[part].annotation if part in fields else None
        table[path[-1]] = _decode(os.environ[name], annotation)
    return document


CLIENT_VARIABLES: Final = frozenset({"LEASEHOLD_CONSOLE__TOKEN"})
"""Variables of the environment that only clients read. They set no key of the settings."""


def list_variables(settings: type[Document]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the name of each variable of the environment that sets a key of `settings`, with the path of the key.

    An empty variable sets nothing. A name without `__` counts only if it is a key, because container platforms add
    variables like LEASEHOLD_PORT.
    """
    for name, value in os.environ.items():
        if name in CLIENT_VARIABLES:
            continue
        path = tuple(name.removeprefix(PREFIX).lower().split(DELIMITER))
        if name.startswith(PREFIX) and value and (len(path) > 1 or path[0] in settings.model_fields):
            yield name, path


def find_taken_port(path: str, host: str, port: int) -> str | None:
    """Return a line that names the setting `path` (like "flower.port") and its variable of the environment, if no
    program can listen on this address now. Return None if one can.
    """
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        # Python adds the address to the text of the error.
        reason = os.strerror(error.errno) if error.errno else str(error)
        variable = PREFIX + path.upper().replace(".", DELIMITER)
        return f"{path}: expected a free port ({variable}), got {port} on {host}: {reason}"
    return None


def name_origin(found: Fault, settings: type[Document]) -> Fault:
    """Return the fault `found` with the name of a variable of the environment as its path, if this variable set the
    wrong value. Otherwise return `found` unchanged.
    """
    for name, parts in list_variables(settings):
        path = ".".join(parts)
        if found.path == path or path.startswith(f"{found.path}."):
            return Fault(name, found.expected, found.got)
        if found.path.startswith(f"{path}."):
            return Fault(name + found.path.removeprefix(path), found.expected, found.got)
    return found


def _decode(text: str, annotation: object) -> object:
    """Return the text of a variable, converted to the type of its key: a number, true, false, or a table from JSON. If
    the text is none of these, return it unchanged.

    `annotation`: the type of the key; None for an unknown key.
    """
    plain = {get_args(each)[0] if get_args(each) else each for each in [annotation, *get_args(annotation)]}
    if plain & {int, float} and _NUMBER.fullmatch(text):
        return float(text) if {".", "e", "E"} & set(text) else int(text)
    if bool in plain and text in {"true", "false"}:
        return text == "true"
    if hasattr(annotation, "model_fields"):
        with suppress(ValueError, RecursionError):
            return parse_json(text)
    return text


def inner_model(annotation: object) -> object:
    """Return the document class M inside `dict[str, M]`, `list[M]` or `M | None`. Return other
    annotations unchanged.
    """
    for argument in get_args(annotation):
        inner = inner_model(argument)
        if isinstance(inner, type) and issubclass(inner, Document):
            return inner
    return annotation
