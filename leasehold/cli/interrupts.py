"""Let SIGINT stop every command of `leasehold`, even if the shell started the command with SIGINT ignored.

A shell without job control, as in a script, starts background commands with SIGINT ignored. Python keeps it ignored, so
that only SIGTERM would stop a command that waits or repeats.
"""

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Final

_TAKEN: Final[set[int]] = set()
"""Numbers of the signals that this process handles although they were ignored when it started."""


def take_interrupts() -> None:
    """Let SIGINT raise KeyboardInterrupt, even if this process was started with SIGINT ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        _TAKEN.add(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def list_ending() -> list[int]:
    """Return the signals that end a long-running command like `leasehold up`: SIGINT, SIGTERM, and SIGHUP if it is not
    ignored (as it is under nohup(1)).
    """
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangup]


def inherited() -> AbstractContextManager[None]:
    """Return a context that ignores the signals that were ignored when this process started. A program that is started
    within the context inherits them as ignored.
    """
    return handling(_TAKEN, signal.SIG_IGN)


@contextmanager
def handling(numbers: Iterable[int], handler: "Callable[[int, FrameType | None], object] | int") -> Iterator[None]:
    """Within this context, call `handler` for each of the signals `numbers`. Afterwards their earlier handlers are in
    force again.
    """
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
