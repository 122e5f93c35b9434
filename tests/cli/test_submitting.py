"""`leasehold submit -- COMMAND` and the output of commands: what is sent, what is printed, and the exit status."""

import json
from typing import Any

import pytest

from leasehold.cli import submitting
from leasehold.cli.submitting import OutputPrinter
from leasehold.client.models import Command, Execution
from leasehold.errors import Unavailable
from tests.cli.conftest import Run
from tests.client.intake import Document, FakeIntake, a_row, accept


class FakeCommand:
    """The reservation `r1` at the fake stack. Each question `command` gets the next of these states."""

    def __init__(self, stack: FakeIntake, *states: Document) -> None:
        self.states = list(states)
        self.submitted: Document = {}
        self._stack = stack
        stack.handler = self.handle

    def handle(self, verb: str, document: Document) -> Document | None:
        if verb in {"submit", "rerun"}:
            self.submitted = document
            self._stack.publish(a_row(document["id"]))
            return accept(verb, document)
        if verb == "command":
            state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
            if state.get("phase") == "failed":
                self._stack.publish(a_row(document["reservation"], version=9, phase="failed"))
            return {"ok": True, "reservation": document["reservation"], "phase": "leased", **state}
        return accept(verb, document)


def a_run(tail: str = "", **fields: Any) -> Document:
    size = len(tail.encode())
    return {"component": "main", "slot": "lab-1", "token": 1, "state": "started", "tail": tail, "bytes": size} | fields


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitting, "POLL_SECONDS", 0.01)


def test_the_command_is_sent_and_the_id_is_printed(stack: FakeIntake, run: Run) -> None:
    fake = FakeCommand(stack, {})
    words = ("--pool", "lab", "--id", "r1", "--env", "CI=1", "--cwd", "/srv", "--user", "build", "--on-exit", "release")
    found = run("submit", *words, "--grace", "5", "--", "sh", "-c", "echo --wait")
    assert (found.status, found.err) == (0, "")
    assert found.out.startswith("r1 pending")
    assert fake.submitted["run"] == {
        "argv": ["sh", "-c", "echo --wait"],
        "env": {"CI": "1"},
        "cwd": "/srv",
        "user": "build",
        "grace": 5,
        "on_exit": "release",
    }
    assert "command" not in stack.verbs()
    assert json.loads(run("submit", "--pool", "lab", "--id", "r1", "--json", "--", "true").out)["id"] == "r1"


def test_a_command_is_submitted_again(stack: FakeIntake, run: Run) -> None:
    fake = FakeCommand(stack, {"why": "exited", "exit_code": 3, "phase": "failed", "executions": [a_run("once more")]})
    found = run("rerun", "r1", "--id", "r2")
    assert (found.status, found.err) == (0, "")
    assert found.out.startswith("r2 pending")
    assert (fake.submitted["reservation"], fake.submitted["id"]) == ("r1", "r2")
    found = run("rerun", "r1", "--id", "r3", "--wait")
    assert (found.status, found.out) == (3, "once more\n")
    assert "r3 is submitted" in found.err


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ({"why": "exited", "exit_code": 3, "phase": "failed"}, 3),
        ({"why": "exited", "exit_code": 0, "phase": "released"}, 0),
        ({"why": "signal", "signal": 11, "phase": "failed"}, 139),
        ({"why": "out_of_memory", "signal": 9, "phase": "failed"}, 137),
        ({"why": "not_started", "phase": "failed"}, 126),
        ({"phase": "cancelled"}, 125),
        ({"why": "limit", "signal": 15, "phase": "expired"}, 125),
    ],
)
def test_with_wait_its_output_is_printed_and_its_exit_code_returned(
    stack: FakeIntake, run: Run, ending: Document, status: int
) -> None:
    fake = FakeCommand(
        stack,
        {"phase": "pending"},
        {"executions": [a_run("one\n")]},
        {"executions": [a_run("one\ntwo\n")]},
        {"executions": [a_run("one\ntwo\n", state="ended")], "state": "ended", **ending},
    )
    found = run("submit", "--pool", "lab", "--id", "r1", "--wait", "--", "job")
    assert (found.status, found.out) == (status, "one\ntwo\n")
    assert len(fake.states) == 1


def test_it_goes_on_while_the_command_is_run_again(stack: FakeIntake, run: Run) -> None:
    FakeCommand(
        stack,
        {"executions": [a_run("first\n", state="ended")], "phase": "pending"},
        {"executions": [a_run("first\n", state="ended"), a_run("second\n", token=2)]},
        {
            "executions": [a_run("first\n", state="ended"), a_run("second\n", token=2, state="ended")],
            "phase": "released",
            "why": "exited",
            "exit_code": 0,
        },
    )
    found = run("submit", "--pool", "lab", "--id", "r1", "--wait", "--", "job")
    assert (found.status, found.out) == (0, "first\nsecond\n")


