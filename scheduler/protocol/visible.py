"""Escape control characters, so that a text of a user cannot move the cursor, ring the bell or hide other text.

The programs write no text from outside to a terminal, a log, JSON, CSV or HTML that was not passed through
`make_visible` or `escape_json`. This module imports only the standard library, because the client uses it too.
"""

import re
from typing import Final

_CONTROLS: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and line feed, DEL, C1 (U+009B begins a sequence like ESC [)
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks and overrides of the direction of writing
    "\u2028\u2029\ufeff\ufff9-\ufffb"  # separators of lines and paragraphs, byte order mark, annotations
    "\ud800-\udfff"  # halves of characters, which UTF-8 cannot hold
    "\ufffe\uffff"  # no characters at all, which some readers refuse
)
_HIDDEN: Final = re.compile(f"[{_CONTROLS}]")
_HIDDEN_OR_BREAK: Final = re.compile(f"[\t\n{_CONTROLS}]")


def make_visible(text: str, *, multiline: bool = False) -> str:
    r"""Return the text with each control character replaced by Python's escape for it, like `\x1b`, `\x9b` or `\u202e`.

    Tabs and line feeds are escaped too, unless `multiline`. A text without control characters is returned as it is.
    """
    hidden = _HIDDEN if multiline else _HIDDEN_OR_BREAK
    return hidden.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def escape_json(document: str) -> str:
    r"""Return a JSON or TOML document in which each control character in a text is written as an escape like `\u009b`.
    The meaning of the document stays the same.
    """
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def escape_json_bytes(document: bytes) -> bytes:
    """Return a JSON document in UTF-8 with the control characters escaped as `escape_json` does."""
    # Speed: almost all documents are ASCII, and this test takes 0.1 ms for 1 MB.
    if document.isascii() and b"\x7f" not in document:
        return document
    return escape_json(document.decode()).encode()
