"""A folder `.leasehold` that belongs to another user, or to which other users can write, is refused by every command.
Commands send signals only to processes of a stack.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from leasehold import Client, UntrustedFolder
from leasehold.client.discovery import find_running
from leasehold.process_identity import (
    ProcessIdentity,
    end_group,
    find_start,
    find_start_by_ps,
    identify,
    is_running,
    send_signal,
)
from leasehold.stack import Stack, StackError
from leasehold.stack.embedded import StackFolder
from leasehold.stack.reaper import end_groups
from scheduler.store.migrating import migrate
from testbed.guarding import Guarded
from tests.cli.conftest import Run
from tests.strangers import UID, require_other_user

OBEYING: Final = (
    ["down"],
    ["reserve", "--system", "x86_64-linux"],
    ["logs"],
    ["status"],
    ["list"],
    ["cancel", "r-1"],
    ["doctor", "--no-aws"],
    ["migrate"],
    ["alive", "ticks"],
)


@pytest.fixture
def bystander() -> Iterator[Guarded]:
    """Yield a process that no stack has started. Its gate has already become the command."""
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
    with Guarded(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@pytest.fixture
def planted(tmp_path: Path, bystander: Guarded, monkeypatch: pytest.MonkeyPatch) -> Iterator[StackFolder]:
    """Yield a folder with a held lock and a run.json that names a process of this user."""
    for name in ("LEASEHOLD_BROKER__URL", "LEASEHOLD_VIEW__URL", "LEASEHOLD_DATABASE__URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("leasehold.cli.running._DOWN_SECONDS", 1.0)
    folder = StackFolder(tmp_path / ".leasehold")
    folder.lock()
    (folder.logs / "ticks.log").write_text("planted\n")
    folder.write(describe(bystander.pid, find_start(bystander.pid)))
    yield folder
    folder.unlock()


def describe(pid: int, started: int | None) -> dict[str, Any]:
    """Return the content of a run.json."""
    return {
        "pid": pid,
        "phase": "running",
        "broker_url": "redis://127.0.0.1:1/0",
        "database_url": "sqlite:///planted.db",
        "environment": {"LEASEHOLD_BROKER__URL": "redis://127.0.0.1:1/0"},
        "processes": {"supervisor": {"pid": pid, "started": started, "command": None}},
    }


def give_away(folder: Path) -> None:
    """Make another user the owner of a folder and its content."""
    require_other_user()
    for path in (*folder.rglob("*"), folder):
        os.chown(path, UID, UID)


@pytest.mark.parametrize("words", OBEYING, ids=lambda words: str(words[0]))
def test_a_command_refuses_the_folder_of_another_user_in_one_line(
    words: list[str], planted: StackFolder, run: Run, bystander: Guarded, tmp_path: Path
) -> None:
    give_away(planted.path)
    below = tmp_path / "below"
    below.mkdir()
    os.chdir(below)
    found = run(*words)
    line = f"leasehold: {planted.path} is not used: it belongs to another user (uid {UID})"
    assert (found.status, found.out, found.complaints) == (1, "", [line])
    assert bystander.poll() is None
    assert not (tmp_path / "planted.db").exists()


def test_a_client_refuses_the_folder_of_another_user(planted: StackFolder, run: Run) -> None:
    give_away(planted.path)
    with pytest.raises(UntrustedFolder, match="another user"):
        Client()


def test_a_stack_does_not_start_in_the_folder_of_another_user(planted: StackFolder, run: Run, tmp_path: Path) -> None:
    planted.unlock()
    give_away(planted.path)
    assert run("up").complaints == [f"leasehold: {planted.path} is not used: it belongs to another user (uid {UID})"]
    with pytest.raises(StackError, match="another user"):
        Stack(tmp_path).start()


@pytest.mark.parametrize("name", ["run.json", "lock"])
def test_a_file_of_another_user_in_a_folder_is_refused(name: str, planted: StackFolder, run: Run) -> None:
    require_other_user()
    os.chown(planted.path / name, UID, UID)
    line = f"leasehold: {planted.path / name} is not used: it belongs to another user (uid {UID})"
    for command in ("down", "list"):
        found = run(command)
        assert (found.status, found.complaints) == (1, [line])
    assert run("up").complaints == [line]


@pytest.mark.parametrize("name", ["", "run.json", "lock"])
def test_a_folder_that_other_users_may_write_to_is_refused(name: str, planted: StackFolder, run: Run) -> None:
    path = planted.path / name
    path.chmod(0o777)
    found = run("down")
    assert (found.status, len(found.complaints)) == (1, 1)
    assert found.complaints[0].startswith(f"leasehold: {path} is not used: other users may write to it (mode 0777)")


def test_a_link_of_another_user_is_refused_wherever_it_leads(planted: StackFolder, tmp_path: Path) -> None:
    require_other_user()
    folder = tmp_path / "linked"
    folder.mkdir()
    (folder / ".leasehold").symlink_to(planted.path)
    assert find_running(folder) is not None
    os.lchown(folder / ".leasehold", UID, UID)
    with pytest.raises(UntrustedFolder, match="another user"):
        find_running(folder)
    (folder / ".leasehold").unlink()
    (folder / ".leasehold").symlink_to(tmp_path / "nowhere")
    os.lchown(folder / ".leasehold", UID, UID)
    with pytest.raises(UntrustedFolder, match="another user"):
        find_running(folder)


def test_a_run_file_that_is_a_link_or_a_pipe_is_not_read(planted: StackFolder, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    planted.run_file.rename(other)
    planted.run_file.symlink_to(other)
    assert find_running(tmp_path) is None
    planted.run_file.unlink()
    os.mkfifo(planted.run_file, 0o600)
    assert find_running(tmp_path) is None


def test_a_folder_above_of_another_user_does_not_keep_a_stack_from_starting(
    planted: StackFolder, run: Run, tmp_path: Path
) -> None:
    give_away(planted.path)
    below = tmp_path / "below"
    below.mkdir()
    (below / "leasehold.toml").write_text("[ticks]\nintervall = 1\n")
    os.chdir(below)
    # The command gets as far as the configuration.
    assert "intervall" in run("up").err


def test_a_start_closes_an_older_folder_to_other_users(tmp_path: Path) -> None:
    folder = StackFolder(tmp_path / ".leasehold")
    (folder.path / "redis").mkdir(parents=True)
    for name in ("leasehold.db", "logs/ticks.log", "redis/dump.rdb", "beat"):
        (folder.path / name).parent.mkdir(exist_ok=True)
        (folder.path / name).touch()
    for path in (folder.path, *folder.path.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    folder.lock()
    modes = {path.name: path.stat().st_mode & 0o777 for path in (folder.path, *folder.path.rglob("*"))}
    folder.unlock()
    assert modes == dict.fromkeys([".leasehold", "redis", "logs"], 0o700) | dict.fromkeys(
        ["leasehold.db", "ticks.log", "dump.rdb", "beat", "lock", ".gitignore"], 0o600
    )


def test_a_database_that_migrate_makes_is_closed_to_other_users_with_its_journals(tmp_path: Path) -> None:
    former = os.umask(0)
    try:
        migrate(f"sqlite:///{tmp_path / 'made.db'}")
        (tmp_path / "there.db").touch(0o644)
        migrate(f"sqlite:///{tmp_path / 'there.db'}")
    finally:
        os.umask(former)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("*.db*")}
    assert modes["made.db"] == 0o600
    # A file that its owner made keeps its mode.
    assert modes["there.db"] == 0o644


def test_down_does_not_signal_a_process_that_got_the_id_of_a_stack(
    planted: StackFolder, run: Run, bystander: Guarded
) -> None:
    planted.write(describe(bystander.pid, (find_start(bystander.pid) or 0) - 1))
    found = run("down")
    assert (found.status, len(found.complaints)) == (1, 1)
    assert found.complaints[0].startswith("leasehold: the stack still runs after")
    assert bystander.poll() is None
    another = describe(bystander.pid, find_start(bystander.pid))
    another["processes"]["supervisor"]["command"] = "leasehold up"
    planted.write(another)
    run("down")
    assert bystander.poll() is None


def test_down_ends_the_process_that_the_stack_names(
    planted: StackFolder, run: Run, bystander: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehold.cli.running._DOWN_SECONDS", 20.0)

    def end() -> None:
        bystander.wait(20)
        planted.unlock()

    threading.Thread(target=end).start()
    assert run("down").out == "down\n"
    assert bystander.poll() == -signal.SIGTERM


def test_a_run_file_without_start_times_is_refused(planted: StackFolder, run: Run, bystander: Guarded) -> None:
    document = describe(bystander.pid, None)
    del document["processes"]
    planted.write(document)
    found = run("down")
    assert (found.status, len(found.complaints)) == (1, 1)
    assert f"does not name the start time of process {bystander.pid}" in found.err
    assert bystander.poll() is None


def test_the_reaper_signals_no_process_that_got_the_id_of_an_ended_one(bystander: Guarded) -> None:
    started = find_start(bystander.pid)
    assert started is not None
    other = ProcessIdentity(bystander.pid, started - 1)
    end_groups([other], grace=0.1)
    end_group(other)
    assert not send_signal(other, signal.SIGKILL)
    assert bystander.poll() is None
    end_groups([ProcessIdentity(bystander.pid, started)])
    assert bystander.wait(20) == -signal.SIGTERM


def test_a_process_is_known_by_its_start_and_its_command(bystander: Guarded) -> None:
    found = identify(bystander.pid)
    assert (found.pid, found.started) == (bystander.pid, find_start(bystander.pid))
    assert is_running(found)
    assert "time.sleep(600)" in str(found.command)
    bystander.kill()
    bystander.wait()
    assert not is_running(found)
    assert not send_signal(found, signal.SIGTERM)
    assert identify(bystander.pid) == ProcessIdentity(bystander.pid, None)


def test_without_proc_the_start_comes_from_ps() -> None:
    found = find_start_by_ps(os.getpid())
    started = Path(f"/proc/{os.getpid()}").stat().st_mtime
    assert found is not None
    assert abs(found - started) < 3600
    assert find_start_by_ps(-1) is None


def test_no_run_file_is_written_that_other_users_can_read(planted: StackFolder) -> None:
    assert json.loads(planted.run_file.read_text())["pid"]
    assert planted.run_file.stat().st_mode & 0o077 == 0
