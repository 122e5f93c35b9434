"""The access check of an EC2 emulator that has a secret. An emulator without a secret has no such check.

The check admits two kinds of requests: (1) a request that is signed with the secret as AWS secret key; (2) a request
with the secret as password of HTTP basic authentication (for use with curl).
"""

import hmac
import io
from typing import TYPE_CHECKING, Final

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from werkzeug.wrappers import Request

from leasehold_emulator.answers import answer_error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

OPEN_PAGES: Final = frozenset({"/_leasehold/health"})
"""Paths that the EC2 emulator serves without its secret, for health checks. Their content reveals only the name of a
queue.
"""
_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_REFUSED: Final = "this emulator has a secret: sign the request with it as AWS secret key, or send it as password"


class SecretCheck:
    """A WSGI application in front of the EC2 emulator. It passes a request on to the emulator if the request is signed
    with the emulator's secret or has the secret as password. It refuses any other request.
    """

    def __init__(self, inside: "WSGIApplication", secret: str) -> None:
        self._inside, self._secret = inside, secret

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> "Iterable[bytes]":
        """Serve one HTTP request: pass it on to the emulator, or refuse it as EC2 refuses a wrong signature."""
        request = Request(environ)
        login = request.authorization
        if request.path in OPEN_PAGES:
            is_admitted = request.method == "GET"
        elif login is not None and login.type == "basic":
            is_admitted = _is_same(login.password or "", self._secret)
        else:
            is_admitted = is_signed(request, self._secret)
        if not is_admitted:
            return answer_error("AuthFailure", _REFUSED, 401)(environ, start_response)
        return self._inside(environ, start_response)


def is_signed(request: Request, secret: str) -> bool:
    """Return whether the request has an AWS signature of version 4 that was made with `secret`. The key id may be any
    text.
    """
    algorithm, _, rest = request.headers.get("Authorization", "").partition(" ")
    given = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    try:
        key, _, region, service, _ = given["Credential"].split("/")
        names, signature, at = given["SignedHeaders"], given["Signature"], request.headers["X-Amz-Date"]
    except (KeyError, ValueError):
        return False
    headers = {name: request.headers.get(name, "") for name in names.split(";")}
    body = request.environ["wsgi.input"].read(request.content_length or 0)
    # The body is put back, because the application reads it again.
    request.environ["wsgi.input"] = io.BytesIO(body)
    signed = AWSRequest(request.method, request.url, headers, body)
    signed.context["timestamp"] = at
    signer = SigV4Auth(Credentials(key, secret), service, region)
    made = signer.signature(signer.string_to_sign(signed, signer.canonical_request(signed)), signed)
    return algorithm == _ALGORITHM and _is_same(signature, made)


def _is_same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())
