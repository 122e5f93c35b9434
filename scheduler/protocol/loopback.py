"""Addresses of this host. A call to a server on this host takes no HTTP proxy, because a proxy on another host would
connect to itself. Python and boto3 take proxies from HTTP_PROXY and ALL_PROXY, also for these addresses.
"""

import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from http.client import HTTPResponse
    from urllib.request import Request


def is_loopback(host: str) -> bool:
    """Return whether `host` is a loopback address, to which only programs on this host can connect."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_local_url(url: str | None) -> bool:
    return url is not None and is_loopback(urlsplit(url).hostname or "")


def open_local(request: "str | Request", seconds: float) -> "HTTPResponse":
    """Send an HTTP request to a server on this host, and return the answer. Raises OSError as `urlopen` does."""
    from urllib.request import ProxyHandler, build_opener  # noqa: PLC0415 - most importers need only the rules above

    answer: HTTPResponse = build_opener(ProxyHandler({})).open(request, timeout=seconds)
    return answer
