"""Types of settings: periods, secrets, hosts, URLs. If a value is wrong, the error does not show a user, password or
secret.
"""

import ipaddress
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Final
from urllib.parse import parse_qs, urlsplit

from scheduler.model.validation import (
    MOST_ENTRIES,
    Before,
    ExpectedError,
    check_unicode,
    expected,
    is_number,
    parse_duration,
    show,
)
from scheduler.protocol.database_urls import split_hosts
from scheduler.protocol.masking import HIDDEN, show_url

_MOST_SECRET: Final = 1024
_CERTIFICATE_FLAGS: Final = frozenset({"required", "optional", "none"})
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


_ROLE: Final = re.compile(r"[0-9]{12}:[A-Za-z0-9+=,.@_-]{1,64}", re.ASCII)
_WEB_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?)(:[0-9]{1,5})?")
_PREFIX: Final = re.compile(r"(/[A-Za-z0-9._~-]{1,64}){0,8}")
_HEADER: Final = re.compile(r"[A-Za-z0-9-]{1,64}")


class SecretText:
    """A secret text. No repr, log line or error shows it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def get_secret_value(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"SecretText({str(self)!r})"

    def __str__(self) -> str:
        return "**********" if self._text else ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretText) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


def _period(value: object) -> float:
    try:
        seconds = parse_duration(value)
    except ExpectedError:
        seconds = 0.0
    if seconds <= 0:
        raise expected('a duration > 0 (seconds, or like "30s", "15m", "1h")')
    return seconds


def _number(value: object, most: float, what: str) -> float:
    if not is_number(value) or not 0 < value <= most:
        raise expected(f"{what} > 0 and at most {most:.0f}")
    return value


def _secret(value: object) -> object:
    if isinstance(value, SecretText):
        return value
    if not isinstance(value, str) or not 0 < len(value) <= _MOST_SECRET:
        raise expected(f"a text of 1 to {_MOST_SECRET} characters", got=HIDDEN)
    return check_unicode(value, got=HIDDEN)


def _basic_auth(value: object) -> object:
    text = reveal(_secret(value))
    name, colon, password = text.partition(":")
    if not (name and colon and password):
        raise expected('a text like "user:password"', got=HIDDEN)
    return value


def _host(value: object) -> object:
    with suppress(ValueError):
        if isinstance(value, str) and (_HOST.fullmatch(value) or ipaddress.ip_address(value) is not None):
            return value
    raise expected("the name or address of a host")


def _list(value: object, check: Callable[[str], object], what: str) -> tuple[str, ...]:
    """Return the entries of `value`, a list, or a text with commas as in a variable of the environment. Raise the error
    that `what` was expected if `value` is neither, or if `check` finds an entry wrong.
    """
    entries = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
    if not isinstance(entries, list | tuple) or len(entries) > MOST_ENTRIES:
        raise expected(what)
    for entry in entries:
        if not isinstance(entry, str) or not check(entry):
            raise expected(what, got=show(entry))
    return tuple(entries)


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True


def _text(value: object, pattern: re.Pattern[str], what: str) -> object:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise expected(what)
    return value


def _redis_url(value: object) -> object:
    _check_url(value, ("redis", "rediss"), "a URL like redis://host:6379/0")
    flags = parse_qs(urlsplit(reveal(value)).query).get("ssl_cert_reqs", ["required"])
    if not {*flags} <= _CERTIFICATE_FLAGS:
        raise expected("ssl_cert_reqs=required, optional or none", got=flags[0])
    return value


def _database_url(value: object) -> object:
    for each in split_hosts(reveal(value)) if isinstance(value, str | SecretText) else [value]:
        _check_url(each, _DATABASES, _DATABASE_URL)
    return value


def _check_url(value: object, schemes: tuple[str, ...], wanted: str) -> object:
    """Return `value` if it is a URL with one of `schemes`. Else raise the error that `wanted` was expected; the error
    does not show user and password of the URL.
    """
    text = reveal(value) if isinstance(value, (str, SecretText)) else ""
    try:
        parts = urlsplit(text)
        good = parts.scheme in schemes and (bool(parts.hostname) or parts.scheme == "sqlite") and parts.port != 0
    except ValueError:
        good = False
    if not good or len(text) > _MOST_SECRET:
        raise expected(wanted, got=show_url(text))
    check_unicode(text, got=show_url(text))
    return value


def reveal(value: object) -> str:
    """Return the text of a SecretText; any other value as text."""
    return value.get_secret_value() if isinstance(value, SecretText) else str(value)


Period = Annotated[float, Before(_period)]
Days = Annotated[float, Before(lambda value: _number(value, 100_000, "a number of days"))]
"""At most about 270 years."""
Share = Annotated[float, Before(lambda value: _number(value, 1, "a number"))]
Secret = Annotated[SecretText, Before(_secret)]
Host = Annotated[str, Before(_host)]
WebHosts = Annotated[
    tuple[str, ...],
    Before(
        lambda value: _list(
            value, _WEB_HOST.fullmatch, 'names of hosts like "leasehold.example.org" or "10.0.0.7:8443"'
        )
    ),
]
Roles = Annotated[
    tuple[str, ...],
    Before(lambda value: _list(value, _ROLE.fullmatch, 'roles like "123456789012:leasehold-host" (account and name)')),
]
Networks = Annotated[
    tuple[str, ...],
    Before(lambda value: _list(value, _is_network, 'addresses or networks like "10.0.0.7" or "10.0.0.0/24"')),
]
UrlPrefix = Annotated[str, Before(lambda value: _text(value, _PREFIX, 'a path like "/leasehold", or an empty text'))]
HeaderName = Annotated[
    str, Before(lambda value: _text(value, _HEADER, 'the name of an HTTP header like "X-Forwarded-User"'))
]
BasicAuth = Annotated[SecretText, Before(_basic_auth)]
RedisUrl = Annotated[SecretText, Before(_redis_url)]
_DATABASE_URL: Final = "a URL like sqlite:///file.db or postgresql://user@host/name"
_DATABASES: Final = ("sqlite", "postgresql", "postgresql+psycopg")
_WEB: Final = ("http", "https")
_QUEUE_URL: Final = "a URL like https://sqs.REGION.amazonaws.com/ACCOUNT/NAME"
DatabaseUrl = Annotated[SecretText, Before(_database_url)]
EndpointUrl = Annotated[str, Before(lambda value: _check_url(value, _WEB, "a URL like http://host:port"))]
QueueUrl = Annotated[str, Before(lambda value: _check_url(value, _WEB, _QUEUE_URL))]
