"""Files and folders that are this user's alone: made with modes 0600 and 0700 whatever the umask, and obeyed only while
no other user owns them or may write to them.
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
_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def open_private(path: str, flags: int) -> int:
    """An `opener` for `open`: a file that it makes is this user's alone. A symbolic link is not followed."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE)


@contextmanager
def open_folder(path: Path) -> Iterator[int | None]:
    """A descriptor of a folder that this user alone may write to; None where there is no folder, or none that this
    user may enter. Files are opened by the descriptor, so that no other folder can take the place of this one.

    Raises UntrustedFolder for a folder, or a symbolic link to one, that belongs to another user or that other users may
    write to.
    """
    try:
        link = path.lstat()
    except OSError:
        yield None
        return
    # A link that leads nowhere now may lead somewhere in a moment.
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
    """A descriptor to read a file of an open folder. `path`: of the folder, for messages. Raises OSError, and
    UntrustedFolder for a file that belongs to another user or that other users may write to.
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
    """Raises UntrustedFolder for what belongs to another user, or is open to writes of other users."""
    _check_owner(path, found)
    if found.st_mode & _OTHERS_MAY_WRITE:
        raise UntrustedFolder(
            f"{path} is not used: other users may write to it (mode {stat.S_IMODE(found.st_mode):04o});"
            f" after a look at what it holds, run `chmod -R go-rwx {path}`"
        )


def make_private_folder(path: Path) -> None:
    """Make a folder that is this user's alone. One that is there is closed to other users with all that it holds.

    Raises OSError, and UntrustedFolder if any of it belongs to another user.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        _check_owner(path, path.lstat())
        path = path.resolve()
    path.mkdir(mode=_FOLDER, exist_ok=True)
    # From above: once a folder is closed no other user can change what it holds.
    for place, folders, files, descriptor in os.fwalk(path, onerror=_raise):
        _close(Path(place), descriptor, os.fstat(descriptor), _FOLDER)
        for name in (*folders, *files):
            _close_entry(Path(place) / name, name, descriptor)


def _close_entry(path: Path, name: str, folder: int) -> None:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        # A journal of SQLite, say, that was removed just now.
        return
    _check_owner(path, found)
    if not stat.S_ISLNK(found.st_mode) and stat.S_IMODE(found.st_mode) & PRIVATE_UMASK:
        os.chmod(name, stat.S_IMODE(found.st_mode) & ~PRIVATE_UMASK, dir_fd=folder)


def _close(path: Path, descriptor: int, found: os.stat_result, mode: int) -> None:
    _check_owner(path, found)
    if stat.S_IMODE(found.st_mode) != mode:
        os.fchmod(descriptor, mode)


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise UntrustedFolder(f"{path} is not used: it belongs to another user (uid {found.st_uid})")


def _raise(error: OSError) -> None:
    raise error
