"""Run the demo: start a stack, play the jobs, wait until the machines are terminated, and print a summary."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from time import monotonic

import msgspec
from redis import Redis as Broker
from rich.console import Console, RenderableType
from rich.live import Live

from leasehold.client.client import Client
from leasehold.client.models import Slot
from leasehold.demo.holders import POLL_SECONDS, Holders
from leasehold.demo.show import Summary, describe, draw, summarise, tabulate
from leasehold.demo.stretch import Stretch, describe_fleet
from leasehold.stack import Stack
from scheduler.protocol.names import QUEUE_NAMES

MAX_SLOTS = 10
EMULATOR = {"boot_seconds": 1.5, "status_seconds": 0.5, "terminate_seconds": 0.5}
LINE_SECONDS = 2.0
LET_GO_SECONDS = 45.0
"""After the last job, the demo fails if machines are left and no slot changes for this many seconds."""
ENVIRONMENT = {"LEASEHOLD_SWEEP_INTERVAL": "1", "LEASEHOLD_TICKS__INTERVAL": "2"}

Show = Callable[[RenderableType, str], None]


class DemoError(Exception):
    """Raised if the demo could not be played to its end. The message is the reason."""


def run_demo(
    stretch: Stretch,
    console: Console,
    *,
    max_slots: int = MAX_SLOTS,
    stay: bool = False,
    on_summary: Callable[[Summary], object] = lambda _summary: None,
) -> Summary:
    """Play the jobs of `stretch` on a new stack and return the summary. The folder of the stack is removed at the end.

    `on_summary` is called with the summary after the last job. `stay`: then keep the stack up until Ctrl-C.

    Raises StackError if the stack does not start, and DemoError if machines are left at the end.
    """
    with TemporaryDirectory(prefix="leasehold-demo-", ignore_cleanup_errors=True) as folder:
        started = monotonic()
        stack = Stack(
            Path(folder),
            rules=describe_fleet(stretch, max_slots),
            environment=ENVIRONMENT,
            emulator=EMULATOR,
            on_progress=lambda name, state: _print_progress(console, name, state),
        )
        console.print("Starting Valkey, SQLite, the EC2 emulator, five Celery workers, beat, Flower and the console …")
        with stack, stack.client() as client:
            console.print(f"All parts answer after {monotonic() - started:.1f} s.")
            _print_address(stack, console)
            summary = _play(stack, client, stretch, console)
            on_summary(summary)
            if stay:
                console.print("The stack stays up until Ctrl-C.")
                _print_address(stack, console)
                with suppress(KeyboardInterrupt):
                    Event().wait()
        console.print("Everything is stopped.")
    return summary


def _print_address(stack: Stack, console: Console) -> None:
    url = stack.console_url
    line = "The console is not installed: pip install 'leasehold[server,console]'"
    console.print(line if url is None else f"The console: {url}", highlight=False, markup=False)


def _print_progress(console: Console, name: str, state: str) -> None:
    if state == "ready":
        console.print(f"  ready: {name}", style="bright_black")


def _play(stack: Stack, client: Client, stretch: Stretch, console: Console) -> Summary:
    holders = Holders(client, stretch)
    broker = Broker.from_url(stack.url, protocol=2)
    began = monotonic()
    try:
        with _open_show(console) as show:

            def show_now() -> None:
                slots: tuple[Slot, ...] = client.slots()
                queues = {queue: int(broker.llen(queue)) for queue in QUEUE_NAMES}
                picture = draw(stretch, holders.progress, slots, queues, holders.now)
                show(picture, describe(holders.progress, slots, holders.now))
                # A pause between two pictures: the holders act by the clock, and people read no faster.
                time.sleep(POLL_SECONDS)

            while not holders.is_done:
                holders.step()
                show_now()
            seen: tuple[str, ...] = ()
            until = 0.0
            while left := tuple(f"{slot.id} ({slot.state})" for slot in client.slots() if slot.state != "empty"):
                if left != seen:
                    seen, until = left, monotonic() + LET_GO_SECONDS
                elif monotonic() > until:
                    fleet = f"the fleet did not change for {LET_GO_SECONDS:.0f} s after the last job: {', '.join(left)}"
                    raise DemoError("; ".join([fleet, *holders.progress.errors]))
                show_now()
    finally:
        holders.close()
        broker.close()
    if stack.emulator_url is None:
        raise DemoError("the demo plays on the EC2 emulator only: unset LEASEHOLD_AWS__… and AWS_… and try again")
    with closing(stack.open_store()) as store:
        return summarise(holders.progress, stretch, store, stack.read_emulator, monotonic() - began)


@contextmanager
def _open_show(console: Console) -> Iterator[Show]:
    """Yield a function that shows the progress of the demo, given as a picture and as a line. On a terminal the
    function shows the picture in place; elsewhere it prints the line, at most once in LINE_SECONDS.
    """
    if console.is_terminal:
        with Live(console=console, refresh_per_second=8, transient=True) as live:
            yield lambda picture, _line: live.update(picture)
        return
    printed_at = 0.0

    def print_line(_picture: RenderableType, line: str) -> None:
        nonlocal printed_at
        if monotonic() - printed_at >= LINE_SECONDS:
            printed_at = monotonic()
            console.print(line, highlight=False)

    yield print_line


def report(summary: Summary, console: Console, *, as_json: bool = False) -> None:
    """Print the summary of a demo, for people or as one JSON object."""
    if as_json:
        document = {**asdict(summary), "good": summary.is_good}
        sys.stdout.write(json.dumps(document, default=msgspec.to_builtins) + "\n")
        return
    console.print()
    console.print(tabulate(summary))
    console.print()
    failed = "Failed: a job was not served, an instance is left, or the figures differ."
    console.print("[green]All served, zero instances left.[/]" if summary.is_good else f"[red]{failed}[/]")


def make_console(*, quiet: bool = False) -> Console:
    """Return the console for the progress and the summary of a demo. `quiet`: it prints on standard error, because
    standard output gets JSON.
    """
    return Console(stderr=quiet, soft_wrap=True)
