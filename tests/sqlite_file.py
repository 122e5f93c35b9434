"""SQLite databases for tests: migrated once a run and then copied, because the migrations take long."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler.store.migrating import migrate

MakeSqlite = Callable[[Path], str]
"""Makes an empty migrated database at a path and returns its URL."""


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an empty migrated database, from which others are copied."""
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
    """Return the URL of an empty migrated database for one test."""
    return make_sqlite(tmp_path / "leasehold.db")
