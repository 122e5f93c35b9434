"""The settings of the console and the HTTP API, the table `[console]`."""

from scheduler.model.validation import Document, Port, Text
from workers.setting_types import EndpointUrl, HeaderName, Host, Networks, RedisUrl, UrlPrefix, WebHosts


class ConsoleSettings(Document):
    """The console: web pages and the HTTP API.

    Each request must come from a known person or program: the holder of the token in `token_file`, a principal with its
    key, or a principal that a reverse proxy names.
    """

    host: Host = "127.0.0.1"
    """Address on which the console listens; TLS needs a reverse proxy before it."""
    port: Port = 5580
    """Port on which the console listens."""
    prefix: UrlPrefix = ""
    """Path under which a reverse proxy serves the console, like `/leasehold`; the proxy may remove it or keep it."""
    hosts: WebHosts = ()
    """Names under which browsers reach the console, as in the header `Host`; the names of loopback are always accepted.
    A name without a port is accepted with every port.
    """
    user_header: HeaderName | None = None
    """Header in which a reverse proxy passes the name of the principal that it has authenticated; default: none. The
    proxy must remove this header from the requests of browsers.
    """
    trusted_proxies: Networks | None = None
    """Addresses or networks of the reverse proxies whose `user_header` counts; default: none. Every program at these
    addresses can act as any principal.
    """
    token_file: Text | None = None
    """File with a random token that gives the rights of an operator; only its owner may have the right to read it.
    Default: that of `leasehold up`, or none.
    """
    read_only: bool = False
    """Whether the console and the HTTP API refuse every change."""
    queues_url: RedisUrl | None = None
    """URL of the broker's Redis by which the lengths of queues are read; default: `broker.url`."""
    flower_url: EndpointUrl | None = None
    """URL of Flower for the link in the console; default: that of the local stack, or no link."""
