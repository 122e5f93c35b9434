"""The connections to PostgreSQL. They notice that a server does not answer any more, or accepts no writes."""

from typing import Any, Final

import psycopg
from psycopg.abc import RV, PQGen
from psycopg.pq import TransactionStatus
from sqlalchemy import Engine, ExceptionContext, event

ANSWER_SECONDS: Final = 35.0
"""How long a connection waits for the answer to a statement. A server that works answers earlier, because its limit for
a statement is 30 s. TCP notices a host that lost its network. But a stopped server, or a proxy that lost its server,
keeps its connections open and sends nothing.
"""
READ_ONLY: Final = frozenset({"25006", "0A000", "25001"})
"""SQLSTATE codes of sessions that accept no writes, such as those on a standby. `25006`: a statement that writes in a
transaction that only reads. `0A000` and `25001`: BEGIN READ WRITE on a standby. Codes are compared, because the server
may translate its messages.
"""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that closes itself and raises OperationalError if the server sends no answer in ANSWER_SECONDS."""

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """Wait until `gen`, which operates on this connection, has its answer."""
        try:
            return super().wait(gen, interval, ANSWER_SECONDS if timeout is None else timeout)
        except psycopg.OperationalError:
            # Any other error is an answer, after which no statement is active.
            if self.pgconn.transaction_status != TransactionStatus.ACTIVE:
                raise
            self.close()
            raise psycopg.OperationalError(f"the server sent no answer for {ANSWER_SECONDS:g} s") from None


def watch_connections(engine: Engine, *, is_bounded: bool) -> None:
    """Let `engine` make its connections with this module. A session that accepts no writes is closed together with all
    others of the engine, so that the next transactions connect again. `is_bounded`: use BoundedConnection.
    """
    kind: type[psycopg.Connection[Any]] = BoundedConnection if is_bounded else psycopg.Connection
    event.listen(engine, "do_connect", lambda _dialect, _record, _words, given: kind.connect(**given))
    event.listen(engine, "handle_error", _drop_read_only)


def _drop_read_only(context: ExceptionContext) -> None:
    if getattr(context.original_exception, "sqlstate", None) in READ_ONLY:
        context.is_disconnect = True
