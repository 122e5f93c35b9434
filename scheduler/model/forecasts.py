"""A forecast: when a waiting reservation is expected to start, and how well such forecasts were kept."""

from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler.model.reservations import Request
from scheduler.model.run_times import measure_size


class Forecast(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """When a waiting reservation is expected to start. The times are cluster time, in seconds since the epoch."""

    as_of: float
    """The time of the state that was played forward."""
    low: float = 0.0
    """The reservation starts before this time with a probability of 10 %."""
    median: float = 0.0
    high: float = 0.0
    """The same with 90 %."""
    late: float = 0.0
    """The same with 95 %."""
    unknown: str = ""
    """Why the start is not known: a key of REASONS in `scheduler/protocol/forecasts.py`. Then the other times are 0."""

    def list_fields(self) -> dict[str, Any]:
        """Return the forecast as a table for an answer, as `scheduler/protocol/forecasts.py` describes it."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """How well the forecasts of one class of reservations were kept. Durations are seconds."""

    name: str
    """The class as people read it; "all" for all classes together."""
    count: int
    """How many reservations of the class have started since its record began, also those without a forecast. The other
    figures are those of the last 500 that had one.
    """
    coverage: float | None = None
    """The part that started between `low` and `high` of their first forecast; None: there was no forecast."""
    width: float | None = None
    """The median of `high` minus `low`."""
    loss: float | None = None
    """The mean pinball loss: the sum of those at 10 % and at 90 %."""
    calibration: tuple[tuple[float, float], ...] = ()
    """For some probabilities: (the stated one, the part of the starts before the time that was stated for it)."""


class Foreseen(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of the process `foresight` publishes."""

    as_of: float
    forecasts: Mapping[str, Forecast] = {}
    """Reservation id -> its forecast. Bounded; the first ones of the queue are among them."""
    newcomers: Mapping[str, Forecast] = {}
    """Class of requests (`name_kind`) -> the forecast for one that is accepted now."""
    qualities: tuple[Quality, ...] = ()
    plays: int = 0
    """How often the state was played forward."""
    seconds: float = 0.0
    """How long that took."""


def name_kind(request: Request, priority: float) -> str:
    """Return the class of requests to which a newcomer's forecast belongs: account, pool or system, priority and size
    (that of run times), as a JSON list.
    """
    parts = (request.account, request.pool or request.system, priority, *measure_size(request))
    return msgspec.json.encode(parts).decode()
