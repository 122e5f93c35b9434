"""The client for asyncio: the methods of `Client` as coroutines, with the same rules and errors."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from leasehold.client.client import Client
from leasehold.client.core.client import CoreClient
from leasehold.client.core.portal import Portal

R = TypeVar("R")


class AsyncClient(CoreClient):
    """A client of one stack for one event loop. Its arguments and methods are those of `Client`.

    Cancelling a coroutine that sends a request does not withdraw the request: a worker may still carry it out, as after
    NotAnswered. Cancelling `wait` only ends the wait. Cancelling `lease` while it waits also cancels the reservation,
    as Ctrl-C does with `Client`.
    """

    async def run(self, work: Callable[[Client], R]) -> R:
        """Call the function `work` with the blocking client in a thread, and return its result. The blocking client
        runs on this event loop, so it has no connections of its own.
        """
        portal = Portal(asyncio.get_running_loop())
        face = Client._over(self, portal)  # noqa: SLF001 - its face
        return await asyncio.to_thread(work, face)
