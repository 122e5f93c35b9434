"""The address by which the user of a local stack opens the console: it has the token of the stack."""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from leasehold.stack.configuration import CONSOLE, TOKEN_VARIABLE
from leasehold.web.token_file import TokenFileError, read_token


def find_console_url(urls: Mapping[str, str], environment: Mapping[str, str]) -> str | None:
    """Return the address with the token, or None if the stack runs no console. The token is read from its file, because
    run.json does not contain it. Without a readable file the address is returned without a token.
    """
    url, path = urls.get(CONSOLE), environment.get(TOKEN_VARIABLE)
    if url is None or path is None:
        return url
    try:
        return f"{url}?token={quote(read_token(Path(path)))}"
    except TokenFileError:
        return url
