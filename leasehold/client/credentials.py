"""The credentials with which a client signs its messages. They come from arguments, a key file, or the environment."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from leasehold.errors import BadCredentials
from scheduler.protocol.input_files import open_input
from scheduler.protocol.signing import read_key_line

PRINCIPAL_VARIABLE: Final = "LEASEHOLD_ACCESS__PRINCIPAL"
KEY_VARIABLE: Final = "LEASEHOLD_ACCESS__KEY"
KEY_FILE_VARIABLE: Final = "LEASEHOLD_ACCESS__KEY_FILE"


@dataclass(frozen=True)
class Credentials:
    """A principal, its key, and the id of its cluster. If the id of the cluster is None, the client reads it from the
    cluster's Redis.
    """

    principal: str
    key: bytes = field(repr=False)
    cluster: str | None = None


def find_credentials(
    variables: Mapping[str, str],
    principal: str | None = None,
    key: str | None = None,
    key_file: str | os.PathLike[str] | None = None,
) -> Credentials | None:
    """Return the credentials from the arguments, else from `variables`, which are environment variables. Return None if
    neither has a key.

    If there is both a key and a key file, the key is used. Raise BadCredentials if the key is invalid, if the key file
    cannot be used, or if there is a principal without a key.
    """
    if key is None and key_file is None:
        key, key_file = variables.get(KEY_VARIABLE) or None, variables.get(KEY_FILE_VARIABLE) or None
        principal = principal or variables.get(PRINCIPAL_VARIABLE) or None
    if key is not None:
        return read_credentials(key, principal, "access.key")
    if key_file is not None:
        return read_credentials(read_key_file(Path(key_file)), principal, str(key_file))
    if principal is not None:
        raise BadCredentials(f"access.key_file: expected the key of the principal {principal}, got nothing")
    return None


def read_credentials(line: str, principal: str | None, origin: str) -> Credentials:
    """Return the credentials in `line`, the content of a key file: `NAME:KEY@CLUSTER`. `NAME:` and `@CLUSTER` may be
    missing; without a name, `principal` is required.

    Raise BadCredentials if the line is invalid or belongs to another principal. The message names `origin` (where the
    line comes from) and does not contain the key.
    """
    try:
        name, key, cluster = read_key_line(line)
    except ValueError as error:
        raise BadCredentials(f"{origin}: expected one line NAME:KEY@CLUSTER, got {error}") from None
    if name is not None and principal not in {None, name}:
        raise BadCredentials(f"{origin}: expected the key of the principal {principal}, got that of {name}")
    found = name or principal
    if found is None:
        raise BadCredentials(
            f"{origin}: expected the principal of the key (NAME:KEY, or access.principal), got no name"
        )
    return Credentials(found, key, cluster)


def read_key_file(path: Path) -> str:
    """Return the content of a key file. Raise BadCredentials if the file cannot be read, or if other users than its
    owner have any access to it.
    """
    try:
        with open(path, encoding="utf-8", opener=open_input) as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if os.name == "posix" and mode & 0o077:
                raise BadCredentials(f"{path}: expected a file of mode 0600, got mode {mode:04o}")
            return file.read(4096)
    except OSError as error:
        raise BadCredentials(f"{path}: expected a file that can be read, got {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadCredentials(f"{path}: expected one line NAME:KEY@CLUSTER, got no text") from None
