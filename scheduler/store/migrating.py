"""Migrates a database to the schema of this program (Alembic, without alembic.ini), and reports its
present revision.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.script.revision import RevisionError
from alembic.util import CommandError
from sqlalchemy import Connection

from scheduler.ports import StoreUnavailableError
from scheduler.store.opening import MEMORY, choose_dialect
from scheduler.store.session import explaining

_SCRIPTS: Final = Path(__file__).parent / "migrations"


class SchemaState(msgspec.Struct, frozen=True):
    """The revision of a database (None: none yet) and the newest one that this program knows."""

    current: str | None
    head: str | None

    @property
    def is_current(self) -> bool:
        """Return whether the database has the newest revision of the schema, so that there is nothing to migrate."""
        return self.current == self.head


def migrate(url: str) -> list[str]:
    """Apply all missing revisions, all or none. Return their ids, oldest first.

    Makes a missing SQLite file, but not a PostgreSQL database. If two processes migrate at once, the second one
    waits and finds nothing to do. Raises StoreUnavailableError, also for a database that a newer program migrated,
    and InvalidInputError for an unknown kind of URL.
    """
    if url == MEMORY:
        return []
    with _connected(url, create=True) as connection:
        config = _configure(connection)
        current = _find_current(connection)
        try:
            newer = list(ScriptDirectory.from_config(config).iterate_revisions("head", current or "base"))
        except (CommandError, RevisionError):
            raise StoreUnavailableError(
                f"the database is at revision {current}, which this program does not know:"
                " migrate with the version that made this revision, or a newer one"
            ) from None
        if newer:
            command.upgrade(config, "head")
        return [revision.revision for revision in reversed(newer)]


def schema_state(url: str) -> SchemaState:
    """Return the revisions of the database at `url`. Raises as `migrate` does. A missing file is not made."""
    if url == MEMORY:
        return SchemaState(None, None)
    with _connected(url, create=False) as connection:
        head = ScriptDirectory.from_config(_configure(connection)).get_current_head()
        return SchemaState(_find_current(connection), head)


@contextmanager
def _connected(url: str, *, create: bool) -> Iterator[Connection]:
    dialect = choose_dialect(url, create=create)
    engine = dialect.create_engine()
    try:
        options = dialect.options(writes=create)
        with explaining(dialect), engine.connect().execution_options(**options) as connection, connection.begin():
            if create:
                dialect.check_text(connection)
                dialect.queue_for_migration(connection)
            yield connection
    finally:
        engine.dispose()


def _configure(connection: Connection) -> Config:
    config = Config()
    # Alembic reads its settings with a ConfigParser, for which a percent sign has a meaning.
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _find_current(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()
