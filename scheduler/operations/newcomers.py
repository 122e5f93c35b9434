"""The forecasts of new reservations, which the answer to a submission contains."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

from scheduler.ports import Forecasts, ViewUnavailableError

KNOWN_SECONDS: Final = 15.0
"""How long a process uses the forecasts that it has read, before it reads them again."""


@dataclass
class Newcomers:
    """The forecasts of new reservations, as this process has read them last."""

    _by_kind: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    _read_at: float | None = None

    def list_known(self, forecasts: Forecasts) -> Mapping[str, Mapping[str, Any]]:
        """Return the forecast of a reservation that is accepted now, by its kind (`name_kind`), as tables for answers.
        Kinds without a forecast are missing, and so are all while Redis does not answer.
        """
        now = monotonic()
        if self._read_at is None or now - self._read_at >= KNOWN_SECONDS:
            self._read_at = now
            try:
                found = forecasts.read_summary()
            except ViewUnavailableError:
                found = None
            newcomers = {} if found is None else found.newcomers
            self._by_kind = {kind: each.list_fields() for kind, each in newcomers.items()}
        return self._by_kind
