"""How commands for Redis and its replies are written (RESP2, the protocol of Redis)."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

_END: Final = b"\r\n"
Part = bytes | str | int | float
"""A part of a command: its name or an argument."""


def pack(commands: Iterable[Sequence[Part]]) -> bytes:
    """Return the bytes of these commands in the form in which Redis reads them, one command after the other, so that
    they can be sent in one piece.
    """
    parts: list[bytes] = []
    for command in commands:
        parts.append(b"*%d\r\n" % len(command))
        for part in command:
            # As redis-py writes them.
            each = part if isinstance(part, bytes) else (part if isinstance(part, str) else repr(part)).encode()
            parts.append(b"$%d\r\n%b\r\n" % (len(each), each))
    return b"".join(parts)


def read_reply(buffer: bytes | bytearray, start: int, make_error: Callable[[str], Exception]) -> tuple[Any, int] | None:
    """Return (1) the reply of Redis that begins at the position `start` of `buffer`, and (2) the position after the
    reply. Return None if the buffer does not have the whole reply yet.

    A reply is bytes, int, list or None. For an error of Redis it is the exception that `make_error` makes of the
    error's text. Raises ValueError if the bytes at `start` are not the beginning of a reply.
    """
    end = buffer.find(_END, start)
    if end < 0:
        return None
    kind, text, after = bytes(buffer[start : start + 1]), bytes(buffer[start + 1 : end]), end + 2
    match kind:
        case b"$":
            size = int(text)
            if size < 0:
                return None, after
            end = after + size
            return (bytes(buffer[after:end]), end + 2) if len(buffer) >= end + 2 else None
        case b":":
            return int(text), after
        case b"+":
            return text, after
        case b"*":
            return _read_array(buffer, int(text), after, make_error)
        case b"-":
            return make_error(text.decode(errors="replace")), after
    raise ValueError(f"{kind!r}")


def _read_array(
    buffer: bytes | bytearray, size: int, start: int, make_error: Callable[[str], Exception]
) -> tuple[Any, int] | None:
    if size < 0:
        return None, start
    replies = []
    for _ in range(size):
        found = read_reply(buffer, start, make_error)
        if found is None:
            return None
        reply, start = found
        replies.append(reply)
    return replies, start
