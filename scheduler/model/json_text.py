"""A JSON parser for texts that people write. A key that appears twice in one table is an error, as it is in TOML."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any


def parse_json(text: str) -> Any:
    """Return the value of a JSON text. Raise ValueError for invalid JSON and for a key that appears twice in
    one table.
    """
    return json.loads(text, object_pairs_hook=_make_table)


def _make_table(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice} appears twice in one table")
    return table
