"""What is particular to PostgreSQL: bounded waits, lost connections, the order of events, its errors for people."""

import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from threading import Barrier, Event

import msgspec
import pytest
from sqlalchemy import make_url, text

from leasehold.stack.configuration import find_free_port
from scheduler.model.slots import Slot
from scheduler.ports import ConflictError, EventFilter, StaleWriteError, StoreUnavailableError
from scheduler.store.migrating import migrate, schema_state
from scheduler.store.opening import open_store
from scheduler.store.postgresql import PostgresDialect
from scheduler.store.session import open_session
from scheduler.store.sql import SqlStore
from scheduler.store.sql_transaction import SqlTransaction
from testbed.postgresql_server import PostgresServer, start_own_postgresql
from testbed.processes import wait_for
from tests.builders import a_reservation, a_slot
from tests.store.conftest import Open
from tests.store.scripts import FORKED, KILLED, run_script
from tests.store.test_contract import an_event, insert, save


@pytest.fixture
def postgresql(postgresql_url: str, open_sql: Open) -> SqlStore:
    return open_sql(postgresql_url)


ENDED = r"the server ended the connection|the connection was (lost|ended)"
"""The message depends on whether the server's last bytes still arrived."""


@contextmanager
def losing(store: SqlStore, line: str, password: str | None = None) -> Iterator[SqlTransaction]:
    """A transaction that is to fail with this line, and so to leave nothing."""
    with pytest.raises(StoreUnavailableError, match=line) as caught, store.transaction() as transaction:
        yield transaction
    assert_is_fit_for_people(caught.value, password or "(none)")


def end_connections(server: PostgresServer, url: str) -> int:
    return server.end_connections(str(make_url(url).database))


def ask(store: SqlStore, statement: str) -> object:
    with open_session(store.engine, store._dialect, writes=True) as session:
        ((found,),) = session.fetch(text(statement))
        return found


class TestConnections:
    def test_every_wait_is_bounded(self, postgresql: SqlStore) -> None:
        names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
        assert [ask(postgresql, f"SHOW {name}") for name in names] == ["30s", "5s", "10s"]

    def test_options_of_the_url_go_last(self, postgresql_url: str, open_sql: Open) -> None:
        store = open_sql(f"{postgresql_url}?application_name=mine&options=-c%20statement_timeout%3D7s")
        names = ("application_name", "statement_timeout", "lock_timeout")
        assert [ask(store, f"SHOW {name}") for name in names] == ["mine", "7s", "5s"]

    def test_the_time_is_the_databases(self, postgresql_url: str) -> None:
        store = open_store(postgresql_url, lambda: 0.0)
        with store.transaction() as transaction:
            assert transaction.now() <= store.now()
            assert transaction.now() > 1_700_000_000
        store.close()

    def test_connections_that_were_ended_are_replaced_before_they_are_used(
        self, postgresql: SqlStore, postgresql_server: PostgresServer, postgresql_url: str
    ) -> None:
        (slot,) = save(postgresql, a_slot())
        with ThreadPoolExecutor(3) as threads:
            meeting = Barrier(3)
            list(threads.map(lambda _: (meeting.wait(), postgresql.find_slots()), range(3)))
        assert end_connections(postgresql_server, postgresql_url) > 0
        assert postgresql.find_slots() == [slot]
        assert end_connections(postgresql_server, postgresql_url) > 0
        assert save(postgresql, slot) == postgresql.find_slots()

    def test_a_transaction_whose_connection_ends_leaves_nothing(
        self, postgresql: SqlStore, postgresql_server: PostgresServer, postgresql_url: str
    ) -> None:
        with losing(postgresql, ENDED) as transaction:
            transaction.save([a_slot()])
            end_connections(postgresql_server, postgresql_url)
            transaction.save([a_slot("linux-2")])
        assert postgresql.find_slots() == []

    def test_a_commit_that_does_not_reach_the_server_is_no_success(
        self, postgresql: SqlStore, postgresql_server: PostgresServer, postgresql_url: str
    ) -> None:
        with losing(postgresql, ENDED) as transaction:
            transaction.save([a_slot()])
            end_connections(postgresql_server, postgresql_url)
        assert postgresql.find_slots() == []

    def test_a_killed_process_leaves_nothing(self, postgresql: SqlStore, postgresql_url: str) -> None:
        (slot,) = save(postgresql, a_slot("kept-1"))
        assert run_script(KILLED, postgresql_url).returncode == -signal.SIGKILL
        assert list(postgresql.read_rows()) == [slot]
        (row,) = insert(postgresql, a_reservation())
        with postgresql.transaction() as transaction:
            assert (row.sequence, transaction.next_tokens(1)) == (1, range(1, 2))

    def test_a_fork_opens_connections_of_its_own(self, postgresql_url: str) -> None:
        run = run_script(FORKED, postgresql_url)
        assert (run.stderr, run.stdout) == ("", "['linux-1', 'linux-2', 'linux-3', 'linux-4']\n")


