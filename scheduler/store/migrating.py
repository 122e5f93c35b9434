"""Migrate a database to the schema that this program needs (by Alembic, without alembic.ini), and report its schema
revision.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from sqlalchemy import Connection, inspect, text

from scheduler.ports import StoreUnavailableError
from scheduler.store.opening import MEMORY, choose_dialect
from scheduler.store.revisions import SELECT_REVISION, TABLE, judge_revision, list_revisions
from scheduler.store.session import explaining

_SCRIPTS: Final = Path(__file__).parent / "migrations"


class SchemaState(msgspec.Struct, frozen=True):
    """The schema revisions of a database and of this program. `current`: the revision of the database; None: it has no
    tables of Leasehold. `head`: the newest revision that this program knows.
    """

    current: str | None
    head: str | None

    @property
    def is_current(self) -> bool:
        """Return whether the database has the newest revision of the schema, so that no migration is needed."""
        return self.current == self.head


def migrate(url: str) -> list[str]:
    """Apply all missing schema revisions to the database at `url`, all or none. Return their ids, oldest first.

    A missing SQLite file is created; a missing PostgreSQL database is not. If two processes migrate at once, the second
    waits and then has nothing to do. Raises StoreUnavailableError, also for a database that a newer program has
    migrated, and InvalidInputError for an unknown kind of URL.
    """
    if url == MEMORY:
        return []
    # Alembic takes a while to import, and only a migration needs it.
    from alembic import command  # noqa: PLC0415 - see above
    from alembic.config import Config  # noqa: PLC0415 - see above
    from alembic.script import ScriptDirectory  # noqa: PLC0415 - see above
    from alembic.script.revision import RevisionError  # noqa: PLC0415 - see above
    from alembic.util import CommandError  # noqa: PLC0415 - see above

    with _connected(url, create=True) as connection:
        config = Config()
        # Alembic reads its settings with a ConfigParser, for which a percent sign has a meaning.
        config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
        config.attributes["connection"] = connection
        current = _find_current(connection)
        if current is not None and current < list_revisions()[0]:
            raise StoreUnavailableError(judge_revision(current))
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
    """Return the schema revision of the database at `url`, and the newest revision that this program knows. A missing
    file is not created.

    Raises StoreUnavailableError if the database cannot be read, and InvalidInputError for an unknown kind of URL.
    """
    if url == MEMORY:
        return SchemaState(None, None)
    with _connected(url, create=False) as connection:
        return SchemaState(_find_current(connection), list_revisions()[-1])


@contextmanager
def _connected(url: str, *, create: bool) -> Iterator[Connection]:
    dialect = choose_dialect(url, create=create)
    engine = dialect.create_engine()
    try:
        options = dialect.options(writes=create)
        with explaining(dialect), engine.connect().execution_options(**options) as connection, connection.begin():
            if create:
                dialect.check_primary(connection)
                dialect.prepare_migration(connection)
            yield connection
    finally:
        engine.dispose()


def _find_current(connection: Connection) -> str | None:
    if not inspect(connection).has_table(TABLE):
        return None
    return connection.execute(text(SELECT_REVISION)).scalar_one_or_none()
