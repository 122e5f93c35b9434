"""The command `leasehold top`, a live display of the fleet, the queue, rates and events."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from leasehold.cli.connecting import adopt_stack, connect, open_store
from leasehold.cli.output import AsJson, find_width, print_json
from leasehold.cli.root import app, example
from leasehold.errors import LeaseholdError

if TYPE_CHECKING:
    from leasehold.top.figures import Figures, Reader
    from scheduler.ports import Store

_EVENTS: Final = 30
_PAUSE_SECONDS: Final = 30.0
_HEIGHT: Final = 24
"""Number of lines that is assumed if a terminal does not report its own."""


@app.command(epilog=example("leasehold top", "leasehold top --interval 5", "leasehold top --once --json"))
def top(
    interval: Annotated[float, typer.Option(metavar="SECONDS", help="Seconds between two refreshes.", min=0.1)] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the fleet, the queue, rates and the newest events, live.

    Shows slots by pool and state with their load, reservations by phase and waiting code, how many a second are
    submitted, leased and released, waiting messages, and, if the database can be read, events. Keys: q or Ctrl-C ends,
    the space bar refreshes. Output that is no terminal is printed once; with --json without --once, a line for each
    refresh.
    """
    from leasehold.top.figures import Reader

    adopt_stack()
    with connect() as client, _reading_events() as read_events:
        reader = Reader(client, read_events)
        if as_json:
            _print_documents(reader, None if once else interval)
        elif once or not sys.stdout.isatty():
            from leasehold.top.draw import draw

            figures = reader.read()
            sys.stdout.write("\n".join(draw(figures, find_width(), None)) + "\n")
        else:
            # Ctrl-C is a usual end and no error.
            with contextlib.suppress(KeyboardInterrupt):
                _show_live(reader, interval)


def _print_documents(reader: "Reader", interval: float | None) -> None:
    while True:
        print_json(reader.read())
        if interval is None:
            return
        sys.stdout.flush()
        # This pause is the interval between two refreshes.
        time.sleep(interval)


def _show_live(reader: "Reader", interval: float) -> None:
    from leasehold.top.draw import draw
    from leasehold.top.screen import open_screen

    figures: Figures | None = None
    due = 0.0
    with open_screen() as screen:
        while True:
            if time.monotonic() >= due:
                figures = _read(reader, figures)
                due = time.monotonic() + interval
            if figures is not None:
                screen.show(draw(figures, find_width(), _find_height()))
            match screen.wait(due - time.monotonic()):
                case "quit":
                    return
                case "refresh":
                    due = 0.0


def _read(reader: "Reader", before: "Figures | None") -> "Figures":
    """Return the figures as of now. If Redis does not answer, return `before`, the figures of the last refresh (None:
    empty figures), with the error as their problem.
    """
    import msgspec

    from leasehold.top.figures import Figures

    try:
        return reader.read()
    except LeaseholdError as error:
        old = before or Figures(at=time.time())
        return msgspec.structs.replace(old, problems=[f"{error}; the figures are old"], rates=None)


def _find_height() -> int:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).lines or _HEIGHT
    except (OSError, ValueError):
        return _HEIGHT


@contextlib.contextmanager
def _reading_events() -> Iterator[Callable[[], Iterable[dict[str, Any]] | None]]:
    """Yield a function that returns the newest events, oldest first, or None if the database cannot be read. The first
    call of the function reads the newest events, later calls read only the events that were added.
    """
    from importlib.util import find_spec

    if find_spec("sqlalchemy") is None or not os.environ.get("LEASEHOLD_DATABASE__URL"):
        yield lambda: None
        return
    with contextlib.ExitStack() as stack:
        yield _EventReader(stack).read


class _EventReader:
    """Reads the newest events of the configured database. If the database cannot be read, it is tried again after a
    pause.
    """

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._store: Store | None = None
        self._last = 0
        self._known: list[dict[str, Any]] = []
        self._due = 0.0

    def read(self) -> list[dict[str, Any]] | None:
        """Return the newest events, oldest first; None if the database cannot be read."""
        if time.monotonic() < self._due:
            return None
        import msgspec

        from leasehold.texts.values import describe_event
        from scheduler.model.validation import InvalidInputError
        from scheduler.ports import EventFilter, StoreUnavailableError

        try:
            if self._store is None:
                self._store = self._stack.enter_context(open_store())
            for event in self._store.read_events(EventFilter(after=self._last, newest=True, limit=_EVENTS)):
                self._last = event.number
                self._known.append(msgspec.to_builtins(event) | {"text": describe_event(event)})
        except (ImportError, OSError, LeaseholdError, InvalidInputError, StoreUnavailableError):
            # A library is missing, or the database does not answer or is no database of Leasehold.
            self._due = time.monotonic() + _PAUSE_SECONDS
            return None
        del self._known[:-_EVENTS]
        return list(self._known)
