"""Commands on leases (`run` of a reservation): the state of a command, which the row of its reservation has, and the
executions, one for each lease on which a host runs the command.

The command itself (arguments, environment) is stored apart from the row, because every client may read the row.
"""

from signal import Signals
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec

Why = Literal["exited", "signal", "not_started", "out_of_memory", "revoked", "fenced", "limit", "lost"]
"""How the run of a command ended.

`exited`: by itself, with an exit code. `signal`: by a signal that the host did not send. `not_started`: the host could
not start it. `out_of_memory`: the kernel ended it. `revoked`: the host ended it because its lease has to be given back.
`fenced`: the host ended it because it lost the contact to the scheduler. `limit`: the host ended it after its
`max_runtime`. `lost`: the host lost sight of it.
"""
WHYS: Final[tuple[Why, ...]] = get_args(Why)
CommandState = Literal["waiting", "running", "ended"]


class RunState(msgspec.Struct, frozen=True, gc=False):
    """The state of the command of a reservation. Of several instances: the outcome of the first one that failed, else
    of the first one that ended.
    """

    state: CommandState = "waiting"
    exit_code: int | None = None
    signal: int | None = None
    why: Why | None = None
    """How the command ended; None: it has not, or its host has not reported yet."""


WAITING: Final = RunState()


class Outcome(NamedTuple):
    """How the run of a command on one lease ended. `signal`: the number of the signal."""

    why: Why
    exit_code: int | None = None
    signal: int | None = None


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """The run of a command on one lease. A host that takes the command makes it; no other host can take it then."""

    reservation: str
    token: int
    component: str
    slot: str
    machine: str
    run: str
    """The run of the host's agent that took the command."""
    state: Literal["taken", "started", "ended"] = "taken"
    taken_at: float
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    why: Why | None = None
    error: str | None = None
    """One line about why the command did not start, or was lost."""
    tail: str = ""
    """The end of the output."""
    bytes: int = 0
    """How much output there has been in all."""

    @property
    def key(self) -> tuple[str, int, str]:
        """The lease on which the command runs."""
        return self.reservation, self.token, self.component


class StoredCommand(msgspec.Struct, frozen=True):
    """The command of a reservation as JSON text (a `RunDocument`)."""

    reservation: str
    document: str


def is_success(outcome: Outcome, on_exit: str) -> bool:
    """Return whether an instance of a command has done its work. With `on_exit` release each exit code counts."""
    return outcome.why == "exited" and (outcome.exit_code == 0 or on_exit == "release")


def describe_outcome(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome as the details of an event, without values that are None."""
    return {name: value for name, value in outcome._asdict().items() if value is not None}


def describe_end(why: str | None, exit_code: int | None, signal: int | None) -> str | None:
    """Return how a command ended as a sentence without a subject's name. None: it has not ended."""
    by = "" if signal is None else f" ({name_signal(signal)})"
    sentences = {
        "exited": f"its command exited with the code {exit_code}",
        "signal": f"a signal ended its command{by}",
        "not_started": "its host could not start its command",
        "out_of_memory": f"the kernel ended its command, because memory ran out{by}",
        "revoked": f"its host ended its command, because the lease had to be given back{by}",
        "fenced": f"its host ended its command, because it had no contact to the scheduler{by}",
        "limit": f"its host ended its command after its max_runtime{by}",
        "lost": "its host lost its command",
    }
    return None if why is None else sentences.get(why, f"its command ended: {why}")


def describe_run(run: RunState | None) -> str | None:
    """Return how the command of a reservation ended, as `describe_end` does. None: it has none, or it has not ended."""
    return None if run is None else describe_end(run.why, run.exit_code, run.signal)


def name_end(why: str | None, exit_code: int | None, signal: int | None) -> str | None:
    """Return how a command ended in few words, like `exit 3`, `SIGKILL` or `out of memory`. None: it has not ended."""
    if why == "exited":
        return f"exit {exit_code}"
    if why == "signal" and signal is not None:
        return name_signal(signal)
    return None if why is None else why.replace("_", " ")


def name_run(run: RunState) -> str:
    """Return the state of the command of a reservation in few words: how it ended, else its state."""
    return (name_end(run.why, run.exit_code, run.signal) if run.state == "ended" else None) or run.state


def name_signal(number: int) -> str:
    """Return the name of a signal, like SIGTERM; its number if this system has no name for it."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"
