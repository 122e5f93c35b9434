"""The answers that the EC2 emulator makes without moto (a mock of AWS): errors, fleets without instances, lost answers,
refused signatures.
"""

import contextlib
import json
import re
import select
import socket
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape, unescape

from werkzeug.wrappers import Response

from leasehold_emulator.calls import Place
from leasehold_emulator.settings import FaultRule

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

PlacedFault = tuple[Place | None, FaultRule]
"""An error in the answer of a fleet, with the place (override of the request) that failed; None: the error concerns no
single place.
"""
LONGEST_WAIT: Final = 600.0
"""Seconds after which the emulator cuts the connection of a caller that waits for a lost answer and has no timeout of
its own.
"""
WINDOW: Final = 300.0
"""Most seconds between the signing time of a request and its arrival. A request outside this window is refused.

AWS documents 5 minutes for signatures and 15 for requests to EC2.
"""
_EXPIRED: Final = FaultRule(code="RequestExpired", message="Request has expired.", status=400)
_NOT_YET_CURRENT: Final = FaultRule(
    code="AuthFailure", message="AWS was not able to validate the provided access credentials", status=401
)
_INSTANCES: Final = re.compile("<fleetInstanceSet>(.*)</fleetInstanceSet>", re.DOTALL)
_END_OF_INSTANCES: Final = "</fleetInstanceSet>"
_HEAD: Final = '<?xml version="1.0" encoding="UTF-8"?>\n'
_REQUEST: Final = "00000000-0000-0000-0000-000000000000"


def answer_error(code: str, message: str, status: int) -> Response:
    """Return the HTTP answer by which EC2 reports an error with this code, message and status."""
    return _xml(
        f"<Response><Errors><Error><Code>{escape(code)}</Code><Message>{escape(message)}</Message></Error>"
        f"</Errors><RequestID>{_REQUEST}</RequestID></Response>",
        status,
    )


def answer_fault(fault: FaultRule) -> Response:
    """Return the HTTP answer with the error of an injected fault. The body is EC2's XML, or what the fault names in its
    place.
    """
    code = fault.code or "InternalError"
    match fault.body:
        case None:
            return answer_error(code, fault.text, fault.http_status)
        case "html":
            page = f"<html><head><title>{escape(code)}</title></head><body><h1>{escape(fault.text)}</h1></body></html>"
            return Response(page, status=fault.http_status, content_type="text/html")
        case "empty":
            return Response("", status=fault.http_status, content_type="text/xml;charset=UTF-8")


def answer_empty_fleet(market: str, faults: Iterable[PlacedFault]) -> Response:
    """Return EC2's answer to a CreateFleet that launched no instance: status 200, with an error for each of
    `faults`.
    """
    return _xml(
        '<CreateFleetResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
        f"<requestId>{_REQUEST}</requestId><fleetId>fleet-{_REQUEST}</fleetId>"
        f"{_fleet_errors(market, faults)}<fleetInstanceSet/></CreateFleetResponse>",
        200,
    )


def answer_fleet(answers: Sequence[str], market: str, faults: Iterable[PlacedFault]) -> Response:
    """Return one answer to a CreateFleet whose instances moto launched by several calls. `answers`: moto's answers, one
    for each call. The result is the first of these answers, to which two things are added: the instances of the other
    answers, and an error for each of `faults`.
    """
    first, *others = answers
    instances = "".join(part[1] for each in others if (part := _INSTANCES.search(each)))
    first = first.replace(_END_OF_INSTANCES, instances + _END_OF_INSTANCES)
    if errors := list(faults):
        end = "</CreateFleetResponse>"
        first = first.replace(end, _fleet_errors(market, errors) + end)
    return Response(first, content_type="text/xml;charset=UTF-8")


def read_error(answer: Response) -> FaultRule:
    """Return the error that an answer of EC2 reports; code InternalError if it has no error code."""
    text = answer.get_data(as_text=True)
    code, message = (re.search(f"<{name}>([^<]*)</{name}>", text) for name in ("Code", "Message"))
    return FaultRule(
        code=code[1] if code else "InternalError",
        message=unescape(message[1]) if message else "",
        status=answer.status_code,
    )


def _fleet_errors(market: str, faults: Iterable[PlacedFault]) -> str:
    errors = "".join(
        f"<item>{_override(place)}<errorCode>{escape(str(rule.code))}</errorCode>"
        f"<errorMessage>{escape(rule.text)}</errorMessage><lifecycle>{market}</lifecycle></item>"
        for place, rule in faults
    )
    return f"<errorSet>{errors}</errorSet>"


def _override(place: Place | None) -> str:
    """Return the part of an error's XML that names the failed override of the request; "" if the error concerns no
    single override.
    """
    if place is None or place.override is None:
        return ""
    named = {"instanceType": place.type, "subnetId": place.subnet, "availabilityZone": place.zone}
    fields = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in named.items() if value)
    return f"<launchTemplateAndOverrides><overrides>{fields}</overrides></launchTemplateAndOverrides>"


def _xml(body: str, status: int) -> Response:
    return Response(_HEAD + body, status=status, content_type="text/xml;charset=UTF-8")


def lose(rule: FaultRule, environ: "WSGIEnvironment") -> Response:
    """Lose the answer to a call in the way that the injected fault `rule` names: return a 5xx in place of the answer,
    or raise ConnectionResetError so that the caller gets no answer.

    The caller of this function must not hold the middleware's lock, because the way "timeout" waits until the EC2
    client closes its connection.
    """
    if rule.lost == "500":
        return answer_fault(rule)
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
    """Return the error by which EC2 refuses a request that was signed at `signed_at` and arrives at `now`.

    Return None if EC2 accepts the signing time, or if the request is not signed.
    """
    if signed_at is None or abs(now - signed_at) <= WINDOW:
        return None
    return _EXPIRED if signed_at < now else _NOT_YET_CURRENT


def answer_outside_window(error: FaultRule, content_type: str) -> Response:
    """Return the answer by which an AWS service other than EC2 refuses a request because of its signing time.

    `error`: the result of `find_signing_error`. The answer is JSON or XML, like the request.
    """
    message = "Signature expired" if error is _EXPIRED else "Signature not yet current"
    if "json" in content_type:
        body = json.dumps({"__type": "com.amazon.coral.service#InvalidSignatureException", "message": message})
        return Response(body, status=400, content_type=content_type)
    xml = f"<Type>Sender</Type><Code>SignatureDoesNotMatch</Code><Message>{message}</Message>"
    return Response(f"<ErrorResponse><Error>{xml}</Error></ErrorResponse>", status=403, content_type="text/xml")
