"""Ctrl-C ends every command that waits: status 130, one line, no traceback; and says what goes on without it."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.client.intake import FakeIntake, a_row
from tests.system.processes import wait_for

LEASEHOLD = (sys.executable, "-m", "leasehold.cli")
IGNORING = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh")
"""Starts what follows with SIGINT ignored, as a script starts what it runs in the background."""


@pytest.fixture
def stack(intake: FakeIntake, run: Run, monkeypatch: pytest.MonkeyPatch) -> FakeIntake:
    """A stand-in that serves nobody: one reservation waits, and goes on waiting."""
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", intake.url)
    intake.publish(a_row("r1"))
    return intake


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes of a test; none of them outlives it."""
    found: list[subprocess.Popen[str]] = []
    yield found
    for process in found:
        process.kill()
        process.communicate()


def start(
    started: list[subprocess.Popen[str]], folder: Path, *words: str, before: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    command = [*before, *LEASEHOLD, *words]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    started.append(process)
    return process


def interrupt(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """Ctrl-C; its status and what it said on standard error."""
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=40)
    return process.returncode, err.splitlines()


@pytest.mark.parametrize("named", [("--id", "mine"), ()])
def test_a_reservation_that_is_waited_for_stays_and_is_named(
    named: tuple[str, ...], stack: FakeIntake, started: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    """It was accepted: to take it back is another word, which is told."""
    process = start(started, tmp_path, "reserve", *named, "--system", "x", "--wait", "600")
    wait_for(lambda: stack.seen, "the request")
    (_, document) = stack.seen[0]
    stack.publish(a_row(document["id"]))
    # It listens to its reservation: so it waits.
    wait_for(lambda: stack.count_listeners(document["id"]), "the wait")
    told = f"leasehold: interrupted: {document['id']} continues; `leasehold cancel {document['id']}` ends it"
    assert interrupt(process) == (130, [told])
    wait_for(lambda: not stack.count_listeners(document["id"]), "the end of its connection")
    assert stack.verbs() == ["submit"]


@pytest.mark.parametrize("before", [(), IGNORING])
def test_a_view_that_is_shown_again_and_again(
    before: tuple[str, ...], stack: FakeIntake, started: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    """Also one that a script runs in the background: its own Ctrl-C reaches both."""
    process = start(started, tmp_path, "list", "--watch", "0.1", before=before)
    assert process.stdout is not None
    assert process.stdout.readline()
    assert interrupt(process) == (130, ["leasehold: interrupted"])


def test_a_simulation(run: Run, started: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.json"
    os.mkfifo(scenario)
    process = start(started, tmp_path, "simulate", str(scenario), "--json")
    pool = {"system": "x", "max_slots": 1, "min_slots": 1}
    endless = {"config": {"pools": {"a": pool}}, "timeline": [], "tick_every": 0.001, "until": 10**9}
    # A pipe is opened when both ends are: it reads, so it runs.
    writer = threading.Thread(target=scenario.write_text, args=(json.dumps(endless),))
    writer.start()
    writer.join(40)
    assert process.stdout is not None
    assert process.stdout.readline()
    assert interrupt(process) == (130, ["leasehold: interrupted"])
