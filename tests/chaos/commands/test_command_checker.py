"""The checker of commands reports each broken promise, and nothing if all promises were kept."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scheduler.model.reservations import Request, Reservation
from scheduler.model.runs import Execution
from testbed.stack import ROOT
from tests.chaos.commands import guard as chaos_guard
from tests.chaos.commands import workload
from tests.chaos.commands.agent import NOTES, OFF
from tests.chaos.commands.checker import Blow, CommandEvidence, find_command_violations, find_unwatched, read_lines
from tests.chaos.commands.switches import AGENT_SWITCHES


def a_line(at: float, what: str = "beat", token: int = 1, **changes: Any) -> dict[str, Any]:
    lease = {"reservation": "c1", "component": "main", "token": str(token), "slot": "lab-1"}
    return {"what": what, "at": at, **lease, "host": "lab-1", "role": "main", "pid": token, "forged": "", **changes}


def a_term(sent_at: float, ttl: float | None = 60.0, token: int = 1) -> dict[str, Any]:
    lease = {"reservation": "c1", "component": "main", "token": str(token)}
    return {"what": "term", "at": sent_at, "sent_at": sent_at, "ttl": ttl, **lease}


def an_execution(token: int = 1, **changes: Any) -> Execution:
    fields: dict[str, Any] = {"why": "exited", "exit_code": 0, "state": "ended", **changes}
    lease: dict[str, Any] = {"reservation": "c1", "token": token, "component": "main"}
    return Execution(**{**lease, "slot": "lab-1", "machine": "m-lab-1", "run": "a", "taken_at": 1.0, **fields})


def a_row(phase: Any = "released", **changes: Any) -> Reservation:
    return Reservation(id="c1", request=Request(), created_at=0.0, phase=phase, token=1, **changes)


RUN = [a_line(10, "begin"), a_line(11), a_line(14), a_line(15, "end", code=0)]
GOOD = CommandEvidence(
    accepted={"c1"},
    rows={"c1": a_row()},
    executions=[an_execution()],
    lines=RUN,
    notes={"lab-1": [a_term(9.0), a_term(11.0), a_term(13.0)]},
    machines={"lab-1": "m-lab-1", "lab-2": "m-lab-2"},
    offline={"lab-1": 6.0, "lab-2": 6.0},
)
GOES_ON = [a_line(10, "begin"), *(a_line(10 + 0.1 * number) for number in range(1, 150))]
"""A command that runs until 25, and has its deadline at 13.8 by the answer to a request at 9, with 6 s offline."""
LOST = replace(GOOD, lines=GOES_ON, executions=[an_execution(why="lost", exit_code=None)], rows={"c1": a_row("failed")})
ALONE = replace(LOST, notes={"lab-1": [a_term(9.0)]})


def test_a_run_that_kept_all_promises_has_no_violations() -> None:
    assert find_command_violations(GOOD) == []


@pytest.mark.parametrize(
    ("evidence", "found"),
    [
        (replace(GOOD, rows={}), "c1 was accepted and is unknown"),
        (replace(GOOD, rows={"c1": a_row("leased")}), "c1 was accepted and is leased"),
        (replace(GOOD, executions=[an_execution(why="revoked")]), "c1 is released, and not all of its instances"),
        (replace(GOOD, lines=RUN[:-1]), "has the outcome exit 0, and did not exit with that"),
        (replace(GOOD, executions=[an_execution(exit_code=3)]), "has the outcome exit 3, and did not exit with that"),
        (
            replace(LOST, notes=GOOD.notes, lines=RUN[:-1], executions=[an_execution(why="signal", signal=9)]),
            "no fault sent",
        ),
        (replace(GOOD, executions=[an_execution(why="not_started", error="no program")]), "not_started: no program"),
        # A second process under one token, here and elsewhere.
        (replace(GOOD, lines=[*RUN, a_line(15.5, "begin", pid=2)]), "began 2 times"),
        # The deadline of the answer to a request at 9 is 13.8.
        (ALONE, "(main 1 on lab-1) wrote 11.1 s after its deadline"),
        (replace(ALONE, lines=[*RUN, *(a_line(19, role="daemon", pid=7),)]), "(daemon 7 on lab-1) wrote 5.2 s after"),
        (replace(GOOD, notes={"lab-1": []}), "whose agents got no answer for it"),
        # A lease that expires before its host counts as offline.
        (replace(ALONE, notes={"lab-1": [a_term(9.0, 2.0)]}), "s after its deadline"),
        (replace(GOOD, blows=[Blow("lab-1", "guard", "kill", 9.5)], lines=[a_line(9.4), *RUN]), "guard was killed"),
        (replace(GOOD, lines=[a_line(10, "begin", slot="lab-2"), *RUN[1:]]), "ran on lab-1, and m-lab-1 on lab-1"),
        (replace(GOOD, executions=[an_execution(machine="m-lab-2")]), "ran on lab-1, and m-lab-2 on lab-1 has taken"),
        (replace(GOOD, lines=[*RUN[:2], a_line(11, forged="yes"), *RUN[2:]]), "ran a forged command on lab-1"),
        (
            replace(GOOD, lines=[*RUN, a_line(15, "begin", 9, reservation="c9")]),
            "c9 main with token 9 ran on lab-1, and",
        ),
        (replace(GOOD, left=["process 5"]), "process 5 runs after the run"),
    ],
)
def test_a_broken_promise_is_reported(evidence: CommandEvidence, found: str) -> None:
    violations = find_command_violations(evidence)
    assert any(found in each for each in violations), violations


def test_a_run_that_goes_on_after_the_next_one_has_begun_is_reported() -> None:
    later = [
        a_line(13, "begin", 2, host="lab-2", slot="lab-2"),
        a_line(14, "end", 2, host="lab-2", slot="lab-2", code=0),
    ]
    taken = an_execution(2, slot="lab-2", machine="m-lab-2")
    notes = {**GOOD.notes, "lab-2": [a_term(12, token=2)]}
    evidence = replace(LOST, lines=[*RUN[:-1], *later], executions=[*LOST.executions, taken], notes=notes)
    assert find_command_violations(evidence) == [
        "c1 main with token 1 wrote on lab-1 1.0 s after token 2 had begun on lab-2"
    ]
    ended = replace(evidence, lines=[*RUN[:2], *later])
    assert find_command_violations(ended) == []
    assert find_command_violations(replace(evidence, unconfirmed=frozenset({"c1"}))) == []


def test_a_killed_command_ends_by_a_signal() -> None:
    execution = an_execution(why="signal", signal=9, exit_code=None)
    evidence = replace(GOOD, lines=RUN[:-1], executions=[execution], rows={"c1": a_row("failed")})
    assert find_command_violations(replace(evidence, blows=[Blow("lab-1", "command", "kill", 14, pid=1)])) == []
    # It was killed before it wrote a line.
    silent = replace(evidence, lines=[], blows=[Blow("lab-1", "command", "kill", 14, pid=5)])
    assert find_command_violations(silent) == []
    assert find_command_violations(replace(silent, blows=[Blow("lab-2", "command", "kill", 14, pid=5)])) != []


@pytest.mark.parametrize(
    ("blows", "is_excused"),
    [
        ([Blow("lab-1", "host", "stop", 12, 22)], True),
        ([Blow("lab-1", "agent", "stop", 12, 22), Blow("lab-1", "guard", "stop", 12, 22)], True),
        # The agent, or the guard, could have ended the command.
        ([Blow("lab-1", "agent", "stop", 12, 22)], False),
        ([Blow("lab-1", "guard", "stop", 12, 22)], False),
        ([Blow("lab-1", "agent", "stop", 12, 17), Blow("lab-1", "guard", "stop", 12, 17)], False),
        ([Blow("lab-2", "host", "stop", 12, 22)], False),
        # The stop began when the command should have ended already.
        ([Blow("lab-1", "host", "stop", 19, 22)], False),
    ],
)
def test_a_host_that_was_stopped_counts_from_its_resumption(blows: list[Blow], is_excused: bool) -> None:
    assert (find_command_violations(replace(ALONE, blows=blows)) == []) == is_excused


def test_a_killed_agent_is_away_until_its_successor_has_a_guard() -> None:
    notes = [{"what": "runner", "at": 9.0}, {"what": "runner", "at": 14.0}, {"what": "connected", "at": 14.5}]
    blows = [Blow("lab-1", "agent", "kill", 10), Blow("lab-1", "guard", "stop", 11, 20)]
    found = find_unwatched(replace(GOOD, notes={"lab-1": notes}, blows=blows))
    assert found == {"lab-1": [(11, 14.5)]}


def test_a_guard_without_its_keeper_leaves_commands_alone() -> None:
    blows = [Blow("lab-1", "keeper", "kill", 8), Blow("lab-1", "guard", "kill", 9.5)]
    assert find_command_violations(replace(GOOD, blows=blows, lines=[a_line(9.4), *RUN])) == []


@pytest.mark.parametrize(
    ("flags", "code", "roles"),
    [("", "3", ["main"]), ("daemon", "0", ["daemon", "main"]), ("bare", "0", ["daemon", "main"])],
)
def test_a_command_writes_what_it_does(flags: str, code: str, roles: list[str], tmp_path: Path) -> None:
    lease = {"RESERVATION": "c1", "COMPONENT": "main", "TOKEN": "7", "SLOT": "lab-1"}
    environment = {**{f"LEASEHOLD_{name}": value for name, value in lease.items()}, "HOME": "/hosts/lab-1"}
    command = [sys.executable, "-I", "-S", workload.__file__, str(tmp_path), flags, "0.5", code]
    done = subprocess.run(command, env=environment, check=False)
    assert done.returncode == int(code)
    lines = read_lines(tmp_path)["lab-1"]
    assert {(each["reservation"], each["token"], each["host"]) for each in lines} == {("c1", "7", "lab-1")}
    assert [each["what"] for each in lines if each["role"] == "main" and each["what"] != "beat"] == ["begin", "end"]
    daemons = {each["pid"] for each in lines if each["role"] == "daemon"}
    for pid in daemons:
        os.kill(pid, signal.SIGKILL)
    assert sorted({each["role"] for each in lines}) == roles
    assert [each["code"] for each in lines if each["what"] == "end"] == [int(code)]


def test_the_guard_of_a_run_is_that_of_the_product_without_one_duty() -> None:
    module = chaos_guard.load_guard()
    command = module.Command({"id": "a", "argv": [], "env": {}, "folder": "/", "deadline": 5.0})
    assert command.find_timer() == 5.0
    chaos_guard.drop_duty(module, "deadline")
    assert module.Command({"id": "a", "argv": [], "env": {}, "folder": "/", "deadline": 5.0}).find_timer() is None


@pytest.mark.parametrize("off", ["", *AGENT_SWITCHES])
def test_the_agent_of_a_run_is_that_of_the_product(off: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), NOTES: str(tmp_path / "notes" / "lab-1.jsonl"), OFF: off}
    command = [sys.executable, "-m", "tests.chaos.commands.agent", "host", "run", "--help"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Run the agent of this host" in done.stdout
