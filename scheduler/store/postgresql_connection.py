"""The connections to PostgreSQL: they notice that a server does not answer any more or accepts no writes, and that a
pooler is between this process and the server.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import psycopg
from psycopg.abc import RV, PQGen
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, Engine, ExceptionContext, event

ANSWER_SECONDS: Final = 35.0
"""How long a connection waits for the answer to a statement. A server that works answers earlier, because its limit for
a statement is 30 s. TCP notices a host that lost its network. But a stopped server, or a proxy that lost its server,
keeps its connections open and sends nothing.
"""
TEST_SECONDS: Final = 5.0
"""How long it waits for the answer to the test before a connection is used again, which costs the server nothing."""
READ_ONLY: Final = frozenset({"25006", "0A000", "25001"})
"""SQLSTATE codes of sessions that accept no writes, such as those on a standby. `25006`: a statement that writes in a
transaction that only reads. `0A000` and `25001`: BEGIN READ WRITE on a standby. Codes are compared, because the server
may translate its messages.
"""
DEFAULT_TARGETS: Final = frozenset({"primary", "read-write"})
_REFUSES_OPTIONS: Final = re.compile("unsupported startup parameter|support command-line options")
"""How PgBouncer and RDS Proxy refuse a connection with startup options."""
_OPTION: Final = re.compile(r"(?:-c\s*|--)([\w.-]+)=((?:\\.|[^\s\\])*)")
_ESCAPED: Final = re.compile(r"\\(.)")


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that closes itself and raises OperationalError if the server sends no answer in ANSWER_SECONDS, and
    outside of transactions in TEST_SECONDS.
    """

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """Wait until `gen`, which operates on this connection, has its answer."""
        # Only the test of a connection, and the question for a pooler, are sent in autocommit mode.
        limit = timeout or (TEST_SECONDS if self.autocommit else ANSWER_SECONDS)
        try:
            return super().wait(gen, interval, limit)
        except psycopg.OperationalError:
            # Any other error is an answer, after which no statement is active.
            if self.pgconn.transaction_status != TransactionStatus.ACTIVE:
                raise
            self.close()
            raise psycopg.OperationalError(f"the server sent no answer for {limit:g} s") from None


class Connector:
    """Makes the connections of one engine, and closes those that cannot be used any more.

    Behind a pooler (PgBouncer, RDS Proxy) each transaction may use another session of the server, which others use
    before and after it. So connections send no startup options and prepare no statements, and each transaction sets its
    limits itself.

    `limits`: the server's settings for each session; `options`: further ones, in libpq's form (`-c NAME=VALUE`).
    `is_pooled`: whether there is a pooler; None: find out at the first connection. `is_bounded`: use BoundedConnection.
    """

    def __init__(self, limits: Mapping[str, str], options: str, *, is_pooled: bool | None, is_bounded: bool) -> None:
        self._options = " ".join([*(f"-c {name}={value}" for name, value in limits.items()), options])
        self._kind: type[psycopg.Connection[Any]] = BoundedConnection if is_bounded else psycopg.Connection
        self.settings = _write_settings(limits, options)
        """The statement with which each transaction behind a pooler sets its limits."""
        self.is_pooled = is_pooled

    def watch(self, engine: Engine) -> None:
        """Make the connections of this engine. A session that accepts no writes is closed together with all others of
        the engine, so that the next transactions connect again.
        """
        self._engine = engine
        event.listen(engine, "do_connect", self._connect)
        event.listen(engine, "handle_error", _drop_read_only)
        if self.is_pooled:
            self._use_pooler()

    def _use_pooler(self) -> None:
        """Let each transaction from now on set its limits. Direct connections get no such listeners, since SQLAlchemy
        takes longer for each statement of an engine that has any.
        """
        self.is_pooled = True
        event.listen(self._engine, "begin", self._set_limits)
        event.listen(self._engine, "checkin", _forget_mode)

    def _connect(self, _dialect: object, _record: object, _words: object, given: dict[str, Any]) -> Any:
        if not self.is_pooled:
            try:
                connection = self._kind.connect(**given, options=self._options)
            except psycopg.OperationalError as error:
                if not _REFUSES_OPTIONS.search(str(error)):
                    raise
            else:
                if self.is_pooled is False or not _has_pooler(connection):
                    self.is_pooled = False
                    return connection
                connection.close()
            self._use_pooler()
        if given.get("target_session_attrs") in DEFAULT_TARGETS:
            # A pooler reports the server that it saw first, and its sessions end on others later.
            given = {name: value for name, value in given.items() if name != "target_session_attrs"}
        return self._kind.connect(**given, prepare_threshold=None)

    def _set_limits(self, connection: Connection) -> None:
        connection.exec_driver_sql(self.settings.replace("%", "%%"))


def _forget_mode(connection: Any, _record: object) -> None:
    # BEGIN READ WRITE, which SQLAlchemy asks for after a read, would fail on a standby before its transaction begins.
    # PgBouncer gives up its session with a standby only if the client leaves within a transaction.
    if connection is not None:
        connection.read_only = None


def _has_pooler(connection: psycopg.Connection[Any]) -> bool:
    """Return whether a pooler answers this new connection. A pooler does not know the session of the server that it
    will use, so it reports a process id of its own.
    """
    connection.autocommit = True
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    connection.autocommit = False
    return row != (connection.info.backend_pid,)


def _write_settings(limits: Mapping[str, str], options: str) -> str:
    # set_config reads a list, like that of search_path, as the startup option does.
    found = [(name.replace("-", "_"), _ESCAPED.sub(r"\1", value)) for name, value in _OPTION.findall(options)]
    local = [f"set_config({_quote(name)}, {_quote(value)}, true)" for name, value in (*limits.items(), *found)]
    return f"SELECT {', '.join(local)}"


def _quote(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _drop_read_only(context: ExceptionContext) -> None:
    if getattr(context.original_exception, "sqlstate", None) in READ_ONLY:
        context.is_disconnect = True
