"""What the page of a reservation shows of its command: the sentence of its state, its runs and their outputs."""

import hashlib
import shlex
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from leasehold.client.models import Command, Execution
from scheduler.model.runs import RunState, describe_run

MOST_RUNS: Final = 20
MOST_OUTPUTS: Final = 4
"""The most outputs that the page shows. Each may have 8 KiB."""


@dataclass(frozen=True)
class CommandCard:
    """The command of a reservation as the page shows it. `line`: its arguments as a line for a shell. `facts`: names
    and texts of its other fields. `runs`: the newest runs first; `older`: how many more there are. `outputs`: the last
    run of each component that has output, failed ones first; `quiet`: how many more there are. `tag` changes when any
    of this does.
    """

    line: str
    facts: dict[str, str]
    runs: tuple[Execution, ...]
    older: int
    outputs: tuple[Execution, ...]
    quiet: int
    tag: str


def make_card(found: Command, run: RunState) -> CommandCard:
    """Return the command as the page shows it. `run`: the state of the command in the row, which may be older."""
    runs = found.executions[::-1]
    # The runs are in their order, so the last one of a component replaces the ones before.
    outputs = [each for each in {each.component: each for each in found.executions}.values() if each.tail]
    outputs.sort(key=lambda each: not has_failed(each))
    return CommandCard(
        line=shlex.join(map(str, found.run.get("argv", ()))),
        facts=_list_facts(found.run),
        runs=runs[:MOST_RUNS],
        older=max(0, len(runs) - MOST_RUNS),
        outputs=tuple(outputs[:MOST_OUTPUTS]),
        quiet=max(0, len(outputs) - MOST_OUTPUTS),
        tag=hashlib.blake2s(msgspec.json.encode((found, run)), digest_size=8).hexdigest(),
    )


def has_failed(run: Execution) -> bool:
    """Return whether a run has ended otherwise than with the exit code 0."""
    return run.state == "ended" and (run.why, run.exit_code) != ("exited", 0)


def _list_facts(run: dict[str, Any]) -> dict[str, str]:
    facts = {
        "Image": run.get("image"),
        "Working directory": run.get("cwd"),
        "User": run.get("user"),
        "Released by": "any exit code" if run.get("on_exit") == "release" else None,
        "Environment (values are hidden)": ", ".join(run.get("env") or ()),
    }
    return {name: str(value) for name, value in facts.items() if value}


def describe_command_state(run: RunState) -> str:
    """Return the state of a command as a sentence."""
    if run.state == "waiting":
        return "No host has started it."
    if run.state == "running":
        return "It runs."
    text = describe_run(run) or "it has ended, and no host has reported how"
    return f"{text[0].upper()}{text[1:]}."
