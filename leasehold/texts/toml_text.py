"""Tables as TOML, for example the rules in force."""

from collections.abc import Iterator, Mapping
from typing import Any

from workers.config_template import format_value


def format_toml(document: Mapping[str, Any]) -> str:
    """Return `document` as TOML text: plain values first, then the tables."""
    return "\n".join(_format_table(document, ())).strip()


def format_pairs(document: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield `KEY=VALUE` for each value of `document`, with dotted keys: `pools.linux.max_slots=5`."""
    for key, value in document.items():
        own = f"{path}{_quote(key)}"
        if isinstance(value, Mapping) and value:
            yield from format_pairs(value, f"{own}.")
        else:
            yield f"{own}={format_value(value)}"


def _format_table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    plain = {key: value for key, value in table.items() if key not in inner}
    if path and (plain or not inner):
        yield f"\n[{'.'.join(path)}]"
    for key, value in plain.items():
        yield f"{_quote(key)} = {format_value(value)}"
    for key, value in inner.items():
        yield from _format_table(value, (*path, _quote(key)))


def _quote(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else format_value(key)
