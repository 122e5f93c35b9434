"""A terminal of a given width for commands that run in this process."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import threading
from collections.abc import Callable

import pytest

from leasehold.cli.program import run_safely

ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
Type = Callable[..., str]
"""(columns, *arguments) -> the output of the command on a terminal of this width."""


def run_on_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, *words: str) -> str:
    """Return the output of one command on a terminal of this width, including escape sequences."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    seen: list[bytes] = []
    reader = threading.Thread(target=_read_all, args=(master, seen))
    reader.start()
    try:
        with os.fdopen(slave, "w", encoding="utf-8") as screen, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", screen)
            run_safely(list(words))
    finally:
        reader.join()
        os.close(master)
    return b"".join(seen).decode().replace("\r\n", "\n")


def _read_all(descriptor: int, seen: list[bytes]) -> None:
    """Read until every writer has closed the terminal."""
    while True:
        try:
            block = os.read(descriptor, 65536)
        except OSError:
            return
        if not block:
            return
        seen.append(block)


def strip_colours(text: str) -> str:
    """Return the text without escape sequences."""
    return ESCAPES.sub("", text)
