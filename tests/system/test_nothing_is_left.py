"""Processes that tests, benches and the chaos test started end with them, also when they are killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from testbed.guarding import Guarded
from testbed.processes import wait_for
from testbed.stack import ROOT
from workers.embedded_redis import NO_SERVER, find_redis_server

STARTED = {"family", "redis", "postgresql"}
pytestmark = pytest.mark.skipif(find_redis_server() is None, reason=NO_SERVER)


@pytest.fixture
def folder() -> Iterator[Path]:
    """The folder for temporary files of the program.

    The user `postgres` may enter it; that user may not enter the folders of pytest.
    """
    with TemporaryDirectory(prefix="leasehold-left-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        yield Path(name)


def start(folder: Path, *arguments: str) -> Guarded:
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    return Guarded([sys.executable, "-m", *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def await_end(pids: Iterable[int]) -> None:
    """Wait until no process of the groups of these processes is alive."""
    for pid in pids:
        wait_for(lambda pid=pid: has_ended(pid), f"the end of process {pid}")  # type: ignore[misc]


def has_ended(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except (ProcessLookupError, PermissionError):
        # macOS raises PermissionError for processes that have ended and were not waited for.
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stack_ends_with_the_process_of_its_tests(number: signal.Signals, folder: Path) -> None:
    with start(folder, "tests.system.small_stack", str(folder)) as process:
        assert process.stdout is not None
        pids = json.loads(process.stdout.readline())
        assert set(pids) == STARTED
        process.send_signal(number)
        process.communicate()
    await_end(pids.values())


def test_a_terminated_bench_leaves_no_processes_and_no_folders(folder: Path) -> None:
    with start(folder, "bench.latency") as process:
        written = wait_for(lambda: next(folder.glob("*/.leasehold/run.json"), None), "the stack")
        pids = wait_for(lambda: json.loads(written.read_text())["pids"], "its processes")
        process.terminate()
        process.communicate()
    await_end(pids.values())
    assert list(folder.iterdir()) == []
