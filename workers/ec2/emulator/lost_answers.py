"""Lost answers: the call was carried out, but its caller gets no answer or another one."""

import contextlib
import select
import socket
from typing import TYPE_CHECKING, Final

from werkzeug.wrappers import Response

from workers.ec2.emulator.answers import answer_error
from workers.ec2.emulator.settings import FaultRule

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

LONGEST_WAIT: Final = 600.0
"""Time limit in seconds for a caller that waits for its answer without a timeout."""


def lose(rule: FaultRule, environ: "WSGIEnvironment") -> Response:
    """Return a 5xx instead of the answer, or raise ConnectionResetError to send nothing.

    It must be called without the middleware's lock, because "timeout" waits until the caller closes the connection.
    """
    if rule.lost == "500":
        return answer_error(rule.code or "InternalError", rule.message, rule.http_status)
    connection: socket.socket = environ["werkzeug.socket"]
    if rule.lost == "timeout":
        # A closed connection is readable, although it has no data.
        select.select([connection], [], [], LONGEST_WAIT)
    # Without the shutdown werkzeug would wait for the next request on this connection.
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    # werkzeug treats this as a caller that has gone, and closes the connection without an answer.
    raise ConnectionResetError("the emulator loses this answer")
