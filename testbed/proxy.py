"""A proxy in front of a test's server: it adds TLS, cuts connections, moves to another server, and falls silent."""

import asyncio
import ssl
import threading
from collections.abc import Callable, Container
from contextlib import suppress
from typing import Final, Self

EVERY: Final = range(1, 1_000_000)
"""The numbers of all connections."""


class Proxy:
    """Accepts connections on a port of loopback and forwards them, as a context.

    It has one thread, because two threads must not read and write one TLS connection at the same time. `lost`: the
    numbers of connections, counted from 1, that are cut at once; it may change at any time. `target`: the port to which
    later connections go; it may change at any time.
    """

    port: int

    def __init__(self, port: int, *, context: ssl.SSLContext | None = None, lost: Container[int] = ()) -> None:
        self.target, self._context, self.lost = port, context, lost
        self.taken = 0
        self._open: set[asyncio.Task[None]] = set()
        self._flow, self._held = asyncio.Event(), list[asyncio.Event]()
        self._flow.set()
        self._is_listening = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_listening.wait(10)
        return self

    def __exit__(self, *_error: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    def cut(self) -> None:
        """Cut all present connections."""
        self._run(self._cut)

    def fall_silent(self) -> None:
        """Forward nothing more on the present connections, which stay open. Later connections are not affected."""
        self._run(self._hold)

    def go_on(self) -> None:
        """Forward what was held on silent connections, and what comes after it."""
        self._run(self._release)

    def _run(self, act: Callable[[], None]) -> None:
        async def wait_for_it() -> None:
            act()

        asyncio.run_coroutine_threadsafe(wait_for_it(), self._loop).result(10)

    def _cut(self) -> None:
        for task in self._open:
            task.cancel()

    def _release(self) -> None:
        for flow in self._held:
            flow.set()
        self._held.clear()

    def _hold(self) -> None:
        self._flow.clear()
        self._held.append(self._flow)
        self._flow = asyncio.Event()
        self._flow.set()

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0, ssl=self._context)
        self.port = server.sockets[0].getsockname()[1]
        self._is_listening.set()
        await self._ended.wait()
        server.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.taken += 1
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        # Also when the proxy ends or the connection is cut, which cancels this task.
        with suppress(OSError, asyncio.CancelledError):
            if self.taken not in self.lost:
                flow = self._flow
                await _join(reader, writer, *await asyncio.open_connection("127.0.0.1", self.target), flow)
        self._open.discard(task)
        writer.transport.abort()


async def _join(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    far_reader: asyncio.StreamReader,
    far_writer: asyncio.StreamWriter,
    flow: asyncio.Event,
) -> None:
    """Forward both directions until one side ends. Nothing is forwarded while `flow` is not set."""
    ways = [asyncio.create_task(_pump(reader, far_writer, flow)), asyncio.create_task(_pump(far_reader, writer, flow))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        far_writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flow: asyncio.Event) -> None:
    with suppress(OSError):
        while body := await reader.read(1 << 16):
            await flow.wait()
            writer.write(body)
            await writer.drain()
