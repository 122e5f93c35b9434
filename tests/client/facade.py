"""`AsyncClient` with the interface of `Client`, so that the same tests run with both.

An event loop runs in its own thread; each call waits until the loop has finished it.
"""

import asyncio
import inspect
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from leasehold import AsyncClient
from leasehold.client.core.lease import AsyncLease
from leasehold.client.lease_changes import Change

R = TypeVar("R")


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class BlockingFlag:
    """An asyncio.Event with the interface of threading.Event."""

    def __init__(self, loop: Loop, event: asyncio.Event) -> None:
        self._loop, self._event = loop, event

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        async def wait() -> None:
            await asyncio.wait_for(self._event.wait(), seconds)

        try:
            self._loop.run(wait())
        except TimeoutError:
            return False
        return True


class BlockingLease:
    """An AsyncLease with the interface of Lease."""

    def __init__(self, loop: Loop, lease: AsyncLease) -> None:
        self._loop, self._lease = loop, lease
        self.lost, self.revoking = BlockingFlag(loop, lease.lost), BlockingFlag(loop, lease.revoking)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lease, name)

    def __repr__(self) -> str:
        return repr(self._lease)

    def __eq__(self, other: object) -> bool:
        return other is self._lease or other is self

    def __hash__(self) -> int:
        return hash(self._lease)

    def __enter__(self) -> Self:
        self._loop.run(self._lease.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._lease.__aexit__(kind, error, trace))

    def changes(self, timeout: float | None = None) -> Iterator[Change]:
        found = self._lease.changes(timeout)
        try:
            while True:
                yield self._loop.run(_next(found))
        except StopAsyncIteration:
            return

    def surrender(self, component: str | None = None, *, want: int | None = None, timeout: float | None = None) -> Any:
        return self._loop.run(self._lease.surrender(component, want=want, timeout=timeout))


class BlockingClient:
    """An AsyncClient with the interface of Client."""

    def __init__(self, url: str, *, timeout: float, token: str | None) -> None:
        self._loop = Loop()

        async def make() -> AsyncClient:
            return AsyncClient(url, timeout=timeout, token=token)

        self._made = self._loop.run(make())
        self._closing = threading.Lock()
        self._is_ended = False
        self._wire = self._made._transport

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._made, name)
        if not inspect.iscoroutinefunction(method):
            return method
        return lambda *args, **keywords: self._loop.run(method(*args, **keywords))

    def lease(self, **fields: Any) -> BlockingLease:
        async def make() -> AsyncLease:
            return self._made.lease(**fields)

        return BlockingLease(self._loop, self._loop.run(make()))

    def close(self) -> None:
        with self._closing:
            if not self._is_ended:
                self._loop.run(self._made.close())

    def end(self) -> None:
        self.close()
        with self._closing:
            self._is_ended = True
            self._loop.close()


@contextmanager
def open_blocking(url: str, timeout: float, token: str | None = None) -> Iterator[BlockingClient]:
    made = BlockingClient(url, timeout=timeout, token=token)
    try:
        yield made
    finally:
        made.end()


async def _next(found: Any) -> Change:
    change: Change = await anext(found)
    return change
