"""The commands `leasehold status`, the health of the stack and counts of its contents, and `leasehold alive PROCESS`,
the health check of one process. Their exit statuses are meant for health probes and service managers.
"""

import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from leasehold.cli.completing import complete_processes
from leasehold.cli.connecting import adopt_stack, load_settings
from leasehold.cli.output import (
    AsJson,
    CommandError,
    Watched,
    make_table,
    print_error,
    print_json,
    print_thing,
    repeat,
    shorten,
)
from leasehold.cli.root import app, example
from leasehold.client.discovery import find_running
from leasehold.errors import LeaseholdError, UntrustedFolder
from leasehold.texts.values import show_seconds

if TYPE_CHECKING:
    from leasehold.client.client import Client
    from workers.settings import Settings

OK: Final = 0
DEGRADED: Final = 1
DOWN: Final = 2
LATE_INTERVALS: Final = 3
_SHOWN_IDS: Final = 10
_CANARY_SECONDS: Final = 5.0
_CLOCK_SECONDS: Final = 1.0
"""Largest difference in seconds between the wall clock of a process and cluster time (the time of the database) that is
no problem.
"""


@app.command(
    epilog=example("leasehold status", "leasehold status --probe --json", "leasehold status --watch 2")
    + "\n\nExit codes: 0 everything works; 1 degraded (no tick for three intervals, no valid view, a database"
    " schema that is older or newer than this program, or with --probe a queue without a worker); 2 down (no"
    " stack, or no Redis)."
)
def status(
    probe: Annotated[
        bool, typer.Option("--probe", help="Also send a test message to each queue and wait up to 5 s for the answers.")
    ] = False,
    as_json: AsJson = False,
    watch: Watched = None,
) -> None:
    """Show the health of the stack and counts of its contents.

    Shows the leader and the lag of the view (the copy of the state in Redis), counts of reservations and slots, waiting
    reservations, and the addresses of the broker and of web pages.
    """
    adopt_stack()
    code = DOWN

    def show() -> None:
        nonlocal code
        found, code = _read(probe)
        if as_json:
            print_json(found)
        elif code == DOWN:
            print_error("; ".join(found.problems))
        else:
            print_thing(*_describe(found))

    repeat(show, watch)
    raise typer.Exit(code)


def _read(probe: bool) -> "tuple[Status, int]":
    from leasehold.client.client import Client

    try:
        with Client(timeout=_CANARY_SECONDS) as client:
            client.probe.check_redis()
            found = _assess(client, probe)
    except LeaseholdError as error:
        return Status(state="down", problems=[str(error)]), DOWN
    if fault := _find_schema_fault():
        found.problems.append(fault)
    found.state = "degraded" if found.problems else "ok"
    return found, DEGRADED if found.problems else OK


def _assess(client: "Client", probe: bool) -> "Status":
    """Return the status of a stack, with the problems found. The caller sets the field `state` later. With `probe`,
    also check the workers of each queue.
    """
    offsets = client.probe.clock_offsets()
    from scheduler.protocol.masking import show_url

    running = None
    with suppress(UntrustedFolder):
        # A folder of another user is not read: only the addresses of web pages are missing then.
        running = find_running()
    is_here = running is not None and running.broker_url == client.url
    found = Status(
        state="ok",
        problems=[],
        urls={"broker": show_url(client.url), **(running.urls if running and is_here else {})},
        queues=client.probe.queue_lengths(),
        leads_now=client.probe.is_led(),
        clocks=[each._asdict() for each in offsets if abs(each.seconds) > _CLOCK_SECONDS],
    )
    _read_report(found, client.report(), client.now())
    try:
        found.reservations = dict(Counter(row.phase for row in client.list()))
        slots = client.slots()
        found.slots = dict(Counter(slot.state for slot in slots))
        found.refused_ends = {slot.id: slot.refusal for slot in slots if slot.state == "terminating" and slot.refusal}
        found.accounts = {account.id: account.level for account in client.accounts()}
    except LeaseholdError as error:
        found.problems.append(str(error))
    silent = client.probe.silent_queues(_CANARY_SECONDS) if probe else []
    found.problems += [f"no worker consumes the queue {queue}" for queue in silent]
    return found


def _find_schema_fault() -> str | None:
    """Return what is wrong with the schema of the configured database; None if it is correct.

    Return None too if no database is configured, and in an installation without SQLAlchemy.
    """
    from importlib.util import find_spec

    url = os.environ.get("LEASEHOLD_DATABASE__URL")
    if not url or find_spec("sqlalchemy") is None:
        return None
    from scheduler.store.revisions import find_fault_of_file, find_sqlite_file

    if (file := find_sqlite_file(url)) is not None:
        return find_fault_of_file(file)
    try:
        from scheduler.store.opening import find_fault
    except ImportError:
        # SQLAlchemy is there, but not the rest of the extra `server`.
        return None
    from scheduler.model.validation import InvalidInputError

    try:
        return find_fault(url)
    except InvalidInputError as error:
        return str(error)


