"""The client of the HTTP server: an AsyncClient over Redis whose answers may bring the row of their reservation."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, Protocol, TypeVar, cast

from leasehold.client.async_client import AsyncClient
from leasehold.client.ports import Answered, Reader
from leasehold.client.stack_access import Ways
from leasehold.errors import Unavailable

R = TypeVar("R")


class Limit(Protocol):
    """Awaits a read of Redis and returns its result. Raises Unavailable if Redis does not answer."""

    async def __call__(self, act: Awaitable[R], /) -> R:
        """Return the result of `act`."""


class LoopClient(AsyncClient):
    """An AsyncClient over Redis with the further method `exchange`. `limit`: awaits a read of Redis, or raises
    Unavailable; None: the time limits of the connections count.
    """

    def __init__(self, *args: Any, limit: Limit | None = None, **options: Any) -> None:
        self._limit = limit
        super().__init__(*args, **options)

    def _attach(self, ways: Ways) -> None:
        reader = ways.reader if self._limit is None else cast("Reader", _Limited(ways.reader, self._limit))
        super()._attach(Ways(ways.wire, reader))

    async def exchange(
        self, verb: str, document: Mapping[str, Any], seconds: float, request: str | None, *, has_row: bool
    ) -> Answered:
        """Send one request and return its answer, as `Client.ask` does. `seconds`: the time limit. `request`: the id of
        the request; None: a random one. `has_row`: whether to return also the row of the reservation as it is after the
        answer; its `joined` is None if the view cannot be read.

        Raise NotAnswered or Unavailable.
        """
        is_new = has_row and isinstance(document.get("id"), str)
        answer, joined = await self._wire.ask(verb, document, seconds, request=request, has_row=is_new)
        reservation = answer.get("reservation")
        if has_row and joined is None and answer.get("ok") and reservation:
            with suppress(Unavailable):
                joined = await self._rows.read(reservation)
        return Answered(answer, joined)


class _Limited:
    """A reader each of whose reads is awaited by `limit`."""

    def __init__(self, reader: Reader, limit: Limit) -> None:
        self._reader, self._limit = reader, limit

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._reader, name)
        return _limit(found, self._limit) if iscoroutinefunction(found) else found


def _limit(method: Callable[..., Awaitable[R]], limit: Limit) -> Callable[..., Awaitable[R]]:
    @wraps(method)
    async def read(*args: Any, **keywords: Any) -> R:
        return await limit(method(*args, **keywords))

    return read
