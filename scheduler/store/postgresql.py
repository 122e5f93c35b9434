"""The Dialect for PostgreSQL. The URL may name several hosts, many transactions may write at a time, and the server's
clock is the source of time.

Every statement, every wait for a lock and every pause within a transaction has a time limit, so that a process that is
stopped or disconnected does not block others for long. A bulk statement binds one array for each column (`unnest`).
"""

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from typing import cast as known_as

import msgspec
from sqlalchemy import (
    ARRAY,
    URL,
    BigInteger,
    Boolean,
    Cast,
    Column,
    ColumnElement,
    Connection,
    Double,
    Engine,
    FromClause,
    Insert,
    Select,
    Table,
    Text,
    bindparam,
    cast,
    column,
    create_engine,
    func,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.types import TypeEngine
from typing_extensions import override

from scheduler.model.validation import fault
from scheduler.ports import (
    ClusterRow,
    ConflictError,
    NotPermittedError,
    StaleWriteError,
    StandbyError,
    StoreUnavailableError,
)
from scheduler.protocol.clock import LARGEST_STEP, read_monotonic
from scheduler.protocol.database_urls import POOLING
from scheduler.store import tables
from scheduler.store.cluster import CLUSTER_ID, StoredCluster, find_newest, read_stored, select_cluster
from scheduler.store.dialect import Bulk, Dialect, Executor, Field, Merge, SchemaError, StoreConnection, take_columns

# Cluster time on PostgreSQL: the server's clock plus an offset that is stored in the database.
#
# Each process compares the server's clock with its own monotonic clock. A difference of more than a second means that
# the server's clock has jumped. The process that notices the jump first corrects the stored offset, once, by
# compare-and-set. The other processes then read the corrected offset, so cluster time continues without a jump.


MOST_DRIFT: Final = 0.0005
"""By how many seconds per second two clocks may drift apart without a jump: the highest rate at which NTP adjusts a
clock.
"""
SURE_SECONDS: Final = 5.0
"""Seconds for which a new process waits before it corrects the stored offset itself, if the server's clock is behind
the times of stored rows. A process that started earlier knows the time better and may correct the offset first.
"""

SLOW_SECONDS: Final = 0.5
"""The longest question for the time whose answer is used without a second question."""

_STORED = tables.cluster.c
_CORRECT: Final = (
    update(tables.cluster)
    .where(_STORED.id == CLUSTER_ID, _STORED.clock_changes == bindparam("seen"))  # promise: clock-corrected-once
    .values(clock_offset=bindparam("corrected"), clock_changes=_STORED.clock_changes + 1)
)


class _Known(NamedTuple):
    """An earlier reading of cluster time. Cluster time was `now` at a moment when the monotonic clock of this process
    was between `before` and `after`. `changes` and `restores`: the stored numbers of corrections of the offset, and of
    restores, at that time.
    """

    now: float
    before: float
    after: float
    changes: int
    restores: int
    sure_from: float
    """Time of the monotonic clock from which on this process may correct the stored offset."""

    def carry(self, before: float, after: float) -> float:
        """Return the present cluster time as this process expects it: the earlier reading plus the time that has passed
        since by the monotonic clock. `before` and `after`: the monotonic clock before and after the present reading.
        """
        return self.now + (before + after - self.before - self.after) / 2


class ReferenceClock:
    """The clock that gives this process the cluster time of one PostgreSQL database. Thread-safe. `select`: the
    statement that reads the row of the cluster together with the present time of the server.
    """

    def __init__(self, select: Select[Any], monotonic: Callable[[], float] = read_monotonic) -> None:
        self._select, self._monotonic = select, monotonic
        self._guard = threading.Lock()
        self._known: _Known | None = None

    def read(self, connection: Executor, engine: Engine) -> ClusterRow:
        """Return the row about the cluster with cluster time. If the server's clock has jumped, correct the stored
        offset through another connection.
        """
        stored, before, after = self._ask(connection)
        if self._has_jumped(stored, before, after):
            return self._correct(engine, stored, before, after)
        return self._adopt(stored, before, after)

    def _ask(self, connection: Executor) -> tuple[StoredCluster, float, float]:
        before = self._monotonic()
        stored, after = read_stored(connection, self._select), self._monotonic()
        if after - before > SLOW_SECONDS:
            # The connection may have been replaced within this time, which leaves the moment of the answer open.
            before = self._monotonic()
            stored, after = read_stored(connection, self._select), self._monotonic()
        return stored, before, after

    def _has_jumped(self, stored: StoredCluster, before: float, after: float) -> bool:
        known, now = self._known, stored.reference + stored.clock_offset
        if known is None or known.restores != stored.restores:
            # There is no earlier reading. Only a time before that of the last tick shows a jump.
            return now < stored.ticked_at - LARGEST_STEP
        if known.changes < stored.clock_changes:
            # Another process corrected the offset. Its correction holds for all processes.
            return False
        if known.sure_from > after and now >= stored.ticked_at - LARGEST_STEP:
            return False
        tolerance = LARGEST_STEP + MOST_DRIFT * (after - known.before)
        return not known.now + before - known.after - tolerance <= now <= known.now + after - known.before + tolerance

    def _adopt(self, stored: StoredCluster, before: float, after: float) -> ClusterRow:
        """Use the stored offset from now on, and return the row with cluster time. If the new time is before the last
        time that this process read, by less than LARGEST_STEP seconds, the row has the last time, so that time does not
        go back.
        """
        now = stored.reference + stored.clock_offset
        with self._guard:
            known = self._known
            if known is not None and known.restores == stored.restores and known.changes >= stored.clock_changes:
                now = max(now, known.now) if known.now - now < LARGEST_STEP else now
            self._known = _Known(now, before, after, stored.clock_changes, stored.restores, after)
        return stored.at(now, stored.clock_offset)

    def _correct(self, engine: Engine, stored: StoredCluster, before: float, after: float) -> ClusterRow:
        known = self._known
        if known is None or known.restores != stored.restores:
            known = _Known(stored.ticked_at, before, after, stored.clock_changes, stored.restores, after + SURE_SECONDS)
            self._known = known
        now = known.carry(before, after)
        is_stale = known.changes > stored.clock_changes
        if is_stale or after < known.sure_from:
            return stored.at(now, now - stored.reference)
        # If the offset cannot be written (this user may only read), this process continues with its own time.
        with suppress(SQLAlchemyError):
            return self._write(engine, stored, now)
        return stored.at(now, now - stored.reference)

    def _write(self, engine: Engine, stored: StoredCluster, now: float) -> ClusterRow:
        """Correct the stored offset so that cluster time was `now` when `stored` was read, then use the stored offset.

        The stored offset is not changed if another process has corrected it meanwhile, or if rows in the database are
        newer than `now`. Such rows show that this process is behind, because its host was paused.
        """
        with engine.connect() as connection, connection.begin():
            if find_newest(connection) <= now + LARGEST_STEP:
                connection.execute(_CORRECT, {"seen": stored.clock_changes, "corrected": now - stored.reference})
            found, before, after = self._ask(connection)
        self._known = None
        return self._adopt(found, before, after)


if TYPE_CHECKING:
    from scheduler.store.postgresql_connection import Connector
    from scheduler.store.postgresql_pipeline import PostgresConnection, PostgresConnections

LIMITS: Final = {"idle_in_transaction_session_timeout": "10s", "lock_timeout": "5s", "statement_timeout": "30s"}
"""How long a transaction may pause, wait for one lock, and execute one statement, before the server aborts the
transaction.
"""
_MIGRATING: Final = {"idle_in_transaction_session_timeout": "0", "lock_timeout": "60s", "statement_timeout": "0"}
LONGEST_SECONDS: Final = 20.0
"""Limit in seconds for a transaction, from its begin to the end of its last statement. A longer transaction is not
committed. The server permits a pause of 10 s before the commit, so a commit begins at most 30 s after the begin of its
transaction. This is less than the 35 s that a search for recently changed rows goes back.
"""
_CONNECTING: Final = {
    "connect_timeout": "5",
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": "leasehold",
    "client_encoding": "utf8",
}
"""Connection options by which a lost host is noticed within half a minute. `client_encoding` is set, because otherwise
psycopg returns bytes from a database in the encoding `SQL_ASCII`.
"""
_POOLINGS: Final = {"auto": None, "transaction": True, "none": False}
_POOL: Final = {"pool_size": 5, "max_overflow": 50, "pool_timeout": 10.0, "pool_pre_ping": True}

_EVENTS_LOCK: Final = 0x6C656173_65766E74
_MIGRATION_LOCK: Final = 0x6C656173_6D696772
"""Key of the advisory lock for migrations; the lock is valid in one database. The number is the ASCII codes of
`leasmigr`. The key of the lock for events is made from `leasevnt`.
"""

_CLUSTER: Final = select_cluster(literal_column("extract(epoch FROM clock_timestamp())::float8", Double))
_ADVISORY: Final = text("SELECT pg_advisory_xact_lock(:key)")
_IN_RECOVERY: Final = text("SELECT pg_is_in_recovery()")
_ENCODING: Final = text("SELECT current_setting('server_encoding')")
_ENCODINGS: Final = ("UTF8", "SQL_ASCII")
"""The encodings of a PostgreSQL database that can store every text."""
_ENCODE: Final = msgspec.json.Encoder().encode

_STANDBY: Final = "the server is a standby, which accepts no writes"
_OF_STANDBYS: Final = frozenset({"read-only", "standby", "prefer-standby"})
"""Values of `target_session_attrs` of a URL whose user wants to read from a standby."""
_READ_ONLY_HOSTS: Final = (
    # what libpq or the server reports, the cause
    ("server is in hot standby mode", _STANDBY),
    ("cannot set transaction read-write mode during recovery", _STANDBY),
    ("session is read-only", "no server of the URL accepts writes: each is a standby, read-only or unavailable"),
)

_MIGRATE: Final = "run `leasehold migrate`"
_NO_RIGHT: Final = "42501"
_CAUSES: Final = (
    ("08", "the connection was lost"),
    ("25P03", "the connection was ended because the transaction paused for too long"),
    ("57P05", "the connection was ended because it was idle"),
    ("57P", "the server ended the connection"),
    ("57014", "a statement took too long, or was cancelled"),
    ("55P03", "another transaction keeps the rows locked"),
    ("53100", "the disk is full"),
    ("53300", "the server has too many connections"),
    ("53", "the server has no resources left"),
    ("25006", "the database is read-only"),
    (_NO_RIGHT, "the database user has no permission for this statement"),
)
_CONFLICTS: Final = frozenset({"40P01", "40001"})
_UNIQUE: Final = "23505"
_OF_TABLES: Final = frozenset({"42P01", "42703", "23502"})
"""SQLSTATE codes which show that the tables are of another version than this program. `42P01`: a table is missing.
`42703`: a column is missing. `23502`: a column that must have a value gets none, because this program does not know the
column.
"""
_NO_DATABASE: Final = re.compile(r'database "[^"]*" does not exist')


class PostgresDialect(Dialect):
    """The Dialect for one database on a PostgreSQL server. `clock`: for tests, cluster time in place of the server's
    clock. `migrates`: statements have no time limit, because a migration may take long.
    """

    errors: Final = (SQLAlchemyError,)
    has_one_writer: Final = False
    longest_seconds: Final = LONGEST_SECONDS

    def __init__(self, url: URL, clock: Callable[[], float] | None = None, *, migrates: bool = False) -> None:
        self._shown = url.set(drivername="postgresql", query={}).render_as_string(hide_password=True)
        self._password = url.password
        self._url = _complete(url)
        self._limits, self._migrates = _MIGRATING if migrates else LIMITS, migrates
        self._options = " ".join(_list(url.query.get("options", ""))[-1:])
        self._pooling = _list(url.query.get(POOLING, "auto"))[-1]
        if self._pooling not in _POOLINGS:
            raise fault("database.url", f"{POOLING}=transaction, none or auto", f"{POOLING}={self._pooling}")
        self._connector: Connector | None = None
        self._wants_standby = url.query.get("target_session_attrs") in _OF_STANDBYS
        self._clock = clock
        self._reference = ReferenceClock(_CLUSTER)
        self._connections: dict[Engine, PostgresConnections] = {}

    @override
    def create_engine(self) -> Engine:
        try:
            engine = create_engine(self._url, **_POOL)
            # These import psycopg, which an installation on SQLite lacks.
            from scheduler.store.postgresql_connection import Connector  # noqa: PLC0415
            from scheduler.store.postgresql_pipeline import PostgresConnections  # noqa: PLC0415
        except ImportError as error:
            cause = _first_line(error)
            raise StoreUnavailableError(
                f"{self._shown}: PostgreSQL needs psycopg: install `leasehold[server,postgresql]` ({cause})"
            ) from error
        self._connector = Connector(
            self._limits,
            self._options,
            is_pooled=_POOLINGS[self._pooling] if self._connector is None else self._connector.is_pooled,
            is_bounded=not self._migrates,
        )
        self._connector.watch(engine)
        self._connections[engine] = PostgresConnections(engine, self._find_settings)
        return engine

    def _find_settings(self) -> bytes | None:
        connector = self._connector
        return connector.settings.encode() if connector is not None and connector.is_pooled else None

    @override
    def begin(self, engine: Engine, *, writes: bool) -> StoreConnection:
        return self._connections[engine].begin(writes=writes)

    @override
    def dispose(self, engine: Engine) -> None:
        if (connections := self._connections.pop(engine, None)) is not None:
            connections.drop_idle()
        engine.dispose()

    @override
    def options(self, *, writes: bool) -> Mapping[str, Any]:
        return {} if writes else {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}

    @override
    def given(self, fields: Sequence[Field], shared: Sequence[int] = ()) -> FromClause:
        arrays = [_array(_bound(each), _type_of(each)) for each, _ in fields]
        columns = [column(each.name, _type_of(each)) for each, _ in fields]
        return func.unnest(*arrays).table_valued(*columns).render_derived(name="given")

    @override
    def bind_rows(self, bulk: Bulk, rows: Sequence[msgspec.Struct]) -> tuple[tuple[int, ...], dict[str, object]]:
        columns = zip(bulk.fields, take_columns(bulk.fields, rows), strict=True)
        return (), {_bound(each): _write_array(values, _find_writer(each)) for (each, _), values in columns}

    @override
    def ids(self) -> Select[tuple[str]]:
        return select(func.unnest(_array("ids", Text())))

    @override
    def bind_ids(self, ids: Sequence[str]) -> dict[str, object]:
        return {"ids": _write_array(ids, _quote)}

    @override
    def gather(self, column: Column[Any]) -> ColumnElement[str]:
        return cast(func.json_agg(column), Text)

    @override
    def upsert(self, table: Table, given: FromClause, merge: Merge) -> Insert:
        columns = [table.c[each.name] for each in given.c]
        statement = insert(table).from_select(columns, select(given))
        merged = {each.name: merge(each, statement.excluded[each.name]) for each in columns if not each.primary_key}
        return statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=merged)

    @override
    def prepare_clock(self, engine: Engine) -> None:
        # A PostgreSQL server has a clock of its own.
        pass

    @override
    def read_cluster(self, connection: StoreConnection) -> ClusterRow:
        if self._clock is None:
            return self._reference.read(connection, known_as("PostgresConnection", connection).engine)
        stored = read_stored(connection, _CLUSTER)
        return stored.at(self._clock(), stored.clock_offset)

    @override
    def queue_for_events(self, connection: StoreConnection) -> None:
        connection.execute_later(_ADVISORY, {"key": _EVENTS_LOCK})

    @override
    def check_primary(self, connection: Connection) -> None:
        if not self._wants_standby and connection.execute(_IN_RECOVERY).scalar_one():
            raise StandbyError(f"{self._shown}: {_STANDBY}")

    @override
    def check_direct(self, connection: Connection) -> None:
        if self._connector is not None and self._connector.is_pooled:
            raise StoreUnavailableError(
                f"{self._shown}: a pooler is between this host and the server: let LEASEHOLD_DATABASE__URL name the"
                " server itself for this command"
            )

    @override
    def prepare_migration(self, connection: Connection) -> None:
        found = connection.execute(_ENCODING).scalar_one()
        if found not in _ENCODINGS:
            raise StoreUnavailableError(
                f"{self._shown}: expected a database in the encoding UTF8, got {found}:"
                " create it again with `ENCODING 'UTF8' TEMPLATE template0`"
            )
        connection.execute(_ADVISORY, {"key": _MIGRATION_LOCK})

    @override
    def explain(self, error: Exception) -> Exception:
        state = _state_of(error)
        if state == _UNIQUE:
            return StaleWriteError("a row exists already: another transaction inserted it")
        if standby := next((cause for sign, cause in _READ_ONLY_HOSTS if sign in str(error)), None):
            return StandbyError(f"{self._shown}: {standby}")
        line = f"{self._shown}: {self._find_cause(error, state)}"
        if state in _OF_TABLES:
            return SchemaError(line)
        if state == _NO_RIGHT:
            return NotPermittedError(line)
        return ConflictError(line) if state in _CONFLICTS else StoreUnavailableError(line)

    def _find_cause(self, error: Exception, state: str) -> str:
        message = self._hide(_first_line(error.orig if isinstance(error, DBAPIError) else error))
        if state in _CONFLICTS:
            return f"a conflict with another transaction ({message})"
        for prefix, cause in _CAUSES:
            if state.startswith(prefix):
                return f"{cause} ({message})"
        if missing := _NO_DATABASE.search(self._hide(str(error))):
            return f"{missing[0]}: create it, then {_MIGRATE}"
        return message

    def _hide(self, message: str) -> str:
        return message.replace(self._password, "***") if self._password else message


