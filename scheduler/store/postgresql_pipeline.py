"""Connections to PostgreSQL that pass SQLAlchemy's statements to libpq's pipeline directly: statements that need no
answer of each other are sent together, and BEGIN with the first of them.

A transaction that only reads does not wait for the answer to its COMMIT. See `forms` for the reason to go by
SQLAlchemy's own connection.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Final, NoReturn, cast

import psycopg
from psycopg import generators
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus
from psycopg.pq.abc import PGresult
from sqlalchemy import Engine, Executable
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import DBAPIError

from scheduler.store import postgresql_connection as limits
from scheduler.store.forms import MOST_IDLE, NO_VALUES, Form, Forms

_BEGIN: Final = b"BEGIN"
_WRITE: Final = b"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_READ: Final = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_COMMIT: Final = Form("COMMIT", (), {})
_ROLLBACK: Final = Form("ROLLBACK", (), {})
_USES_TO_PREPARE: Final = 2
"""After how many executions in a process a statement is prepared. Statements that are made for one call never are."""
_NAMES: Final = count()
_DIES: Final = frozenset({b"FATAL", b"PANIC"})
"""The severities of errors with which the server ends the session."""


class PostgresResult:
    """The result of one statement. Asking for it sends the statement, if it still waits."""

    __slots__ = ("_at", "_connection", "_rows", "arrived")

    def __init__(self, connection: "PostgresConnection") -> None:
        self._connection = connection
        self.arrived: PGresult | None = None
        self._rows: Sequence[Any] | None = None
        self._at = 0

    @property
    def rowcount(self) -> int:
        return self._await().command_tuples or 0

    def fetchone(self) -> Any:
        return next(iter(self.fetchmany(1)), None)

    def fetchmany(self, size: int) -> Sequence[Any]:
        begin, self._at = self._at, self._at + size
        return self._read()[begin : begin + size]

    def fetchall(self) -> Sequence[Any]:
        begin, self._at = self._at, self._await().ntuples
        return self._read()[begin:] if begin else self._read()

    def _read(self) -> Sequence[Any]:
        if self._rows is None:
            self._rows = self._connection.read_rows(self._await())
        return self._rows

    def _await(self) -> PGresult:
        if self.arrived is None:
            self._connection.settle()
        return cast("PGresult", self.arrived)


class PostgresCursor:
    """The rows of a statement in a cursor of the server, so that the whole result is never in memory."""

    rowcount: Final = -1

    def __init__(self, connection: "PostgresConnection", form: Form, values: Sequence[object]) -> None:
        self._connection, self._name = connection, f"rows_{next(_NAMES)}"
        text = f"DECLARE {self._name} NO SCROLL CURSOR FOR {form.text}"
        connection.send_later(Form(text, form.names, form.own), values)

    def fetchone(self) -> Any:
        return next(iter(self.fetchmany(1)), None)

    def fetchmany(self, size: int) -> Sequence[Any]:
        return self._fetch(f"{size}")

    def fetchall(self) -> Sequence[Any]:
        return self._fetch("ALL")

    def _fetch(self, size: str) -> Sequence[Any]:
        form = Form(f"FETCH FORWARD {size} FROM {self._name}", (), NO_VALUES)
        return self._connection.send_later(form, ()).fetchall()


class PostgresConnection:
    """One connection to a server, with at most one transaction at a time. It raises SQLAlchemy's DBAPIError with the
    error of the driver.
    """

    def __init__(self, connections: "PostgresConnections") -> None:
        """Open the connection. `connections`: the object that keeps the connection between two transactions."""
        self._connections = connections
        self._open()

    @property
    def engine(self) -> Engine:
        return self._connections.engine

    def _open(self) -> None:
        self.generation = self._connections.generation
        try:
            self._pooled = self.engine.raw_connection()
        except psycopg.Error as error:
            raise DBAPIError(None, None, error) from error
        self._driver = cast("psycopg.Connection[Any]", self._pooled.dbapi_connection)
        self._server = self._driver.pgconn
        self._transformer = Transformer(self._driver)
        self._server.enter_pipeline_mode()
        self._prepared: dict[Form, bytes] = {}
        self._is_kept = self._is_busy = self._has_begun = self._has_read = False
        self._owed = 0
        self._waiting: list[tuple[Form, list[bytes | None], PostgresResult]] = []

    def begin(self, *, writes: bool) -> None:
        """Begin a transaction. BEGIN is sent with the first statement."""
        self._writes = writes

    def execute(
        self,
        statement: Executable,
        values: Mapping[str, object] = NO_VALUES,
        *,
        execution_options: Mapping[str, Any] = NO_VALUES,
    ) -> PostgresResult | PostgresCursor:
        """Execute a statement with these bind values (name -> value), and all that wait, and return its result."""
        if "yield_per" in execution_options:
            form = self._connections.forms.find(statement, values)
            return PostgresCursor(self, form, form.list_values(values))
        result = self.execute_later(statement, values)
        self.settle()
        return result

    def execute_later(self, statement: Executable, values: Mapping[str, object] = NO_VALUES) -> PostgresResult:
        """Return the result of a statement that is sent with a later one, or when its result is asked for."""
        form = self._connections.forms.find(statement, values)
        return self.send_later(form, form.list_values(values))

    def send_later(self, form: Form, values: Sequence[object]) -> PostgresResult:
        """Do what `execute_later` does, for a compiled statement."""
        result = PostgresResult(self)
        self._waiting.append((form, [*map(_write, values)], result))
        return result

    def settle(self) -> None:
        """Execute the statements that wait, in their order, and wait for their results. If one fails, those after it
        are not executed, and its error is raised.
        """
        if self._waiting:
            self._run()

    def commit(self) -> None:
        """Commit the transaction. If it has only read, do not wait for the answer."""
        if not self._waiting and not self._has_begun:
            return
        if self._writes or self._waiting:
            # COMMIT is never in one message with BEGIN: `_run` sends that message again if the connection was lost.
            self.settle()
            result = self.send_later(_COMMIT, ())
            self._run()
            self._has_begun = False
            if result.arrived is None or result.arrived.command_status != b"COMMIT":
                self._fail(psycopg.OperationalError("the server rolled the transaction back"))
            return
        try:
            self._server.send_query_params(b"COMMIT", None)
            self._server.pipeline_sync()
            self._server.flush()
        except psycopg.Error as error:
            self._fail(error)
        self._owed, self._has_begun = 2, False

    def rollback(self) -> None:
        """Roll the transaction back. Statements that wait are not executed."""
        self._waiting.clear()
        if self._has_begun and self.is_whole:
            self.send_later(_ROLLBACK, ())
            self._run()
            self._has_begun = False

    def invalidate(self) -> None:
        """Close the connection, even if its transaction is still open. The connection is not used again."""
        self._is_busy = True
        if self._pooled.is_valid:
            self._pooled.invalidate()

    def close(self) -> None:
        """Keep the connection for another transaction, or close it if it is not usable or enough are kept."""
        self._waiting.clear()
        self._connections.keep(self)

    @property
    def is_whole(self) -> bool:
        """Whether the connection has no statement whose answer was not read."""
        return not self._is_busy and self._server.status == ConnStatus.OK

    @property
    def is_usable(self) -> bool:
        return self.is_whole and not self._has_begun and self.generation == self._connections.generation

    def read_rows(self, result: PGresult) -> Sequence[Any]:
        """Return the rows of a result as tuples."""
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    def _run(self) -> None:
        """Send all that waits in one message, with BEGIN if needed, and take the answers."""
        waiting, self._waiting = self._waiting, []
        while True:
            is_kept, self._is_kept = self._is_kept, True
            try:
                self._exchange(waiting)
            except psycopg.Error as error:
                # A kept connection may have been lost since its last use. If the transaction has not begun, nothing
                # was executed, and a new connection serves as well.
                if self._has_begun or not is_kept or not self._is_gone(error):
                    self._fail(error)
            else:
                return
            self.invalidate()
            self._connections.drop_idle()
            writes = self._writes
            self._open()
            self.begin(writes=writes)

    def _exchange(self, waiting: Sequence[tuple[Form, list[bytes | None], PostgresResult]]) -> None:
        server = self._server
        self._is_busy, before = True, self._owed
        if not self._has_begun:
            before += self._send_begin()
        sent = [self._send(form, values) for form, values, _ in waiting]
        server.pipeline_sync()
        failure: psycopg.Error | None = None
        if before:
            # The server takes no time for BEGIN, so this also tests whether it answers.
            found = self._driver.wait(_receive(server, before), timeout=limits.TEST_SECONDS)
            failure = _find_failure(found, self._driver)
            self._owed, self._has_begun = 0, failure is None
            if failure is not None and self._is_gone(failure):
                raise failure
        found = self._driver.wait(_receive(server, sum(map(len, sent)) + 1))
        if failure := failure or _find_failure(found, self._driver):
            self._is_busy = self._is_gone(failure)
            raise failure
        self._is_busy = False
        results = iter(found)
        for (form, _, into), names in zip(waiting, sent, strict=True):
            for name in names:
                result = next(results)
                if name is None:
                    into.arrived = result
                else:
                    self._prepared[form] = name

    def _send(self, form: Form, values: list[bytes | None]) -> tuple[bytes | None, ...]:
        """Send a statement, and prepare it before if it is often used. Return for each result that follows the name of
        the prepared statement; None: the result is that of the statement.
        """
        name, text = self._prepared.get(form), form.text.encode()
        form.uses += 1
        # Behind a pooler, the connector sets no threshold.
        is_new = name is None and form.uses > _USES_TO_PREPARE and self._driver.prepare_threshold is not None
        if is_new:
            name = f"lease_{next(_NAMES)}".encode()
            self._server.send_prepare(name, text)
        if name is None:
            self._server.send_query_params(text, values or None)
        else:
            self._server.send_query_prepared(name, values or None)
        return (name, None) if is_new else (None,)

    def _send_begin(self) -> int:
        """Send BEGIN, and the limits of the transaction behind a pooler. Return the number of statements."""
        server, settings = self._server, self._connections.settings()
        if not self._writes:
            server.send_query_params(_READ, None)
            self._has_read = True
        else:
            # On a standby, BEGIN READ WRITE fails. See `_forget_mode` for a pooler.
            server.send_query_params(_WRITE if self._has_read and settings is None else _BEGIN, None)
        if settings is not None:
            server.send_query_params(settings, None)
        server.send_flush_request()
        return 1 if settings is None else 2

    def _is_gone(self, error: psycopg.Error) -> bool:
        return self._server.status != ConnStatus.OK or _ends_session(error.pgresult)

    def _fail(self, error: psycopg.Error) -> NoReturn:
        is_gone = self._is_gone(error)
        if error.sqlstate in limits.READ_ONLY:
            self._connections.drop_idle()
        if is_gone or error.sqlstate in limits.READ_ONLY:
            self.invalidate()
        raise DBAPIError(None, None, error, connection_invalidated=is_gone) from error


class PostgresConnections:
    """The idle connections of one SQLAlchemy engine, and its compiled statements. Thread-safe.

    `settings`: returns the statement with which each transaction sets its limits behind a pooler; None: there is none.
    """

    def __init__(self, engine: Engine, settings: Callable[[], bytes | None]) -> None:
        self.engine, self.settings = engine, settings
        compiling = PGDialect_psycopg(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
        self.forms = Forms(compiling)
        self.generation = 0
        """Connections of an earlier generation are not kept."""
        self._idle: list[PostgresConnection] = []

    def begin(self, *, writes: bool) -> PostgresConnection:
        """Return a connection with a new transaction."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = PostgresConnection(self)
        connection.begin(writes=writes)
        return connection

    def keep(self, connection: PostgresConnection) -> None:
        """Keep a connection open for another transaction; close it if it is not usable or enough are kept."""
        if len(self._idle) < MOST_IDLE and connection.is_usable:
            self._idle.append(connection)
        else:
            connection.invalidate()

    def drop_idle(self) -> None:
        """Close the idle connections, and later those that are in use now."""
        self.generation += 1
        with suppress(IndexError):
            while True:
                self._idle.pop().invalidate()


