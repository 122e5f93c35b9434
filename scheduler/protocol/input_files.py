"""Read the files that users name. A program neither waits for a FIFO that no process writes to, nor reads a device or a
file without end into its memory. This module imports only the standard library.
"""

import errno
import os
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 16 * 1024 * 1024
"""The most bytes of a file that a person writes, such as a configuration."""


def open_input(path: str, flags: int) -> int:
    """Open the file `path` for reading and return its descriptor. `flags`: as for `os.open`. A FIFO without a writer is
    empty: without O_NONBLOCK, its opening would wait for one.

    This function is an `opener` for Python's `open`.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(descriptor, True)
    return descriptor


def read_input(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of a file. Raise OSError if the file cannot be read or has more than `most` bytes."""
    with open(path, "rb", opener=open_input) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"a file of more than {most >> 20} MB", str(path))
    return content


def read_input_text(path: Path, most: int = MOST_BYTES) -> str:
    """Return the text of a file in UTF-8, without a byte order mark and with line feeds at the ends of lines. Raise
    OSError as `read_input` does, and UnicodeDecodeError for another encoding.
    """
    return read_input(path, most).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
