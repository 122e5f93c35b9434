"""Makes every command of `leasehold` stop on SIGINT, even if the shell started the command with SIGINT ignored.

A shell without job control (a script) starts background commands with SIGINT ignored, and Python keeps it ignored. Only
SIGTERM would then stop a command that waits or repeats.
"""

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Final

_TAKEN: Final[set[int]] = set()
"""Numbers of the signals that were ignored when this process started and that this process handles now."""


def take_interrupts() -> None:
    """Let SIGINT raise KeyboardInterrupt, even if this process was started with SIGINT ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        _TAKEN.add(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def list_ending() -> list[int]:
    """Return the signals that end a command like `leasehold up`: SIGINT, SIGTERM, and SIGHUP unless SIGHUP is ignored
    (as under nohup(1)).
    """
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangup]


def inherited() -> AbstractContextManager[None]:
    """Return a context in which the signals are ignored that were ignored when this process started, so that a program
    that is started within the context inherits them as ignored.
    """
    return handling(_TAKEN, signal.SIG_IGN)


@contextmanager
def handling(numbers: Iterable[int], handler: "Callable[[int, FrameType | None], object] | int") -> Iterator[None]:
    """Handle the signals `numbers` with `handler` within this context, and with their earlier handlers after it."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
