"""Hide the secrets in URLs, so that the URLs can be shown in messages, logs, pages and reprs.

If a text can be read in several ways, the reading that hides most is used.
"""

import re
from typing import Final

MASK: Final = "***"
HIDDEN: Final = "(hidden)"
_DELIMITER: Final = re.compile(r"[/?#\"']")
"""Characters that may end the host of a URL. An `@` after one of them may belong to a password, to the path or to a
parameter.
"""
_PAGES: Final = frozenset({"http", "https"})
"""Schemes of URLs whose paths often contain an `@`. A URL of these schemes has no login if (1) an `@` follows a
character of _DELIMITER, and (2) the text before that character may be a host. E.g. `http://host/a@b` has none.
"""
_SHOWN: Final = frozenset(
    (
        "application_name",
        "channel_binding",
        "connect_timeout",
        "dbname",
        "host",
        "hostaddr",
        "keepalives",
        "mode",
        "options",
        "pooling",
        "port",
        "protocol",
        "socket_connect_timeout",
        "socket_timeout",
        "ssl_ca_certs",
        "ssl_cert_reqs",
        "ssl_certfile",
        "ssl_check_hostname",
        "ssl_keyfile",
        "sslcert",
        "sslkey",
        "sslmode",
        "sslrootcert",
        "target_session_attrs",
        "timeout",
        "user",
        "username",
        "virtual_host",
    )
)
"""Parameters of URLs whose values are shown. The value of any other parameter is hidden, and so is its name unless the
name is in _NAMED.
"""
_NAMED: Final = frozenset(
    (
        "passfile",
        "passphrase",
        "password",
        "pwd",
        "secret",
        "ssl_password",
        "sslpassword",
        "token",
    )
)
_OF_URLS: Final = frozenset(":@?=")
_QUOTE: Final = re.compile(r"[\"'].*", re.DOTALL)
_CLOSING: Final = re.compile(r"[\"')\]}>,.;:]{1,4}")
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30}://)(\S*)")


def show_url(url: str) -> str:
    """Return the URL without its user and password and without the values of parameters that may be secret. Return
    `(hidden)` if the text is no URL.
    """
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{_split(scheme, rest)[1]}" if separator else HIDDEN


def mask_url(url: str) -> str:
    """Return the URL with `***` in place of its password and of parameters that may be secret; the user stays.

    A text without `://`, like a path, is returned unchanged, or as `(hidden)` if it contains `:`, `@`, `?` or `=`.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return HIDDEN if set(url) & _OF_URLS else url
    return f"{scheme}{separator}{''.join(_split(scheme, rest))}"


def mask_urls(text: str) -> str:
    """Return the text with `***` in place of the passwords and secret parameters of all URLs in it. A URL ends at white
    space.
    """
    return _URL.sub(lambda found: mask_url(found[0]), text) if "://" in text else text


def is_shown(parameter: str) -> bool:
    """Return whether the value of the parameter with this name may be shown in a URL, because it is not secret."""
    return parameter in _SHOWN


def _split(scheme: str, rest: str) -> tuple[str, str]:
    """Return the two parts of a URL after its scheme, with their secrets masked: the user and `@` ("" without a user),
    and the rest.
    """
    login, place = _split_login(scheme, rest)
    if login is None:
        return "", _mask_parameters(place)
    user, colon, _ = login.partition(":")
    return f"{user}:{MASK}@" if colon else f"{user}@", _mask_parameters(place)


def _split_login(scheme: str, rest: str) -> tuple[str | None, str]:
    """Return the login of a URL (`user:password`; None without a login), and the rest of the URL after it.

    A password may contain any character without encoding. A text that could be part of a password is masked.
    """
    login, at, place = rest.rpartition("@")
    if scheme == "sqlite" or not at:
        return None, rest
    authority, *further = _DELIMITER.split(login, maxsplit=1)
    if not further:
        return login, place
    user, colon, password = authority.partition(":")
    may_be_host = not colon or (bool(user) and password.isdigit())
    if scheme in _PAGES and may_be_host:
        return None, rest
    return (None, MASK) if may_be_host or "?" in login else (login, place)


def _mask_parameters(place: str) -> str:
    path, mark, query = place.partition("?")
    if not mark:
        return path
    # A quote may be the end of a URL within a longer text.
    quoted = _QUOTE.search(query)
    after = quoted[0] if quoted else ""
    shown = "&".join(map(_mask_parameter, query.removesuffix(after).split("&")))
    return f"{path}?{shown}{after if _CLOSING.fullmatch(after) else MASK * bool(after)}"


def _mask_parameter(parameter: str) -> str:
    name, equals, _ = parameter.partition("=")
    if equals and is_shown(name):
        return parameter
    return f"{name}={MASK}" if equals and name in _NAMED else MASK
