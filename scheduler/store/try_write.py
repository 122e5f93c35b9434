"""Tests whether a database accepts writes. A database that answers reads may refuse every write, for example because
its disk is full.
"""

import secrets
from typing import Final

import msgspec
from sqlalchemy import delete, insert

from scheduler.store import tables
from scheduler.store.opening import MEMORY, choose_dialect
from scheduler.store.session import explaining, open_session

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
