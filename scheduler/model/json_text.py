"""A JSON parser for texts that people write. A key that appears twice in one table is an error, as it is in TOML."""

import json
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
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)} appears twice in one table")
    return table
