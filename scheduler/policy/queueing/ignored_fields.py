"""Fields of a request that a queue does not read. The answer to the request contains a warning for each."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

READ_BY: Final[Mapping[str, str]] = MappingProxyType({"priority": "priority", "account": "quota"})
"""Field of a request -> the only queue that reads it. A priority of 0 does not count: it puts a reservation on hold in
each queue.
"""
DEFAULT_PRIORITY: Final = 1.0


def find_ignored(queue: str, *, priority: float, account: str | None) -> dict[str, str]:
    """Return field -> sentence for each value that is not the default and that this queue does not read."""
    given = {"priority": priority not in {0.0, DEFAULT_PRIORITY}, "account": account is not None}
    return {
        field: f"the queue `{queue}` does not read it; only the queue `{reader}` does"
        for field, reader in READ_BY.items()
        if given[field] and queue != reader
    }
