"""SQLite databases for tests: migrated once a run, then copied, since the migrations take longer than most tests do."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler.store.migrating import migrate

MakeSqlite = Callable[[Path], str]
"""Makes a database that is migrated and empty at a path, and gives its URL."""


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that is migrated and empty: others are copies of it."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def make_sqlite(sqlite_template: Path) -> MakeSqlite:
    def make(path: Path) -> str:
        shutil.copyfile(sqlite_template, path)
        return f"sqlite:///{path}"

    return make


@pytest.fixture
def sqlite_url(make_sqlite: MakeSqlite, tmp_path: Path) -> str:
    """The URL of a database of its own, migrated and empty."""
    return make_sqlite(tmp_path / "leasehold.db")
