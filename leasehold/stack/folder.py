"""The folder `.leasehold` of a stack: its lock, the file run.json, and the logs."""

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any, Final

from leasehold.client.discovery import LOCK_FILE, RUN_FILE
from leasehold.private_files import make_private_folder, open_private

_LOCK_TRIES: Final = 10
_LOCK_PAUSE_SECONDS: Final = 0.05


class AlreadyRunningError(Exception):
    """Raised if a stack runs in this folder: its supervisor (the process that started it), or its reaper (the process
    that ends the others after the supervisor), holds the lock of the folder.
    """


class StackFolder:
    """The folder in which one stack keeps its files. The lock of the folder must be taken before any other use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / "logs"
        self._lock: int | None = None

    @property
    def run_file(self) -> Path:
        return self.path / RUN_FILE

    @property
    def lock_descriptor(self) -> int:
        """The descriptor of the lock file. The reaper (the process that ends the stack after its supervisor) inherits
        it, so that the folder stays locked if the supervisor is killed.
        """
        if self._lock is None:
            raise AlreadyRunningError(f"{self.path} is not locked by this process")
        return self._lock

    def lock(self) -> None:
        """Take the lock of the folder, and remove the rights of other users to the folder. Raises AlreadyRunningError
        if a stack runs in the folder, OSError if the folder cannot be written, and UntrustedFolder if a part of it
        belongs to another user.
        """
        make_private_folder(self.path)
        self.logs.mkdir(mode=0o700, exist_ok=True)
        with open(self.path / ".gitignore", "w", encoding="utf-8", opener=open_private) as file:
            file.write("*\n")
        descriptor = open_private(str(self.path / LOCK_FILE), os.O_RDWR | os.O_CREAT)
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # A command that checks whether a stack runs takes the lock for an instant.
                time.sleep(_LOCK_PAUSE_SECONDS)
            else:
                self._lock = descriptor
                # The file of a stack whose supervisor was killed.
                self.run_file.unlink(missing_ok=True)
                return
        os.close(descriptor)
        raise AlreadyRunningError(f"a stack runs in {self.path} already")

    def empty_logs(self) -> None:
        """Delete the logs of the stack's last run."""
        for log in self.logs.glob("*.log"):
            log.unlink()

    def write(self, document: dict[str, Any]) -> None:
        """Replace run.json by `document` in one step. Only the owner can read the file, because URLs may contain
        passwords.
        """
        new = self.run_file.with_suffix(".new")
        with open(new, "w", encoding="utf-8", opener=open_private) as file:
            json.dump(document, file, indent=2)
        new.replace(self.run_file)

    def unlock(self) -> None:
        """Delete run.json and release the lock. If this object does not hold the lock, do nothing, because run.json
        belongs to another stack.
        """
        if self._lock is None:
            return
        self.run_file.unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = None
