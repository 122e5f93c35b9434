"""The Dialect for SQLite: one file in WAL mode, every commit synced to the disk, one writing transaction at a time."""

import math
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    FromClause,
    Insert,
    QueuePool,
    Select,
    Table,
    Text,
    bindparam,
    create_engine,
    func,
    literal_column,
    select,
    true,
)
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.exc import SQLAlchemyError
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed
from typing_extensions import override

from scheduler.ports import ClusterRow, NotPermittedError, StaleWriteError, StoreUnavailableError
from scheduler.store.boot_clock import SELECT, BootClock
from scheduler.store.cluster import read_stored
from scheduler.store.dialect import Bulk, Dialect, Field, Merge, StoreConnection, are_alike, take_columns
from scheduler.store.schema import SchemaError
from scheduler.store.sqlite_connection import SqliteConnections

BUSY_SECONDS: Final = 10.0
"""The most seconds for which a transaction that writes waits for another one that writes. Every transaction is shorter
than this.
"""

LEAST_SHARED: Final = 100
"""The fewest rows of a bulk statement for which values that all rows have in common are passed once. For fewer rows
this would not save time, because each set of such values needs a variant of the statement.
"""

_PRAGMAS: Final = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA cache_size = -32000",
    "PRAGMA temp_store = MEMORY",
)

_DRIVER: Final = "leasehold"
"""The name under which SQLAlchemy finds `Beginning`, our subclass of its SQLite driver."""
_WRITES: Final = "writes"
"""The name of the SQLAlchemy execution option that announces that the next transaction of a connection will write."""
_CREATES: Final = "rwc"
_PRIVATE: Final = 0o600
_NOT_NULL: Final = "SQLITE_CONSTRAINT_NOTNULL"
_MIGRATE: Final = "run `leasehold migrate`"
_CAUSES: Final = (
    ("SQLITE_BUSY", "another process keeps the file locked"),
    ("SQLITE_LOCKED", "another process keeps the file locked"),
    ("SQLITE_FULL", "the disk is full"),
    ("SQLITE_READONLY", "the database is read-only"),
    ("SQLITE_PERM", "this user may not open the file"),
    ("SQLITE_AUTH", "this user may not open the file"),
    ("SQLITE_NOTADB", "the file is no SQLite database"),
    ("SQLITE_CORRUPT", "the file is damaged"),
    ("SQLITE_IOERR", "reading or writing the file failed"),
)


