"""Repeats a transaction as a whole when another one changed its rows first."""

from typing import Final

from tenacity import retry, retry_if_exception_type, stop_after_attempt

from scheduler.ports import ConflictError, StaleWriteError

MOST_TRIES: Final = 5

repeated_if_overtaken = retry(
    retry=retry_if_exception_type((StaleWriteError, ConflictError)), stop=stop_after_attempt(MOST_TRIES), reraise=True
)
"""Decorator for a function that reads everything in the transaction in which it writes.

A lost transaction leaves nothing behind, so the function is called again. The error of the last try is raised.
"""
