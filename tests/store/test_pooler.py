"""PostgreSQL behind a real PgBouncer in transaction pooling: each transaction may run on another session of the
server, and sessions are shared with others.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from scheduler.model.validation import InvalidInputError
from scheduler.ports import StoreUnavailableError
from scheduler.store.backup import BackupError, back_up, put_back, read_backup
from scheduler.store.migrating import migrate, schema_state
from scheduler.store.opening import choose_dialect, find_fault, open_store, try_write
from scheduler.store.postgresql_pipeline import PostgresConnection
from scheduler.store.session import open_session
from scheduler.store.sql import SqlStore
from testbed.postgresql_server import PostgresServer, find_binaries
from testbed.proxy import Proxy
from tests.builders import a_reservation, a_slot
from tests.pgbouncer import PgBouncer
from tests.store.conftest import Open
from tests.store.test_contract import insert, save

LIMITS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
PREPARED = 8
"""More executions than those after which psycopg prepares a statement."""


@pytest.fixture(params=["", "options"], ids=["refuses options", "ignores options"])
def pooled_url(request: pytest.FixtureRequest, postgresql_server: PostgresServer, postgresql_url: str) -> Iterator[str]:
    """Yield the URL of an empty migrated database by way of a pooler with few sessions."""
    with PgBouncer(postgresql_server, ignored=request.param) as pooler:
        yield pooler.url(str(make_url(postgresql_url).database))


@pytest.fixture
def one_url(postgresql_server: PostgresServer, postgresql_url: str) -> Iterator[str]:
    """Yield such a URL of a pooler with one session."""
    with PgBouncer(postgresql_server, size=1) as pooler:
        yield pooler.url(str(make_url(postgresql_url).database))


def ask(store: SqlStore, statement: str) -> object:
    with open_session(store.engine, store._dialect, writes=True) as session:
        ((found,),) = session.fetch(text(statement))
        return found


def read_limits(store: SqlStore) -> list[object]:
    return [ask(store, f"SHOW {name}") for name in LIMITS]


def test_transactions_of_several_processes_meet_no_statements_of_others(pooled_url: str, open_sql: Open) -> None:
    stores = [open_sql(pooled_url) for _ in range(4)]

    def work(number: int) -> None:
        for piece in range(PREPARED):
            save(stores[number], a_slot(f"linux-{number}-{piece}"))
            insert(stores[number], a_reservation(f"r{number}-{piece}"))
            assert len([*stores[number].read_rows()]) >= 2 * piece
            stores[number].find_slots(ids=[f"linux-{number}-{piece}"])

    with ThreadPoolExecutor(len(stores)) as threads:
        list(threads.map(work, range(len(stores))))
    assert len(stores[0].find_slots()) == len(stores) * PREPARED
    assert ask(stores[0], "SELECT count(*) FROM pg_prepared_statements") == 0


def test_every_wait_is_bounded_in_each_transaction_and_nothing_stays_behind(
    pooled_url: str, open_sql: Open, postgresql_server: PostgresServer
) -> None:
    store = open_sql(pooled_url)
    assert read_limits(store) == ["30s", "5s", "10s"]
    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        assert connection.execute(text("SHOW statement_timeout")).scalar_one() == "0"


def test_options_of_the_url_hold_in_each_transaction(pooled_url: str, open_sql: Open) -> None:
    store = open_sql(f"{pooled_url}?options=-c%20lock_timeout%3D2s%20--search-path%3Dx,public%20-cwork_mem%3D5MB")
    assert read_limits(store) == ["30s", "2s", "10s"]
    assert (ask(store, "SHOW work_mem"), ask(store, "SHOW search_path")) == ("5MB", "x,public")
    assert store.find_slots() == []


def test_a_read_is_of_one_moment_and_changes_nothing(pooled_url: str, open_sql: Open) -> None:
    store = open_sql(pooled_url)
    options = choose_dialect(pooled_url).options(writes=False)
    with store.engine.connect().execution_options(**options) as connection, connection.begin():
        names = ("transaction_isolation", "transaction_read_only")
        assert [connection.execute(text(f"SHOW {name}")).scalar_one() for name in names] == ["repeatable read", "on"]


def test_a_database_is_migrated_and_examined(postgresql_server: PostgresServer) -> None:
    name = postgresql_server.create_database()
    with PgBouncer(postgresql_server) as pooler:
        assert migrate(pooler.url(name))
        assert schema_state(pooler.url(name)).is_current
        assert find_fault(pooler.url(name)) is None
        try_write(pooler.url(name))
    postgresql_server.drop_database(name)


def test_the_url_may_state_the_kind_of_pooling(postgresql_url: str, open_sql: Open) -> None:
    direct, pooled = open_sql(f"{postgresql_url}?pooling=none"), open_sql(f"{postgresql_url}?pooling=transaction")
    for store in (direct, pooled):
        for _ in range(PREPARED):
            store.find_slots()
        assert read_limits(store) == ["30s", "5s", "10s"]
    statements = "SELECT count(*) > 0 FROM pg_prepared_statements"
    assert (ask(direct, statements), ask(pooled, statements)) == (True, False)
    with pytest.raises(InvalidInputError, match=r"pooling=transaction, none or auto"):
        open_store(f"{postgresql_url}?pooling=session")


def test_a_direct_connection_sends_no_statement_for_the_pooling(
    postgresql_url: str, open_sql: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, sent = open_sql(postgresql_url), list[int]()
    store.find_slots()
    send_begin = PostgresConnection._send_begin

    def count(connection: PostgresConnection) -> int:
        sent.append(send_begin(connection))
        return sent[-1]

    monkeypatch.setattr(PostgresConnection, "_send_begin", count)
    store.find_slots()
    assert sent == [1]
    assert read_limits(store) == ["30s", "5s", "10s"]


def test_a_backup_needs_a_direct_connection(
    one_url: str, postgresql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pg_dump and psql change settings of their session, which others would get."""
    monkeypatch.setenv("PATH", str(find_binaries()), prepend=os.pathsep)
    back_up(postgresql_url, tmp_path / "good")
    line = "a pooler is between this host and the server: let LEASEHOLD_DATABASE__URL name the server itself"
    with pytest.raises(BackupError, match=line):
        back_up(one_url, tmp_path / "bad")
    with pytest.raises(BackupError, match=line):
        put_back(read_backup(tmp_path / "good"), one_url)
    assert not (tmp_path / "bad").exists()
    with closing(open_store(one_url)) as store:
        assert store.find_slots() == []


def test_a_session_of_the_pooler_on_a_standby_is_given_up(
    postgresql_server: PostgresServer, postgresql_url: str
) -> None:
    """PgBouncer keeps its session with the standby, unless a transaction on it is cut off."""
    standby = postgresql_server.start_standby()
    try:
        with (
            Proxy(standby.port) as proxy,
            PgBouncer(postgresql_server, size=1, target=proxy.port) as pooler,
            closing(open_store(pooler.url(str(make_url(postgresql_url).database)))) as store,
        ):
            store.find_slots()
            proxy.target = postgresql_server.port
            with pytest.raises(StoreUnavailableError, match="the database is read-only"):
                save(store, a_slot("linux-1"))
            assert save(store, a_slot("linux-1"))
    finally:
        standby.remove()
