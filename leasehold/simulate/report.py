"""Write the page of `leasehold simulate --html`: one file with its styles, its script and its data, which loads nothing
else.

Texts of users are in the data only. The script writes them as texts, and the policy in the page (Content-Security-
Policy) permits no other script.
"""

import contextlib
import hashlib
import html
import json
import os
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template
from typing import Any, Final

from leasehold.errors import LeaseholdError
from scheduler.protocol.visible import escape_json

_FOLDER: Final = Path(__file__).parent / "report_page"
_SCRIPTS: Final = ("base.js", "curves.js", "lanes.js", "tables.js", "main.js")
_ESCAPES: Final = {ord(mark): f"\\u{ord(mark):04x}" for mark in "<>&\u2028\u2029"}
"""Character that could end the HTML element with the data, or a line of the data -> its escape in JSON."""
_MODE: Final = 0o666
"""Mode of the page before the umask is applied, as for every file that a command writes on request."""


class ReportError(LeaseholdError):
    """Raised if the page cannot be written. The message is the reason."""


def check_report(path: Path) -> None:
    """Raise ReportError if the page cannot be written to `path`. The check is made before the first simulation."""
    if not path.parent.is_dir():
        raise ReportError(f"--html: there is no folder {path.parent}")
    if path.is_dir():
        raise ReportError(f"--html: {path} is a folder, expected a file")
    if path.exists() and not path.is_file():
        raise ReportError(f"--html: {path} is no regular file")
    part = _name_part(path)
    with _explaining(path):
        os.close(_create(part))
        part.unlink()


def write_report(path: Path, document: Mapping[str, Any]) -> None:
    """Write the page for this document to `path`. An earlier file is replaced only when the new one is complete. Raises
    ReportError if that fails: an earlier file then stays as it was, and no partial file is left.
    """
    part = _name_part(path)
    with _explaining(path):
        try:
            with open(_create(part), "w", encoding="utf-8") as file:
                file.write(make_page(document))
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def make_page(document: Mapping[str, Any]) -> str:
    """Return the whole page for a document that the module `report_data` has made."""
    style = _read("style.css")
    # One block for all files, so that their names are not visible outside of it.
    script = '"use strict";\n{\n' + "".join(map(_read, _SCRIPTS)) + "}\n"
    return Template(_read("page.html")).substitute(
        title=html.escape(document["title"]),
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        data=embed(document),
    )


def embed(value: object) -> str:
    """Return `value` as JSON that cannot end the element of HTML in which it stands."""
    return escape_json(json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)).translate(
        _ESCAPES
    )


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the hash by which the policy of the page permits an inline style or script."""
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _name_part(path: Path) -> Path:
    return path.with_name(f".{path.name[:200]}.{os.getpid()}.part")


def _create(part: Path) -> int:
    return os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_CLOEXEC", 0), _MODE)


@contextlib.contextmanager
def _explaining(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ReportError(f"--html: {path} cannot be written: {error.strerror or error}") from None