def _receive(server: Any, number: int) -> Generator[Any, Any, list[PGresult]]:
    """Send what libpq holds, and return the next results, of which each stands for a statement or a sync."""
    yield from generators.send(server)
    found: list[PGresult] = []
    while len(found) < number:
        found += yield from generators.fetch_many(server)
        if _ends_session(found[-1]):
            break
    return found


def _find_failure(results: Sequence[PGresult], driver: "psycopg.Connection[Any]") -> psycopg.Error | None:
    """Return the first error in these results."""
    for result in results:
        if result.status == ExecStatus.FATAL_ERROR:
            return error_from_result(result, encoding=driver.info.encoding)
    return None


def _ends_session(result: PGresult | None) -> bool:
    """Return whether this is an error with which the server ends the session."""
    return (
        result is not None
        and result.status == ExecStatus.FATAL_ERROR
        and result.error_field(DiagnosticField.SEVERITY_NONLOCALIZED) in _DIES
    )


def _write(value: object) -> bytes | None:
    """Return a parameter in PostgreSQL's text form. The SQL states its type."""
    match value:
        case str():
            if "\0" in value:
                raise DBAPIError(None, None, psycopg.DataError("PostgreSQL text cannot contain NUL (0x00) bytes"))
            return value.encode()
        case None:
            return None
        case bool():
            return b"t" if value else b"f"
        case int() | float():
            return repr(value).encode()
        case _:
            raise TypeError(f"a parameter of the type {type(value).__name__}")
