"""Answers of the emulator's middleware in EC2's XML."""

from collections.abc import Iterable
from xml.sax.saxutils import escape

from werkzeug.wrappers import Response

from workers.ec2.emulator.settings import FaultRule

_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
_REQUEST = "00000000-0000-0000-0000-000000000000"


def answer_error(code: str, message: str, status: int) -> Response:
    """Return an error as EC2 answers it."""
    return _xml(
        f"<Response><Errors><Error><Code>{escape(code)}</Code><Message>{escape(message)}</Message></Error>"
        f"</Errors><RequestID>{_REQUEST}</RequestID></Response>",
        status,
    )


def answer_empty_fleet(market: str, faults: Iterable[FaultRule]) -> Response:
    """Return CreateFleet's answer without an instance: status 200 with the errors of the requested places."""
    return _xml(
        '<CreateFleetResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
        f"<requestId>{_REQUEST}</requestId><fleetId>fleet-{_REQUEST}</fleetId>"
        f"{_fleet_errors(market, faults)}<fleetInstanceSet/></CreateFleetResponse>",
        200,
    )


def add_fleet_errors(answer: Response, market: str, faults: Iterable[FaultRule]) -> None:
    """Add errors to the answer of a CreateFleet that gave some instances. An error answer stays as it is."""
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
