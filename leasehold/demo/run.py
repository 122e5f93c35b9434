"""Run the demo: start a stack, play jobs of a log, wait until the machines are terminated, and print a summary.

The holders submit each job at its time in the log, hold its lease while it runs, and release it. The summary compares
the figures that the holders measured with the database and with the emulator's log of calls. The rules of the stack
have one pool with up to three sizes of spot machines.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from threading import Event
from time import monotonic
from typing import Any

import msgspec
from redis import Redis as Broker
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

import leasehold
from leasehold.client.client import Client
from leasehold.client.models import Reservation, Slot
from leasehold.client.reservation_fields import ReservationFields
from leasehold.errors import LeaseholdError
from leasehold.stack import Stack
from scheduler.model.transitions import ENDED
from scheduler.operations.costs import CostSum, add_up
from scheduler.ports import EventFilter, Store
from scheduler.protocol.names import QUEUE_NAMES
from scheduler.simulation.workload import Job, TraceError, read_jobs

PLAY_SECONDS = 20.0
"""The duration of the demo in seconds if no speed is given."""
SHORTEST_RUN = 0.2
"""The shortest time for which a job holds its lease, in real seconds (not those of the log)."""
STEPS = 200
"""Most positions in the log that are tried as the first job of the stretch."""


@dataclass(frozen=True)
class Stretch:
    """A stretch of a workload log: consecutive jobs that the demo plays. `speed`: how many times faster than in the
    log.
    """

    jobs: tuple[Job, ...]
    speed: float

    @property
    def starts_at(self) -> float:
        """The time at which the first job is submitted, in seconds of the log."""
        return self.jobs[0].submit_seconds

    @property
    def seconds(self) -> float:
        """Seconds in the log from the first submission of a job to the last end of a job, as if each job began when it
        was submitted.
        """
        return _span(self.jobs)

    def submit_after(self, job: Job) -> float:
        """Return the real seconds from the start of the demo to the submission of `job`."""
        return (job.submit_seconds - self.starts_at) / self.speed

    def run_for(self, job: Job) -> float:
        """Return the real seconds for which `job` holds its lease in the demo."""
        return max(SHORTEST_RUN, job.run_seconds / self.speed)


def find_shipped_log() -> Path:
    """Return the path of the workload log that ships with the product: in the installed package, or in `examples/` of a
    checkout.
    """
    package = Path(leasehold.__file__).parent
    name = Path("examples") / "nasa-like.swf.gz"
    return next(path for path in (package / name, package.parent / name) if path.exists())


def choose_stretch(path: Path, count: int, speed: float | None) -> Stretch:
    """Return the busiest `count` consecutive jobs of a log: those with the shortest time from the first submission to
    the last end.

    `speed` None: the jobs are compressed to PLAY_SECONDS. Raises TraceError if the file is no log or has no job.
    """
    jobs = sorted(read_jobs(path), key=lambda job: job.submit_seconds)
    if not jobs:
        raise TraceError(path, 0, "at least one job that ran", "none")
    last = max(0, len(jobs) - count)
    starts = range(0, last + 1, max(1, last // STEPS))
    chosen = min((tuple(jobs[start : start + count]) for start in starts), key=_span)
    return Stretch(chosen, speed or max(1.0, _span(chosen) / PLAY_SECONDS))


def _span(jobs: Sequence[Job]) -> float:
    return max(job.submit_seconds + job.run_seconds for job in jobs) - jobs[0].submit_seconds


IMAGE = "ami-0123456789abcdef0"
"""Id of a machine image. Any id will do, because the EC2 emulator does not check it."""
SIZES: tuple[tuple[str, int, float], ...] = (
    ("m6i.2xlarge", 8, 0.15),
    ("m6i.8xlarge", 32, 0.60),
    ("m6i.32xlarge", 128, 2.40),
)
"""The sizes of machines, smallest first: instance type, number of cpus, and price in dollars an hour."""


def describe_fleet(stretch: Stretch, max_slots: int) -> dict[str, Any]:
    """Return rules with one pool of at most `max_slots` machines. The offerings of the pool can hold every job of
    `stretch` (the jobs that the demo plays), and idle machines are drained after two seconds.
    """
    widest = max(job.processors for job in stretch.jobs)
    needed = [size for index, size in enumerate(SIZES) if index == 0 or SIZES[index - 1][1] < widest]
    offerings: list[dict[str, Any]] = [
        {"name": name, "market": "spot", "price": price, "resources": {"cpus": cpus}} for name, cpus, price in needed
    ]
    offerings[-1]["resources"]["cpus"] = max(offerings[-1]["resources"]["cpus"], widest)
    pool = {
        "system": "x86_64-linux",
        "max_slots": max_slots,
        "idle_scale_down": 2,
        "offerings": offerings,
        "ec2": {"image": IMAGE},
    }
    return {"scheduler": {"queue": "fifo"}, "pools": {"demo": pool}}


POLL_SECONDS = 0.1
THREADS = 4


@dataclass
class Progress:
    """The progress of the demo's jobs, by the name of the job. All times are seconds since the demo began to play the
    jobs.
    """

    submitted: dict[str, float] = field(default_factory=dict)
    leased: dict[str, float] = field(default_factory=dict)
    released: dict[str, float] = field(default_factory=dict)
    slots: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """Name of each job that was refused, or that ended without a release by its holder -> the reason."""
    errors: list[str] = field(default_factory=list)
    """The messages of all errors of holders. A job with an error is tried again, so it may still be served."""

    @property
    def waits(self) -> list[float]:
        """The seconds from submission to lease of each leased job, as the holders measured them."""
        return [at - self.submitted[name] for name, at in self.leased.items()]

    def is_over(self, name: str) -> bool:
        """Return whether the job with this name was served or has failed."""
        return name in self.released or name in self.failed


class Holders:
    """Plays the jobs of a stretch (consecutive jobs of a workload log) through a client, in the role of the holders of
    their leases. The caller calls `step` repeatedly, and each step does the actions that are due.

    A job is busy from the confirmation of its lease until its release is answered. After an error the job is no longer
    busy, so the next step starts again from the job's row in the view. The threads that send requests only set, remove
    and append single elements of lists and dicts, which the interpreter does atomically.
    """

    def __init__(self, client: Client, stretch: Stretch) -> None:
        self._client, self._stretch = client, stretch
        self._jobs = {f"job-{job.number}": job for job in stretch.jobs}
        self._unsent = sorted(self._jobs, key=lambda name: self._jobs[name].submit_seconds, reverse=True)
        self._due: dict[str, tuple[float, int]] = {}
        self._busy: set[str] = set()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="holder")
        self._started = monotonic()
        self.progress = Progress()

    @property
    def now(self) -> float:
        """Seconds since the demo began to play the jobs."""
        return monotonic() - self._started

    @property
    def is_done(self) -> bool:
        return all(self.progress.is_over(name) for name in self._jobs)

    def close(self) -> None:
        """Wait for the requests that were already sent. Requests that still wait for a free thread are dropped."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def step(self) -> None:
        """Do the actions of the demo that are due now: submit jobs, confirm new leases, and release the leases of jobs
        that have run long enough.
        """
        now, due = self.now, []
        while self._unsent and now >= self._stretch.submit_after(self._jobs[self._unsent[-1]]):
            due.append(self._unsent.pop())
            self.progress.submitted.setdefault(due[-1], now)
        if due:
            self._pool.submit(self._send, due)
        for row in self._client.list():
            if row.id in self._jobs and row.id not in self._busy and not self.progress.is_over(row.id):
                self._look_at(row)
        now = self.now
        for name in [name for name, (at, _) in list(self._due.items()) if now >= at]:
            _, token = self._due.pop(name)
            self._pool.submit(self._guarded, name, partial(self._release, name, token))

    def _send(self, names: list[str]) -> None:
        try:
            answers = self._client.reserve_many(map(self._describe, names))
        except LeaseholdError as error:
            self.progress.errors.append(f"{names[0]} and later jobs were not submitted: {error}")
            # The next step sends these jobs again. A repeated id does not make a second reservation.
            self._unsent += reversed(names)
            return
        for name, answer in zip(names, answers, strict=True):
            if not answer.ok:
                self._give_up(name, "; ".join(map(str, answer.errors)))

    def _describe(self, name: str) -> ReservationFields:
        job: Job = self._jobs[name]
        return {
            "id": name,
            "system": "x86_64-linux",
            "resources": {"cpus": job.processors},
            "account": f"user-{job.user}",
            "tags": {"job": str(job.number)},
        }

    def _look_at(self, row: Reservation) -> None:
        """React to a job's reservation as the view shows it: confirm a new lease, or record an end that no answer
        reported.
        """
        now = self.now
        if row.phase in {"leased", "revoking"}:
            self.progress.leased.setdefault(row.id, now)
            self.progress.slots[row.id] = row.leases[0].slot
            self._busy.add(row.id)
            until = now + self._stretch.run_for(self._jobs[row.id])
            self._pool.submit(self._guarded, row.id, partial(self._take_up, row, until))
        elif row.phase == "released":
            # The release was committed, but its answer was lost.
            self.progress.released[row.id] = now
        elif row.phase in ENDED:
            self._give_up(row.id, f"{row.phase}: {row.reason}")

    def _take_up(self, row: Reservation, until: float) -> None:
        """Confirm the lease of a job by a renewal. The release of the lease becomes due at `until`, but only after the
        answer to the renewal, so that the release never overtakes the renewal.
        """
        self._client.renew(row.id, row.token)
        self._due[row.id] = (until, row.token)

    def _release(self, name: str, token: int) -> None:
        self._client.release(name, token)
        self.progress.released[name] = self.now

    def _give_up(self, name: str, reason: str) -> None:
        self.progress.failed[name] = reason
        self.progress.errors.append(f"{name}: {reason}")

    def _guarded(self, name: str, act: Callable[[], object]) -> None:
        """Run `act`, which sends a request for a job, and record its error. After an error the job is no longer busy,
        so the next step looks at the job's row again.
        """
        try:
            act()
        except LeaseholdError as error:
            self.progress.errors.append(f"a request for {name} failed: {error}")
            self._busy.discard(name)


