"""`leasehold run`: a lease around a command, and every way in which both can end."""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leasehold.leased_command import VARIABLES, CommandGroup, Signals, Stopped
from testbed.guarding import Guarded
from testbed.processes import wait_for
from tests.builders import a_lease
from tests.cli.conftest import Run
from tests.cli.started import LEASEHOLD, Start, Started, leased, start
from tests.cli.test_plain_install import ABSENT, BLOCK
from tests.client.intake import Document, FakeIntake, a_row
from tests.client.test_lease import FakeReservation, in_vain
from workers.settings import Settings

SHOW = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('LEASEHOLD_')}))"
DEAF = "trap '' TERM; sleep 600 & echo $! $$; wait"
IN_VAIN = "never_fits: no slot has 64 cpus"
NOT_STARTED = "the command {} cannot be started"
BEFORE = "before the command was started"
"""A shell with a child, both of which ignore SIGTERM."""

__all__ = ["in_vain", "start"]


@pytest.fixture
def holder(stack: FakeIntake) -> FakeReservation:
    """Return a stand-in that leases `r1` at once."""
    return FakeReservation(stack)


@pytest.fixture
def hold(start: Start) -> Start:
    """Return a function that starts `leasehold run` for `r1` with these arguments."""
    return lambda *words, **more: start("run", "--id", "r1", "--system", "s", *words, **more)


@pytest.fixture
def run_held(run: Run) -> Run:
    """Return a function that runs `leasehold run` for `r1` with these arguments in this process to its end."""
    return lambda *words: run("run", "--id", "r1", "--system", "s", *words)


