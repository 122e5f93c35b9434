"""A worker that is stopped while EC2 does not answer ends in time, and its launch is repeated later."""

import os
import signal

import pytest

from scheduler.protocol.names import LAUNCH
from testbed.processes import Process, wait_for
from testbed.stack import Stack
from tests.system.test_lost_messages import stopped

# Enough for a start, a stop and a launch, each within the timeout of `wait_for`.
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def worker(stack: Stack) -> Process:
    """The launch worker of the stack, with REMAP_SIGTERM set as in the image."""
    stack.processes[LAUNCH].stop()
    environment = {**stack.environment, "REMAP_SIGTERM": "SIGQUIT"}
    stack.processes[LAUNCH] = Process("launch-remapped", ["tasks.worker", LAUNCH], environment, stack.folder)
    return stack.processes[LAUNCH]


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGTERM], ids=["SIGQUIT", "SIGTERM"])
def test_a_worker_that_waits_for_ec2_stops_within_its_grace_and_its_launch_is_sent_again(
    stack: Stack, worker: Process, number: signal.Signals
) -> None:
    """EC2 has received the call and does not answer."""
    name = f"hanging-{number.name.lower()}"
    stack.await_canary(LAUNCH)
    before = stack.launched()
    with stopped(stack.processes["emulator"].pid):
        stack.submit(name)
        wait_for(lambda: is_calling(stack), "a launch that calls EC2")
        os.kill(worker.pid, number)
        wait_for(lambda: not worker.is_alive, f"the end of the worker after {number.name}")
    log = worker.read_log(20_000)
    worker.start()
    assert "action=worker.left tasks=1" in log
    assert "Traceback" not in log

    (row,) = stack.await_phase([name], "leased")
    assert stack.launched() == before + 1
    assert stack.ask("release", {"reservation": name, "token": row.token})["ok"]
    stack.await_empty()


def is_calling(stack: Stack) -> bool:
    """Return whether the task of a launch has stored its request, which it then sends to EC2."""
    return any(slot.state == "launching" and slot.launch_request is not None for slot in stack.slots())
