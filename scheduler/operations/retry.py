"""Doing a transaction again as a whole, where somebody else was quicker."""

from typing import Final

from tenacity import retry, retry_if_exception_type, stop_after_attempt

from scheduler.ports import ConflictError, StaleWriteError

MOST_TRIES: Final = 5

repeated_if_overtaken = retry(
    retry=retry_if_exception_type((StaleWriteError, ConflictError)), stop=stop_after_attempt(MOST_TRIES), reraise=True
)
"""For a function that reads all it needs in the transaction that it writes in: nothing of a lost one stays, so it is
simply called again. The last try's error is raised.
"""
