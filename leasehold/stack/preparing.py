"""The supervisor's end of the process that prepares a stack (leasehold/stack/preparation.py)."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from leasehold.private_files import PRIVATE_UMASK, open_private
from leasehold.stack.configuration import StackError
from leasehold.stack.process_logs import read_last_line
from scheduler.model.validation import Fault, InvalidInputError


class Preparation:
    """Starts the process that prepares a stack, and takes its reports. `environment`: that of the stack's programs."""

    def __init__(self, environment: Mapping[str, str], folder: Path, log: Path) -> None:
        self._log = log
        with open(log, "ab", opener=open_private) as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "leasehold.stack.preparation"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
                cwd=folder,
                env={**os.environ, **environment},
                umask=PRIVATE_UMASK,
                text=True,
            )
        self._reports: dict[str, dict[str, Any]] = {}
        self._has_ended = False
        self._reader = threading.Thread(target=self._read, name="preparation", daemon=True)
        self._reader.start()

    def order_rules(self, rules: Mapping[str, Any] | None, *, machines_are_gone: bool) -> None:
        """Let the process apply the rules, since Redis has started, and wait for the workers."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.write(json.dumps({"rules": rules, "machines_are_gone": machines_are_gone}) + "\n")
                self._process.stdin.flush()

    def is_done(self, part: str) -> bool:
        """Return whether the process has reported this part. Raises InvalidInputError for a wrong configuration or
        content of the database, StackError for another error and if the process has ended before.
        """
        if part in self._reports:
            return True
        if failed := self._reports.get(""):
            if faults := failed.get("faults"):
                raise InvalidInputError([Fault(**each) for each in faults])
            raise StackError(failed["error"])
        if self._has_ended and part not in self._reports:
            raise StackError(f"the stack cannot be prepared: {read_last_line(self._log) or 'the process was ended'}")
        return False

    def read_report(self, part: str) -> dict[str, Any]:
        """Return what the process reported with this part, which is done."""
        return self._reports[part]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            report = json.loads(line)
            self._reports[report["part"]] = report
        self._has_ended = True
