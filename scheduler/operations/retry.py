"""Repeats a whole transaction if another transaction has changed its rows meanwhile."""

from typing import Final

from tenacity import retry, retry_if_exception_type, stop_after_attempt

from scheduler.ports import ConflictError, StaleWriteError

MOST_TRIES: Final = 5

repeated_if_overtaken = retry(
    retry=retry_if_exception_type((StaleWriteError, ConflictError)), stop=stop_after_attempt(MOST_TRIES), reraise=True
)
"""Decorator for a function that runs one transaction. If another transaction has changed its rows meanwhile, the
function is called again, at most 5 times in all.

The function must read all that it needs within its transaction. A transaction that fails leaves nothing behind. The
error of the last call is raised.
"""