def is_gone(pid: int) -> bool:
    """Return whether this process has ended. It may remain as a zombie if its parent does not wait for it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def test_the_command_has_its_lease_in_its_environment_and_it_is_released(
    stack: FakeIntake, holder: FakeReservation, run_held: Run
) -> None:
    holder.fields["leases"] = (a_lease("linux-1", token=1, resources={"cpus": 2}),)
    found = run_held("--cpus", "2", "--", sys.executable, "-c", SHOW)
    assert (found.status, found.complaints) == (0, [])
    reported = json.loads(found.out)
    assert Path(reported.pop("LEASEHOLD_REVOKED_FILE")).name == "revoked"
    assert float(reported.pop("LEASEHOLD_DEADLINE")) > time.time()
    [placement] = json.loads(reported.pop("LEASEHOLD_PLACEMENTS"))
    assert placement == {
        "component": "main",
        "kind": "essential",
        "slot": "linux-1",
        "token": 1,
        "resources": {"cpus": 2},
        "cores": 2,
        "instance_id": "i-linux-1",
        "address": "10.0.0.1",
        "type": "m7g.large",
        "zone": "us-east-1a",
    }
    assert reported == {
        "LEASEHOLD_KEYS": os.environ["LEASEHOLD_KEYS"],
        "LEASEHOLD_BROKER__URL": stack.url,
        "LEASEHOLD_RESERVATION": "r1",
        "LEASEHOLD_TOKEN": "1",
        "LEASEHOLD_SLOT": "linux-1",
        "LEASEHOLD_ADDRESS": "10.0.0.1",
        "LEASEHOLD_INSTANCE_ID": "i-linux-1",
        "LEASEHOLD_TYPE": "m7g.large",
        "LEASEHOLD_ZONE": "us-east-1a",
        "LEASEHOLD_RESOURCES": '{"cpus": 2.0}',
    }
    assert (stack.seen[0][1]["ttl"], stack.verbs()[-1]) == (60, "release")


def test_a_plain_installation_runs_commands(holder: FakeReservation, tmp_path: Path) -> None:
    code = BLOCK.format(names=set(ABSENT)) + "from leasehold.cli import main; main()"
    words = ("run", "--id", "r1", "--system", "s", "--", "sh", "-c", "exit 7")
    found = Started(tmp_path, (sys.executable, "-c", code, *words))
    assert (found.await_status(), found.complaints()) == (7, [])
    assert holder.intake.verbs()[-1] == "release"


def test_no_variable_of_a_command_is_a_setting(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """The command may be `leasehold` itself, which refuses settings that it does not know."""
    assert {name.removeprefix("LEASEHOLD_").lower() for name in VARIABLES}.isdisjoint(Settings.model_fields)
    for name in VARIABLES:
        monkeypatch.setenv(name, "anything")
    assert run("config", "check").status == 0


@pytest.mark.parametrize(
    ("command", "status", "complaints"),
    [
        (("sh", "-c", "exit 7"), 7, []),
        (("sh", "-c", "kill -KILL $$"), 137, []),
        (("no-such-command",), 127, [f"leasehold: {NOT_STARTED.format('no-such-command')}: No such file or directory"]),
        (("/dev/null",), 126, [f"leasehold: {NOT_STARTED.format('/dev/null')}: Permission denied"]),
    ],
)
def test_the_status_is_that_of_the_command(
    command: tuple[str, ...],
    status: int,
    complaints: list[str],
    stack: FakeIntake,
    holder: FakeReservation,
    run_held: Run,
) -> None:
    found = run_held("--", *command)
    assert (found.status, found.complaints) == (status, complaints)
    assert stack.verbs()[-1] == "release"


def test_what_the_command_leaves_in_its_group_is_killed(holder: FakeReservation, run_held: Run) -> None:
    found = run_held("--", "sh", "-c", "trap '' TERM HUP; sleep 600 & echo $!")
    assert found.status == 0
    child = int(found.out)
    wait_for(lambda: is_gone(child), "the end of what was left")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "Missing argument '-- COMMAND'"),
        (("--cpus", "two", "--", "true"), "resources.cpus"),
        (("--file", "list.json", "--", "true"), "--file: expected"),
    ],
)
def test_bad_input_is_status_2_and_asks_for_nothing(
    words: tuple[str, ...], complaint: str, stack: FakeIntake, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "list.json").write_text("[]")
    asked = ("--system", "s") if "--file" not in words else ()
    found = run("run", *asked, *words)
    assert (found.status, len(found.complaints), stack.seen) == (2, 1, [])
    assert complaint in found.err


def test_a_refused_reservation_is_status_2(stack: FakeIntake, run: Run) -> None:
    fault = {"index": 0, "path": "system", "expected": "a system of some pool", "got": '"s"'}
    stack.handler = lambda _verb, _document: {"ok": False, "errors": [fault]}
    found = run("run", "--system", "s", "--", "true")
    assert (found.status, found.complaints) == (2, ['leasehold: system: expected a system of some pool, got "s"'])


def test_a_reservation_that_is_not_leased_in_time_is_cancelled(
    stack: FakeIntake, run_held: Run, tmp_path: Path
) -> None:
    stack.publish(a_row("r1"))
    found = run_held("--wait", "0.3", "--", "touch", str(tmp_path / "ran"))
    assert found.status == 124
    assert [line.partition(" after ")[0] for line in found.complaints] == ["leasehold: r1 is still pending"]
    assert found.complaints[0].endswith(": r1 is cancelled")
    assert stack.verbs()[-1] == "cancel"
    assert not (tmp_path / "ran").exists()


@pytest.mark.usefixtures("in_vain")
@pytest.mark.parametrize(
    ("words", "status", "complaint"),
    [
        ((), 1, f"r1 cannot be served: {IN_VAIN}; r1 is cancelled (--wait-anyway keeps it)"),
        (("--wait-anyway", "--wait", "1"), 124, f" s: {IN_VAIN}; the wait for the lease is over: r1 is cancelled"),
    ],
)
def test_a_reservation_that_cannot_be_served_runs_no_command(
    words: tuple[str, ...], status: int, complaint: str, stack: FakeIntake, run: Run, tmp_path: Path
) -> None:
    found = run("run", "--id", "r1", "--system", "s", *words, "--", "touch", str(tmp_path / "ran"))
    assert (found.status, len(found.complaints)) == (status, 1)
    assert found.complaints[0].endswith(complaint)
    assert stack.verbs()[-1] == "cancel"
    assert not (tmp_path / "ran").exists()


def test_an_ended_reservation_runs_no_command(stack: FakeIntake, run_held: Run, tmp_path: Path) -> None:
    stack.publish(a_row("r1", phase="expired", reason="ttl"))
    found = run_held("--", "touch", str(tmp_path / "ran"))
    assert (found.status, found.complaints) == (1, ["leasehold: r1 is expired: ttl"])
    assert not (tmp_path / "ran").exists()


def test_a_leased_reservation_is_not_held_twice(stack: FakeIntake, run_held: Run) -> None:
    stack.publish(leased())
    found = run_held("--", "true")
    complaint = "leasehold: --id: expected a reservation that is not leased yet, got r1, which is leased"
    assert (found.status, found.complaints, stack.seen) == (1, [complaint], [])


def test_a_revoke_is_passed_on_with_its_reason(holder: FakeReservation, hold: Start) -> None:
    """The reason is on standard error, and in a file that exists only then. The command may end in any way."""
    trap = 'cat "$LEASEHOLD_REVOKED_FILE"; exit 5'
    script = f"trap '{trap}' TERM; ls $LEASEHOLD_REVOKED_FILE 2>&1 | wc -c; while :; do sleep 0.05; done"
    found = hold("--", "sh", "-c", script)
    found.await_output()
    deadline = time.time() + 30
    holder.publish("r1", phase="revoking", revoke_by=deadline, revoke_reason="preempted")
    assert found.await_status() == 5
    assert found.read().splitlines()[1:] == ["preempted", f"{deadline:.3f}"]
    [line] = found.complaints()
    assert line.startswith("leasehold: r1 is being revoked: preempted; the command gets SIGTERM, and is killed in ")
    assert holder.intake.verbs()[-1] == "release"


def test_at_the_deadline_the_whole_group_is_killed(holder: FakeReservation, hold: Start) -> None:
    found = hold("--", "sh", "-c", DEAF)
    pids = [int(word) for word in found.await_output().split()]
    holder.publish("r1", phase="revoking", revoke_by=time.time() + 0.5, revoke_reason="preempted")
    assert found.await_status() == 125
    wait_for(lambda: all(map(is_gone, pids)), "the end of the group")
    assert found.complaints()[1:] == [
        "leasehold: r1 is lost: it was not given back in time (preempted); the command is killed"
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        # The reservation was requeued.
        ({"phase": "pending", "leases": (), "reason": "slot_lost"}, "it is pending: slot_lost"),
        ({"phase": "cancelled", "leases": (), "reason": "not needed"}, "it is cancelled: not needed"),
    ],
)
def test_the_group_of_a_lost_lease_is_killed_at_once(
    changes: Document, reason: str, holder: FakeReservation, hold: Start
) -> None:
    found = hold("--", "sh", "-c", DEAF)
    pids = [int(word) for word in found.await_output().split()]
    holder.publish("r1", **changes)
    assert found.await_status() == 125
    wait_for(lambda: all(map(is_gone, pids)), "the end of the group")
    assert found.complaints() == [f"leasehold: r1 is lost: {reason}; the command is killed"]


def test_a_lease_that_cannot_be_renewed_is_lost(holder: FakeReservation, hold: Start) -> None:
    holder.ttl = 0.5
    found = hold("--ttl", "1", "--", "sh", "-c", DEAF)
    found.await_output()
    assert holder.intake.seen[0][1]["ttl"] == 1
    holder.is_deaf = True
    assert found.await_status() == 125
    [line] = found.complaints()
    assert line == "leasehold: r1 is lost: it could not be renewed in time; the command is killed"


@pytest.mark.parametrize(
    ("number", "status", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "stopped by SIGTERM")]
)
def test_a_signal_while_it_waits_cancels_the_reservation(
    number: signal.Signals, status: int, word: str, stack: FakeIntake, hold: Start, tmp_path: Path
) -> None:
    stack.publish(a_row("r1"))
    found = hold("--", "touch", str(tmp_path / "ran"))
    wait_for(lambda: stack.count_listeners("r1"), "the wait")
    found.process.send_signal(number)
    assert (found.await_status(), found.complaints()) == (status, [f"leasehold: {word} {BEFORE}: r1 is cancelled"])
    assert "cancel" in stack.verbs()
    assert not (tmp_path / "ran").exists()


def test_a_signal_that_a_library_dropped_while_it_waited_starts_no_command() -> None:
    with Signals(CommandGroup()) as signals:
        with contextlib.suppress(Stopped):
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Stopped, match="SIGTERM"):
            signals.pass_on()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_while_it_runs_go_to_the_command_each_time(
    number: signal.Signals, holder: FakeReservation, hold: Start
) -> None:
    word = number.name.removeprefix("SIG")
    script = (
        f"n=0; trap 'n=$((n+1)); echo caught $n; [ $n = 2 ] && exit 9' {word}; echo ready; while :; do sleep 0.05; done"
    )
    found = hold("--", "sh", "-c", script)
    found.await_output()
    for count in (1, 2):
        found.process.send_signal(number)
        found.await_text(f"caught {count}")
    assert (found.await_status(), found.complaints()) == (9, [])
    assert holder.intake.verbs()[-1] == "release"


@pytest.mark.parametrize("name", ["HUP", "INT"])
def test_an_ignored_signal_stays_ignored_by_the_command(name: str, holder: FakeReservation, hold: Start) -> None:
    """As under nohup and in the background of a script."""
    ignoring = ("sh", "-c", f"trap '' {name}; exec \"$@\"", "sh")
    found = hold("--", "sh", "-c", f"kill -{name} $$; echo alive", before=ignoring)
    assert (found.await_status(), found.read()) == (0, "alive\n")


class Typist:
    """A command on a terminal of its own, started as by an interactive shell."""

    def __init__(self, folder: Path, words: tuple[str, ...]) -> None:
        self._master, slave = os.openpty()
        # A session leader without a terminal gets the first terminal that it opens.
        script = 'exec "$@" <"$0" >"$0" 2>&1'
        command = ["sh", "-c", script, os.ttyname(slave), *words]
        self.shown = ""
        self.process = Guarded(command, cwd=folder)
        self._slave = slave
        os.set_blocking(self._master, False)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def await_shown(self, text: str) -> None:
        wait_for(lambda: text in self._read(), f"{text!r} on the terminal")

    def _read(self) -> str:
        with contextlib.suppress(BlockingIOError):
            self.shown += os.read(self._master, 65536).decode()
        return self.shown

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)


@pytest.fixture
def typist(tmp_path: Path) -> Iterator[Callable[..., Typist]]:
    found: list[Typist] = []

    def begin(*words: str) -> Typist:
        found.append(Typist(tmp_path, words))
        return found[-1]

    yield begin
    for each in found:
        each.close()


@pytest.mark.parametrize(
    "before",
    [
        # Started by an interactive shell: the command has the terminal from the start.
        (),
        # Started by a script: the command gets the terminal when it reads from it.
        ("sh", "-c", '"$@"; exit $?', "sh"),
    ],
)
def test_the_command_reads_the_terminal_and_gets_its_ctrl_c(
    before: tuple[str, ...], holder: FakeReservation, typist: Callable[..., Typist]
) -> None:
    script = "read line; echo got $line; trap 'echo caught; exit 4' INT; echo ready; while :; do sleep 0.05; done"
    found = typist(*before, *LEASEHOLD, "run", "--id", "r1", "--system", "s", "--", "sh", "-c", script)
    found.type("hello\n")
    found.await_shown("got hello")
    found.await_shown("ready")
    found.type("\x03")
    found.await_shown("caught")
    assert found.process.wait(40) == 4


def test_ctrl_z_stops_both_and_fg_continues_both(holder: FakeReservation, typist: Callable[..., Typist]) -> None:
    shell = typist("sh", "-i", "-m")
    script = "echo ready | tr a-z A-Z; read line; echo got $line | tr a-z A-Z"
    shell.type(f"{' '.join(LEASEHOLD)} run --id r1 --system s -- sh -c '{script}'; echo it was $?\n")
    shell.await_shown("READY")
    shell.type("\x1a")
    shell.await_shown("Stopped")
    shell.type("fg\nhello\n")
    shell.await_shown("GOT HELLO")
    # After a stopped command dash continues with the line, bash does not.
    shell.type("echo the last was $?\n")
    shell.await_shown("the last was 0")
    assert holder.intake.verbs()[-1] == "release"


def test_a_terminal_shows_why_it_waits(stack: FakeIntake, typist: Callable[..., Typist]) -> None:
    stack.publish(a_row("r1"))
    found = typist(*LEASEHOLD, "run", "--id", "r1", "--system", "s", "--", "true")
    found.await_shown("r1 is pending: no tick has looked at it yet")
    found.type("\x03")
    found.await_shown(f"leasehold: interrupted {BEFORE}: r1 is cancelled")
    assert found.process.wait(40) == 130