class SqliteDialect(Dialect):
    """The Dialect for one SQLite database file. `clock`: for tests, cluster time in place of the boot clock
    (boot_clock.py).

    `create`: create a missing file. Only migrations do this, so that a mistyped path never makes an empty database.
    """

    def __init__(self, path: Path, clock: Callable[[], float] | None = None, *, create: bool = False) -> None:
        self.path = path.absolute()
        self._clock = clock
        self._boot = BootClock()
        self._mode = _CREATES if create else "rw"

        self._connections: dict[Engine, SqliteConnections] = {}

    errors: Final = (SQLAlchemyError, sqlite3.Error)
    has_one_writer: Final = True
    longest_seconds: Final = math.inf
    """The most seconds after the begin of a transaction at which it may still be committed. Here: no limit, because a
    process that is stopped within a transaction keeps the write lock, so no other process can write before its commit.
    """

    @override
    def create_engine(self) -> Engine:
        return create_engine(
            f"sqlite+{_DRIVER}://", creator=self._connect, poolclass=QueuePool, pool_size=5, max_overflow=50
        )

    @override
    def begin(self, engine: Engine, *, writes: bool) -> StoreConnection:
        connections = self._connections.get(engine)
        if connections is None:
            connections = self._connections.setdefault(engine, SqliteConnections(engine))
        return connections.begin(writes=writes)

    @override
    def dispose(self, engine: Engine) -> None:
        if (connections := self._connections.pop(engine, None)) is not None:
            connections.dispose()
        engine.dispose()

    @override
    def options(self, *, writes: bool) -> Mapping[str, Any]:
        return {_WRITES: writes}

    @override
    def given(self, fields: Sequence[Field], shared: Sequence[int] = ()) -> FromClause:
        # Speed: taking values from the JSON text of each row costs more than writing the row. So SQLite takes
        # the values that all rows have in common only once.
        items = func.json_each(bindparam("rows", type_=Text)).table_valued("value", name="items")
        # Materialized: otherwise SQLite serializes an item again for every column taken from it (4 times slower).
        rows = select(items.c.value).cte("rows", nesting=True).prefix_with("MATERIALIZED")
        once = bindparam("shared", type_=Text)
        own = [at for at in range(len(fields)) if at not in shared]
        sources: dict[int, tuple[ColumnElement[Any], int]] = {field: (once, at) for at, field in enumerate(shared)}
        sources |= {field: (rows.c.value, at) for at, field in enumerate(own)}
        values = []
        for number, (column, _) in enumerate(fields):
            source, at = sources[number]
            path = literal_column(f"'$[{at}]'", Text)
            values.append(func.json_extract(source, path, type_=column.type).label(column.name))
        return select(*values).subquery("given")

    @override
    def bind_rows(self, bulk: Bulk, rows: Sequence[msgspec.Struct]) -> tuple[tuple[int, ...], dict[str, object]]:
        # Speed: the values of a row are a JSON array, in which each nested value has its own position. If a
        # row were a JSON object, SQLite would search the row for the name of each value. Also, nested values
        # that all rows have in common could not be passed once.
        if len(rows) < LEAST_SHARED:
            return (), {"rows": msgspec.json.encode(bulk.read(rows)).decode()}
        columns = take_columns(bulk.fields, rows)
        alike = [at for at, values in enumerate(columns) if are_alike(values)]
        # At least one value is passed for each row, because the values also count the rows.
        shared = tuple(alike[: len(columns) - 1])
        own = [values for at, values in enumerate(columns) if at not in shared]
        bound: dict[str, object] = {"rows": msgspec.json.encode([*zip(*own, strict=True)]).decode()}
        if shared:
            bound["shared"] = msgspec.json.encode([columns[at][0] for at in shared]).decode()
        return shared, bound

    @override
    def ids(self) -> Select[tuple[str]]:
        """Return an SQL select that yields the ids passed with `bind_ids`, one in each row, for `IN (...)`. See
        Dialect.
        """
        ids = func.json_each(bindparam("ids", type_=Text)).table_valued("value", name="ids")
        return select(ids.c.value)

    @override
    def bind_ids(self, ids: Sequence[str]) -> dict[str, object]:
        return {"ids": msgspec.json.encode(ids).decode()}

    @override
    def gather(self, column: Column[Any]) -> ColumnElement[str]:
        return func.json_group_array(column, type_=Text)

    @override
    def upsert(self, table: Table, given: FromClause, merge: Merge) -> Insert:
        columns = [table.c[each.name] for each in given.c]
        # Without a WHERE before it, SQLite parses the ON of ON CONFLICT as that of a join.
        statement = insert(table).from_select(columns, select(given).where(true()))
        merged = {each.name: merge(each, statement.excluded[each.name]) for each in columns if not each.primary_key}
        return statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=merged)

    @override
    def prepare_clock(self, engine: Engine) -> None:
        if self._clock is None:
            self._boot.prepare(engine)

    @override
    def read_cluster(self, connection: StoreConnection) -> ClusterRow:
        stored = read_stored(connection, SELECT)
        return stored.at(self._boot.read(stored) if self._clock is None else self._clock(), stored.clock_offset)

    @override
    def queue_for_events(self, connection: StoreConnection) -> None:
        # SQLite has one writer at a time, so event numbers are committed in ascending order.
        pass

    @override
    def queue_for_migration(self, connection: Connection) -> None:
        # A migration begins as a writer, and SQLite has one writer at a time.
        pass

    @override
    def check_primary(self, connection: Connection) -> None:
        # A file has no standby.
        pass

    @override
    def check_direct(self, connection: Connection) -> None:
        # A file has no pooler.
        pass

    @override
    def check_text(self, connection: Connection) -> None:
        # SQLite stores every text.
        pass

    @override
    def explain(self, error: Exception) -> Exception:
        error = getattr(error, "orig", None) or error
        if isinstance(error, sqlite3.IntegrityError) and _name_of(error) != _NOT_NULL:
            return StaleWriteError(f"a row exists already: {error}")
        line = f"{self.path}: {self._find_cause(error)}"
        message = str(error) if isinstance(error, sqlite3.Error) else ""
        # The schema is of another version: a table or a column is missing, or a new column has no value.
        if message.startswith("no such table") or "column" in message or _name_of(error) == _NOT_NULL:
            return SchemaError(line)
        return NotPermittedError(line) if self._may_only_read(error) else StoreUnavailableError(line)

    def _may_only_read(self, error: Exception) -> bool:
        """Return whether a write failed because this user has no permission to write the file; False if another cause
        is possible, such as a file system that is read-only for every user.
        """
        if not _name_of(error).startswith("SQLITE_READONLY") or os.access(self.path, os.W_OK):
            return False
        return not os.statvfs(self.path).f_flag & os.ST_RDONLY

    def _find_cause(self, error: Exception) -> str:
        name = _name_of(error)
        for prefix, cause in _CAUSES:
            if name.startswith(prefix):
                return cause
        if not name.startswith("SQLITE_CANTOPEN"):
            return str(error).partition("\n")[0]
        if not self.path.parent.is_dir():
            return "there is no such directory"
        return "the file cannot be opened" if self.path.exists() else f"there is no such database: {_MIGRATE}"

    def _connect(self) -> sqlite3.Connection:
        if self._mode == _CREATES:
            # SQLite gives its journals the file mode of the database. Errors are ignored: SQLite opens the file next,
            # and reports the error then.
            with suppress(OSError):
                os.close(os.open(self.path.resolve(), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE))
        connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode={self._mode}",
            uri=True,
            timeout=BUSY_SECONDS,
            # `Beginning` begins the transactions, not the driver.
            isolation_level=None,
            # The connection pool gives a connection to one thread at a time.
            check_same_thread=False,
        )
        try:
            _set_up(connection)
        except sqlite3.Error:
            connection.close()
            raise
        return connection


