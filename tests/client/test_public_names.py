"""What a program needs to annotate its own functions is importable from `leasehold`."""

import ast
import inspect
import typing
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import leasehold

OWN = ("leasehold.", "scheduler.")
ENTRANCES = frozenset({"Client", "AsyncClient"})
"""The classes whose constructors programs call. The others are made by methods."""


def test_every_type_in_an_annotation_of_a_public_name_is_importable() -> None:
    waiting = [getattr(leasehold, name) for name in leasehold.__all__ if name != "__version__"]
    seen: dict[type, str] = dict.fromkeys(waiting, "leasehold")
    while waiting:
        public = waiting.pop()
        for place, annotation in list_annotations(public):
            for part in list_types(annotation):
                if part not in seen and part.__module__.startswith(OWN):
                    seen[part] = f"{public.__name__}.{place}"
                    waiting.append(part)
    missing = {each.__name__: place for each, place in seen.items() if getattr(leasehold, each.__name__, None) != each}
    assert missing == {}
    assert {each.__name__ for each in seen} == {*leasehold.__all__} - {"__version__"}


def list_annotations(public: type) -> Iterator[tuple[str, object]]:
    """Yield the name and the type of each public attribute, parameter and return value of a class."""
    bases = [each for each in public.__mro__ if each.__module__.startswith(OWN)]
    known = {name: each for base in reversed(bases) for name, each in find_checked_names(base).items()}
    for name, annotation in typing.get_type_hints(public, localns=known).items():
        if not name.startswith("_"):
            yield name, annotation
    for base in bases:
        for name, value in vars(base).items():
            is_made = name == "__init__" and (public.__name__ in ENTRANCES or issubclass(public, BaseException))
            if is_made or not name.startswith("_"):
                for function in find_functions(value):
                    yield from typing.get_type_hints(function, localns=known | find_checked_names(function)).items()


def find_functions(value: Any) -> Iterator[Callable[..., Any]]:
    found = getattr(value, "fget", None) or getattr(value, "func", None) or getattr(value, "__func__", value)
    if inspect.isfunction(found):
        yield inspect.unwrap(found)


def find_checked_names(place: Any) -> dict[str, Any]:
    """Return what the module of a class or function imports for type checkers only."""
    module: ModuleType = import_module(place.__module__)
    blocks = [each for each in ast.parse(inspect.getsource(module)).body if isinstance(each, ast.If)]
    return {
        name.asname or name.name: getattr(import_module(each.module), name.name)
        for block in blocks
        for each in block.body
        if isinstance(each, ast.ImportFrom) and each.module
        for name in each.names
    }


def list_types(annotation: object) -> Iterator[type]:
    origin = typing.get_origin(annotation) or annotation
    if isinstance(origin, type):
        yield origin
    for part in typing.get_args(annotation):
        for each in part if isinstance(part, list) else [part]:
            yield from list_types(each)
