"""What a worker shows of a task's arguments: to Flower, in events and in its own reports."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from celery.exceptions import InvalidTaskError
from celery.worker.request import Request

from workers.logs import mask_text

MOST_SHOWN: Final = 200
_HIDDEN: Final = frozenset({"token", "reply_to"})
_NAMES: Final = ("reservation", "id", "slot")


def describe_arguments(arguments: Sequence[object]) -> str:
    """Positional arguments for people: documents by what they are about, without tokens, cut short."""
    return _cut(", ".join(map(_describe, arguments)))


def _describe(value: object) -> str:
    if isinstance(value, Mapping):
        return _describe_document(value)
    if isinstance(value, str):
        return value
    return json.dumps(value, default=str)


def _describe_document(document: Mapping[str, Any]) -> str:
    items = document.get("items")
    if isinstance(items, list):
        return f"{len(items)} items"
    found = next((document[name] for name in _NAMES if name in document), None)
    if found is not None:
        return str(found)
    return json.dumps({key: value for key, value in document.items() if key not in _HIDDEN}, default=str)


def _cut(text: str) -> str:
    shown = mask_text(text)
    return shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]}…"


class ReadableRequest(Request):
    """A task as the worker received it; shows arguments as we describe them, whatever its sender wrote of them.

    A message that is no task raises InvalidTaskError: the worker says so in a line and goes on. (Celery's own
    raises whatever it stumbles over, which ends the worker.)
    """

    def __init__(self, message: Any, **options: Any) -> None:
        try:
            super().__init__(message, **options)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidTaskError(f"no task message: {error}") from error
        if not isinstance(self.args, list | tuple) or not isinstance(self.kwargs, Mapping):
            raise InvalidTaskError("no task message: its arguments are no list and no table")

    @property
    def argsrepr(self) -> str:
        """The positional arguments for people."""
        return describe_arguments(self.args)

    @property
    def kwargsrepr(self) -> str:
        """The named arguments for people."""
        return _cut(_describe_document(self.kwargs)) if self.kwargs else ""

    def info(self, safe: bool = True) -> Any:  # noqa: ARG002, FBT001, FBT002 - Celery's signature
        """What remote control is told: never the arguments themselves."""
        return {**super().info(safe=True), "args": self.argsrepr, "kwargs": self.kwargsrepr}