def _name_of(error: Exception) -> str:
    """Return SQLite's name of a database error, like `SQLITE_BUSY`. Return "" if the error is one of SQLAlchemy or of
    the driver and has no such name.
    """
    return getattr(error, "sqlite_errorname", "")


@retry(
    retry=retry_if_exception(lambda error: getattr(error, "sqlite_errorname", "") == "SQLITE_BUSY"),
    stop=stop_after_delay(BUSY_SECONDS),
    wait=wait_fixed(0.05),
    reraise=True,
)
def _set_up(connection: sqlite3.Connection) -> None:
    """Set the pragmas of a new connection.

    The statements are tried again while the file is locked, because SQLite refuses one of two processes immediately if
    both switch a new file to WAL mode at once.
    """
    for pragma in _PRAGMAS:
        connection.execute(pragma)


class Beginning(SQLiteDialect_pysqlite):
    """SQLAlchemy's class for the SQLite driver, changed so that it also begins the transactions. A transaction that
    will write takes the write lock at once, because SQLite refuses a write after a read if another transaction has
    written in between.

    Speed: with a listener for the event `begin` in place of this class, SQLAlchemy would look for listeners at each
    statement, too.
    """

    driver = _DRIVER
    supports_statement_cache = True

    def set_connection_execution_options(self, connection: Connection, opts: Mapping[str, Any]) -> None:
        """Keep the option `writes` for the next transaction on this connection."""
        super().set_connection_execution_options(connection, opts)
        if _WRITES in opts:
            connection.connection.info[_WRITES] = opts[_WRITES]

    def do_begin(self, dbapi_connection: Any) -> None:
        """Begin a transaction; take the write lock if the option `writes` was set for it."""
        writes = dbapi_connection.info.pop(_WRITES, False)
        dbapi_connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")


registry.register(f"sqlite.{_DRIVER}", __name__, Beginning.__name__)
