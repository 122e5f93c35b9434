"""How long the store's readers are shown what is over; one figure for every store."""

from typing import Final

LONG_AGO: Final = 1.0
"""A time (in seconds since the epoch) before everything: the last tick before a restore."""
RECENT_SECONDS: Final = 600.0
"""Ended reservations stay in the view for ten minutes (docs/protocol.md, "Rows")."""