def test_logs_print_the_output_of_a_reservation(stack: FakeIntake, run: Run) -> None:
    fake = FakeCommand(stack, {"executions": [a_run("one\n")]}, {"executions": [a_run("one\ntwo\n")]})
    assert run("logs", "--reservation", "r1").out == "one\n"
    fake.states = [
        {"executions": [a_run("one\n")]},
        {"executions": [a_run("one\ntwo\n", state="ended", why="exited", exit_code=0)], "phase": "released"},
    ]
    followed = run("logs", "--reservation", "r1", "--follow")
    assert (followed.status, followed.out) == (0, "one\ntwo\n")
    assert "exited with the code 0" in followed.err
    assert run("logs", "ticks", "--reservation", "r1").status == 2


def test_without_an_answer_a_wait_goes_on_and_a_look_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = Command(reservation="r1", phase="released", executions=(), why="exited", exit_code=0)
    answers: list[Command | Exception] = [Unavailable("Redis"), Unavailable("Redis"), Unavailable("Redis"), ended]

    class Silent:
        def command(self, _name: str) -> Command:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    client: Any = Silent()
    with pytest.raises(Unavailable):
        submitting.follow(client, "r1", goes_on=False)
    assert submitting.follow(client, "r1", goes_on=True) is ended
    assert capsys.readouterr().err.count("r1 is asked for until an answer comes") == 1


def test_a_refusal_is_printed(stack: FakeIntake, run: Run) -> None:
    fault = {"index": 0, "path": "run", "expected": "a principal with the right run", "got": "an unsigned request"}
    stack.handler = lambda _verb, _document: {"ok": False, "errors": [fault]}
    found = run("submit", "--pool", "lab", "--", "job")
    assert found.status != 0
    assert "run: expected a principal with the right run" in found.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--env", "NAME"), "expected name=value"),
        (("--env", "LEASEHOLD_X=1"), "run.env"),
        (("--cwd", "here"), "run.cwd"),
        (("--on-exit", "ignore"), "fail, release"),
    ],
)
def test_wrong_options_send_nothing(stack: FakeIntake, run: Run, words: tuple[str, ...], text: str) -> None:
    found = run("submit", "--pool", "lab", *words, "--", "job")
    assert found.status == 2
    assert text in found.err
    assert stack.seen == []


def test_output_that_is_no_longer_kept_is_counted_and_control_characters_are_shown() -> None:
    lines: list[str] = []
    printer = OutputPrinter(lines.append)

    def show(*runs: Execution) -> None:
        printer.print_new(Command(reservation="r1", phase="leased", executions=runs))

    show(Execution(component="main", slot="s", token=1, tail="b\n", bytes=10))
    assert lines == ["[8 bytes before are not kept]", "b"]
    show(Execution(component="main", slot="s", token=1, tail="b\n\x1b[31m\n", bytes=16))
    assert lines[2:] == ["\\x1b[31m"]
    lines.clear()
    two = [Execution(component=name, slot="s", token=2, tail=f"of {name}\n", bytes=7) for name in ("w.0", "w.1")]
    show(*two)
    assert lines == ["w.0: of w.0", "w.1: of w.1"]


def test_a_line_is_printed_when_it_is_finished_or_nothing_follows() -> None:
    lines: list[str] = []
    printer = OutputPrinter(lines.append)

    def show(tail: str, state: str = "started", *, is_last: bool = False) -> list[str]:
        lines.clear()
        run = Execution(component="main", slot="s", token=1, state=state, tail=tail, bytes=len(tail.encode()))
        printer.print_new(Command(reservation="r1", phase="leased", executions=(run,)), is_last=is_last)
        return lines

    assert show("one\ncaf?") == ["one"]
    assert show("one\ncafé\n") == ["café"]
    assert show("one\ncafé\ntwo") == []
    assert show("one\ncafé\ntwo", is_last=True) == ["two"]
    assert show("one\ncafé\ntwo, three", "ended") == [", three"]
    assert show("one\ncafé\ntwo, three", "ended", is_last=True) == []


def test_a_long_line_is_printed_before_its_end_is_out_of_reach() -> None:
    lines: list[str] = []
    run = Execution(component="main", slot="s", token=1, state="started", tail="x" * 5000, bytes=5000)
    OutputPrinter(lines.append).print_new(Command(reservation="r1", phase="leased", executions=(run,)))
    assert lines == ["x" * 5000]
