"""Repeats a whole transaction if another transaction changed its rows first."""

from typing import Final

from tenacity import retry, retry_if_exception_type, stop_after_attempt

from scheduler.ports import ConflictError, StaleWriteError

MOST_TRIES: Final = 5

repeated_if_overtaken = retry(
    retry=retry_if_exception_type((StaleWriteError, ConflictError)), stop=stop_after_attempt(MOST_TRIES), reraise=True
)
"""Decorator for a function that runs one transaction: call it again, at most 5 times in all, if another transaction
changed its rows.

The function must read everything that it needs within its transaction. A lost transaction leaves nothing behind. The
error of the last try is raised.
"""
