"""Opens the store for a database URL from the configuration, and checks the schema of its database."""

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from sqlalchemy import URL, delete, insert, make_url
from sqlalchemy.exc import ArgumentError

from scheduler.model.validation import fault
from scheduler.ports import Store
from scheduler.protocol.database_urls import split_hosts
from scheduler.protocol.masking import mask_url
from scheduler.store import tables
from scheduler.store.dialect import Dialect, find_schema_fault
from scheduler.store.session import explaining, open_session
from scheduler.store.sql import SqlStore
from scheduler.store.sqlite import SqliteDialect

MEMORY: Final = "memory://"
_EXPECTED: Final = "sqlite:///PATH, postgresql://USER:PASSWORD@HOST/NAME or memory://"
_PORT: Final = 5432
_POSTGRESQL: Final = frozenset({"postgresql", "postgresql+psycopg"})


def open_store(url: str, clock: Callable[[], float] | None = None) -> Store:
    """Return the store for a URL: `sqlite:///relative.db`, `sqlite:////absolute.db`,
    `postgresql://user:password@host/name` or `memory://`. It connects on first use. Raises InvalidInputError for any
    other URL.

    `clock`: for tests, a function that returns cluster time in seconds since the epoch; PostgreSQL ignores it.
    """
    if url == MEMORY:
        from scheduler.store.memory import MemoryStore  # noqa: PLC0415 - only simulations and tests use it

        return MemoryStore(clock or time.time)
    return SqlStore(choose_dialect(url, clock))


def choose_dialect(url: str, clock: Callable[[], float] | None = None, *, create: bool = False) -> Dialect:
    """Return the dialect (interface to one kind of database) for a database URL. `clock`: for tests, a function that
    returns cluster time. `create`: create a missing SQLite file, because the database will be migrated. Raises
    InvalidInputError for an unknown kind of URL.
    """
    try:
        parsed = parse_url(url)
    except ArgumentError:
        raise fault("database.url", _EXPECTED, mask_url(url)) from None
    if any("@" in str(part) for part in (parsed.host, parsed.database)) and parsed.drivername in _POSTGRESQL:
        # SQLAlchemy ends a password at the first `@`. The rest would become part of the host, which messages show.
        raise fault("database.url", f"{_EXPECTED} with an @ in the password written as %40", mask_url(url))
    if parsed.drivername in _POSTGRESQL and parsed.host and parsed.database:
        # SQLAlchemy's module for PostgreSQL and psycopg take a while to import; most clusters on SQLite lack psycopg.
        from scheduler.store.postgresql import PostgresDialect  # noqa: PLC0415 - see above

        return PostgresDialect(parsed, migrates=create)
    is_file = parsed.drivername == "sqlite" and not parsed.query and parsed.database not in {None, "", ":memory:"}
    if not is_file:
        raise fault("database.url", _EXPECTED, mask_url(url))
    return SqliteDialect(Path(str(parsed.database)), clock, create=create)


def parse_url(url: str) -> URL:
    """Return a database URL in its parts. If it names several hosts (`host1:5432,host2`), the query has them and their
    ports as libpq and its programs expect them. Raises ArgumentError if the text is no URL.
    """
    parts = [make_url(each) for each in split_hosts(url)]
    if len(parts) == 1:
        return parts[0]
    hosts, ports = ",".join(each.host or "" for each in parts), ",".join(str(each.port or _PORT) for each in parts)
    return parts[0].set(host=hosts, port=None).update_query_dict({"host": hosts, "port": ports})


def find_fault(url: str) -> str | None:
    """Return a text about why the tables of the database at `url` do not fit this program and what to do. Return None
    if they fit, or if the database cannot be reached. Raises InvalidInputError for an unknown kind of URL.
    """
    return None if url == MEMORY else find_schema_fault(choose_dialect(url))


# Tests whether a database accepts writes. A database that answers reads may refuse every write, for example because
# its disk is full.


PROBE_CHARACTERS: Final = 64 * 1024
"""Length of the text that the test writes. It is more than the free pages of a database file hold, so that the database
has to allocate space on the disk.
"""


def try_write(url: str) -> None:
    """Test whether the database at `url` accepts writes: commit one row in the table of stored answers, then delete it.

    The schema and other rows do not change. A rolled back write would prove nothing, because SQLite keeps it in memory.
    If the deletion fails, `prune` deletes the row together with other old answers. Raises StandbyError on a
    standby, StoreUnavailableError if the write fails, and NotPermittedError if this database user may only read.
    """
    if url == MEMORY:
        return
    dialect = choose_dialect(url)
    engine, row = dialect.create_engine(), f"leasehold-doctor-{secrets.token_hex(16)}"
    try:
        with explaining(dialect), engine.connect() as connection:
            dialect.check_primary(connection)
        with open_session(engine, dialect, writes=True) as session:
            answer = msgspec.json.encode({"padding": "x" * PROBE_CHARACTERS}).decode()
            session.change(insert(tables.requests), id=row, at=session.read_cluster().now, answer=answer)
        with open_session(engine, dialect, writes=True) as session:
            session.change(delete(tables.requests).where(tables.requests.c.id == row))
    finally:
        dialect.dispose(engine)
