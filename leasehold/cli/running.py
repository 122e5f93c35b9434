"""Commands for a stack on this machine: `up`, `demo`, `emulate-ec2`, `logs`, `down`; `snapshot` copies its state."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from leasehold.cli.completing import complete_logs
from leasehold.cli.connecting import find_log_folder, open_store
from leasehold.cli.interrupts import list_ending
from leasehold.cli.output import (
    BAD_INPUT,
    ERROR_PREFIX,
    FAILED,
    INTERRUPTED,
    NO_RULES,
    CommandError,
    make_table,
    one_line,
    print_json,
    print_thing,
)
from leasehold.cli.root import app, example
from leasehold.client.discovery import FOLDER, RUN_FILE, find_running, is_locked, read_running
from leasehold.errors import UntrustedFolder
from leasehold.private_files import make_private_folder, open_private
from leasehold.process_identity import is_running, send_signal
from leasehold.texts.values import show_seconds
from scheduler.protocol.marks import Mark
from scheduler.protocol.visible import make_visible

if TYPE_CHECKING:
    from types import FrameType

    from leasehold.client.discovery import RunningStack
    from leasehold.stack import Stack
    from leasehold.stack.process_logs import LogReader

_POLL_SECONDS = 0.1
_DETACHED_SECONDS = 120.0
_DOWN_SECONDS = 30.0


@app.command(epilog=example("leasehold up", "leasehold up --detach", "leasehold up --config leasehold.toml"))
def up(
    config: Annotated[
        Path | None,
        typer.Option(
            help="Configuration file; default: the environment variable LEASEHOLD_CONFIG, else ./leasehold.toml."
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when the stack runs; `leasehold down` stops it.")
    ] = False,
) -> None:
    """Run a whole stack in this folder until Ctrl-C.

    The stack has a Valkey, SQLite, the EC2 emulator (unless AWS is configured), all processes, Flower, and the console,
    whose address the command prints.
    """
    own = Path.cwd() / FOLDER
    if own.exists():
        # An older version left the folder open to other users.
        make_private_folder(own)
    running = _find_other()
    if running is not None:
        raise CommandError(f"a stack runs in {running.folder} already: `leasehold down` stops it")
    if detach:
        _detach(config)
        return
    from concurrent.futures import ThreadPoolExecutor

    from leasehold.stack import Stack

    stack = Stack(config=config, on_progress=_print_progress)
    ended = _stop_on_signals()
    began = time.monotonic()
    # The stack starts in another thread, because the main thread has to handle signals.
    with ThreadPoolExecutor(1) as starter:
        start = starter.submit(stack.start)
        try:
            while not start.done() and not ended.wait(_POLL_SECONDS):
                pass
            if not ended.is_set:
                start.result()
                _print_running(stack, time.monotonic() - began)
                ended.wait()
                sys.stderr.write("stopping …\n")
        finally:
            stack.stop()


def _find_other() -> "RunningStack | None":
    """Return the stack that runs in this folder or above it. If its supervisor was killed, wait until the reaper has
    ended the rest of it.
    """
    until = time.monotonic() + _DOWN_SECONDS
    while True:
        running = None
        with contextlib.suppress(UntrustedFolder):
            # A folder above that belongs to another user does not concern this stack.
            running = find_running()
        has_died = running is not None and running.supervisor is not None and not is_running(running.supervisor)
        if not has_died or time.monotonic() >= until:
            return running
        # Polling: the reaper is no child of this process.
        time.sleep(_POLL_SECONDS)


def _stop_on_signals() -> Mark:
    ended = Mark()

    def end(_number: int, _frame: "FrameType | None") -> None:
        if ended.is_set:
            # The second signal: exit at once. The reaper, a process that outlives this one, ends the rest.
            os._exit(INTERRUPTED)
        ended.set()

    for number in list_ending():
        signal.signal(number, end)
    return ended


def _print_progress(name: str, state: str) -> None:
    if state != "started":
        sys.stderr.write(f"  {state}: {name}\n")
        sys.stderr.flush()


def _print_running(stack: "Stack", seconds: float) -> None:

    rows = [(name, str(pid), stack.urls.get(name, "")) for name, pid in sorted(stack.pids().items())]
    system = next(iter(stack.systems), "x86_64-linux")
    print_thing(
        f"\nup in {seconds:.1f} s; state and logs are in {stack.folder.path}",
        make_table(("process", "pid", "where"), rows, ""),
        "In a second terminal:\n"
        "  leasehold status\n"
        f"  leasehold reserve --system {system} --wait 60\n"
        "  leasehold slots --watch 2\n"
        "Ctrl-C stops everything.",
        _describe_console(stack.console_url),
        *stack.configuration.moved_ports,
    )
    sys.stdout.flush()


def _describe_console(url: str | None) -> str:
    missing = "The console is not installed: pip install 'leasehold[server,console]'"
    return missing if url is None else f"The console: {url}"


def _detach(config: Path | None) -> None:
    """Start the stack in the background and return when it runs. Raises CommandError with the errors in the stack's log
    if the stack ends instead or is not up in time.
    """
    folder = Path.cwd() / FOLDER
    make_private_folder(folder)
    command = [sys.executable, "-m", "leasehold.cli", "up", *(["--config", str(config)] if config else [])]
    log = folder / "up.log"
    with open(log, "wb", opener=open_private) as output:
        process = subprocess.Popen(  # noqa: S603 - this very program
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    until = time.monotonic() + _DETACHED_SECONDS
    while time.monotonic() < until:
        running = read_running(folder)
        # After a killed supervisor the file of the old stack stays until the new one writes its own.
        if running is not None and running.pid == process.pid and running.phase == "running":
            from leasehold.stack.configuration import find_console_url

            console = find_console_url(running.urls, running.environment)
            print_thing(f"up, pid {process.pid}; `leasehold down` stops it", _describe_console(console))
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_SECONDS)
            text = log.read_text(errors="replace")
            lines = [line for line in text.splitlines() if line.strip() and "stopping" not in line]
            errors = [line.removeprefix(ERROR_PREFIX) for line in lines if line.startswith(ERROR_PREFIX)]
            found = "\n".join(errors or lines[-1:]) or f"the stack ended without a message: see {log}"
            raise CommandError(found, BAD_INPUT if process.returncode == BAD_INPUT else FAILED)
    process.terminate()
    raise CommandError(f"the stack is not up after {show_seconds(_DETACHED_SECONDS)}: see {log}")


@app.command(epilog=example("leasehold down"))
def down() -> None:
    """Stop the stack that runs in this folder or above it."""
    running = find_running()
    if running is None:
        raise CommandError("no stack runs here or in a folder above")
    if running.supervisor is None:
        raise CommandError(
            f"{running.folder / RUN_FILE} does not name the start time of process {running.pid}:"
            " an older version started the stack; press Ctrl-C where it runs, or send a signal to that process"
        )
    # If the supervisor was killed, its reaper still holds the lock until the last process has ended.
    send_signal(running.supervisor, signal.SIGTERM)
    until = time.monotonic() + _DOWN_SECONDS
    while is_locked(running.folder / "lock"):
        if time.monotonic() >= until:
            raise CommandError(f"the stack still runs after {show_seconds(_DOWN_SECONDS)}: pid {running.pid}")
        # Polling: the stack is no child of this process, and a blocking wait for its lock would have no time limit.
        time.sleep(_POLL_SECONDS)
    print_thing("down")


@app.command("emulate-ec2", epilog=example("leasehold emulate-ec2 --port 4579 --boot-seconds 2"))
def emulate(  # noqa: PLR0913, PLR0917 - an option each
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free one.", min=0, max=65535)] = 4579,
    region: Annotated[
        str, typer.Option(help="Region to prepare at the start; others are prepared at their first use.")
    ] = "us-east-1",
    state_file: Annotated[
        Path | None, typer.Option(help="File of settings, TOML or JSON; read again when it changes.")
    ] = None,
    call_log: Annotated[
        Path | None, typer.Option(help="File to which each call and event is appended as a line of JSON.")
    ] = None,
    boot_seconds: Annotated[
        float | None, typer.Option(help="Seconds for which a new instance is pending; default: 0.")
    ] = None,
    status_seconds: Annotated[
        float | None, typer.Option(help="Seconds until the status checks of a new instance pass; default: 0.")
    ] = None,
    terminate_seconds: Annotated[
        float | None, typer.Option(help="Seconds for which a terminated instance shuts down; default: 0.")
    ] = None,
    describe_lag_seconds: Annotated[
        float | None, typer.Option(help="Seconds after a launch for which descriptions omit the instance; default: 0.")
    ] = None,
    interruption_queue: Annotated[
        str | None, typer.Option(help="Name of an SQS queue to create for interruption and rebalance notices.")
    ] = None,
    interruption_rate: Annotated[
        float | None,
        typer.Option(help="Average number of random interruptions of a spot instance per hour; default: 0."),
    ] = None,
    random_seed: Annotated[int | None, typer.Option(help="Seed of the emulator's random choices.")] = None,
    script: Annotated[
        Path | None, typer.Option(help="Script of events in EC2 to play from the start on, TOML or JSON.")
    ] = None,
    speed: Annotated[
        float | None, typer.Option(help="Seconds of the script that pass in one second; default: as in the script.")
    ] = None,
) -> None:
    """Run the EC2 emulator alone, until Ctrl-C."""
    given = {
        "host": host,
        "port": port,
        "region": region,
        "state-file": state_file,
        "call-log": call_log,
        "boot-seconds": boot_seconds,
        "status-seconds": status_seconds,
        "terminate-seconds": terminate_seconds,
        "describe-lag-seconds": describe_lag_seconds,
        "interruption-queue": interruption_queue,
        "interruption-rate": interruption_rate,
        "random-seed": random_seed,
        "script": script,
        "speed": speed,
    }
    from importlib.util import find_spec

    # The emulator imports a library first that the extra `agent` installs too.
    if find_spec("moto") is None:
        raise ModuleNotFoundError("No module named 'moto'", name="moto")
    from leasehold_emulator.__main__ import main

    raise typer.Exit(main([f"--{name}={value}" for name, value in given.items() if value is not None]))


@app.command(epilog=example("leasehold snapshot --out now.json", "leasehold simulate now.json"))
def snapshot(
    out: Annotated[Path | None, typer.Option(help="File to write; default: standard output.")] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Config file whose [cloud] section sets simulated delays (default: the running stack's)."),
    ] = None,
) -> None:
    """Print the live state as a scenario for simulations.

    The state is read from the database. `leasehold simulate` plays the scenario from now on: change the scenario first,
    to see the effect of the change.
    """
    from scheduler.simulation.snapshot import make_snapshot

    with open_store() as store:
        from scheduler.operations.market import load_resolved, resolve_document, uses_market
        from workers.configuration import read_cloud

        stored, rows, now = store.load_rules(), list(store.read_rows()), store.now()
        rules, document = stored.rules, stored.document
        if uses_market(rules):
            rules = load_resolved(store, rules)
            document = resolve_document(document, rules)
    if not stored.version:
        raise CommandError(NO_RULES)
    made = make_snapshot(rows, document, rules, read_cloud(config), now)
    if out is None:
        print_json(made)
    else:
        out.write_text(json.dumps(made, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


_COLOURS: Final = (
    *(typer.colors.CYAN, typer.colors.YELLOW, typer.colors.GREEN, typer.colors.MAGENTA, typer.colors.BLUE),
    *(typer.colors.BRIGHT_CYAN, typer.colors.BRIGHT_YELLOW, typer.colors.BRIGHT_GREEN, typer.colors.BRIGHT_MAGENTA),
)


@app.command(
    epilog=example(
        "leasehold logs",
        "leasehold logs ticks launch --follow",
        "leasehold logs --lines 100",
        "leasehold logs --reservation night-7 --follow",
    )
)
def logs(
    processes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROCESS]...", help="Processes whose logs are printed; default: all.", autocompletion=complete_logs
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new lines until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option(help="Number of lines of each process: the last ones.", min=0)] = 20,
    reservation: Annotated[
        str | None,
        typer.Option(
            metavar="RESERVATION", help="Print the output of its command instead (`leasehold submit -- COMMAND`)."
        ),
    ] = None,
) -> None:
    """Print logs of the stack, or a command's output.

    The stack is the one in this folder or in the nearest folder above; it may have ended already. Of the output of a
    command the last 8 KiB are kept; with --follow, new output is printed until the reservation has ended.
    """
    if reservation is not None:
        if processes:
            raise typer.BadParameter("expected no process beside --reservation", param_hint="PROCESS")
        from leasehold.cli.submitting import print_output

        print_output(reservation, follows=follow)
        return
    folder = find_log_folder()
    with closing(_Printer(folder, processes or [], lines)) as printer:
        try:
            printer.print_new()
            while follow:
                sys.stdout.flush()
                # Polling: there is no portable way to wait for growth of a file.
                time.sleep(0.2)
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
        for reader in self._readers.values():
            reader.close()


@app.command(
    epilog=example(
        "leasehold demo",
        "leasehold demo --trace NASA-iPSC-1993-3.1-cln.swf.gz --jobs 300",
        "leasehold demo --speed 500 --json",
        "leasehold demo --commands",
    )
)
def demo(
    trace: Annotated[
        Path | None, typer.Option(help="A log in the Standard Workload Format, plain or gzipped.", metavar="FILE")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, max=5000, help="Number of jobs of the log to play.")] = 150,
    speed: Annotated[
        float | None,
        typer.Option(
            min=0.001, help="Factor by which the log is played faster; default: so that the jobs fit into 20 s."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
    stay: Annotated[bool, typer.Option("--stay", help="Keep the stack with its console until Ctrl-C.")] = False,
    commands: Annotated[
        bool, typer.Option("--commands", help="Run commands on leases, on machines that are processes of this one.")
    ] = False,
) -> None:
    """Serve a workload log with a whole stack, then stop it.

    Each job of the log becomes a reservation with one lease. The reservation is submitted, held and released at the
    times of the job, which the speed compresses. Machines are launched on the EC2 emulator. The console shows it live:
    the command prints the address.

    With --commands no log is played. 30 commands and a gang run on launched machines, one of which is interrupted, and
    a table shows what became of each.
    """
    from leasehold.demo.run import DemoError, make_console, report, run_demo

    if commands:
        _demo_commands(as_json=as_json)
        return
    from leasehold.demo.run import choose_stretch, find_shipped_log
    from scheduler.simulation.workload import TraceError

    try:
        path = trace or find_shipped_log()
        stretch = choose_stretch(path, jobs, speed)
    except TraceError as error:
        raise CommandError(one_line(str(error)), BAD_INPUT) from None
    console = make_console(quiet=as_json)
    console.print(
        f"{len(stretch.jobs)} jobs of {path.name}, {stretch.seconds / 3600:.1f} hours of it, "
        f"{stretch.speed:.0f} times as fast",
        highlight=False,
    )
    try:
        summary = run_demo(
            stretch, console, stay=stay, on_summary=lambda found: report(found, console, as_json=as_json)
        )
    except DemoError as error:
        raise CommandError(str(error)) from None
    except KeyboardInterrupt:
        raise CommandError("interrupted; everything is stopped", INTERRUPTED) from None
    raise typer.Exit(0 if summary.is_good else 1)


def _demo_commands(*, as_json: bool) -> None:
    from leasehold.demo.commands import report, run_demo
    from leasehold.demo.run import DemoError, make_console

    console = make_console(quiet=as_json)
    try:
        fates = run_demo(console)
    except DemoError as error:
        raise CommandError(str(error)) from None
    except KeyboardInterrupt:
        raise CommandError("interrupted; everything is stopped", INTERRUPTED) from None
    report(fates, console, as_json=as_json)
    raise typer.Exit(0 if all(each.is_expected for each in fates) else 1)
