"""Parsers of TOML and JSON for texts that people write."""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

MOST_PARTS: Final = 32
"""The most parts of a dotted key or of the name of a table. The rules need eight."""
_STRINGS_AND_COMMENTS: Final = re.compile(
    r'"""(?:[^\\]|\\.|\\\Z)*?(?:"{3,5}|\Z)'
    r"|'''.*?(?:'{3,5}|\Z)"
    r'|"(?:[^"\\\n]|\\.)*+"?'
    r"|'[^'\n]*+'?"
    r"|\#[^\n]*+",
    re.DOTALL,
)
"""A string, also one without an end, or a comment: the dots in it do not divide keys."""
_PART: Final = r"[\w-]++[ \t]*+"
_LONG_KEY: Final = re.compile(rf"(?<![\w-]){_PART}(?:\.[ \t]*+{_PART}){{{MOST_PARTS}}}")


def parse_toml(text: str) -> dict[str, Any]:
    """Return the table of a TOML text. Raise ValueError for invalid TOML, for a key of more than MOST_PARTS parts, and
    for values that are nested too deeply.
    """
    if _LONG_KEY.search(_STRINGS_AND_COMMENTS.sub(lambda found: "" if found[0].startswith("#") else "x", text)):
        raise ValueError(f"a key has more than {MOST_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("the values are nested too deeply") from None


def parse_json(text: str) -> Any:
    """Return the value of a JSON text. Raise ValueError for invalid JSON, for a key that appears twice in one table,
    and for values that are nested too deeply.
    """
    try:
        return json.loads(text, object_pairs_hook=_make_table)
    except RecursionError:
        raise ValueError("the values are nested too deeply") from None


def _make_table(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice} appears twice in one table")
    return table
