"""A proxy in front of a test's server: it adds TLS and can cut connections."""

import asyncio
import ssl
import threading
from collections.abc import Container
from contextlib import suppress
from typing import Final, Self

EVERY: Final = range(1, 1_000_000)
"""The numbers of all connections."""


class Proxy:
    """Accepts connections on a port of loopback and forwards them, as a context.

    It has one thread, because two threads must not read and write one TLS connection at the same time. `lost`: the
    numbers of connections, counted from 1, that are cut at once; it may change at any time.
    """

    port: int

    def __init__(self, port: int, *, context: ssl.SSLContext | None = None, lost: Container[int] = ()) -> None:
        self._target, self._context, self.lost = port, context, lost
        self.taken = 0
        self._is_listening = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_listening.wait(10)
        return self

    def __exit__(self, *_error: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0, ssl=self._context)
        self.port = server.sockets[0].getsockname()[1]
        self._is_listening.set()
        await self._ended.wait()
        server.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.taken += 1
        # Also when the proxy ends, which cancels this task.
        with suppress(OSError, asyncio.CancelledError):
            if self.taken not in self.lost:
                await _join(reader, writer, *await asyncio.open_connection("127.0.0.1", self._target))
        writer.transport.abort()


async def _join(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    far_reader: asyncio.StreamReader,
    far_writer: asyncio.StreamWriter,
) -> None:
    """Forward both directions until one side ends."""
    ways = [asyncio.create_task(_pump(reader, far_writer)), asyncio.create_task(_pump(far_reader, writer))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        far_writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while body := await reader.read(1 << 16):
            writer.write(body)
            await writer.drain()
