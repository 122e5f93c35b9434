"""Compares the schema of a database with the schema that this program needs. It works without Alembic and is cheap, so
it can run after every failed statement.
"""

from functools import cache
from pathlib import Path
from typing import Final

from sqlalchemy import inspect, text
from sqlalchemy.exc import SQLAlchemyError

from scheduler.ports import StoreUnavailableError
from scheduler.store.dialect import Dialect

_VERSIONS: Final = Path(__file__).parent / "migrations" / "versions"
_TABLE: Final = "alembic_version"
_REVISION: Final = text(f"SELECT version_num FROM {_TABLE}")  # noqa: S608 - a constant


class SchemaError(StoreUnavailableError):
    """Raised when the tables of the database do not fit this program. The message names whether they are older or
    newer, and what to do.
    """


@cache
def list_revisions() -> tuple[str, ...]:
    """Return the schema revisions that this program knows, oldest first. The program needs a database at
    the last one.
    """
    return tuple(sorted(path.name.partition("_")[0] for path in _VERSIONS.glob("[0-9]*_*.py")))


def judge_revision(current: str | None) -> str | None:
    """Return a text about what is wrong with a database at the schema revision `current` (None: it has no tables) and
    what to do. Return None if nothing is wrong.
    """
    known = list_revisions()
    if current is None:
        return "the database has no tables of Leasehold: run `leasehold migrate`"
    if current == known[-1]:
        return None
    if current in known:
        return (
            f"the database's schema is older than this program (revision {current}, the program needs {known[-1]}):"
            " run `leasehold migrate`"
        )
    return (
        f"the database's schema is newer than this program (revision {current}, the program knows up to {known[-1]}):"
        " upgrade Leasehold on this host"
    )


def find_fault(url: str) -> str | None:
    """Return a text about why the tables of the database at `url` do not fit this program and what to do. Return None
    if they fit, or if the database cannot be reached. Raises InvalidInputError for an unknown kind of URL.
    """
    # Imported here, because the modules of the dialects import this one.
    from scheduler.store.opening import MEMORY, choose_dialect  # noqa: PLC0415

    return None if url == MEMORY else find_schema_fault(choose_dialect(url))


def find_schema_fault(dialect: Dialect) -> str | None:
    """Return a text about why the tables of this dialect's database do not fit this program and what to do. Return None
    if they fit, or if the database cannot be reached.
    """
    engine = dialect.create_engine()
    try:
        with engine.connect().execution_options(**dialect.options(writes=False)) as connection, connection.begin():
            has_revision = inspect(connection).has_table(_TABLE)
            return judge_revision(connection.execute(_REVISION).scalar() if has_revision else None)
    except SQLAlchemyError:
        return None
    finally:
        engine.dispose()
