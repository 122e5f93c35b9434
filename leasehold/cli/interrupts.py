"""SIGINT, where it was inherited as ignored: the commands stop on it all the same.

A shell without job control (a script) starts what is in the background with SIGINT ignored, and Python leaves it so.
A command that waits or repeats could then be stopped by SIGTERM alone.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_TAKEN: Final[set[int]] = set()
"""Signals that were inherited as ignored and are not ignored any more."""


def take_interrupts() -> None:
    """From now on SIGINT raises KeyboardInterrupt, whatever was inherited."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        _TAKEN.add(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def list_ending() -> list[int]:
    """The signals on which a command that serves until it is stopped ends; SIGHUP is none under nohup(1)."""
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangup]


@contextmanager
def inherited() -> Iterator[None]:
    """Within this context signals are ignored as they were inherited: for a program that is started in it."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _TAKEN}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
