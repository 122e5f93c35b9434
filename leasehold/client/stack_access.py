"""Connect a client to its stack. The URL of the stack decides whether the client uses Redis (broker and view) or the
HTTP API.
"""

import os
from typing import NamedTuple

from leasehold.client.credentials import find_credentials
from leasehold.client.discovery import Address, find_address
from leasehold.client.http_login import is_http, make_authorization, read_url
from leasehold.client.ports import Reader, Wire
from leasehold.errors import BadCredentials


class Access(NamedTuple):
    """The transport and the reader of one client. `has_key`: whether the client proves its identity with the key of a
    principal.
    """

    url: str
    wire: Wire
    reader: Reader
    has_key: bool


def open_access(
    url: str | None,
    view_url: str | None,
    prefix: str | None,
    principal: str | None,
    key: str | None,
    key_file: str | os.PathLike[str] | None,
    token: str | None,
) -> Access:
    """Return the access to the stack for these arguments, which have the meanings that `Client` documents. Raise
    NoStack, Unavailable or BadCredentials.
    """
    found = find_address(url, view_url, prefix)
    if is_http(found.broker_url):
        return _open_http(found.broker_url, principal, key, key_file, token)
    if token is not None:
        raise BadCredentials("token: expected the URL of an HTTP API for a token, got the URL of a Redis")
    return _open_redis(found, principal, key, key_file)


def _open_redis(
    found: Address, principal: str | None, key: str | None, key_file: str | os.PathLike[str] | None
) -> Access:
    from leasehold.client.transport import RequestTransport
    from leasehold.client.view_reader import ViewReader

    credentials = find_credentials(os.environ, principal, key, key_file)
    wire = RequestTransport(found.broker_url, found.prefix, found.view_url, credentials)
    reader = ViewReader(wire.redis, found.prefix, found.view_url, wire.clock)
    return Access(found.broker_url, wire, reader, has_key=credentials is not None)


def _open_http(
    url: str, principal: str | None, key: str | None, key_file: str | os.PathLike[str] | None, token: str | None
) -> Access:
    from leasehold.client.http_channel import HttpChannel
    from leasehold.client.http_reader import HttpReader
    from leasehold.client.http_transport import HttpTransport

    if token is not None and (principal, key, key_file) != (None, None, None):
        raise BadCredentials("token: expected either a token or the key of a principal, got both")
    credentials = None if token is not None else find_credentials(os.environ, principal, key, key_file)
    channel = HttpChannel(url, make_authorization(read_url(url), os.environ, token, credentials))
    return Access(url, HttpTransport(channel), HttpReader(channel), has_key=credentials is not None)
