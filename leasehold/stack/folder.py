"""The folder `.leasehold` of a stack: its lock, its run.json, its logs."""

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
    """Another supervisor, or what is left of one, holds the lock of this folder."""


class StackFolder:
    """The state of one stack on disk. To be locked before anything else is done."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / "logs"
        self._lock: int | None = None

    @property
    def run_file(self) -> Path:
        """Where the stack says what runs and where."""
        return self.path / RUN_FILE

    @property
    def lock_descriptor(self) -> int:
        """The open lock, for those who have to hold it as well."""
        if self._lock is None:
            raise AlreadyRunningError(f"{self.path} is not locked")
        return self._lock

    def lock(self) -> None:
        """Make this folder ours and close it to other users. Raises AlreadyRunningError, OSError when it cannot be
        written, and UntrustedFolder when any of it belongs to another user.
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
                # A reader that looks whether we run holds it for an instant.
                time.sleep(_LOCK_PAUSE_SECONDS)
            else:
                self._lock = descriptor
                return
        os.close(descriptor)
        raise AlreadyRunningError(f"a stack runs in {self.path} already")

    def empty_logs(self) -> None:
        """Begin the logs anew."""
        for log in self.logs.glob("*.log"):
            log.unlink()

    def write(self, document: dict[str, Any]) -> None:
        """Replace run.json, whole or not at all; only its owner may read it, for URLs may hold passwords."""
        new = self.run_file.with_suffix(".new")
        with open(new, "w", encoding="utf-8", opener=open_private) as file:
            json.dump(document, file, indent=2)
        new.replace(self.run_file)

    def unlock(self) -> None:
        """Nothing of ours runs any more. Without the lock there is nothing of ours: run.json is another's."""
        if self._lock is None:
            return
        self.run_file.unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = None
