"""The file with the random token of a local stack, by which the user of the stack opens the console."""

import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from leasehold.private_files import open_private

TOKEN_FILE: Final = "console-token"  # noqa: S105 - a name
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{32,200}")
_OTHERS: Final = 0o077


class TokenFileError(Exception):
    """Raised if the file with the token cannot be used. The message does not contain the token."""


def write_token(path: Path) -> str:
    """Write a new random token into the file, which only its owner can read, and return the token."""
    token = secrets.token_urlsafe(32)
    new = path.with_suffix(".new")
    with suppress(FileNotFoundError):
        # A file that exists keeps its mode, and another program may have it open.
        new.unlink()
    with open(new, "x", encoding="utf-8", opener=open_private) as file:
        file.write(f"{token}\n")
    new.replace(path)
    return token


def read_token(path: Path) -> str:
    """Return the token in the file. Raises TokenFileError if the file is missing, other users may read it, it belongs
    to another user, or it has no token of at least 32 characters.
    """
    try:
        with open(path, encoding="utf-8", opener=_open) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise TokenFileError(f"{path}: expected a regular file")
            mode = stat.S_IMODE(found.st_mode)
            if mode & _OTHERS:
                raise TokenFileError(f"{path}: expected a file of mode 0600, got mode {mode:04o}")
            if found.st_uid != os.geteuid():
                raise TokenFileError(f"{path}: expected a file of this user, it belongs to uid {found.st_uid}")
            text = file.read(4096).strip()
    except OSError as error:
        raise TokenFileError(f"{path}: expected a file that can be read, got {error.strerror}") from None
    except UnicodeDecodeError:
        raise TokenFileError(f"{path}: expected a token, got no text") from None
    if not _TOKEN.fullmatch(text):
        raise TokenFileError(f"{path}: expected a token of 32 to 200 letters, digits, - and _, got something else")
    return text


def _open(path: str, flags: int) -> int:
    # Without O_NONBLOCK a named pipe would wait for a writer.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
