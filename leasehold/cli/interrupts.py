"""SIGINT in background commands: every command stops on it, even if it was inherited as ignored.

A shell without job control (a script) starts background commands with SIGINT ignored, and Python keeps it ignored.
Only SIGTERM would then stop a command that waits or repeats.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_TAKEN: Final[set[int]] = set()
"""Signals that were ignored when this process started and are handled now."""


def take_interrupts() -> None:
    """Let SIGINT raise KeyboardInterrupt, even if it was inherited as ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        _TAKEN.add(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def list_ending() -> list[int]:
    """Return the signals that end a command which serves until it is stopped. SIGHUP is left out under nohup(1)."""
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangup]


@contextmanager
def inherited() -> Iterator[None]:
    """Ignore, within this context, the signals that were inherited as ignored, so that a program started in it inherits
    them as well.
    """
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _TAKEN}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
