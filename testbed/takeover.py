"""Kill the leader while it holds the lock and a second scheduler runs."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from testbed.processes import Process, wait_for
from testbed.stack import Stack

SECOND: Final = "ticks-second"


@contextmanager
def second_scheduler(stack: Stack) -> Iterator[Process]:
    """Run a second scheduler beside the first within this block."""
    second = stack.start(SECOND, "tasks.worker", "ticks")
    try:
        wait_for(lambda: "ready." in second.read_log(), "the second scheduler")
        yield second
    finally:
        os.killpg(second.pid, signal.SIGCONT)
        second.stop()
        del stack.processes[SECOND]


def kill_holder(stack: Stack, second: Process) -> float:
    """Kill the first scheduler while it holds the lock; return the seconds until this lock expires.

    The second scheduler is stopped meanwhile, so that the first one takes the lock; it continues right afterwards.
    """
    first = stack.processes["ticks"]
    os.killpg(second.pid, signal.SIGSTOP)
    try:
        return wait_for(lambda: _kill_if_holding(stack, first), "a scheduler that holds the lock", 60)
    finally:
        os.killpg(second.pid, signal.SIGCONT)


def _kill_if_holding(stack: Stack, first: Process) -> float | None:
    if not first.is_alive:
        first.start()
    stack.app.send_task("leasehold.ticks.tick", args=[])
    key = f"{stack.settings.view.prefix}leader"
    wait_for(lambda: stack.redis.exists(key), "a tick", 60)
    first.kill()
    left = stack.redis.pttl(key)
    return left / 1000 if left > 0 else None
