"""`leasehold logs`, and the warnings that a failed start prints."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

import pytest

from leasehold.cli.output import explain
from leasehold.stack import Stack, StackError
from leasehold.stack.process_logs import find_last_warning
from testbed.guarding import Guarded
from tests.cli.conftest import Run

EARLY, LATE = "2026-11-22T14:32:26.786631Z", "2026-11-22T14:32:27.000000Z"


@pytest.fixture
def logs(tmp_path: Path, run: Run) -> Path:
    folder = tmp_path / ".leasehold" / "logs"
    folder.mkdir(parents=True)
    (folder / "ticks.log").write_text(f"{EARLY} [info     ] one\n{LATE} [error    ] four\nTraceback:\n")
    (folder / "beat.log").write_text(f"{EARLY} [info     ] two\n{EARLY} [info     ] three\n")
    return folder


def test_lines_are_printed_in_the_order_of_their_times_with_their_process(logs: Path, run: Run) -> None:
    found = run("logs")
    assert found.status == 0
    assert [(line.split()[0], line.split()[-1]) for line in found.out.splitlines()] == [
        ("beat", "two"),
        ("beat", "three"),
        ("ticks", "one"),
        ("ticks", "four"),
        ("ticks", "Traceback:"),
    ]
    assert "\x1b" not in found.out


def test_processes_and_lines_are_chosen(logs: Path, run: Run) -> None:
    assert run("logs", "beat", "--lines", "1").out == f"beat | {EARLY} [info     ] three\n"
    assert run("logs", "--lines", "0").out == ""


def test_an_unknown_process_is_refused_with_the_known_ones(logs: Path, run: Run) -> None:
    found = run("logs", "tick")
    assert (found.status, found.out, len(found.complaints)) == (2, "", 1)
    assert "expected one of beat, ticks, got 'tick'" in found.complaints[0]


def test_without_a_stack_there_are_no_logs(run: Run) -> None:
    found = run("logs")
    assert (found.status, len(found.complaints)) == (1, 1)
    assert "no stack has run here" in found.complaints[0]


def test_on_a_terminal_each_process_has_a_colour_of_its_own(logs: Path) -> None:
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "leasehold.cli", "logs", "--lines", "1"]
    process = Guarded(command, cwd=logs.parents[1], env=environment, stdout=theirs)
    assert process.wait(60) == 0
    os.close(theirs)
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        shown = terminal.read(4096).decode()
    assert len(set(re.findall(r"\x1b\[(\d+)m(?:beat|ticks)", shown))) == 2


class Follower:
    """`leasehold logs --follow` as a process."""

    def __init__(self, folder: Path, *words: str) -> None:
        command = [sys.executable, "-m", "leasehold.cli", "logs", "--follow", *words]
        self.process = Guarded(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._lines: Queue[str] = Queue()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.decode().rstrip("\n"))

    def close(self) -> None:
        """End it if it still runs."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def next_line(self) -> str:
        try:
            return self._lines.get(timeout=40)
        except Empty:
            pytest.fail("no further line came")


@pytest.fixture
def follower(logs: Path) -> Iterator[Follower]:
    started = Follower(logs.parents[1], "beat", "--lines", "1")
    yield started
    started.close()


def test_following_goes_on_over_rotation_truncation_and_restart_and_ends_with_ctrl_c(
    logs: Path, follower: Follower
) -> None:
    beat = logs / "beat.log"
    assert follower.next_line().endswith("three")
    with beat.open("a") as log:
        log.write("appended, first half, ")
        log.flush()
        log.write("second half\n")
    assert follower.next_line() == "beat | appended, first half, second half"
    beat.rename(logs / "beat.log.1")
    beat.write_text("rotated\n")
    assert follower.next_line() == "beat | rotated"
    beat.write_text("cut\n")
    assert follower.next_line() == "beat | cut"
    beat.unlink()
    beat.write_text("restarted\n")
    assert follower.next_line() == "beat | restarted"
    follower.process.send_signal(2)
    assert follower.process.wait(40) == 0
    assert follower.process.stderr is not None
    assert follower.process.stderr.read() == b""


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (f"{EARLY} [warning  ] Gone. action=x\n{LATE} [info     ] Fine.\n", f"{EARLY} [warning ] Gone. action=x"),
        ('{"level": "error", "message": "Gone."}\n', '{"level": "error", "message": "Gone."}'),
        ("Traceback (most recent call last):\n  File x\nredis.exceptions.ConnectionError: refused\n", "refused"),
        ("leasehold: broker.url: expected a URL, got nothing\n", "got nothing"),
        (f"{EARLY} [info     ] An error that is none: [error] in a text.\n", None),
        ("", None),
    ],
)
def test_the_last_warning_of_a_log_is_found(text: str, warning: str | None, tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text(text)
    found = find_last_warning(log)
    assert (found is None) if warning is None else (found is not None and found.endswith(warning))
    assert find_last_warning(tmp_path / "none.log") is None


def test_a_start_that_fails_prints_the_last_warning_of_each_process_without_passwords(tmp_path: Path) -> None:
    stack = Stack(tmp_path)
    stack.folder.logs.mkdir(parents=True)
    line = f"{EARLY} [warning  ] The view cannot be used. url=redis://leasehold:hunter2@127.0.0.1/0\n"
    (stack.folder.logs / "ticks.log").write_text(line)
    (stack.folder.logs / "beat.log").write_text(f"{EARLY} [info     ] Fine.\n")
    with pytest.raises(StackError) as caught:
        stack._await({"view": lambda: False}, time.monotonic())
    (first, second), status = explain(caught.value)
    assert status == 1
    assert first.startswith("not ready in time: view")
    assert second.startswith("ticks: ")
    assert "The view cannot be used." in second
    assert "hunter2" not in second


def test_a_detached_start_that_fails_prints_the_same_lines_and_has_the_same_status(run: Run, tmp_path: Path) -> None:
    (tmp_path / "leasehold.toml").write_text("[ticks]\nintervall = 5\n\n[nothing]\n")
    found = run("up", "--detach")
    assert found.status == 2
    assert len(found.complaints) > 1
    assert all(line.startswith("leasehold: ") for line in found.complaints)
