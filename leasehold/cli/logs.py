"""The command `leasehold logs`, which prints the logs of the stack's processes."""

import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from leasehold.cli.completing import complete_logs
from leasehold.cli.connecting import find_log_folder
from leasehold.cli.root import app, example
from scheduler.protocol.visible import make_visible

if TYPE_CHECKING:
    from leasehold.stack.process_logs import LogReader

_POLL_SECONDS: Final = 0.2
_COLOURS: Final = (
    *(typer.colors.CYAN, typer.colors.YELLOW, typer.colors.GREEN, typer.colors.MAGENTA, typer.colors.BLUE),
    *(typer.colors.BRIGHT_CYAN, typer.colors.BRIGHT_YELLOW, typer.colors.BRIGHT_GREEN, typer.colors.BRIGHT_MAGENTA),
)


@app.command(epilog=example("leasehold logs", "leasehold logs ticks launch --follow", "leasehold logs --lines 100"))
def logs(
    processes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROCESS]...", help="Processes whose logs are printed; default: all.", autocompletion=complete_logs
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new lines until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option(help="Number of lines of each process: the last ones.", min=0)] = 20,
) -> None:
    """Print the logs of the stack's processes.

    The stack is the one in this folder or in the nearest folder above; it may have ended already.
    """
    folder = find_log_folder()
    with closing(_Printer(folder, processes or [], lines)) as printer:
        try:
            printer.print_new()
            while follow:
                sys.stdout.flush()
                # Polling: there is no portable way to wait for growth of a file.
                time.sleep(_POLL_SECONDS)
                printer.print_new()
        except KeyboardInterrupt:
            # Ctrl-C is the usual end of --follow and no error.
            return


class _Printer:
    """Prints the logs of the processes `wanted` (empty: of all), at first their last `lines` lines. Each line follows
    the name of its process, in colour on a terminal.
    """

    def __init__(self, folder: Path, wanted: list[str], lines: int) -> None:
        from leasehold.stack.process_logs import list_logs

        self._folder, self._wanted, self._lines = folder, wanted, lines
        self._readers: dict[str, LogReader] = {}
        known = list_logs(folder)
        for name in wanted:
            if name not in known:
                choice = f"one of {', '.join(known)}" if known else "no name, because no process has a log"
                raise typer.BadParameter(f"expected {choice}, got {name!r}", param_hint="PROCESS")

    def print_new(self) -> None:
        """Print the lines that the processes wrote since the last call. The first call prints the last lines of each
        log.
        """
        from leasehold.stack.process_logs import LogReader, list_logs, merge_by_time

        for name, path in list_logs(self._folder).items():
            if name not in self._readers and (not self._wanted or name in self._wanted):
                self._readers[name] = LogReader(path, self._lines)
        # A log that appears later was created after the start: print it from its first line.
        self._lines = -1
        width = max(map(len, self._readers), default=0)
        for name, line in merge_by_time({name: reader.read() for name, reader in self._readers.items()}):
            colour = _COLOURS[list(self._readers).index(name) % len(_COLOURS)]
            label = typer.style(f"{name.ljust(width)} |", fg=colour)
            typer.echo(f"{label} {make_visible(line.decode(errors='replace'), multiline=True)}")

    def close(self) -> None:
        """Close the log files that were read."""
        for reader in self._readers.values():
            reader.close()
