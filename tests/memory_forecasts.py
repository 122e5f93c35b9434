"""The port of the forecasts in memory."""

from collections.abc import Iterable

import msgspec
from typing_extensions import override

from scheduler.model.forecasts import Forecast, Foreseen
from scheduler.ports import Forecasts


class MemoryForecasts(Forecasts):
    """The forecasts of one test."""

    def __init__(self) -> None:
        self._foreseen: Foreseen | None = None
        self._record: bytes | None = None

    @override
    def publish(self, foreseen: Foreseen, record: bytes) -> None:
        self._foreseen, self._record = foreseen, record

    @override
    def read(self, ids: Iterable[str]) -> dict[str, Forecast]:
        known = {} if self._foreseen is None else self._foreseen.forecasts
        return {name: known[name] for name in ids if name in known}

    @override
    def read_summary(self) -> Foreseen | None:
        return None if self._foreseen is None else msgspec.structs.replace(self._foreseen, forecasts={})

    @override
    def read_record(self) -> bytes | None:
        return self._record
