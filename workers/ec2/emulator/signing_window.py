"""The signing window: requests whose signing time is too far from the emulator's clock are refused, as by AWS."""

import json
from typing import Final

import msgspec
from werkzeug.wrappers import Response

WINDOW: Final = 300.0
"""Seconds between signing time and arrival. AWS documents 5 minutes for signatures, 15 for requests to EC2."""


class SigningError(msgspec.Struct, frozen=True):
    """EC2's refusal of such a request."""

    code: str
    message: str
    status: int


_EXPIRED: Final = SigningError("RequestExpired", "Request has expired.", 400)
_NOT_YET_CURRENT: Final = SigningError(
    "AuthFailure", "AWS was not able to validate the provided access credentials", 401
)


def find_signing_error(signed_at: float | None, now: float) -> SigningError | None:
    """Return EC2's error for a signature of this time; None if it is accepted or the request is not signed."""
    if signed_at is None or abs(now - signed_at) <= WINDOW:
        return None
    return _EXPIRED if signed_at < now else _NOT_YET_CURRENT


def answer_outside_window(error: SigningError, content_type: str) -> Response:
    """Return the refusal of a service other than EC2, in the protocol of the request."""
    message = "Signature expired" if error is _EXPIRED else "Signature not yet current"
    if "json" in content_type:
        body = json.dumps({"__type": "com.amazon.coral.service#InvalidSignatureException", "message": message})
        return Response(body, status=400, content_type=content_type)
    xml = f"<Type>Sender</Type><Code>SignatureDoesNotMatch</Code><Message>{message}</Message>"
    return Response(f"<ErrorResponse><Error>{xml}</Error></ErrorResponse>", status=403, content_type="text/xml")
