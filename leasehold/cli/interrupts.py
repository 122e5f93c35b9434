"""SIGINT in background commands: every command stops on it, even if it was inherited as ignored.

A shell without job control (a script) starts background commands with SIGINT ignored, and Python keeps it ignored.
Only SIGTERM would then stop a command that waits or repeats.
"""

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Final

_TAKEN: Final[set[int]] = set()
"""Signals that were ignored when this process started and are handled now."""


def take_interrupts() -> None:
    """Let SIGINT raise KeyboardInterrupt, even if it was inherited as ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        _TAKEN.add(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def list_ending() -> list[int]:
    """Return the signals that end a serving command. Under nohup(1) SIGHUP is ignored and not among them."""
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangup]


def inherited() -> AbstractContextManager[None]:
    """Return a context in which the signals that were inherited as ignored are ignored, so that a program that is
    started in it inherits them as well.
    """
    return handling(_TAKEN, signal.SIG_IGN)


@contextmanager
def handling(numbers: Iterable[int], handler: "Callable[[int, FrameType | None], object] | int") -> Iterator[None]:
    """Handle these signals in this way within this context."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