def _complete(url: URL) -> URL:
    """Return the database URL with the connection parameters of this module. Parameters of the URL itself have
    precedence. Startup options are added later, because a pooler refuses them.
    """
    # Of several hosts the one that accepts writes. One host may be read-only for its user or for all: it can be read.
    wanted = "read-write" if "," in (url.host or "") else "primary"
    theirs = {name: value for name, value in url.query.items() if name not in {"options", POOLING}}
    return url.set(drivername="postgresql+psycopg", query={**_CONNECTING, "target_session_attrs": wanted, **theirs})


def _list(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value


def _bound(each: Column[Any]) -> str:
    """Return the name of the bind parameter for the values of a column. The name differs from that of the column,
    because SQLAlchemy uses the column's name for the value to be set.
    """
    return f"given_{each.name}"


def _type_of(each: Column[Any]) -> TypeEngine[Any]:
    for kind in (Boolean, Double, BigInteger):
        if isinstance(each.type, kind):
            return kind()
    return Text()


def _array(name: str, kind: TypeEngine[Any]) -> Cast[Any]:
    """Return the SQL expression of an array with elements of the type `kind`, which is bound under `name`. The array is
    bound as one text, because psycopg is several times slower with lists.
    """
    return cast(bindparam(name, type_=Text), ARRAY(kind))


def _write_array(values: Iterable[Any], write: Callable[[Any], str]) -> str:
    return "{" + ",".join(["NULL" if value is None else write(value) for value in values]) + "}"


def _find_writer(each: Column[Any]) -> Callable[[Any], str]:
    """Return a function that converts a value of this column to an element in PostgreSQL's text form of an array."""
    if each.info.get("json"):
        return lambda value: _quote(_ENCODE(value).decode())
    if isinstance(each.type, Boolean):
        return lambda value: "t" if value else "f"
    if isinstance(each.type, Double):
        return repr
    return str if isinstance(each.type, BigInteger) else _quote


def _quote(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _state_of(error: Exception) -> str:
    """Return the SQLSTATE code of a database error, five characters. Return "" if the error is one of SQLAlchemy or of
    the driver and has no code.
    """
    if not isinstance(error, DBAPIError):
        return ""
    return getattr(error.orig, "sqlstate", None) or ("08" if error.connection_invalidated else "")


def _first_line(error: BaseException | None) -> str:
    return str(error).strip().partition("\n")[0]
