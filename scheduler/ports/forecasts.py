"""The port to the forecasts: when waiting reservations are expected to start. Losing them costs forecasts only."""

from collections.abc import Iterable
from typing import Protocol

from typing_extensions import override

from scheduler.model.forecasts import Forecast, Foreseen


class Forecasts(Protocol):
    """The port to what the process `foresight` found last, in Redis or in memory.

    Every method raises ViewUnavailableError when Redis does not answer. What is published is kept for 10 minutes, the
    record until it is replaced.
    """

    def publish(self, foreseen: Foreseen, record: bytes) -> None:
        """Replace all forecasts by those of `foreseen`. `record`: what the process has to remember if it starts
        again.
        """

    def read(self, ids: Iterable[str]) -> dict[str, Forecast]:
        """Return by id the forecasts of these reservations. Reservations without a forecast are missing."""

    def read_summary(self) -> Foreseen | None:
        """Return what was published last without the forecasts of single reservations; None if there is nothing."""

    def read_record(self) -> bytes | None:
        """Return the record that was published last; None if there is none."""


class NoForecasts(Forecasts):
    """No forecasts: nothing makes them, as in a simulation."""

    @override
    def publish(self, foreseen: Foreseen, record: bytes) -> None:
        pass

    @override
    def read(self, ids: Iterable[str]) -> dict[str, Forecast]:
        return {}

    @override
    def read_summary(self) -> Foreseen | None:
        return None

    @override
    def read_record(self) -> bytes | None:
        return None