LAUNCHING = frozenset({"RunInstances", "CreateFleet"})


@dataclass(frozen=True)
class Summary:
    """The figures of one demo. `differences`: the figures in which holders, database and emulator differ; `errors`: all
    errors of holders, including those of jobs that were served later.
    """

    jobs: int
    served: int
    speed: float
    seconds: float
    wait_p50: float
    wait_p95: float
    wait_max: float
    launches: int
    machines_by_type: dict[str, int]
    ec2_calls: dict[str, int]
    let_go: int
    left: int
    costs: CostSum
    """What the machines have cost, as the ledger has it."""
    differences: tuple[str, ...]
    errors: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """Whether all jobs were served, no machine is left, and holders, database and emulator agree."""
        return self.served == self.jobs and self.left == 0 and not self.differences


def summarise(
    progress: Progress, stretch: Stretch, store: Store, read_emulator: Callable[[str], dict[str, Any]], seconds: float
) -> Summary:
    """Return the figures of a demo that took `seconds`. `read_emulator` returns a page of the emulator's
    control API.
    """
    calls = read_emulator("calls")["calls"]
    instances = read_emulator("state")["instances"]
    events = Counter(event.name for event in _read_events(store))
    launched = sorted(
        {name for call in calls if call["action"] in LAUNCHING and call["code"] is None for name in call["instances"]}
    )
    alive = [each for each in instances if each.get("state") != "terminated"]
    phases = store.count_phases()
    compared = {
        "jobs served (holders, SQL)": (len(progress.released), phases["released"]),
        "machines launched (SQL, EC2)": (events["slot_booting"], len(launched)),
        "machines let go (SQL, EC2)": (events["slot_terminating"], len(launched) - len(alive)),
    }
    waits = progress.waits
    return Summary(
        jobs=len(stretch.jobs),
        served=len(progress.released),
        speed=stretch.speed,
        seconds=seconds,
        wait_p50=_quantile(waits, 50),
        wait_p95=_quantile(waits, 95),
        wait_max=max(waits, default=0.0),
        launches=len(launched),
        machines_by_type=dict(sorted(Counter(str(each.get("type") or "unknown") for each in instances).items())),
        ec2_calls=dict(sorted(Counter(call["action"] for call in calls).items())),
        let_go=len(launched) - len(alive),
        left=len(alive),
        costs=add_up(store.read_costs()),
        differences=tuple(f"{name}: {one} and {other}" for name, (one, other) in compared.items() if one != other),
        errors=tuple(progress.errors),
    )


