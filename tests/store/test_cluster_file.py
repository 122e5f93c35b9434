"""The numbers of the cluster are read from an SQLite file as its store reads them, without SQLAlchemy."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from scheduler.ports import DatabaseWentBackError, ForeignClusterError, StoreUnavailableError
from scheduler.store.cluster_file import ClusterFile, open_cluster
from scheduler.store.memory import MemoryStore
from scheduler.store.migrating import migrate
from scheduler.store.opening import open_store


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """An SQLite database with all tables."""
    found = tmp_path / "cluster.db"
    migrate(f"sqlite:///{found}")
    return found


def change(file: Path, statement: str) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(statement)


def test_the_numbers_are_those_of_the_store(file: Path) -> None:
    """Identity, term, token and number of restores, each with a value of its own."""
    change(file, "UPDATE leader SET term = 7")
    change(file, "UPDATE counters SET value = 11 WHERE name = 'token'")
    change(file, "UPDATE cluster SET restores = 3")
    with closing(open_store(f"sqlite:///{file}")) as store:
        row = store.read_cluster()
    found = open_cluster(f"sqlite:///{file}").read_cluster()
    assert (found.identity, found.term, found.token, found.restores) == (row.identity, 7, 11, 3)
    assert (row.term, row.token, row.restores) == (7, 11, 3)


def test_an_older_state_is_refused_after_a_newer_one(file: Path) -> None:
    """The process has read a higher term from this file before."""
    source = ClusterFile(file)
    change(file, "UPDATE leader SET term = 7")
    source.read_cluster()
    change(file, "UPDATE leader SET term = 6")
    with pytest.raises(DatabaseWentBackError, match="it has term 6"):
        source.read_cluster()


def test_a_file_of_another_cluster_is_refused_after_the_first_reading(file: Path) -> None:
    """The file was replaced by that of another cluster."""
    source = ClusterFile(file)
    source.read_cluster()
    change(file, "UPDATE cluster SET identity = 'other'")
    with pytest.raises(ForeignClusterError, match="cluster other now"):
        source.read_cluster()


def test_a_file_that_cannot_be_read_is_an_unavailable_database(tmp_path: Path, file: Path) -> None:
    """No file, no tables, and no row: each raises the error that a store raises, and no file is made."""
    missing, empty = tmp_path / "missing.db", tmp_path / "empty.db"
    empty.touch()
    for each in (missing, empty):
        with pytest.raises(StoreUnavailableError, match=each.name):
            ClusterFile(each).read_cluster()
    assert not missing.exists()
    change(file, "DELETE FROM cluster")
    with pytest.raises(StoreUnavailableError, match="run `leasehold migrate`"):
        ClusterFile(file).read_cluster()


def test_another_database_is_read_by_its_store() -> None:
    """An SQLite file alone is read without its store."""
    assert isinstance(open_cluster("memory://"), MemoryStore)
