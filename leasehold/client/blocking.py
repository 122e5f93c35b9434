"""What the blocking faces of the client share: each method runs a coroutine of the core on another thread's loop."""

from collections.abc import Callable, Collection, Coroutine, Iterable
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")


class Run(Protocol):
    """Runs a coroutine of the core and returns its result."""

    def __call__(self, work: Coroutine[Any, Any, R], /) -> R:
        """Return the result of `work`."""


def blocks(method: Callable[Concatenate[C, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Any, P], R]:
    """Return the blocking method for a coroutine method of the core. Its class has two attributes: `_core`, the object
    of the core, and `_run`, a Run.
    """

    def call(self: Any, /, *args: P.args, **keywords: P.kwargs) -> R:
        # An iterator of the caller runs here: on the loop it could not call the client, and would hold up all renewals.
        given: Any = [_read_out(each) for each in args]
        named: Any = {name: _read_out(each) for name, each in keywords.items()}
        found: R = self._run(method(self._core, *given, **named))
        return found

    update_wrapper(call, method)
    return call


def _read_out(value: object) -> object:
    return [*value] if isinstance(value, Iterable) and not isinstance(value, Collection) else value
