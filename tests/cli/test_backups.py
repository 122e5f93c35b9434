"""`leasehold backup` and `restore` in a shell: an error is one line, and nothing has changed."""

import json
import stat
from contextlib import closing
from pathlib import Path

import pytest

from leasehold.stack.configuration import find_free_port
from leasehold.stack.embedded import StackFolder
from scheduler.store.opening import open_store
from scheduler.view.connection import make_redis
from scheduler.view.redis_ports import RedisRecord
from tests.cli.conftest import Run
from tests.sqlite_file import sqlite_url

__all__ = ["sqlite_url"]


@pytest.fixture
def broker(redis_url: str, database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a stack's Redis, with its database; there is no EC2."""
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", redis_url)
    monkeypatch.setenv("LEASEHOLD_AWS__ENDPOINT_URL", f"http://127.0.0.1:{find_free_port()}")
    monkeypatch.setenv("LEASEHOLD_AWS__REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    return redis_url


def test_a_backup_is_described_and_private(database: str, run: Run, tmp_path: Path) -> None:
    found = run("backup", "the.backup", "--json")
    assert found.status == 0
    described = json.loads(found.out)
    assert (described["path"], described["kind"]) == ("the.backup", "sqlite")
    assert stat.S_IMODE((tmp_path / "the.backup").stat().st_mode) == 0o600


def test_a_file_that_exists_is_not_overwritten(database: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "the.backup").write_text("precious")
    found = run("backup", "the.backup")
    assert (found.status, len(found.complaints)) == (1, 1)
    assert "--force" in found.err
    assert run("backup", "the.backup", "--force").status == 0


@pytest.mark.parametrize("words", [(), ("the.backup", "--in-place")])
def test_restore_needs_either_a_file_or_in_place(words: tuple[str, ...], database: str, run: Run) -> None:
    found = run("restore", *words)
    assert (found.status, found.complaints) == (2, ["leasehold: expected either FILE or --in-place"])


@pytest.mark.parametrize("name", ["missing", "notes.txt"])
def test_a_file_that_is_no_backup_is_refused(name: str, database: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    found = run("restore", name, "--yes")
    assert (found.status, len(found.complaints)) == (1, 1)
    assert name in found.err


def test_without_a_terminal_nothing_is_asked_and_nothing_done(broker: str, database: str, run: Run) -> None:
    assert run("backup", "the.backup").status == 0
    found = run("restore", "the.backup")
    assert (found.status, len(found.complaints)) == (2, 1)
    assert "--yes" in found.err
    with closing(open_store(database)) as store:
        assert store.read_cluster().restores == 0


def test_a_redis_of_another_cluster_is_not_restored_into_unless_it_is_taken_over(
    broker: str, database: str, run: Run
) -> None:
    another = "a" * 32
    with make_redis(broker) as client:
        record = RedisRecord(client)
        record.keep(another, 7, 7)
        found = run("restore", "--in-place", "--yes")
        assert (found.status, len(found.complaints)) == (1, 1)
        assert another in found.err
        assert record.read().identity == another
        assert not record.read().is_restoring
        assert run("restore", "--in-place", "--yes", "--take-over").status == 0
        assert record.read().identity != another


def test_a_restore_without_redis_is_refused_unless_the_option_allows_it(
    broker: str, database: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", f"redis://127.0.0.1:{find_free_port()}/0")
    found = run("restore", "--in-place", "--yes")
    assert found.status == 1
    assert "--without-redis" in found.complaints[-1]
    found = run("restore", "--in-place", "--yes", "--without-redis", "--json")
    assert found.status == 0
    restored = json.loads(found.out)
    assert restored["restores"] == 1
    assert restored["machines"] is None


def test_a_restore_that_cannot_begin_leaves_the_cluster_as_it_was(
    broker: str, database: str, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The database cannot be replaced, so the mark that pauses all processes is removed again."""
    assert run("backup", "the.backup").status == 0
    monkeypatch.setenv("LEASEHOLD_DATABASE__URL", f"sqlite:///{tmp_path}/no-such-folder/leasehold.db")
    found = run("restore", "the.backup", "--yes")
    assert found.status == 1
    assert "no such directory" in found.complaints[-1]
    with make_redis(broker) as client:
        assert not RedisRecord(client).read().is_restoring


@pytest.mark.parametrize("flags", [(), ("--without-redis",)])
def test_a_restore_works_on_a_stopped_embedded_stack(run: Run, tmp_path: Path, flags: tuple[str, ...]) -> None:
    """Its Redis and its emulator ended with it."""
    (tmp_path / ".leasehold").mkdir(mode=0o700)
    assert run("migrate").status == 0
    assert run("backup", "the.backup").status == 0
    found = run("restore", "the.backup", "--yes", "--json", *flags)
    assert found.status == 0, found.err
    restored = json.loads(found.out)
    assert restored["machines"] is None
    assert "its machines ended with it" in restored["cloud_fault"]
    found = run("restore", "--in-place", "--yes", "--json", *flags)
    assert json.loads(found.out)["term"] > restored["term"]


def test_a_restore_of_a_shared_database_needs_its_redis(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEHOLD_DATABASE__URL", "postgresql://leasehold@127.0.0.1:1/leasehold")
    found = run("restore", "--in-place", "--yes")
    wanted = "leasehold: broker.url: expected the URL of the stack's Redis (LEASEHOLD_BROKER__URL), got nothing"
    assert (found.status, found.complaints) == (1, [wanted])


def test_a_restore_names_the_running_stack_before_it_asks(run: Run, database: str, tmp_path: Path) -> None:
    assert run("backup", "the.backup").status == 0
    folder = StackFolder(tmp_path / ".leasehold")
    folder.lock()
    try:
        url = f"redis://127.0.0.1:{find_free_port()}/0"
        folder.write({"pid": 1, "phase": "running", "broker_url": url, "database_url": database, "environment": {}})
        found = run("restore", "the.backup")
    finally:
        folder.unlock()
    assert (found.status, len(found.complaints)) == (2, 2)
    assert found.complaints[0].startswith(f"  a stack runs in {folder.path}: `leasehold down` stops it")
    assert "--yes is required" in found.complaints[1]
