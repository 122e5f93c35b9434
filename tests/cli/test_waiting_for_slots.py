"""`cordon --wait` and `drain --wait`: what they wait for, how they end, and what they leave unchanged."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scheduler.model.transitions import SlotState
from testbed.processes import wait_for
from tests.builders import a_lease, a_slot
from tests.cli.conftest import Run
from tests.client.intake import Document, FakeIntake, a_row


@pytest.fixture
def stack(intake: FakeIntake, run: Run, monkeypatch: pytest.MonkeyPatch) -> FakeIntake:
    """Return a stand-in that carries out an operator's requests for a slot with a lease."""
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", intake.url)
    intake.handler = lambda verb, document: handle(intake, verb, document)
    intake.publish(a_slot("linux-1", version=1), held("r1"))
    return intake


def handle(intake: FakeIntake, verb: str, document: Document) -> Document:
    state: SlotState = "draining" if verb == "drain" else "ready"
    intake.publish(a_slot("linux-1", state=state, cordoned=verb == "cordon", version=2))
    return {"ok": True, "slot": document["slot"], "state": state, "cordoned": verb == "cordon"}


def held(name: str, **changes: Any) -> Any:
    return a_row(name, phase="leased", token=7, leases=(a_lease("linux-1"),), **changes)


RELEASED: dict[str, Any] = {"phase": "released", "version": 2, "finished_at": 1.0}


def start(stack: FakeIntake, tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    """Start the command as a process. Its output to a pipe is buffered, whatever the environment of the tests is."""
    return subprocess.Popen(
        [sys.executable, "-m", "leasehold.cli", *words],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("word", ["cordon", "drain"])
@pytest.mark.parametrize("limit", [("--wait", "0.3"), ("--timeout", "0.3"), ("--wait", "--timeout", "0.3")])
def test_at_the_time_limit_the_remaining_holders_are_named(
    stack: FakeIntake, run: Run, word: str, limit: tuple[str, ...]
) -> None:
    found = run(word, "linux-1", *limit)
    late = {"cordon": "not free", "drain": "not drained"}[word]
    assert (found.status, found.complaints) == (1, [f"leasehold: slots are {late} after 0.3 s: linux-1 holds r1"])


def test_a_cordon_waits_for_the_leases_and_not_for_the_machine(stack: FakeIntake, tmp_path: Path) -> None:
    process = start(stack, tmp_path, "cordon", "linux-1", "--wait")
    wait_for(lambda: stack.seen, "the request to be sent")
    assert process.poll() is None
    stack.publish(a_row("r1", **RELEASED))
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "linux-1 ready cordoned\n", "")


def test_a_drain_waits_until_the_machine_is_gone(stack: FakeIntake, run: Run, tmp_path: Path) -> None:
    stack.publish(a_row("r1", **RELEASED))
    found = run("drain", "linux-1", "--wait", "0.3")
    assert found.complaints == ["leasehold: slots are not drained after 0.3 s: linux-1 is draining"]
    process = start(stack, tmp_path, "drain", "linux-1", "--wait", "60")
    wait_for(lambda: len(stack.seen) > 1, "the request to be sent")
    stack.publish(a_slot("linux-1", state="empty", epoch=1, version=3))
    assert (process.communicate(timeout=20), process.returncode) == (("linux-1 draining\n", ""), 0)


def test_the_next_machine_of_a_slot_is_not_waited_for(stack: FakeIntake, tmp_path: Path) -> None:
    stack.publish(a_row("r1", **RELEASED))
    process = start(stack, tmp_path, "drain", "linux-1", "--wait")
    wait_for(lambda: stack.seen, "the request to be sent")
    stack.publish(a_slot("linux-1", state="ready", epoch=2, version=3))
    assert (process.communicate(timeout=20), process.returncode) == (("linux-1 draining\n", ""), 0)


def test_ctrl_c_leaves_the_cordon_and_reports_it(stack: FakeIntake, tmp_path: Path) -> None:
    process = start(stack, tmp_path, "cordon", "linux-1", "--wait")
    assert process.stdout is not None
    assert process.stdout.readline() == "linux-1 ready cordoned\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, "leasehold: interrupted by Ctrl-C: slot linux-1 stays cordoned\n")
    assert stack.verbs() == ["cordon"]
