"""The row of the cluster, and a database that went back."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from scheduler.ports import DatabaseWentBackError, ForeignClusterError, Store
from scheduler.store.migrating import migrate
from scheduler.store.opening import open_store
from scheduler.store.sql import SqlStore
from tests.store.conftest import SQL_KINDS, Clock, MakeOpener, Opener


@pytest.fixture(params=SQL_KINDS)
def opener(request: pytest.FixtureRequest, make_opener: MakeOpener, clock: Clock) -> Opener:
    return make_opener(request.param, clock)


@pytest.fixture
def sql_store(opener: Opener) -> Iterator[SqlStore]:
    opened = opener()
    assert isinstance(opened, SqlStore)
    yield opened
    opened.close()


def test_the_row_has_the_highest_numbers_that_were_committed(store: Store) -> None:
    before = store.read_cluster()
    with store.transaction() as transaction:
        transaction.take_term("me")
        assert list(transaction.next_tokens(3)) == [1, 2, 3]
    after = store.read_cluster()
    assert (after.identity, after.restores) == (before.identity, 0)
    assert (before.term, before.token) == (0, 0)
    assert (after.term, after.token) == (1, 3)


def set_back(store: SqlStore, statement: str) -> None:
    with store.engine.connect().execution_options(writes=True) as connection, connection.begin():
        connection.execute(text(statement))


@pytest.mark.parametrize(
    "statement", ["UPDATE leader SET term = 1", "UPDATE counters SET value = 4 WHERE name = 'token'"]
)
def test_a_process_that_has_seen_higher_numbers_refuses_and_a_new_one_cannot_know(
    sql_store: SqlStore, opener: Opener, statement: str
) -> None:
    with sql_store.transaction() as transaction:
        transaction.take_term("me")
        transaction.take_term("me")
        transaction.next_tokens(5)
    sql_store.read_cluster()
    set_back(sql_store, statement)
    with pytest.raises(DatabaseWentBackError, match="`leasehold restore --in-place`"):
        sql_store.read_cluster()
    other = opener()
    other.read_cluster()
    other.close()


def test_a_process_goes_on_when_the_numbers_are_above_those_that_it_saw(sql_store: SqlStore) -> None:
    with sql_store.transaction() as transaction:
        transaction.next_tokens(5)
    sql_store.read_cluster()
    set_back(sql_store, "UPDATE counters SET value = 10000000005 WHERE name = 'token'")
    assert sql_store.read_cluster().token == 10_000_000_005
    with sql_store.transaction() as transaction:
        assert list(transaction.next_tokens(1)) == [10_000_000_006]


def test_a_file_of_another_cluster_in_the_same_place_is_refused(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        migrate(f"sqlite:///{tmp_path}/{name}.db")
    store = open_store(f"sqlite:///{tmp_path}/ours.db")
    identity = store.read_cluster().identity
    store.close()
    for file in tmp_path.glob("ours.db-*"):
        file.unlink()
    shutil.copy(tmp_path / "theirs.db", tmp_path / "ours.db")
    with pytest.raises(ForeignClusterError, match=identity):
        store.read_cluster()
    store.close()