def _quantile(values: Sequence[float], percent: int) -> float:
    if len(values) < 2:  # noqa: PLR2004 (two points make a quantile)
        return max(values, default=0.0)
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def _read_events(store: Store) -> Iterable[Any]:
    after = 0
    while events := store.read_events(EventFilter(after=after)):
        yield from events
        after = events[-1].number


COLOURS = {
    "empty": "bright_black",
    "launching": "yellow",
    "booting": "yellow",
    "binding": "bright_yellow",
    "ready": "green",
    "draining": "magenta",
    "terminating": "red",
    "error": "bright_red",
    "stopped": "blue",
}


def draw(
    stretch: Stretch, progress: Progress, slots: tuple[Slot, ...], queues: Mapping[str, int], now: float
) -> RenderableType:
    """Return a picture of the present moment: the progress of the jobs, the slots, and the lengths of the queues.
    `now`: seconds since the first job.
    """
    waiting, running = _count(progress)
    done, total = len(progress.released), len(stretch.jobs)
    jobs = Table.grid(padding=(0, 2))
    jobs.add_row("jobs", ProgressBar(total, done, width=40), f"{done} of {total} done")
    jobs.add_row("", f"[yellow]{waiting} waiting[/]  [green]{running} running[/]", f"{now:.0f} s")
    lengths = "  ".join(f"{name} {length}" for name, length in queues.items())
    held = Counter(progress.slots[name] for name in progress.leased if name not in progress.released)
    table = Table("slot", "state", "type", "instance", "leases", box=None, header_style="bold")
    for slot in slots:
        colour = COLOURS.get(slot.state, "white")
        cells = (slot.instance_type or slot.offering or "", slot.instance_id or "", "■" * min(held[slot.id], 24))
        table.add_row(slot.id, Text(slot.state, style=colour), *cells)
    return Group(jobs, table, Text(f"queues: {lengths}", style="bright_black"))


