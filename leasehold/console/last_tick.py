"""The report of the last tick for the pages: why each reservation waits. The report is read at most once in
KEPT_SECONDS, because it lists the whole queue.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from starlette.requests import Request

from leasehold.console.page import backend, caller
from leasehold.errors import LeaseholdError

KEPT_SECONDS: Final = 3.0
"""Seconds for which one read of the report is used for all pages."""


class LastTick:
    """The report of the last tick, as the console read it at the monotonic time `read_at`."""

    def __init__(self) -> None:
        self.report: dict[str, Any] = {}
        self.read_at = float("-inf")


async def read_tick(request: Request) -> dict[str, Any]:
    """Return the report of the last tick, read at most KEPT_SECONDS ago, or earlier while Redis does not answer; {}
    before the first tick.
    """
    state = request.app.state
    known: LastTick | None = getattr(state, "last_tick", None)
    if known is None:
        known = state.last_tick = LastTick()
    if time.monotonic() - known.read_at >= KEPT_SECONDS:
        known.read_at = time.monotonic()
        with suppress(LeaseholdError):
            client = await backend(request).client(caller(request))
            known.report = await client.report()
    return known.report


async def read_waits(request: Request) -> Mapping[str, tuple[str, str]]:
    """Return reservation id -> (waiting code, sentence), in queue order, as the last tick reported it."""
    waits: Mapping[str, tuple[str, str]] = (await read_tick(request)).get("waiting", {})
    return waits
