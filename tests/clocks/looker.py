"""`python -m tests.clocks.looker`: answers each line on its input with what its clocks say; `fork` asks a fork."""

import json
import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from botocore.compat import get_current_datetime
from celery import Celery


def look() -> dict[str, float]:
    """What every way to ask for the time gives, in seconds."""
    return {
        "time.time": time.time(),
        "time.time_ns": time.time_ns() / 1e9,
        "datetime.now": datetime.now(UTC).timestamp(),
        "celery": Celery("looker", set_as_current=False).now().timestamp(),
        "botocore": get_current_datetime(remove_tzinfo=False).timestamp(),
        "monotonic": time.monotonic(),
        "boottime": time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)),
    }


def look_in_thread() -> dict[str, float]:
    found: list[dict[str, float]] = []
    thread = threading.Thread(target=lambda: found.append(look()))
    thread.start()
    thread.join()
    return found[0]


def look_in_fork() -> dict[str, float]:
    """The same from a forked process, as Celery's pool has them."""
    context = multiprocessing.get_context("fork")
    with context.Pool(1) as pool:
        found: dict[str, float] = pool.apply(look)
        return found


def look_in_child() -> dict[str, float]:
    """The same from a program that this one starts."""
    command = [sys.executable, "-m", "tests.clocks.looker"]
    done = subprocess.run(command, input="look\n", capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


LOOKS: dict[str, Callable[[], dict[str, Any]]] = {
    "look": look,
    "thread": look_in_thread,
    "fork": look_in_fork,
    "child": look_in_child,
}


def main() -> None:
    """Serve until the input ends."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(LOOKS[line.strip()]()) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
