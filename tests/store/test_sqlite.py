"""What is particular to SQLite: execution of statements, durability, and error messages."""

import gc
import json
import signal
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import ClauseElement, Engine, Executable, Select, event, select, text

from scheduler.ports import EventFilter, StoreUnavailableError
from scheduler.store import tables
from scheduler.store.dialect import Bulk
from scheduler.store.forms import MOST_IDLE
from scheduler.store.migrating import migrate
from scheduler.store.session import open_session
from scheduler.store.shapes import StoredLease
from scheduler.store.sql import SqlStore
from scheduler.store.sqlite import LEAST_SHARED, SqliteConnection, SqliteConnections, SqliteDialect
from scheduler.store.statements import Statements
from tests.builders import a_lease, a_reservation, a_slot
from tests.store.conftest import Open
from tests.store.scripts import FORKED, KILLED, run_script
from tests.store.test_contract import an_event, insert, save

OpenPath = Callable[[Path], SqlStore]


@pytest.fixture
def path(sqlite_url: str) -> Path:
    """A database that is migrated and empty."""
    return Path(sqlite_url.removeprefix("sqlite:///"))


@pytest.fixture
def opened(open_sql: Open) -> OpenPath:
    return lambda path: open_sql(f"sqlite:///{path}")


@pytest.fixture
def sqlite(path: Path, opened: OpenPath) -> SqlStore:
    return opened(path)


def explain_plan(store: SqlStore, statement: Executable | str) -> list[str]:
    """The lines of SQLite's plan; what is bound does not matter to it."""
    text = str(statement.compile(store.engine)) if isinstance(statement, ClauseElement) else str(statement)
    with store.engine.connect() as connection:
        rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", ("[]",) * text.count("?"))
        return [row[3] for row in rows]


def find_connections(store: SqlStore) -> SqliteConnections:
    assert isinstance(store._dialect, SqliteDialect)
    return store._dialect._connections[store.engine]


def _names(bulk: Bulk, shared: Sequence[int]) -> set[str]:
    return {bulk.fields[at][0].name for at in shared}