def _read_report(found: "Status", report: dict[str, Any], now: float) -> None:
    if not report:
        found.problems.append("there was no tick yet")
        return
    found.term, found.tick_seconds = report.get("term"), report.get("seconds")
    found.leader, found.view_lag_seconds = report.get("leader") or None, report.get("view_lag")
    found.tick_age_seconds = max(now - report["at"], 0.0)
    found.waiting = list(report.get("waiting", {}))
    late = LATE_INTERVALS * float(os.environ.get("LEASEHOLD_TICKS__INTERVAL") or 5)
    if found.tick_age_seconds > late:
        found.problems.append(f"the last tick was {show_seconds(found.tick_age_seconds)} ago")


def _describe(found: "Status") -> list[object]:
    from scheduler.model.accounts import FREE

    age = "never" if found.tick_age_seconds is None else f"{show_seconds(found.tick_age_seconds)} ago"
    took = "" if found.tick_seconds is None else f", took {found.tick_seconds * 1000:.0f} ms"
    levels = (f"{name} {'free' if each == FREE else f'level {each}'}" for name, each in found.accounts.items())
    clocks = (
        f"{each['process']} on {each['host']} {show_seconds(abs(each['seconds']))}"
        f" {'ahead' if each['seconds'] > 0 else 'behind'}"
        for each in found.clocks
    )
    rows = [
        ("last tick", f"{age}{took}"),
        ("leader", (found.leader or "unknown") + (" (a tick runs)" if found.leads_now else "")),
        ("term", f"{found.term}"),
        ("view lag", "unknown" if found.view_lag_seconds is None else show_seconds(found.view_lag_seconds)),
        ("reservations", _join(found.reservations)),
        ("slots", _join(found.slots)),
        ("queues", _join(found.queues)),
        ("waiting", shorten(found.waiting, _SHOWN_IDS) or "none"),
        *([("accounts", "  ".join(levels))] if found.accounts else ()),
        *([("wrong clocks", f"{'  '.join(clocks)} (let these hosts follow a time service)")] if found.clocks else ()),
        *([("EC2 refuses to end", _show_refused(found.refused_ends))] if found.refused_ends else ()),
        *found.urls.items(),
    ]
    return [": ".join(filter(None, (found.state, "; ".join(found.problems)))), make_table(("", ""), rows, "")]


def _show_refused(refused: dict[str, str]) -> str:
    codes = "  ".join(f"{slot} {answer.partition(': ')[0]}" for slot, answer in [*refused.items()][:_SHOWN_IDS])
    more = f"  and {len(refused) - _SHOWN_IDS} more" if len(refused) > _SHOWN_IDS else ""
    return f"{codes}{more} (remedy: leasehold doctor)"


def _join(counts: dict[str, int]) -> str:
    return "  ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


@app.command(epilog=example("leasehold alive ticks", "leasehold alive beat", "leasehold alive launch --timeout 20"))
def alive(
    process: Annotated[
        str,
        typer.Argument(
            metavar="PROCESS",
            help="Process to check: reservations, ticks, launch, health, terminate, beat, foresight, flower, console,"
            " metrics or emulator.",
            autocompletion=complete_processes,
        ),
    ],
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Seconds to wait for an answer.", min=0.1)] = 10.0,
) -> None:
    """Check whether one process of this host works.

    A worker must answer a message on its own queue, beat must have sent a task and foresight forecasts lately, a
    server must answer. The exit status is 1 if the process fails its check.
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


@dataclass(kw_only=True)
class Status:
    """The output of `leasehold status --json`. `state` is `ok`, `degraded` or `down`; `problems` are the reasons if it
    is not `ok`.
    """

    state: str
    problems: list[str]
    reservations: dict[str, int] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)
    queues: dict[str, int] = field(default_factory=dict)
    term: int | None = None
    leads_now: bool = False
    tick_age_seconds: float | None = None
    tick_seconds: float | None = None
    accounts: dict[str, int] = field(default_factory=dict)
    """Quota account -> the best level (class of service, 0 is best) that the account can pay for; 5: it can pay for
    none.
    """
    waiting: list[str] = field(default_factory=list)
    """The ids of the pending reservations, in the order in which they are served."""
    leader: str | None = None
    """The process that ran the last tick (run of the scheduler), as `host:pid`."""
    view_lag_seconds: float | None = None
    """By how many seconds the view (the copy of the state in Redis) was behind the database when the leader last
    compared them: the age of the oldest change that the view lacked, or 0.
    """
    clocks: list[dict[str, Any]] = field(default_factory=list)
    """The processes whose wall clock is more than a second off cluster time (the time of the database), with `process`,
    `host` and `seconds` (positive if the clock is ahead). No scheduling decision depends on wall clocks.
    """
    refused_ends: dict[str, str] = field(default_factory=dict)
    """Slot whose machine EC2 refuses to end -> EC2's answer. `leasehold doctor` has the remedy."""
    urls: dict[str, str] = field(default_factory=dict)
    """Addresses without passwords: of the broker, and of the web pages of a stack that runs in this folder or above."""
