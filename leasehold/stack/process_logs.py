"""Read the logs of an embedded stack's processes: their last lines, their new lines, and their last warning."""

import os
import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

_TIME: Final = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")
_WARNING: Final = re.compile(
    r"""(?x) ^\S+\ \[(?:warning|error|critical)\s*\]   # our text format, Celery's lines too
      | "level":\s*"(?:warning|error|critical)"        # our JSON format
      | ^leasehold:\                                   # a process that refuses to start
      | ^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\b  # the last line of a traceback
    """
)


def list_logs(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted(folder.glob("*.log"))}


def find_last_warning(log: Path) -> str | None:
    """Return the last line of a log that is a warning or an error; None if there is no such line or no such file."""
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            found = deque((line for line in lines if _WARNING.search(line)), maxlen=1)
    except OSError:
        return None
    return " ".join(found[0].split()) if found else None


def read_last_line(log: Path) -> str:
    """Return the last line of a log that is not blank; "" if there is no such line or no such file."""
    with suppress(OSError):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ""


class LogReader:
    """Reads one log from its last `lines` lines on (negative: from its first line on). It continues with the new file
    after the log was truncated or replaced.
    """

    def __init__(self, path: Path, lines: int) -> None:
        self._path, self._lines = path, lines
        self._file: BinaryIO | None = None
        self._rest = b""

    def read(self) -> list[bytes]:
        """Return the complete lines that were written since the last call; the first call returns the last `lines`
        lines of the file. Return [] if there are none, or no file.
        """
        try:
            self._file = self._file or self._path.open("rb")
        except FileNotFoundError:
            return []
        # An incomplete line is kept for the next call.
        *found, self._rest = (self._rest + self._file.read()).split(b"\n")
        first, self._lines = self._lines, -1
        if self._is_replaced(self._file):
            self.close()
            found += self.read()
        return found if first < 0 else found[max(len(found) - first, 0) :]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._rest = None, b""

    def _is_replaced(self, file: BinaryIO) -> bool:
        """Return whether the log was replaced: its path names another file, or the file is shorter than the part that
        was read.
        """
        try:
            now = self._path.stat()
        except FileNotFoundError:
            return False
        return now.st_ino != os.fstat(file.fileno()).st_ino or now.st_size < file.tell()


def merge_by_time(logs: dict[str, list[bytes]]) -> Iterator[tuple[str, bytes]]:
    """Yield the lines of several logs, ordered by their time, each with the name of its process. A line without a time,
    as in a traceback, follows the line before it.
    """
    dated: list[tuple[bytes, str, bytes]] = []
    for name, lines in logs.items():
        at = b""
        for line in lines:
            found = _TIME.search(line)
            at = found[0] if found else at
            dated.append((at, name, line))
    yield from ((name, line) for _, name, line in sorted(dated, key=lambda each: each[0]))