class TestStatements:
    @pytest.mark.parametrize("analyzed", [False, True])
    def test_a_bulk_update_walks_the_rows_given_and_looks_up_each_by_its_id(
        self, sqlite: SqlStore, path: Path, *, analyzed: bool
    ) -> None:
        """An index on the phase or the state must not drive it, whatever SQLite knows of the tables' sizes."""
        insert(sqlite, *(a_reservation(f"r{number}") for number in range(100)))
        if analyzed:
            with sqlite3.connect(path) as connection:
                connection.execute("ANALYZE")
            connection.close()
        statements = Statements(sqlite._dialect)
        for kind in ("reservations", "slots", "holds"):
            for bulk in (getattr(statements, kind).update, getattr(statements, kind).mark):
                places = [at for at, (column, _) in enumerate(bulk.fields) if column.name != "id"]
                for shared in ((), tuple(places)):
                    *rows, last = explain_plan(sqlite, bulk.statement(shared))
                    assert last == f"SEARCH {kind} USING INDEX sqlite_autoindex_{kind}_1 (id=?)"
                    assert rows == ["MATERIALIZE rows", "SCAN items VIRTUAL TABLE INDEX 1:", "SCAN rows"]

    def test_nothing_that_is_looked_up_is_scanned_for(self, sqlite: SqlStore) -> None:
        """Every statement of the store that names rows finds them by an index."""
        statements = Statements(sqlite._dialect)
        kinds = (statements.reservations, statements.slots, statements.holds)
        looked_up: list[Executable] = [statement for kind in kinds for statement in (kind.load, kind.find, kind.forget)]
        looked_up += [kind.delete.statement() for kind in kinds]
        looked_up += [statements.leases.load, statements.leases.forget, statements.leases.on_slots]
        looked_up += [
            statements.leases.confirm.statement(),
            statements.find_answers,
            statements.forget(tables.outgoing.c.id),
        ]
        for statement in looked_up:
            scanned = [line for line in explain_plan(sqlite, statement) if line.startswith("SCAN")]
            assert all(line.split()[1] in {"items", "ids", "rows"} for line in scanned), scanned

    def test_reads_of_the_store_use_their_indexes(self, sqlite: SqlStore) -> None:
        seen: list[str] = []
        sqlite.close()
        event.listen(sqlite.engine, "connect", lambda connection, _: connection.set_trace_callback(seen.append))
        list(sqlite.read_rows())
        sqlite.find_reservations(phases=["pending", "leased"])
        sqlite.find_slots(states=["ready"])
        sqlite.count_phases()
        sqlite.find_accounts()
        sqlite.read_balances("ci", since=1.0)
        sqlite.read_versions_since(1.0)
        for which in (EventFilter(after=3), EventFilter(reservation="r"), EventFilter(slot="s", newest=True)):
            sqlite.read_events(which)
        sqlite.prune(events_before=1.0, requests_before=1.0, ended_before=1.0)
        plans = {
            statement: explain_plan(sqlite, statement)
            for statement in tuple(seen)
            if not statement.startswith(("BEGIN", "COMMIT", "INSERT", "PRAGMA", "--"))
        }
        # Read as a whole, or no table.
        whole = {"SCAN slots", "SCAN holds", "SCAN accounts", "SCAN run_times", "SCAN CONSTANT ROW"}
        for statement, plan in plans.items():
            scans = {line for line in plan if line.startswith("SCAN") and "INDEX" not in line}
            assert scans <= whole, statement
            assert not any("TEMP B-TREE FOR ORDER BY" in line for line in plan), statement

    def test_zeros_that_are_equal_and_not_the_same_are_passed_for_each_row(self, sqlite: SqlStore) -> None:
        bulk = Statements(sqlite._dialect).reservations.insert
        zero, minus = a_reservation(priority=0.0), a_reservation(priority=-0.0)
        shared, bound = sqlite._dialect.bind_rows(bulk, [zero, minus, zero] * LEAST_SHARED)
        assert "priority" not in _names(bulk, shared)
        assert shared
        assert "-0.0" in str(bound["rows"])

    def test_equal_texts_and_numbers_are_passed_once(self, sqlite: SqlStore) -> None:
        """As values that were read from the database row by row."""
        bulk = Statements(sqlite._dialect).reservations.insert
        rows = [a_reservation(priority=float("7"), principal=f"ci-{number % 1}") for number in range(LEAST_SHARED)]
        odd = a_reservation(priority=8.0, principal="ci-0")
        shared, _ = sqlite._dialect.bind_rows(bulk, rows)
        assert {"priority", "principal"} <= _names(bulk, shared)
        shared, _ = sqlite._dialect.bind_rows(bulk, [*rows, odd, *rows])
        assert "principal" in _names(bulk, shared)
        assert "priority" not in _names(bulk, shared)

    def test_nested_values_that_all_rows_have_are_passed_once(self, sqlite: SqlStore) -> None:
        bulk = Statements(sqlite._dialect).leases.insert
        rows = [
            StoredLease(f"r{number}", 0, a_lease("linux-1", token=number + 1, state="held"))
            for number in range(LEAST_SHARED)
        ]
        shared, bound = sqlite._dialect.bind_rows(bulk, rows)
        assert _names(bulk, shared) >= {"slot", "state", "position"}
        own = json.loads(str(bound["rows"]))
        assert own[1][:2] == ["r1", 2]

    def test_many_rows_that_share_all_values_are_all_written(self, sqlite: SqlStore) -> None:
        event = an_event(at=7.0)
        with sqlite.transaction() as transaction:
            transaction.append_events([event] * LEAST_SHARED)
        assert [each.at for each in sqlite.read_events(EventFilter())] == [7.0] * LEAST_SHARED

    def test_every_commit_is_on_disk(self, sqlite: SqlStore) -> None:
        with sqlite.engine.connect() as connection:
            pragmas = [
                connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")
            ]
        assert pragmas == ["wal", 2]


