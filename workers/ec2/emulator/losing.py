"""Answers that are lost: the call was carried out, and its caller never learns it."""

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
"""A caller that waits for its answer without end is cut off after so many seconds."""


def lose(rule: FaultRule, environ: "WSGIEnvironment") -> Response:
    """What the caller gets instead of its answer: a 5xx, or (ConnectionResetError is raised) nothing.

    To be called outside the layer's lock: "timeout" waits until the caller has hung up.
    """
    if rule.lost == "500":
        return answer_error(rule.code or "InternalError", rule.message, rule.http_status)
    connection: socket.socket = environ["werkzeug.socket"]
    if rule.lost == "timeout":
        # Readable without anything to read: the caller has closed its end.
        select.select([connection], [], [], LONGEST_WAIT)
    # Both ways: without it werkzeug would wait for the next request on this connection.
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    # werkzeug takes this for the caller's own going, and ends the connection without an answer.
    raise ConnectionResetError("the emulator loses this answer")
