"""`leasehold alive PROCESS`: the health check of one process, for containers and service managers."""

from typing import TYPE_CHECKING, Annotated

import typer

from leasehold.cli.completing import complete_processes
from leasehold.cli.connecting import load_settings
from leasehold.cli.failures import CommandError
from leasehold.cli.output import print_thing
from leasehold.cli.root import app, example
from leasehold.client.discovery import find_running

if TYPE_CHECKING:
    from workers.settings import Settings


@app.command(epilog=example("leasehold alive ticks", "leasehold alive beat", "leasehold alive launch --timeout 20"))
def alive(
    process: Annotated[
        str,
        typer.Argument(
            metavar="PROCESS",
            help="Process to check: reservations, ticks, launch, health, terminate, beat, flower, console, metrics or"
            " emulator.",
            autocompletion=complete_processes,
        ),
    ],
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Seconds to wait for an answer.", min=0.1)] = 10.0,
) -> None:
    """Check whether one process of this host works.

    A worker must answer a message on its own queue, the process beat must have sent a task lately, a server must
    answer. The exit status is 1 if the process fails its check.
    """
    from leasehold.liveness import PROCESSES, find_trouble

    if process not in PROCESSES:
        raise typer.BadParameter(f"expected one of {', '.join(PROCESSES)}, got {process!r}", param_hint="PROCESS")
    settings = load_settings()
    trouble = _find_stranger(process, settings) or find_trouble(process, settings, timeout)
    if trouble:
        raise CommandError(trouble)
    print_thing(f"{process} is alive")


def _find_stranger(process: str, settings: "Settings") -> str | None:
    """Return a line if another process serves at the address of a web page of the stack that runs in this folder."""
    from leasehold.stack.readiness import find_server

    running = find_running()
    if process not in {"flower", "console", "metrics"} or running is None:
        return None
    page = getattr(settings, process)
    if running.environment.get(f"LEASEHOLD_{process.upper()}__PORT") != str(page.port):
        # Other settings than those of the stack.
        return None
    if find_server(page.host, page.port, running.pids.get(process)) != "other":
        return None
    return f"another process listens on {page.host}:{page.port}, the address of {process}"
