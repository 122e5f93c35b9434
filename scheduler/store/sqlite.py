"""The Dialect for SQLite: one file in WAL mode, every commit synced to the disk, one writing transaction at a time.

Three parts: connections that pass SQLAlchemy's statements to the driver directly, the clock of one boot of the host,
and the dialect itself.
"""

import math
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    Executable,
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
    update,
)
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.exc import SQLAlchemyError
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed
from typing_extensions import override

from scheduler.ports import ClusterRow, NotPermittedError, StaleWriteError, StoreUnavailableError
from scheduler.protocol.clock import read_monotonic
from scheduler.store import tables
from scheduler.store.cluster import CLUSTER_ID, StoredCluster, find_newest, read_stored, select_cluster
from scheduler.store.dialect import Bulk, Dialect, Field, Merge, SchemaError, StoreConnection, are_alike, take_columns
from scheduler.store.forms import MOST_IDLE, NO_VALUES, Forms


class SqliteConnection:
    """One connection to an SQLite file, with at most one transaction at a time. It raises the errors of the driver
    (sqlite3).
    """

    def __init__(self, connections: "SqliteConnections", engine: Engine) -> None:
        """Open the connection. `connections`: the object that keeps the connection between two transactions."""
        self._connections = connections
        self._pooled = engine.raw_connection()
        self._driver = cast("sqlite3.Connection", self._pooled.dbapi_connection)

    def begin(self, *, writes: bool) -> None:
        """Begin a transaction. A transaction that will write (`writes`) takes the write lock at once, because SQLite
        refuses a write after a read if another transaction has written in between.
        """
        self._driver.execute("BEGIN IMMEDIATE" if writes else "BEGIN")

    def execute(
        self,
        statement: Executable,
        values: Mapping[str, object] = NO_VALUES,
        *,
        execution_options: object = None,  # noqa: ARG002 - only SQLAlchemy's connections have options
    ) -> sqlite3.Cursor:
        """Execute a statement with these bind values (name -> value), and return its result."""
        form = self._connections.forms.find(statement, values)
        return self._driver.execute(form.text, form.list_values(values))

    def execute_later(self, statement: Executable, values: Mapping[str, object] = NO_VALUES) -> sqlite3.Cursor:
        """Execute a statement at once, because SQLite has no round trips that could be saved."""
        return self.execute(statement, values)

    def settle(self) -> None:
        """Do nothing, because no statement waits."""

    def commit(self) -> None:
        self._driver.commit()

    def rollback(self) -> None:
        """Roll the transaction back, if SQLite has not done so."""
        self._driver.rollback()

    def invalidate(self) -> None:
        """Close the connection, even if its transaction is still open. The connection is not used again."""
        self._pooled.invalidate()

    def close(self) -> None:
        """Keep the connection for another transaction, or close it if it is not usable or enough are kept."""
        self._connections.keep(self)

    @property
    def is_usable(self) -> bool:
        return self._pooled.is_valid and not self._driver.in_transaction

    def release(self) -> None:
        """Return the connection to the pool of the SQLAlchemy engine, which closes it when the engine is disposed."""
        self._pooled.close()


