"""How a running stack is found, and how a stale run.json is distinguished from a live one."""

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasehold import NoStack
from leasehold.client.discovery import Address, find_address, find_running
from leasehold.process_identity import ProcessIdentity
from leasehold.stack import Stack, StackError
from leasehold.stack.embedded import AlreadyRunningError, StackFolder
from leasehold.stack.programs import ProcfileError, find_procfile, read_procfile
from leasehold.stack.reaper import read_processes
from scheduler.protocol.names import QUEUE_NAMES
from tests.cli.conftest import Run

DOCUMENT = {
    "pid": 1,
    "phase": "running",
    "broker_url": "redis://127.0.0.1:7/0",
    "database_url": "sqlite:///x.db",
    "environment": {"LEASEHOLD_VIEW__PREFIX": "other:"},
    "a key of a later version": True,
}


@pytest.fixture(autouse=True)
def _outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEASEHOLD_BROKER__URL", "LEASEHOLD_VIEW__URL", "LEASEHOLD_VIEW__PREFIX"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[StackFolder]:
    folder = StackFolder(tmp_path / ".leasehold")
    folder.lock()
    folder.write(DOCUMENT)
    yield folder
    folder.unlock()


def test_a_running_stack_is_found_from_a_folder_below(running: StackFolder, tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    found = find_running(below)
    assert found is not None
    assert (found.folder, found.broker_url, found.phase) == (running.path, "redis://127.0.0.1:7/0", "running")


def test_a_run_file_whose_supervisor_is_gone_is_stale(running: StackFolder, tmp_path: Path) -> None:
    running.unlock()
    (running.path / "run.json").write_text(json.dumps(DOCUMENT))
    assert find_running(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pid": 1}'])
def test_a_run_file_that_cannot_be_read_is_none(text: str, running: StackFolder, tmp_path: Path) -> None:
    running.run_file.write_text(text)
    assert find_running(tmp_path) is None


def test_a_given_url_replaces_the_running_stack(
    running: StackFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_address() == Address("redis://127.0.0.1:7/0", "redis://127.0.0.1:7/0", "other:")
    assert find_address("redis://x") == Address("redis://x", "redis://x", "leasehold:")
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", "redis://y")
    monkeypatch.setenv("LEASEHOLD_VIEW__URL", "redis://z")
    assert find_address() == Address("redis://y", "redis://z", "leasehold:")


def test_without_a_run_file_there_is_no_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NoStack, match="leasehold up"):
        find_address()


def test_a_second_supervisor_is_refused(running: StackFolder) -> None:
    with pytest.raises(AlreadyRunningError, match="already"):
        StackFolder(running.path).lock()


def test_a_supervisor_that_was_refused_leaves_the_others_run_file(running: StackFolder, tmp_path: Path) -> None:
    stack = Stack(tmp_path)
    with pytest.raises(StackError, match="already"):
        stack.start()
    stack.stop()
    assert find_running(tmp_path) is not None


def test_a_reader_that_looks_for_an_instant_does_not_stop_a_supervisor(tmp_path: Path) -> None:
    folder = StackFolder(tmp_path / ".leasehold")
    folder.path.mkdir()
    descriptor = os.open(folder.path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    threading.Timer(0.1, os.close, [descriptor]).start()
    folder.lock()
    folder.unlock()


def test_up_is_refused_where_a_stack_runs(run: Run, running: StackFolder) -> None:
    found = run("up")
    assert (found.status, found.complaints) == (
        1,
        [f"leasehold: a stack runs in {running.path} already: `leasehold down` stops it"],
    )


def test_down_without_a_stack_is_one_line(run: Run) -> None:
    found = run("down")
    assert (found.status, found.complaints) == (1, ["leasehold: no stack runs here or in a folder above"])


def test_up_with_a_wrong_configuration_starts_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "leasehold.toml").write_text("[ticks]\nintervall = 1\n")
    found = run("up")
    assert (found.status, len(found.complaints)) == (2, 1)
    assert 'did you mean "interval"?' in found.err
    assert find_running(tmp_path) is None


def test_the_run_file_is_its_owners_alone(running: StackFolder) -> None:
    assert running.run_file.stat().st_mode & 0o777 == 0o600


def test_the_reaper_knows_the_processes_that_were_not_removed() -> None:
    lines = ["+1 10\n", "+2 20\n", "-1\n", "nonsense\n", "\n", "+3 30\n", "-9\n", "+4\n", "+5 None\n"]
    assert read_processes(lines) == [ProcessIdentity(2, 20), ProcessIdentity(3, 30)]


def test_the_procfile_names_every_process() -> None:
    programs = {program.name for program in read_procfile(find_procfile().read_text())}
    assert programs == {*QUEUE_NAMES, "beat", "foresight", "flower", "console", "metrics"}


def test_a_line_that_is_no_process_is_refused() -> None:
    assert read_procfile("# a comment\n\nweb: run 'two words'\n")[0].command == ("run", "two words")
    with pytest.raises(ProcfileError, match="line 1"):
        read_procfile("no colon here")
