"""The demo of commands on leases: 30 commands and a gang run on machines that come and go, and one machine is
interrupted. The emulator plays the machines as processes of this one, with agents that run the commands.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from leasehold.client.client import Client
from leasehold.client.models import Command
from leasehold.client.reservation_fields import Run
from leasehold.demo.run import DemoError
from leasehold.stack import Stack

RULES: Final[dict[str, Any]] = {
    "pools": {
        "machines": {
            "system": "demo",
            "agent": True,
            "max_slots": 4,
            "resources": {"cpus": 2},
            "offline_timeout": 30,
            "idle_scale_down": 5,
            "lease_ttl": 60,
            "ec2": {"image": "ami-12345678"},
            "offerings": [{"name": "m5.large", "type": "m5.large", "market": "spot", "resources": {"cpus": 2}}],
        }
    }
}
EMULATOR: Final = {"boot_seconds": 1.0}
NOTICE_SECONDS: Final = 15.0
"""Seconds from the notice of the interruption to the end of the machine."""
ENVIRONMENT: Final = {"LEASEHOLD_SWEEP_INTERVAL": "1", "LEASEHOLD_TICKS__INTERVAL": "2"}
LONGEST_SECONDS: Final = 300.0
POLL_SECONDS: Final = 0.3
LINE_SECONDS: Final = 2.0
GANG: Final = "gang"
LONG: Final = "long"
"""The command whose machine is interrupted."""
MOST_SHOWN: Final = 29
"""Characters of a command's last line that are shown."""
_ENDED: Final = frozenset({"released", "cancelled", "expired", "failed"})


@dataclass(frozen=True)
class Fate:
    """What became of one command."""

    name: str
    phase: str
    outcome: str
    runs: int
    slots: tuple[str, ...]
    last_line: str
    is_expected: bool


class _Wanted(NamedTuple):
    """One command of the demo: fields of its reservation, the command, and how it has to end."""

    run: Run
    fields: Mapping[str, Any] = {}
    why: str = "exited"
    exit_code: int | None = 0


def make_commands() -> dict[str, _Wanted]:
    """Return name -> command, for all commands of the demo."""
    work = {
        f"work-{number:02}": _Wanted(_shell(f"sleep 0.{number % 10}; echo work {number} is done on $LEASEHOLD_SLOT"))
        for number in range(1, 27)
    }
    parts = [{"name": "node", "count": 3, "resources": {"cpus": 2}}]
    gang = _shell('echo "$LEASEHOLD_COMPONENT knows $LEASEHOLD_PEERS"; sleep 1')
    return work | {
        "fails": _Wanted(_shell("echo this one fails >&2; exit 3"), exit_code=3),
        "missing": _Wanted({"argv": ["/no/such/program"]}, why="not_started", exit_code=None),
        "variable": _Wanted({**_shell("echo $GREETING"), "env": {"GREETING": "hello"}}),
        LONG: _Wanted(_shell("echo begins on $LEASEHOLD_SLOT; sleep 8; echo done"), {"priority": 2}),
        GANG: _Wanted(gang, {"components": parts}),
    }


def _shell(script: str) -> Run:
    return {"argv": ["sh", "-c", script]}


def run_demo(console: Console) -> list[Fate]:
    """Run the commands on a new stack, and return what became of each. The folder of the stack is removed at the end.

    Raises StackError if the stack does not start, and DemoError if a command has not ended in time.
    """
    with TemporaryDirectory(prefix="leasehold-demo-", ignore_cleanup_errors=True) as folder:
        stack = Stack(Path(folder), rules=RULES, environment=ENVIRONMENT, emulator=EMULATOR)
        console.print("Starting the stack, whose machines are processes of this one …")
        with stack, stack.client() as client:
            fates = _play(stack, client, console)
        console.print("Everything is stopped.")
    return fates


def _play(stack: Stack, client: Client, console: Console) -> list[Fate]:
    commands = make_commands()
    for name, wanted in commands.items():
        size = {} if "components" in wanted.fields else {"resources": {"cpus": 1}}
        client.submit({"id": name, "system": "demo", **size, **wanted.fields}, run=wanted.run)
    console.print(f"{len(commands)} commands are submitted, one of them a gang of three.")
    is_interrupted, printed_at = False, 0.0
    end = time.monotonic() + LONGEST_SECONDS
    while True:
        rows = {name: client.get(name) for name in commands}
        left = [name for name, row in rows.items() if row is None or row.phase not in _ENDED]
        if not is_interrupted:
            is_interrupted = _interrupt(stack, client, console)
        if not left:
            break
        if time.monotonic() > end:
            raise DemoError(f"not ended after {LONGEST_SECONDS:.0f} s: {', '.join(left)}")
        if time.monotonic() - printed_at > LINE_SECONDS:
            printed_at = time.monotonic()
            machines = sum(slot.state != "empty" for slot in client.slots())
            console.print(f"ended: {len(commands) - len(left)}   left: {len(left)}   machines: {machines}")
        time.sleep(POLL_SECONDS)
    return [_describe(client.command(name), wanted) for name, wanted in commands.items()]


def _interrupt(stack: Stack, client: Client, console: Console) -> bool:
    """Let EC2 take back the machine on which the long command runs. Return whether it runs."""
    found = client.command(LONG)
    if found.state != "running" or found.last is None:
        return False
    slot = next(each for each in client.slots() if each.id == found.last.slot)
    stack.read_emulator("interrupt", {"instances": [slot.instance_id], "deadline": NOTICE_SECONDS})
    console.print(f"EC2 takes the machine of {slot.id} back, on which `{LONG}` runs.")
    return True


def _describe(found: Command, wanted: _Wanted) -> Fate:
    runs = found.executions
    lines = runs[-1].tail.strip().splitlines() if runs else []
    code = f"exit code {found.exit_code}"
    return Fate(
        name=found.reservation,
        phase=found.phase,
        outcome=code if found.why == "exited" else (found.why or found.state).replace("_", " "),
        runs=len(runs),
        slots=tuple(dict.fromkeys(each.slot for each in runs)),
        last_line=lines[-1] if lines else "",
        is_expected=(found.why, found.exit_code) == (wanted.why, wanted.exit_code),
    )


def report(fates: Sequence[Fate], console: Console, *, as_json: bool = False) -> None:
    """Print what became of each command, for people or as one JSON list."""
    if as_json:
        sys.stdout.write(json.dumps([asdict(each) for each in fates]) + "\n")
        return
    table = Table(box=None, pad_edge=False)
    for name in ("command", "ended", "outcome", "runs"):
        table.add_column(name, no_wrap=True)
    # In a narrow window the slots of a gang stand below each other, and output is cut.
    table.add_column("slots", min_width=10)
    table.add_column("last line of its output", no_wrap=True, overflow="ellipsis", max_width=MOST_SHOWN)
    for each in fates:
        mark = "" if each.is_expected else "[red]unexpected: [/]"
        line = Text(each.last_line)  # output is no markup
        table.add_row(each.name, each.phase, mark + each.outcome, str(each.runs), "\n".join(each.slots), line)
    console.print(table)
    good = sum(each.is_expected for each in fates)
    console.print(f"{good} of {len(fates)} commands ended as expected.")
