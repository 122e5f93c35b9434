"""Ctrl-C ends every waiting command with status 130 and one line without traceback, which names what continues."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.processes import wait_for
from tests.cli.conftest import Run
from tests.client.intake import FakeIntake, a_row

LEASEHOLD = (sys.executable, "-m", "leasehold.cli")
IGNORING = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh")
"""Starts a command with SIGINT ignored, as a script starts its background commands."""


@pytest.fixture
def stack(intake: FakeIntake, run: Run, monkeypatch: pytest.MonkeyPatch) -> FakeIntake:
    """Return a stand-in that serves no requests: one reservation waits without end."""
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", intake.url)
    intake.publish(a_row("r1"))
    return intake


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Yield the processes of a test, and end them after it."""
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
    """Send SIGINT; return the status and the lines on standard error."""
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=40)
    return process.returncode, err.splitlines()


@pytest.mark.parametrize("named", [("--id", "mine"), ()])
def test_a_reservation_that_is_waited_for_stays_and_is_named(
    named: tuple[str, ...], stack: FakeIntake, started: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    """The reservation was accepted; the message names the command that cancels it."""
    process = start(started, tmp_path, "reserve", *named, "--system", "x", "--wait", "600")
    wait_for(lambda: stack.seen, "the request")
    (_, document) = stack.seen[0]
    stack.publish(a_row(document["id"]))
    # It subscribed to its reservation, so it waits.
    wait_for(lambda: stack.count_listeners(document["id"]), "the wait")
    reported = f"leasehold: interrupted: {document['id']} continues; `leasehold cancel {document['id']}` ends it"
    assert interrupt(process) == (130, [reported])
    wait_for(lambda: not stack.count_listeners(document["id"]), "the end of its connection")
    assert stack.verbs() == ["submit"]


@pytest.mark.parametrize("before", [(), IGNORING])
def test_a_repeated_display(
    before: tuple[str, ...], stack: FakeIntake, started: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    """Also in the background of a script, whose Ctrl-C reaches both."""
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
    # Opening a pipe returns when both ends are open, so the command has begun to read.
    writer = threading.Thread(target=scenario.write_text, args=(json.dumps(endless),))
    writer.start()
    writer.join(40)
    assert process.stdout is not None
    assert process.stdout.readline()
    assert interrupt(process) == (130, ["leasehold: interrupted"])
