"""Files and folders that only this user may read and write (modes 0600 and 0700, whatever the umask is).

A file or folder is used only if this user owns it and no other user may write to it.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from leasehold.errors import UntrustedFolder

PRIVATE_UMASK: Final = 0o077
_FILE: Final = 0o600
_FOLDER: Final = 0o700


def open_private(path: str, flags: int) -> int:
    """Open the file `path` and return its descriptor. `flags`: as for `os.open`. A new file can be read and written by
    this user only; a symbolic link is not followed.

    This function is an `opener` for Python's `open`.
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE)


@contextmanager
def open_folder(path: Path) -> Iterator[int | None]:
    """Yield a descriptor of the folder `path`, or None if the folder is missing or this user may not enter it.

    Raises UntrustedFolder if the folder, or a symbolic link at `path`, belongs to another user, or if other users may
    write to the folder. Files are opened relative to the descriptor, so that no other folder can take the place of this
    one.
    """
    try:
        link = path.lstat()
    except OSError:
        yield None
        return
    # A symbolic link that has no target now may have one a moment later.
    if stat.S_ISLNK(link.st_mode) or stat.S_ISDIR(link.st_mode):
        _check_owner(path, link)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        check_private(path, os.fstat(descriptor))
        yield descriptor
    finally:
        os.close(descriptor)


def open_file(name: str, folder: int, path: Path) -> int:
    """Open the file `name` in the folder with the descriptor `folder`, and return a descriptor for reading. `path`: the
    path of the folder, for error messages.

    Raises OSError, or UntrustedFolder if the file belongs to another user or other users may write to it.
    """
    # Without O_NONBLOCK a named pipe would wait for a writer.
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        check_private(path / name, os.fstat(descriptor))
    except UntrustedFolder:
        os.close(descriptor)
        raise
    return descriptor


def check_private(path: Path, found: os.stat_result) -> None:
    """Raise UntrustedFolder if the file or folder `path` belongs to another user, or if other users may write to it.
    `found`: what stat() returned for it.
    """
    _check_owner(path, found)
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UntrustedFolder(
            f"{path} is not used: other users may write to it (mode {stat.S_IMODE(found.st_mode):04o});"
            f" check its content, then run `chmod -R go-rwx {path}`"
        )


def make_private_folder(path: Path) -> None:
    """Create the folder `path` for this user alone (mode 0700). If it exists, remove the rights of other users to the
    folder and to everything in it.

    Raises OSError, or UntrustedFolder if the folder or a part of its content belongs to another user.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        _check_owner(path, path.lstat())
        path = path.resolve()
    path.mkdir(mode=_FOLDER, exist_ok=True)
    # Each folder before its content: once a folder is closed to other users, they cannot change its content.
    for place, folders, files, descriptor in os.fwalk(path, onerror=_raise):
        found = os.fstat(descriptor)
        _check_owner(Path(place), found)
        if stat.S_IMODE(found.st_mode) != _FOLDER:
            os.fchmod(descriptor, _FOLDER)
        for name in (*folders, *files):
            _close_entry(Path(place) / name, name, descriptor)


def _close_entry(path: Path, name: str, folder: int) -> None:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        # The entry was removed just now, for example a journal of SQLite.
        return
    _check_owner(path, found)
    if not stat.S_ISLNK(found.st_mode) and stat.S_IMODE(found.st_mode) & PRIVATE_UMASK:
        os.chmod(name, stat.S_IMODE(found.st_mode) & ~PRIVATE_UMASK, dir_fd=folder)


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise UntrustedFolder(f"{path} is not used: it belongs to another user (uid {found.st_uid})")


def _raise(error: OSError) -> None:
    raise error
