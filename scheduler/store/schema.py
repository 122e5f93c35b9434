"""Compares the schema of a database with the schema that this program needs. It works without Alembic and is cheap, so
it can run after every failed statement.
"""

from typing import Final

from sqlalchemy import inspect, text
from sqlalchemy.exc import SQLAlchemyError

from scheduler.ports import StandbyError, StoreUnavailableError
from scheduler.store.dialect import Dialect
from scheduler.store.revisions import SELECT_REVISION, TABLE, judge_revision

_REVISION: Final = text(SELECT_REVISION)


class SchemaError(StoreUnavailableError):
    """Raised when the tables of the database do not fit this program. The message states whether they are older or
    newer than the program, and what to do.
    """


def find_schema_fault(dialect: Dialect) -> str | None:
    """Return a text about why the tables of this dialect's database do not fit this program and what to do. Return None
    if they fit, or if the database cannot be reached. A standby fits no program, unless the URL asks for one.
    """
    engine = dialect.create_engine()
    try:
        with engine.connect().execution_options(**dialect.options(writes=False)) as connection, connection.begin():
            dialect.check_primary(connection)
            has_revision = inspect(connection).has_table(TABLE)
            return judge_revision(connection.execute(_REVISION).scalar() if has_revision else None)
    except StandbyError as error:
        return str(error)
    except SQLAlchemyError as error:
        explained = dialect.explain(error)
        return str(explained) if isinstance(explained, StandbyError) else None
    finally:
        engine.dispose()
