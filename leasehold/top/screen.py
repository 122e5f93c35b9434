"""A full-screen display on a terminal. The display restores the terminal when it ends by a key, a signal or an error,
and while it is stopped by Ctrl-Z.
"""

import contextlib
import os
import select
import signal
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, Final, Literal

from leasehold.terminal import stop_own_group

ENTER: Final = "\x1b[?1049h\x1b[?25l"
"""Control sequence that switches to the terminal's second screen and hides the cursor."""
LEAVE: Final = "\x1b[?25h\x1b[?1049l"
"""Control sequence that shows the cursor and switches back to the first screen, which has its earlier content."""
_HOME: Final = "\x1b[H"
_REST_OF_LINE: Final = "\x1b[K"
_REST_OF_SCREEN: Final = "\x1b[J"
QUITS: Final = frozenset(b"qQ\x03\x04")
"""Keys that end the display: q, Ctrl-C and Ctrl-D."""
REFRESHES: Final = frozenset(b" \r\nrR")
"""Keys that refresh at once: the space bar, Enter and r."""
Key = Literal["quit", "refresh", "redraw"]


class Screen:
    """The second screen of the terminal on standard output, with the keys of standard input if that is a terminal."""

    def __init__(self) -> None:
        self._keys = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._mode: list[Any] | None = None
        self._read, self._write = os.pipe()
        self._ending: int | None = None
        self._is_stopped = False

    def show(self, lines: Sequence[str]) -> None:
        """Show these lines. Each line is written over the earlier line in its place, so that nothing flickers."""
        body = f"{_REST_OF_LINE}\r\n".join(lines)
        sys.stdout.write(f"{_HOME}{body}{_REST_OF_LINE}{_REST_OF_SCREEN}")
        sys.stdout.flush()

    def wait(self, seconds: float) -> Key | None:
        """Wait for a key or for a new size of the terminal, for `seconds` at most. Return what the display must do
        (`quit`, `refresh` or `redraw`); None if nothing happened within `seconds`. A signal that ends the process
        counts as `quit`.
        """
        watched = [self._read, *([self._keys] if self._keys is not None else [])]
        ready, _, _ = select.select(watched, [], [], max(seconds, 0.0))
        if self._read in ready:
            os.read(self._read, 512)
            if self._ending is not None:
                return "quit"
            if self._is_stopped:
                self._is_stopped = False
                self._leave()
                stop_own_group()
                self._enter()
            return "redraw"
        return self._read_key() if ready else None

    def _read_key(self) -> Key | None:
        pressed = os.read(self._keys or 0, 64)
        if not pressed or QUITS & set(pressed):
            return "quit"
        return "refresh" if REFRESHES & set(pressed) else "redraw"

    def _enter(self) -> None:
        if self._keys is not None:
            # Windows has no termios; there Ctrl-C ends the display.
            with contextlib.suppress(ImportError):
                import termios  # noqa: PLC0415
                import tty  # noqa: PLC0415

                self._mode = termios.tcgetattr(self._keys)
                tty.setcbreak(self._keys)
        sys.stdout.write(ENTER)
        sys.stdout.flush()

    def _leave(self) -> None:
        # The terminal may be gone.
        with contextlib.suppress(OSError):
            sys.stdout.write(LEAVE)
            sys.stdout.flush()
        if self._mode is not None and self._keys is not None:
            import termios  # noqa: PLC0415

            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._keys, termios.TCSADRAIN, self._mode)
            self._mode = None

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number == getattr(signal, "SIGTSTP", None):
            self._is_stopped = True
        elif number != getattr(signal, "SIGWINCH", None):
            self._ending = number
        os.write(self._write, b"!")

    def _list_signals(self) -> Iterator[int]:
        for name in ("SIGTERM", "SIGHUP", "SIGTSTP", "SIGWINCH"):
            number = getattr(signal, name, None)
            # A signal that was ignored at the start, like SIGHUP under nohup, stays ignored.
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                yield number


@contextlib.contextmanager
def open_screen() -> Iterator[Screen]:
    """Yield the second screen of the terminal, and restore the terminal at the end. If SIGTERM or SIGHUP ended the
    display, then end the process by the same signal.
    """
    screen = Screen()
    before = {number: signal.signal(number, screen._note) for number in screen._list_signals()}  # noqa: SLF001
    try:
        screen._enter()  # noqa: SLF001 - this function is a part of the class
        yield screen
    finally:
        screen._leave()  # noqa: SLF001
        for number, handler in before.items():
            signal.signal(number, handler)
        if screen._ending is not None:  # noqa: SLF001
            signal.signal(screen._ending, signal.SIG_DFL)  # noqa: SLF001
            os.kill(os.getpid(), screen._ending)  # noqa: SLF001
