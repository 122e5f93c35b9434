"""Figures of every store: how long ended rows are shown, and what a restore sets."""

from typing import Final

LONG_AGO: Final = 1.0
"""A time (in seconds since the epoch) before everything: the last tick before a restore."""
VERSIONS_A_RESTORE: Final = 10**6
"""So far the version of the principals jumps with a restore: beyond all that were given out since the backup."""
RECENT_SECONDS: Final = 600.0
"""Ended reservations stay in the view for ten minutes (docs/reference/protocol.md, "Rows")."""
