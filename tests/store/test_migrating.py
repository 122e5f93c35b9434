"""Migrations build the very schema that the store works on, once, whoever starts them."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, create_engine

from scheduler.model.validation import InvalidInputError
from scheduler.ports import StoreUnavailableError
from scheduler.store.memory import MemoryStore
from scheduler.store.migrating import SchemaState, migrate, schema_state
from scheduler.store.opening import open_store
from scheduler.store.revisions import list_revisions
from scheduler.store.tables import metadata
from testbed.postgresql_server import PostgresServer
from tests.store.conftest import SQL_KINDS


@pytest.fixture(params=SQL_KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database that is not there yet (a file), or has nothing in it."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / '100% new.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgresql_server")
    name = server.create_database()
    yield server.url(name)
    server.drop_database(name)


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """A connection as SQLAlchemy makes it, with nothing of ours."""
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        yield connection
    engine.dispose()


_COLUMNS = """
SELECT table_name || '.' || column_name, concat_ws(
    ' ', ordinal_position, data_type, collation_name, is_nullable, column_default, generation_expression
) FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'alembic_version'
"""
_INDEXES = """
SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'alembic_version'
"""
_SQLITE = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name <> 'alembic_version'"


def read_schema(url: str) -> dict[str, str]:
    queries = [_SQLITE] if url.startswith("sqlite") else [_COLUMNS, _INDEXES]
    with connected(url) as connection:
        rows = [row for query in queries for row in connection.exec_driver_sql(query)]
    # SQLite puts the name of a table that was renamed (a copy that took the place of its original) in quotes, and
    # writes a column that was added on the line of the one before.
    return {
        name: re.sub(r"\s*([,)])\s*", r"\1", " ".join(words.replace(f'"{name}"', name).split())) for name, words in rows
    }


def test_alembic_finds_nothing_to_change(url: str) -> None:
    migrate(url)
    with connected(url) as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_the_schema_is_that_of_the_tables_to_the_letter(url: str) -> None:
    """Alembic compares neither conditions of indexes nor collations nor table options."""
    migrate(url)
    migrated = read_schema(url)
    with connected(url) as connection:
        metadata.drop_all(connection)
        metadata.create_all(connection)
    assert read_schema(url) == migrated
    assert len(migrated) > len(metadata.tables)


def test_a_second_run_has_nothing_to_do(url: str) -> None:
    first = migrate(url)
    assert first == list(list_revisions())
    assert migrate(url) == []
    assert schema_state(url) == SchemaState(first[-1], first[-1])
    assert schema_state(url).is_current


def test_a_database_from_before_the_release_is_refused_with_what_to_do_and_stays_as_it_is(url: str) -> None:
    migrate(url)
    with connected(url) as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
    before = read_schema(url)
    state = schema_state(url)
    assert (state.current, state.is_current) == ("0001", False)
    first = r"older than this program .*: run `leasehold migrate` of the last commit before release 0\.1\.0 first$"
    with pytest.raises(StoreUnavailableError, match=first) as found:
        migrate(url)
    assert "\n" not in str(found.value)
    assert read_schema(url) == before
    assert schema_state(url).current == "0001"


def test_a_database_of_a_newer_program_is_refused_with_what_to_do(url: str) -> None:
    migrate(url)
    with connected(url) as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0999'")
    before = read_schema(url)
    with pytest.raises(StoreUnavailableError, match="at revision 0999, which this program does not know") as found:
        migrate(url)
    assert "migrate with the version that" in str(found.value)
    assert read_schema(url) == before
    assert schema_state(url).current == "0999"


def test_of_two_at_once_one_migrates_and_both_end_well(url: str) -> None:
    meeting = Barrier(2)

    def start(_: int) -> int:
        meeting.wait()
        return len(migrate(url))

    with ThreadPoolExecutor(2) as threads:
        counts = sorted(threads.map(start, range(2)))
    assert counts[0] == 0
    assert counts[1] > 0


def test_a_failed_migration_leaves_nothing(url: str) -> None:
    with connected(url) as connection:
        connection.exec_driver_sql("CREATE TABLE slots (id TEXT)")
    before = read_schema(url)
    with pytest.raises(StoreUnavailableError, match=r"slots.* already exists"):
        migrate(url)
    assert read_schema(url) == before


def test_the_state_before_the_first_migration(url: str) -> None:
    if url.startswith("sqlite"):
        with pytest.raises(StoreUnavailableError, match="run `leasehold migrate`"):
            schema_state(url)
    with connected(url) as connection:
        connection.exec_driver_sql("CREATE TABLE of_another_program (id TEXT)")
    state = schema_state(url)
    assert (state.current, state.is_current) == (None, False)


def test_memory_needs_none() -> None:
    assert migrate("memory://") == []
    assert schema_state("memory://").is_current
    assert isinstance(open_store("memory://"), MemoryStore)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("mysql://user:secret@host/db", "mysql://user:***@host/db"),  # another database; no password is shown
        ("sqlite://", "sqlite://"),  # would be empty in every process
        ("sqlite:///:memory:", "sqlite:///:memory:"),  # as above
        ("sqlite:///leasehold.db?mode=ro", "sqlite:///leasehold.db?mode=ro"),  # no options
        ("postgresql://user:secret@host", "postgresql://user:***@host"),  # of which database?
        ("postgresql:///db", "postgresql:///db"),  # on which host?
        ("postgresql+psycopg2://u:secret@host/db", "postgresql+psycopg2://u:***@host/db"),  # another driver
        ("postgres//user:secret@host", "(hidden)"),  # mistyped
        ("leasehold.db", "leasehold.db"),  # a path is no URL
        ("", ""),
    ],
)
def test_any_other_url_is_refused_in_one_line(url: str, shown: str) -> None:
    for use in (open_store, migrate, schema_state):
        with pytest.raises(InvalidInputError) as caught:
            use(url)
        wanted = "sqlite:///PATH, postgresql://USER:PASSWORD@HOST/NAME or memory://"
        assert str(caught.value) == f'database.url: expected {wanted}, got "{shown}"'
