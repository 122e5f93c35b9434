"""The connections that send statements of PostgreSQL together: what travels together, and what a failure leaves."""

import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from sqlalchemy import text

from scheduler.ports import EventFilter, StaleWriteError, StoredAnswer, StoreUnavailableError
from scheduler.store.forms import MOST_IDLE
from scheduler.store.postgresql import PostgresDialect
from scheduler.store.postgresql_pipeline import PostgresConnection, PostgresConnections
from scheduler.store.session import Session, open_session
from scheduler.store.sql import SqlStore
from testbed.postgresql_server import PostgresServer
from tests.builders import NOW, a_reservation, a_slot
from tests.store.conftest import Open
from tests.store.test_contract import an_event, insert, losing, save
from tests.store.test_postgresql import ask, end_connections


@pytest.fixture
def store(postgresql_url: str, open_sql: Open) -> SqlStore:
    return open_sql(postgresql_url)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of statements in each message to the server."""
    found, exchange = list[int](), PostgresConnection._exchange

    def count(connection: PostgresConnection, waiting: Sequence[Any]) -> None:
        found.append(len(waiting))
        exchange(connection, waiting)

    monkeypatch.setattr(PostgresConnection, "_exchange", count)
    return found


def find_connections(store: SqlStore) -> PostgresConnections:
    dialect = store._dialect
    assert isinstance(dialect, PostgresDialect)
    return dialect._connections[store.engine]


def read(store: SqlStore) -> Any:
    return open_session(store.engine, store._dialect, writes=False)


def test_a_submission_takes_six_messages(store: SqlStore, sent: list[int]) -> None:
    with store.transaction() as transaction:
        transaction.find_answers(["q1"])
        transaction.insert_reservations([a_reservation()])
        transaction.save_answers([StoredAnswer("q1", NOW, {"ok": True})])
        transaction.append_events([an_event(reservation="r1")])
    # The cluster, the answers, the known ids under the counter, the numbers, all rows behind the lock, COMMIT.
    assert sent == [1, 1, 2, 1, 4, 1]


def test_a_change_of_several_kinds_of_rows_takes_one_message(store: SqlStore, sent: list[int]) -> None:
    (slot,), (row,) = save(store, a_slot()), insert(store, a_reservation())
    with store.transaction() as transaction:
        transaction.load_reservations([row.id])
        sent.clear()
        transaction.save([row, slot])
        assert sent == [2]


def test_a_read_sends_one_message_and_does_not_wait_for_its_end(store: SqlStore, sent: list[int]) -> None:
    for _ in range(3):
        store.find_slots()
    assert sent == [1, 1, 1]
    idle = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"
    assert ask(store, idle) == 0


def test_commit_is_in_no_message_that_is_sent_again_after_a_loss(store: SqlStore, sent: list[int]) -> None:
    """A message with BEGIN is sent again if the connection was lost. With COMMIT in it, writes could happen twice."""
    with open_session(store.engine, store._dialect, writes=True) as session:
        session.fetch_later(text("SELECT 1"))
    assert sent == [1, 1]


def test_a_late_write_that_fails_leaves_nothing(store: SqlStore) -> None:
    with store.transaction() as transaction:
        transaction.save_answers([StoredAnswer("q1", NOW, {})])
    with losing(store, StaleWriteError) as transaction:
        transaction.insert_reservations([a_reservation()])
        transaction.save_answers([StoredAnswer("q1", NOW, {})])
        transaction.append_events([an_event(reservation="r1")])
    assert store.find_reservations() == []
    assert store.read_events(EventFilter()) == []


def test_a_late_write_that_fails_is_found_by_the_next_statement(store: SqlStore) -> None:
    with store.transaction() as transaction:
        transaction.save_answers([StoredAnswer("q1", NOW, {})])
    with losing(store, StaleWriteError) as transaction:
        transaction.save_answers([StoredAnswer("q1", NOW, {})])
        with pytest.raises(StaleWriteError):
            transaction.load_slots(["linux-1"])
    assert store.find_slots() == []


def test_nothing_runs_outside_of_a_transaction_that_could_not_begin(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, a_slot())
    monkeypatch.setattr("scheduler.store.postgresql_pipeline._BEGIN", b"BEGIN NONSENSE")
    monkeypatch.setattr("scheduler.store.postgresql_pipeline._WRITE", b"BEGIN NONSENSE")
    with (
        pytest.raises(StoreUnavailableError, match="syntax error"),
        open_session(store.engine, store._dialect, writes=True) as session,
    ):
        session.change(text("DELETE FROM slots"))
    assert len(store.find_slots()) == 1


def test_a_transaction_that_lost_its_connection_after_its_begin_does_not_go_on(
    store: SqlStore, postgresql_server: PostgresServer, postgresql_url: str
) -> None:
    save(store, a_slot())
    with losing(store, StoreUnavailableError) as transaction:
        transaction.next_tokens(1)
        end_connections(postgresql_server, postgresql_url)
        transaction.load_slots(["linux-1"])
    assert find_connections(store)._idle == []
    with store.transaction() as transaction:
        assert transaction.next_tokens(1) == range(1, 2)


def test_a_text_that_the_database_cannot_store_is_refused(store: SqlStore) -> None:
    with pytest.raises(StoreUnavailableError, match="NUL"):
        save(store, a_slot("a\0b"))
    assert store.find_slots() == []


def test_an_interrupted_statement_costs_the_connection_only(store: SqlStore) -> None:
    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGUSR1, stop)
    threading.Timer(0.2, signal.raise_signal, [signal.SIGUSR1]).start()
    try:
        with pytest.raises(TimeoutError), store.transaction() as transaction:
            transaction._session.fetch(text("SELECT pg_sleep(20)"))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert find_connections(store)._idle == []
    assert save(store, a_slot()) == store.find_slots()


def test_a_large_result_is_read_in_parts(store: SqlStore) -> None:
    rows = text("SELECT CAST(:first AS bigint) + n FROM generate_series(1, 2500) AS n")

    def walk(session: Session) -> Iterator[int]:
        for chunk in session.stream(rows, first=1):
            assert len(chunk) <= 1000
            assert session.fetch(text("SELECT 7")) == [(7,)]
            yield from (number for (number,) in chunk)

    with read(store) as session:
        assert [*walk(session)] == [*range(2, 2502)]


def test_few_connections_are_kept(store: SqlStore) -> None:
    sessions = [read(store) for _ in range(MOST_IDLE + 2)]
    for session in sessions:
        session.__enter__().read_cluster()
    for session in sessions:
        session.__exit__(None, None, None)
    assert len(find_connections(store)._idle) == MOST_IDLE
    store.close()
