"""The head of a response and the begin of its body are one write, so that the reader wakes up once."""

import asyncio
from typing import Any

from leasehold.web.http_protocol import JoiningTransport

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Written(asyncio.Transport):
    """A transport that records what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.pieces.append(data)

    def close(self) -> None:
        self.is_closed = True


def write(*pieces: bytes, ends: bool = False, turns: int = 0) -> tuple[list[bytes], bool]:
    """Write these pieces; then close the transport, or let the event loop turn. Return what was written until then, and
    whether the transport was closed.
    """

    async def main() -> tuple[list[bytes], bool]:
        written = Written()
        transport = JoiningTransport(written, asyncio.get_running_loop())
        for piece in pieces:
            transport.write(piece)
        if ends:
            transport.close()
        for _ in range(turns):
            await asyncio.sleep(0)
        return list(written.pieces), written.is_closed

    return asyncio.run(main())


def test_a_head_is_sent_with_the_begin_of_its_body() -> None:
    assert write(HEAD, b"one", b"two")[0] == [HEAD + b"one", b"two"]


def test_each_response_of_a_connection_is_sent_whole() -> None:
    assert write(HEAD, b"one", HEAD, b"two")[0] == [HEAD + b"one", HEAD + b"two"]


def test_a_head_waits_for_its_body_for_one_turn_of_the_event_loop() -> None:
    """The body of a stream may begin much later."""
    assert write(HEAD)[0] == []
    assert write(HEAD, turns=1)[0] == [HEAD]
    assert write(HEAD, b"one", turns=1)[0] == [HEAD + b"one"]


def test_a_head_is_sent_before_the_connection_is_closed() -> None:
    assert write(HEAD, ends=True) == ([HEAD], True)