class SqliteConnections:
    """The idle connections of one SQLAlchemy engine, and its compiled statements.

    Thread-safe.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._idle: list[SqliteConnection] = []
        self.forms = Forms(engine.dialect)

    def begin(self, *, writes: bool) -> SqliteConnection:
        """Return a connection with a new transaction."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = SqliteConnection(self, self._engine)
        try:
            connection.begin(writes=writes)
        except BaseException:
            connection.close()
            raise
        return connection

    def keep(self, connection: SqliteConnection) -> None:
        """Keep a connection open for another transaction; release it if it is not usable or enough are kept."""
        if len(self._idle) < MOST_IDLE and connection.is_usable:
            self._idle.append(connection)
        else:
            connection.release()

    def dispose(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().release()


# Cluster time on SQLite: a base time stored in the database, plus the time that has passed since in this boot of the
# host.
#
# The monotonic clock is the same for all processes of one boot, so neither a process with a wrong wall clock nor a
# jump of the host's wall clock changes cluster time. The first process of a boot reads the wall clock, once.


SELECT: Final = select_cluster()
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_SYSCTL: Final = ("/usr/sbin/sysctl", "-n", "kern.bootsessionuuid")
_SET_BASE: Final = update(tables.cluster).where(tables.cluster.c.id == CLUSTER_ID)


@cache
def read_boot_id() -> str:
    """Return an id that changes with every boot of this host. Return "unknown" on systems that have no such id."""
    try:
        if sys.platform == "darwin":
            done = subprocess.run(_SYSCTL, capture_output=True, text=True, check=True)  # noqa: S603 - a constant
            return done.stdout.strip()
        return _BOOT_ID.read_text().strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


class BootClock:
    """The clock that gives this process the cluster time of one SQLite database file."""

    def __init__(
        self,
        boot: Callable[[], str] = read_boot_id,
        monotonic: Callable[[], float] = read_monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._boot, self._monotonic, self._wall = boot, monotonic, wall
        self._has_base = False
        self._ahead: float | None = None
        """Cluster time minus the monotonic clock, in seconds, at the last reading; None before the first."""

    def prepare(self, engine: Engine) -> None:
        """Store a base of cluster time for this boot of the host, unless the database has one: the id of the boot,
        cluster time, and the monotonic clock at that time.

        The base is stored in a transaction of its own, so a rollback by the caller does not undo it. Once this process
        has seen a base of this boot, the method does nothing.
        """
        if self._has_base:
            return
        with engine.connect() as connection, connection.begin():
            self._has_base = self._fits(read_stored(connection, SELECT))
        if not self._has_base:
            self._set_base(engine)

    def read(self, stored: StoredCluster) -> float:
        """Return cluster time, computed from the stored base and the monotonic clock.

        If the base belongs to another boot (the file was replaced, or this user may not write), this process continues
        from the cluster time that it knows.
        """
        elapsed = self._monotonic()
        if self._fits(stored) and stored.base_time is not None and stored.base_monotonic is not None:
            self._ahead = stored.base_time - stored.base_monotonic  # promise: monotonic-time
        else:
            self._has_base = False
            if self._ahead is None:
                self._ahead = max(self._wall(), stored.ticked_at) - elapsed
        return self._ahead + elapsed

    def _set_base(self, engine: Engine) -> None:
        with engine.connect().execution_options(writes=True) as connection, connection.begin():
            # Test again under the write lock: another process may have stored a base meanwhile.
            if not self._fits(read_stored(connection, SELECT)):
                elapsed = self._monotonic()
                own = self._wall() if self._ahead is None else self._ahead + elapsed
                base = max(own, find_newest(connection))  # promise: time-after-reboot
                connection.execute(_SET_BASE.values(boot=self._boot(), base_time=base, base_monotonic=elapsed))
        self._has_base = True

    def _fits(self, stored: StoredCluster) -> bool:
        """Return whether the base of cluster time was stored during the present boot of the host."""
        base = stored.base_monotonic
        return stored.boot == self._boot() and base is not None and base <= self._monotonic()


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
    """The Dialect for one SQLite database file. `clock`: for tests, cluster time in place of the BootClock.

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
        return select(func.json_each(bindparam("ids", type_=Text)).table_valued("value", name="ids").c.value)

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
    def prepare_migration(self, connection: Connection) -> None:
        # SQLite stores every text. A migration begins as a writer, and SQLite has one writer at a time.
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
        dbapi_connection.execute("BEGIN IMMEDIATE" if dbapi_connection.info.pop(_WRITES, False) else "BEGIN")


registry.register(f"sqlite.{_DRIVER}", __name__, Beginning.__name__)
