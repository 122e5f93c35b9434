"""How a client over HTTP proves its identity to the server: by a token (Bearer), or by the name and the key of a
principal (Basic).
"""

import base64
from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, urlsplit

from leasehold.client.credentials import Credentials
from leasehold.errors import BadCredentials, Unavailable

TOKEN_VARIABLE: Final = "LEASEHOLD_CONSOLE__TOKEN"  # noqa: S105 - the name of a variable
SCHEMES: Final = ("http", "https")
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


def is_http(url: str) -> bool:
    """Return whether the URL is that of an HTTP API and not of a Redis."""
    return url.partition("://")[0].lower() in SCHEMES


def read_url(url: str) -> SplitResult:
    """Return the parts of the URL of an HTTP API. Raise Unavailable if it is malformed, and BadCredentials if it has a
    user or a password.
    """
    try:
        found = urlsplit(url)
        _ = found.port
    except ValueError as error:
        raise Unavailable(f"the URL of the HTTP API is malformed: {error}") from None
    if found.username is not None or found.password is not None:
        raise BadCredentials("the URL of the HTTP API: expected no user in it, got one; pass `principal` and `key`")
    if not found.hostname:
        raise Unavailable(f"{url} is no URL of an HTTP API: it has no host")
    return found


def make_authorization(
    url: SplitResult, environment: Mapping[str, str], token: str | None, credentials: Credentials | None
) -> str | None:
    """Return the value of the header `Authorization`. It is made from the first of these that exists: the argument
    `token`, the argument `credentials`, the token in the environment variables `environment`. Return None if there is
    none of them.

    Raise BadCredentials if a secret would cross a network without TLS.
    """
    if token is None and credentials is None:
        token = environment.get(TOKEN_VARIABLE) or None
    if token is None and credentials is None:
        return None
    _check_private(url)
    if token is not None:
        return f"Bearer {_check_token(token)}"
    assert credentials is not None  # noqa: S101 - for the type checker; see above
    key = base64.urlsafe_b64encode(credentials.key).rstrip(b"=").decode()
    pair = f"{credentials.principal}:{key}".encode()
    return f"Basic {base64.b64encode(pair).decode()}"


def _check_token(token: str) -> str:
    if not token.isascii() or not token.isprintable() or " " in token:
        raise BadCredentials("token: expected printable ASCII characters without spaces, got others")
    return token


def _check_private(url: SplitResult) -> None:
    if url.scheme.lower() == "http" and url.hostname not in _LOOPBACK:
        raise BadCredentials(
            f"{url.scheme}://{url.netloc}: expected https for a token or a key, got http to another host"
        )