def describe(progress: Progress, slots: tuple[Slot, ...], now: float) -> str:
    """Return the progress of the demo in one line, for output that is no terminal. `now`: seconds since the
    first job.
    """
    states = Counter(slot.state for slot in slots)
    machines = ", ".join(f"{count} {state}" for state, count in sorted(states.items()) if state != "empty")
    waiting, running = _count(progress)
    done = len(progress.released)
    return f"{now:5.1f} s  {waiting} waiting, {running} running, {done} done; slots: {machines or 'all empty'}"


def _count(progress: Progress) -> tuple[int, int]:
    return len(progress.submitted) - len(progress.leased), len(progress.leased) - len(progress.released)


def tabulate(summary: Summary) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2))
    calls = ", ".join(f"{count} {action}" for action, count in summary.ec2_calls.items())
    types = ", ".join(f"{count} {name}" for name, count in summary.machines_by_type.items())
    uses = {kind: seconds for kind, seconds in summary.costs.seconds_by_kind.items() if seconds}
    shares = ", ".join(f"{kind} {seconds / summary.costs.seconds:.0%}" for kind, seconds in uses.items())
    rows = {
        "jobs served": f"{summary.served} of {summary.jobs}",
        "played in": f"{summary.seconds:.1f} s, {summary.speed:.0f} times as fast as the log",
        "wait for a lease": (
            f"p50 {summary.wait_p50:.2f} s, p95 {summary.wait_p95:.2f} s, longest {summary.wait_max:.2f} s"
        ),
        "machines launched": f"{summary.launches} ({types})" if types else f"{summary.launches}",
        "machines let go": f"{summary.let_go}, {summary.left} left",
        "costs": (
            f"${summary.costs.dollars:.4f} for {summary.costs.seconds:.0f} s of machines"
            + (f" ({shares})" if shares else "")
        ),
        "EC2 calls": calls,
        "holders, SQL and EC2": "agree" if not summary.differences else "; ".join(summary.differences),
    }
    if summary.errors:
        rows["errors of holders"] = "; ".join(summary.errors)
    for name, value in rows.items():
        table.add_row(name, escape(value))
    return table


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
