"""Options that several commands share. One function defines the options and makes one value from them."""

import inspect
from collections.abc import Callable, Collection
from typing import Any


def with_options_of(
    describe: Callable[..., Any], without: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the options of the function `describe`, before the command's own options.

    The command gets the result of `describe` as its first argument. A parameter of `describe` that `without` names does
    not become an option.
    """
    parameters = inspect.signature(describe).parameters
    described = {name: each for name, each in parameters.items() if name not in without}

    def extend(command: Callable[..., None]) -> Callable[..., None]:
        own = dict(list(inspect.signature(command).parameters.items())[1:])

        def with_options(**given: Any) -> None:
            made = describe(**{name: given[name] for name in described})
            command(made, **{name: given[name] for name in own})

        with_options.__doc__ = command.__doc__
        # typer reads the signature. Keyword-only parameters may have no default after others that have one.
        options = [each.replace(kind=each.KEYWORD_ONLY) for each in {**described, **own}.values()]
        with_options.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        return with_options

    return extend
