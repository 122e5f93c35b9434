"""A table of values by pool, each of which is computed when it is first needed."""

from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


class ByPool(dict[str, Value]):
    """A table that is filled for a pool when the pool is looked up first."""

    __slots__ = ("_find",)

    def __init__(self, find: Callable[[str], Value]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, name: str) -> Value:
        value = self[name] = self._find(name)
        return value
