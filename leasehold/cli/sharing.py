"""Options that several commands share: they are defined once, by a function that makes something of them."""

import inspect
from collections.abc import Callable, Collection
from typing import Any


def with_options_of(
    describe: Callable[..., Any], without: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command with the options of `describe` before its own; its first parameter is what `describe` makes of them.

    Parameters of `describe` in `without` are no options of the command.
    """
    parameters = inspect.signature(describe).parameters
    described = {name: each for name, each in parameters.items() if name not in without}

    def extend(command: Callable[..., None]) -> Callable[..., None]:
        own = dict(list(inspect.signature(command).parameters.items())[1:])

        def with_options(**given: Any) -> None:
            made = describe(**{name: given[name] for name in described})
            command(made, **{name: given[name] for name in own})

        with_options.__doc__ = command.__doc__
        # What typer reads. By keyword alone: an argument without a default may follow options.
        options = [each.replace(kind=each.KEYWORD_ONLY) for each in {**described, **own}.values()]
        with_options.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        return with_options

    return extend
