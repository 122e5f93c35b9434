"""uvicorn's HTTP/1.1 connection, which sends the head of a response together with the begin of its body.

uvicorn itself writes head and body one after the other, and each write wakes the reader of the connection.
"""

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

_HEAD: Final = b"HTTP/1."


class JoiningProtocol(H11Protocol):
    """uvicorn's protocol, which sends its responses through a JoiningTransport."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        """Begin to serve a new connection, through a JoiningTransport. asyncio calls this method."""
        super().connection_made(JoiningTransport(transport, self.loop))  # type: ignore[arg-type]


class JoiningTransport:
    """A transport that keeps the head of a response until its body begins, at the latest until the next turn of the
    event loop. All other methods and attributes are those of the given transport.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop, self._head = transport, loop, b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send `data`, or keep it if it is the head of a response. A kept head is sent together with the data of the
        next call, so that the client gets both at once. If no call follows in this turn of the event loop, the head is
        sent alone in the next turn. See asyncio.Transport.
        """
        if not self._head and data.startswith(_HEAD):
            self._head = data
            self._loop.call_soon(self._flush)
        elif self._head:
            data, self._head = self._head + data, b""
            self._transport.write(data)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection after all bytes were sent. See asyncio.Transport."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head:
            self.write(b"")
