"""Answers that the EC2 emulator gives without moto: errors, empty fleets, lost answers, refused signatures."""

import contextlib
import json
import select
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

from werkzeug.wrappers import Response

from workers.ec2.emulator.settings import FaultRule

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

LONGEST_WAIT: Final = 600.0
"""Seconds after which the emulator cuts the connection of a caller that waits for a lost answer without a timeout."""
WINDOW: Final = 300.0
"""Most seconds between the signing time of a request and its arrival. AWS documents 5 minutes for signatures, 15 for
requests to EC2.
"""
_EXPIRED: Final = FaultRule(code="RequestExpired", message="Request has expired.", status=400)
_NOT_YET_CURRENT: Final = FaultRule(
    code="AuthFailure", message="AWS was not able to validate the provided access credentials", status=401
)
_HEAD: Final = '<?xml version="1.0" encoding="UTF-8"?>\n'
_REQUEST: Final = "00000000-0000-0000-0000-000000000000"


def answer_error(code: str, message: str, status: int) -> Response:
    """Return the answer by which EC2 reports this error code and message, with this HTTP status."""
    return _xml(
        f"<Response><Errors><Error><Code>{escape(code)}</Code><Message>{escape(message)}</Message></Error>"
        f"</Errors><RequestID>{_REQUEST}</RequestID></Response>",
        status,
    )


def answer_empty_fleet(market: str, faults: Iterable[FaultRule]) -> Response:
    """Return the answer to a CreateFleet that launched no instance: status 200 with an error for each of `faults`."""
    return _xml(
        '<CreateFleetResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
        f"<requestId>{_REQUEST}</requestId><fleetId>fleet-{_REQUEST}</fleetId>"
        f"{_fleet_errors(market, faults)}<fleetInstanceSet/></CreateFleetResponse>",
        200,
    )


def add_fleet_errors(answer: Response, market: str, faults: Iterable[FaultRule]) -> None:
    """Add an error for each of `faults` to the answer of a CreateFleet that launched some instances.

    If the answer is itself an error, it stays unchanged.
    """
    text = answer.get_data(as_text=True)
    end = "</CreateFleetResponse>"
    if end in text:
        answer.set_data(text.replace(end, _fleet_errors(market, faults) + end))


def _fleet_errors(market: str, faults: Iterable[FaultRule]) -> str:
    errors = "".join(
        f"<item><errorCode>{escape(str(rule.code))}</errorCode><errorMessage>{escape(rule.message)}</errorMessage>"
        f"<lifecycle>{market}</lifecycle></item>"
        for rule in faults
    )
    return f"<errorSet>{errors}</errorSet>"


def _xml(body: str, status: int) -> Response:
    return Response(_HEAD + body, status=status, content_type="text/xml;charset=UTF-8")


def lose(rule: FaultRule, environ: "WSGIEnvironment") -> Response:
    """Lose the answer to a call as the injected fault `rule` demands: return a 5xx instead, or raise
    ConnectionResetError to send nothing.

    It must be called without the middleware's lock, because the fault "timeout" waits until the caller closes the
    connection.
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
    raise ConnectionResetError("an injected fault of the emulator lost this answer")


def find_signing_error(signed_at: float | None, now: float) -> FaultRule | None:
    """Return the error by which EC2 refuses a request that was signed at this time and arrives at `now`.

    Return None if EC2 accepts the time or the request is not signed.
    """
    if signed_at is None or abs(now - signed_at) <= WINDOW:
        return None
    return _EXPIRED if signed_at < now else _NOT_YET_CURRENT


def answer_outside_window(error: FaultRule, content_type: str) -> Response:
    """Return the answer by which an AWS service other than EC2 refuses a request with a wrong signing time.

    `error` comes from `find_signing_error`. The answer has the protocol of the request: JSON or XML.
    """
    message = "Signature expired" if error is _EXPIRED else "Signature not yet current"
    if "json" in content_type:
        body = json.dumps({"__type": "com.amazon.coral.service#InvalidSignatureException", "message": message})
        return Response(body, status=400, content_type=content_type)
    xml = f"<Type>Sender</Type><Code>SignatureDoesNotMatch</Code><Message>{message}</Message>"
    return Response(f"<ErrorResponse><Error>{xml}</Error></ErrorResponse>", status=403, content_type="text/xml")
