"""Connect a client to its stack. The URL of the stack decides whether the client uses Redis (broker and view) or the
HTTP API.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from leasehold.client.credentials import Credentials, find_credentials
from leasehold.client.discovery import Address, find_address
from leasehold.client.http.login import is_http, make_authorization, read_url
from leasehold.client.ports import Reader, Wire
from leasehold.errors import BadCredentials


class Ways(NamedTuple):
    """The transport and the reader of one client in one event loop."""

    wire: Wire
    reader: Reader


class Access(NamedTuple):
    """How one client reaches its stack. `open`: opens the transport for one event loop; it connects with the first
    request. `has_key`: whether the client proves its identity with the key of a principal.
    """

    url: str
    open: Callable[[], Ways]
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
    if token is not None and not is_http(found.broker_url):
        raise BadCredentials("token: expected the URL of an HTTP API for a token, got the URL of a Redis")
    if token is not None and (principal, key, key_file) != (None, None, None):
        raise BadCredentials("token: expected either a token or the key of a principal, got both")
    credentials = None if token is not None else find_credentials(os.environ, principal, key, key_file)
    if is_http(found.broker_url):
        authorization = make_authorization(read_url(found.broker_url), os.environ, token, credentials)
        access = partial(_open_http, found.broker_url, authorization)
    else:
        access = partial(_open_redis, found, credentials)
    return Access(found.broker_url, access, has_key=credentials is not None)


def _open_redis(found: Address, credentials: Credentials | None) -> Ways:
    from leasehold.client.redis.transport import RequestTransport
    from leasehold.client.redis.wire import RedisWire

    wire = RedisWire(RequestTransport(found.broker_url, found.prefix, found.view_url, credentials))
    return Ways(wire, wire.reader)


def _open_http(url: str, authorization: str | None) -> Ways:
    from leasehold.client.http.channel import HttpChannel
    from leasehold.client.http.reader import HttpReader
    from leasehold.client.http.wire import HttpWire

    channel = HttpChannel(url, authorization)
    return Ways(HttpWire(channel), HttpReader(channel))