class TestProcesses:
    def test_a_kill_between_write_and_commit_leaves_nothing(self, path: Path, sqlite: SqlStore) -> None:
        (slot,) = save(sqlite, a_slot("kept-7"))
        assert run_script(KILLED, f"sqlite:///{path}").returncode == -signal.SIGKILL
        assert list(sqlite.read_rows()) == [slot]
        (row,) = insert(sqlite, a_reservation())
        with sqlite.transaction() as transaction:
            assert (row.sequence, transaction.next_tokens(1)) == (1, range(1, 2))

    def test_transactions_one_after_the_other_use_one_connection(self, sqlite: SqlStore) -> None:
        sqlite.close()
        opened: list[object] = []
        event.listen(sqlite.engine, "connect", lambda connection, _: opened.append(connection))
        for number in range(3):
            insert(sqlite, a_reservation(f"r{number}"))
            with pytest.raises(ZeroDivisionError), sqlite.transaction():
                raise ZeroDivisionError
            sqlite.now()
        assert len(opened) == 1

    def test_a_process_keeps_few_of_its_connections(self, sqlite: SqlStore) -> None:
        sqlite.close()
        together = 2 * MOST_IDLE
        with ExitStack() as stack:
            sessions = [
                stack.enter_context(open_session(sqlite.engine, sqlite._dialect, writes=False)) for _ in range(together)
            ]
            assert {session.read_cluster().term for session in sessions} == {0}
        idle = find_connections(sqlite)._idle
        assert len(idle) == MOST_IDLE
        sqlite.close()
        assert idle == []

    def test_a_statement_is_compiled_once_and_forgotten_with_its_last_use(self, sqlite: SqlStore) -> None:
        statement: Select[Any] = select(tables.slots.c.id).where(tables.slots.c.state.in_(["ready", "booting"]))
        save(sqlite, a_slot("linux-1", state="ready"), a_slot("linux-2", state="empty"))
        with open_session(sqlite.engine, sqlite._dialect, writes=False) as session:
            assert [*session.fetch(statement), *session.fetch(statement)] == [("linux-1",)] * 2
        forms = find_connections(sqlite).forms._forms
        assert statement in forms
        known = len(forms)
        del statement
        gc.collect()
        assert len(forms) == known - 1

    def test_threads_that_ask_first_at_the_same_time_share_one_engine(
        self, sqlite: SqlStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A connection of another process would stay open unused."""
        create, meeting = SqliteDialect.create_engine, Barrier(2)

        def create_beside_the_other(dialect: SqliteDialect) -> Engine:
            meeting.wait(10)
            return create(dialect)

        monkeypatch.setattr(SqliteDialect, "create_engine", create_beside_the_other)
        with ThreadPoolExecutor(2) as threads:
            first, second = threads.map(lambda _: sqlite.engine, range(2))
        assert first is second
        assert sqlite.engine is first

    def test_a_fork_opens_connections_of_its_own(self, path: Path) -> None:
        run = run_script(FORKED, f"sqlite:///{path}")
        assert (run.stderr, run.stdout) == ("", "['linux-1', 'linux-2', 'linux-3', 'linux-4']\n")


def failing(store: SqlStore) -> str:
    """The line that people get when this store is written to."""
    with pytest.raises(StoreUnavailableError) as caught:
        save(store, *(a_slot(f"linux-{number}") for number in range(1000)))
    assert "\n" not in str(caught.value)
    return str(caught.value)


class TestErrors:
    def test_a_missing_directory(self, tmp_path: Path, opened: OpenPath) -> None:
        path = tmp_path / "nowhere" / "leasehold.db"
        assert failing(opened(path)) == f"{path}: there is no such directory"
        with pytest.raises(StoreUnavailableError, match="there is no such directory"):
            migrate(f"sqlite:///{path}")

    def test_a_missing_database_is_not_made_by_looking_for_it(self, tmp_path: Path, opened: OpenPath) -> None:
        path = tmp_path / "leasehold.db"
        assert failing(opened(path)) == f"{path}: there is no such database: run `leasehold migrate`"
        assert not path.exists()

    def test_a_file_that_is_no_database(self, tmp_path: Path, opened: OpenPath) -> None:
        path = tmp_path / "leasehold.db"
        path.write_text("this is no database, but long enough to be read as one\n" * 100)
        assert failing(opened(path)) == f"{path}: the file is no SQLite database"

    def test_a_connection_that_cannot_be_set_up_is_closed(
        self, tmp_path: Path, opened: OpenPath, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path, connect = tmp_path / "leasehold.db", sqlite3.connect
        made: list[sqlite3.Connection] = []
        path.write_text("this is no database, but long enough to be read as one\n" * 100)

        def remember(*words: Any, **options: Any) -> sqlite3.Connection:
            made.append(connect(*words, **options))
            return made[-1]

        monkeypatch.setattr(sqlite3, "connect", remember)
        failing(opened(path))
        assert made
        for connection in made:
            with pytest.raises(sqlite3.ProgrammingError, match="closed"):
                connection.execute("SELECT 1")

    def test_a_directory(self, tmp_path: Path, opened: OpenPath) -> None:
        assert failing(opened(tmp_path)) == f"{tmp_path}: the file cannot be opened"

    def test_a_damaged_file(self, path: Path, sqlite: SqlStore, opened: OpenPath) -> None:
        insert(sqlite, *(a_reservation(f"r{number}") for number in range(1000)))
        sqlite.close()
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (path.stat().st_size - 4096))
        assert failing(opened(path)) == f"{path}: the file is damaged"

    def test_a_database_that_was_never_migrated(self, tmp_path: Path, opened: OpenPath) -> None:
        path = tmp_path / "leasehold.db"
        sqlite3.connect(path).close()
        path.touch()
        line = failing(opened(path))
        assert line == (
            f"{path}: no such table: cluster: the database has no tables of Leasehold: run `leasehold migrate`"
        )

    def test_an_older_schema(self, path: Path, sqlite: SqlStore) -> None:
        with sqlite.engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE slots DROP COLUMN failed_probes")
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
        assert "older than this program" in failing(sqlite)

    @pytest.mark.parametrize(
        ("pragma", "line"),
        [("max_page_count = 40", "the disk is full"), ("query_only = ON", "the database is read-only")],
    )
    def test_a_database_that_takes_no_more(self, path: Path, sqlite: SqlStore, pragma: str, line: str) -> None:
        (slot,) = save(sqlite, a_slot("kept-1"))
        sqlite.close()
        event.listen(sqlite.engine, "connect", lambda connection, _: connection.execute(f"PRAGMA {pragma}"))
        assert failing(sqlite) == f"{path}: {line}"
        assert list(sqlite.read_rows()) == [slot]

    def test_a_disk_that_is_full_at_the_commit(self, sqlite: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """A failure of the commit itself is no success either."""

        def fail(_: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        monkeypatch.setattr(SqliteConnection, "commit", fail)
        with pytest.raises(StoreUnavailableError, match="database or disk is full"):
            insert(sqlite, a_reservation())
        monkeypatch.undo()
        assert sqlite.find_reservations() == []

    def test_a_database_without_its_leader(self, sqlite: SqlStore) -> None:
        with sqlite.engine.begin() as connection:
            connection.exec_driver_sql("DELETE FROM leader")
        with pytest.raises(StoreUnavailableError, match="no row for the leader"):
            sqlite.load_leader_term()

    def test_a_lock_that_is_never_let_go(self, path: Path, opened: OpenPath, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("scheduler.store.sqlite.BUSY_SECONDS", 0.01)
        first, second = opened(path), opened(path)
        with first.transaction():
            assert failing(second) == f"{path}: another process keeps the file locked"
            assert second.find_slots() == []

    def test_the_store_goes_on_after_an_error(self, sqlite: SqlStore) -> None:
        with pytest.raises(StoreUnavailableError, match="no such table"):
            fetch_from(sqlite, "nowhere")
        with sqlite.transaction() as transaction:
            transaction.append_events([an_event()])
        assert len(sqlite.read_events(EventFilter())) == 1


def fetch_from(store: SqlStore, table: str) -> None:
    with store.transaction() as transaction:
        transaction._session.fetch(text(f"SELECT 1 FROM {table}"))  # noqa: S608 - a test's own word
