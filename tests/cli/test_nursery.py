"""A nursery forks the programs of a stack, each as if it had been started by its command."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasehold.process_identity import read_command
from leasehold.stack.nursery import Forked, Nursery

ENVIRONMENT = {"LEASEHOLD_BROKER__URL": "redis://127.0.0.1:1/0"}
WORKER = (sys.executable, "-m", "tasks.worker")
SECONDS = 60.0

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="on macOS a stack has no nursery")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nursery")


@pytest.fixture(scope="module")
def nursery(folder: Path) -> Iterator[Nursery]:
    found = Nursery(ENVIRONMENT, folder, folder / "nursery.log")
    yield found
    found.close()


def fork(nursery: Nursery, log: Path, *words: str) -> Forked:
    child = nursery.fork((*WORKER, *words), ENVIRONMENT, log)
    assert child is not None
    return child


def test_a_forked_program_has_the_arguments_the_log_and_the_status_of_its_command(
    nursery: Nursery, tmp_path: Path
) -> None:
    child = fork(nursery, tmp_path / "log", "no-queue")

    child.begin()

    assert child.wait(SECONDS) == 2
    assert (tmp_path / "log").read_text().startswith("usage: python -m tasks.worker")
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0
    child.release()


def test_a_program_waits_for_its_beginning_in_a_session_of_its_own_and_shows_its_command(
    nursery: Nursery, tmp_path: Path
) -> None:
    child = fork(nursery, tmp_path / "log", "ticks")
    other = fork(nursery, tmp_path / "other", "no-queue")
    other.begin()
    other.wait(SECONDS)
    other.release()

    assert (os.getsid(child.pid), read_command(child.pid)) == (child.pid, " ".join((*WORKER, "ticks")))
    assert child.poll() is None
    child.send_signal(signal.SIGKILL)
    assert child.wait(SECONDS) == -signal.SIGKILL
    assert (tmp_path / "log").read_text() == ""
    child.release()


@pytest.mark.parametrize(
    ("command", "environment"),
    [
        ((sys.executable, "-m", "leasehold_emulator"), ENVIRONMENT),
        (("valkey-server",), ENVIRONMENT),
        ((*WORKER, "ticks"), {**ENVIRONMENT, "LEASEHOLD_LOG__LEVEL": "debug"}),
    ],
)
def test_another_program_or_environment_is_not_for_the_nursery(
    nursery: Nursery, tmp_path: Path, command: tuple[str, ...], environment: dict[str, str]
) -> None:
    assert nursery.fork(command, environment, tmp_path / "log") is None


def test_if_the_nursery_ends_its_processes_count_as_ended_and_it_forks_no_more(folder: Path, tmp_path: Path) -> None:
    nursery = Nursery(ENVIRONMENT, folder, folder / "second.log")
    child = fork(nursery, tmp_path / "log", "ticks")

    nursery.process.kill()

    assert child.wait(SECONDS) == -signal.SIGKILL
    assert nursery.fork((*WORKER, "ticks"), ENVIRONMENT, tmp_path / "log") is None
    nursery.close()
