"""Migrations build the very schema that the store works on, once, whoever starts them."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

from scheduler.model.validation import InvalidInputError
from scheduler.ports import StoreUnavailableError
from scheduler.store.memory import MemoryStore
from scheduler.store.migrating import SchemaState, migrate, schema_state
from scheduler.store.opening import open_store
from scheduler.store.tables import metadata


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "100% new.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


def read_schema(path: Path) -> dict[str, str]:
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    connection.close()
    return {name: " ".join(sql.replace(", ", ",").split()) for name, sql in rows if name != "alembic_version"}


def test_alembic_finds_nothing_to_change(url: str) -> None:
    migrate(url)
    engine = create_engine(url)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_the_schema_is_that_of_the_tables_to_the_letter(url: str, path: Path, tmp_path: Path) -> None:
    """Alembic compares neither conditions of indexes nor table options."""
    migrate(url)
    engine = create_engine(f"sqlite:///{tmp_path / 'tables.db'}")
    metadata.create_all(engine)
    engine.dispose()
    assert read_schema(path) == read_schema(tmp_path / "tables.db")


def test_a_second_run_has_nothing_to_do(url: str) -> None:
    first = migrate(url)
    assert first[0] == "0001"
    assert migrate(url) == []
    assert schema_state(url) == SchemaState(first[-1], first[-1])
    assert schema_state(url).is_current


def test_of_two_at_once_one_migrates_and_both_end_well(url: str) -> None:
    meeting = Barrier(2)

    def start(_: int) -> int:
        meeting.wait()
        return len(migrate(url))

    with ThreadPoolExecutor(2) as threads:
        counts = sorted(threads.map(start, range(2)))
    assert counts[0] == 0
    assert counts[1] > 0


def test_a_failed_migration_leaves_nothing(url: str, path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE slots (id TEXT)")
    connection.close()
    with pytest.raises(StoreUnavailableError, match="slots already exists"):
        migrate(url)
    assert set(read_schema(path)) == {"slots"}


def test_the_state_before_the_first_migration(url: str, path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="run `leasehold migrate`"):
        schema_state(url)
    sqlite3.connect(path).close()
    path.touch()
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
        ("postgres//user:secret@host", "postgres//user:***@host"),  # mistyped
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