def test_a_server_that_crashed_and_came_back_is_used_again_and_lost_nothing(open_sql: Open) -> None:
    server = start_own_postgresql()
    try:
        migrate(server.url())
        store = open_sql(server.url())
        (slot,) = save(store, a_slot())
        server.kill()
        for _ in range(2):
            with pytest.raises(StoreUnavailableError) as caught:
                save(store, slot)
            assert_is_fit_for_people(caught.value, server.password)
        server.restart()
        assert store.find_slots() == [slot]
        server.stop()
        server.restart()
        assert save(store, slot) == store.find_slots()
    finally:
        server.remove()


def assert_is_fit_for_people(error: Exception, password: str) -> None:
    """One line that names the server, without a password."""
    assert "\n" not in str(error)
    assert str(error).startswith("postgresql://leasehold:***@127.0.0.1")
    assert password not in str(error)


class TestErrors:
    def failing(self, store: SqlStore, password: str) -> str:
        with pytest.raises(StoreUnavailableError) as caught:
            save(store, a_slot())
        assert_is_fit_for_people(caught.value, password or "(none)")
        return str(caught.value).partition(": ")[2]

    def test_no_server_listens(self, open_sql: Open) -> None:
        port = find_free_port()
        store = open_sql(f"postgresql://leasehold:hunter2hunter2@127.0.0.1:{port}/db")
        assert "refused" in self.failing(store, "hunter2hunter2")

    def test_a_wrong_password(self, open_sql: Open, postgresql_server: PostgresServer) -> None:
        url = postgresql_server.url().replace(postgresql_server.password, "guessed")
        assert 'password authentication failed for user "leasehold"' in self.failing(open_sql(url), "guessed")

    def test_a_database_that_is_not_there(self, open_sql: Open, postgresql_server: PostgresServer) -> None:
        line = self.failing(open_sql(postgresql_server.url("nowhere")), postgresql_server.password)
        assert line == 'database "nowhere" does not exist: create it, then run `leasehold migrate`'

    def test_a_database_that_was_never_migrated(self, open_sql: Open, postgresql_server: PostgresServer) -> None:
        line = self.failing(open_sql(postgresql_server.url("template1")), postgresql_server.password)
        assert "the database has no tables of Leasehold" in line
        assert line.endswith("run `leasehold migrate`")

    def test_an_older_schema(self, postgresql: SqlStore, postgresql_server: PostgresServer) -> None:
        with postgresql.engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE slots DROP COLUMN failed_probes")
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
        assert "older than this program" in self.failing(postgresql, postgresql_server.password)

    @pytest.mark.parametrize(
        ("setting", "statement", "line"),
        [
            ("statement_timeout = 50", "SELECT pg_sleep(60)", "a statement took too long"),
            ("transaction_read_only = on", "CREATE TABLE x ()", "the database is read-only"),
        ],
    )
    def test_a_limit_that_is_reached(
        self, postgresql: SqlStore, postgresql_server: PostgresServer, setting: str, statement: str, line: str
    ) -> None:
        with losing(postgresql, line, postgresql_server.password) as transaction:
            transaction._session.change(text(f"SET LOCAL {setting}"))
            transaction._session.fetch(text(statement))
        assert postgresql.find_slots() == []

    def test_a_transaction_that_pauses_for_too_long(
        self, postgresql: SqlStore, postgresql_server: PostgresServer, postgresql_url: str
    ) -> None:
        """A process that is stopped within it blocks no other one for longer."""
        database = make_url(postgresql_url).database
        paused = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND state LIKE 'idle in transaction%%'"
        (slot,) = save(postgresql, a_slot())
        with losing(postgresql, ENDED, postgresql_server.password) as transaction:
            transaction.load_slots([slot.id])
            transaction._session.change(text("SET LOCAL idle_in_transaction_session_timeout = 1"))
            with postgresql_server.connect() as connection:
                wait_for(
                    lambda: connection.execute(paused, [database]).fetchone() == (0,), "its connection to be ended"
                )
            transaction.save([slot])
        assert postgresql.find_slots() == [slot]

    def test_rows_that_another_transaction_keeps(
        self, postgresql: SqlStore, open_sql: Open, postgresql_url: str
    ) -> None:
        (slot,) = save(postgresql, a_slot())
        impatient = open_sql(f"{postgresql_url}?options=-c%20lock_timeout%3D50ms")
        with postgresql.transaction() as transaction:
            transaction.load_slots([slot.id])
            with pytest.raises(StoreUnavailableError, match="another transaction keeps the rows locked"):
                save(impatient, slot)
            assert impatient.find_slots() == [slot]

    def test_a_deadlock_is_a_conflict_and_the_other_one_goes_on(self, postgresql: SqlStore) -> None:
        slots = save(postgresql, a_slot("linux-1"), a_slot("linux-2"))
        meeting = Barrier(2)

        def cross(order: list[Slot]) -> type[Exception] | None:
            try:
                with postgresql.transaction() as transaction:
                    transaction.save(order[:1])
                    meeting.wait()
                    transaction.save(order[1:])
            except (ConflictError, StaleWriteError) as error:
                return type(error)
            return None

        with ThreadPoolExecutor(2) as threads:
            ended = list(threads.map(cross, ([*slots], [*reversed(slots)])))
        assert ended.count(ConflictError) == 1
        assert ended.count(None) == 1

    def test_a_failure_that_was_swallowed_comes_again_at_the_end(self, postgresql: SqlStore) -> None:
        """PostgreSQL answers the commit of a failed transaction with a rollback and no error."""
        with losing(postgresql, "nowhere") as transaction:
            transaction.save([a_slot()])
            with pytest.raises(StoreUnavailableError):
                transaction._session.fetch(text("SELECT 1 FROM nowhere"))
        assert postgresql.find_slots() == []

    def test_a_transaction_that_lasted_too_long_is_not_committed(
        self, postgresql: SqlStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A look for changed rows reads back only this far."""
        monkeypatch.setattr(PostgresDialect, "longest_seconds", 0.0)
        with pytest.raises(StoreUnavailableError, match="it was not committed"):
            save(postgresql, a_slot())
        assert postgresql.find_slots() == []

    def test_a_missing_driver(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "psycopg", None)
        store = open_store("postgresql://leasehold:secret@127.0.0.1/db")
        install = r"install `leasehold\[server,postgresql\]`"
        with pytest.raises(StoreUnavailableError, match=f"PostgreSQL needs psycopg: {install}"):
            store.now()


class TestEncodings:
    """What the servers of distributions are made with depends on the locale of whoever made them."""

    def test_a_database_without_an_encoding_keeps_every_text(self, postgresql_server: PostgresServer) -> None:
        url = postgresql_server.url(postgresql_server.create_database(encoding="SQL_ASCII"))
        assert migrate(url)
        with closing(open_store(url)) as store:
            slot = a_slot(zone="gefällt 🚂")
            save(store, slot)
            assert [each.zone for each in store.find_slots()] == [slot.zone]

    def test_one_that_cannot_keep_every_text_is_refused_in_a_line(self, postgresql_server: PostgresServer) -> None:
        url = postgresql_server.url(postgresql_server.create_database(encoding="LATIN1"))
        with pytest.raises(
            StoreUnavailableError, match="expected a database in the encoding UTF8, got LATIN1"
        ) as found:
            migrate(url)
        assert "\n" not in str(found.value)
        assert not schema_state(url).is_current


class TestEvents:
    def test_a_later_commit_has_higher_numbers(self, postgresql: SqlStore) -> None:
        with postgresql.transaction() as slow:
            slow.append_events([an_event(slot="slow")])
            with postgresql.transaction() as quick:
                quick.append_events([an_event(slot="quick")])
            (first,) = postgresql.read_events(EventFilter())
        (second,) = postgresql.read_events(EventFilter(after=first.number))
        assert (first.slot, second.slot) == ("quick", "slow")

    def test_a_follower_loses_none(self, postgresql: SqlStore) -> None:
        writers, pieces = 4, 25
        meeting, ended = Barrier(writers + 1), Event()

        def write(writer: int) -> None:
            meeting.wait()
            for piece in range(pieces):
                with postgresql.transaction() as transaction:
                    transaction.append_events([an_event(slot=f"{writer}-{piece}-{part}") for part in range(3)])

        def follow() -> list[str]:
            seen: list[str] = []
            last, is_last_look = 0, False
            meeting.wait()
            while not is_last_look:
                is_last_look = ended.is_set()
                for event in postgresql.read_events(EventFilter(after=last)):
                    last = event.number
                    seen.append(str(event.slot))
            return seen

        with ThreadPoolExecutor(writers + 1) as threads:
            follower = threads.submit(follow)
            for done in [threads.submit(write, writer) for writer in range(writers)]:
                done.result()
            ended.set()
        assert len(follower.result()) == writers * pieces * 3
        assert len(set(follower.result())) == writers * pieces * 3


def test_a_reader_of_all_rows_sees_one_picture(postgresql: SqlStore) -> None:
    """Rows and leases that are written while it reads are not seen, however many pieces it reads in."""
    rows = insert(postgresql, *(a_reservation(f"r{number}") for number in range(2500)))
    reader = postgresql.read_rows()
    seen = [next(reader)]
    save(postgresql, *(msgspec.structs.replace(row, phase="cancelled") for row in rows), a_slot())
    seen += reader
    assert sorted(seen, key=lambda row: row.id) == sorted(rows, key=lambda row: row.id)
