"""Marks of rows, by which the HTTP API finds out whether a client has the newest row."""

from typing import Final

from leasehold.client.ports import Joined

NOTHING: Final = "none"
"""The mark of a reservation that the view does not have."""


def mark_row(seen: Joined) -> str:
    """Return the mark of a row that was read. The mark is a text that differs after each change of the row, and when a
    machine of the row's leases becomes known.
    """
    if seen.row is None:
        return NOTHING
    return f"{seen.row.version}" + (f"-{len(seen.missing)}" if seen.missing else "")
