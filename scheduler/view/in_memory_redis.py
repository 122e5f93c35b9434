"""The stand-in for one Redis that the memory adapters of a simulated cluster share."""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from scheduler.model.reservations import Reservation, is_over
from scheduler.model.view import KINDS, Change, Gone, Kind, Row, is_newer

KEPT_SECONDS = 600.0
"""Seconds for which ended reservations stay readable, and for which tombstones refuse older copies."""
DELTAS = 100_000
"""Number of the newest deltas that are kept. A reader that is further behind loads the whole view."""


class InMemoryRedis:
    """Rows, tombstones and deltas of one view. `clock` returns seconds. Several view caches may share one.

    `generation` is None while there is no valid view. `building` is the generation of a rebuild under way.
    `sequence`
    numbers the accepted changes without gaps.
    """

    def __init__(self, clock: Callable[[], float], kept_seconds: float = KEPT_SECONDS) -> None:
        self.guard = threading.RLock()
        self.generation: int | None = None
        self.building: int | None = None
        self.sequence = 0
        self.rows: dict[Kind, dict[str, Row]] = {kind: {} for kind in KINDS.values()}
        self.report: dict[str, Any] = {}
        self._clock, self._kept_seconds = clock, kept_seconds
        self._deltas: deque[Change] = deque(maxlen=DELTAS)
        self._gone: dict[tuple[Kind, str], tuple[int, float]] = {}
        self._ended: dict[str, float] = {}
        self._generations = 0

    def flush(self) -> None:
        """Delete everything, as FLUSHALL does."""
        with self.guard:
            self.generation, self.sequence, self.report = None, 0, {}
            self._deltas.clear()
            self._gone.clear()
            self._ended.clear()
            for rows in self.rows.values():
                rows.clear()

    def begin_generation(self, rows: Iterable[Row]) -> None:
        """Replace the contents by these rows, and by changes that are published while they are read."""
        report = self.report
        self.flush()
        self._generations += 1
        self.building = self._generations
        self.accept(rows)
        self.building = None
        self.generation, self.report = self._generations, report

    def accept(self, changes: Iterable[Change]) -> None:
        """Keep the newer copy of each row, append a delta for each new one, and drop expired rows."""
        for change in changes:
            taken = self._bury(change) if isinstance(change, Gone) else self._take(change)
            if taken:
                self.sequence += 1
                self._deltas.append(change)
        self._forget()

    def count_rows(self) -> dict[Kind, int]:
        """Return the number of rows of each kind, without ended reservations."""
        counted = {kind: len(rows) for kind, rows in self.rows.items()}
        return counted | {"reservations": counted["reservations"] - len(self._ended)}

    def deltas_after(self, sequence: int) -> list[Change] | None:
        """Return the changes accepted after this one, in order; None when some of them are not kept any more."""
        missing = self.sequence - sequence
        if not 0 <= missing <= len(self._deltas):
            return None
        return list(islice(reversed(self._deltas), missing))[::-1]

    def _take(self, row: Row) -> bool:
        kind = KINDS[type(row)]
        buried, _ = self._gone.get((kind, row.id), (0, 0.0))
        if buried > row.version or not is_newer(row, self.rows[kind].get(row.id)):
            return False
        self.rows[kind][row.id] = row
        if isinstance(row, Reservation):
            self._ended.pop(row.id, None)
            if is_over(row):
                self._ended[row.id] = self._clock()
        return True

    def _bury(self, gone: Gone) -> bool:
        known = self.rows[gone.kind].get(gone.id)
        buried = self._gone.get((gone.kind, gone.id), (0, 0.0))
        if (known is not None and known.version >= gone.version) or buried[0] >= gone.version:
            return False
        self.rows[gone.kind].pop(gone.id, None)
        if gone.kind == "reservations":
            self._ended.pop(gone.id, None)
        self._gone.pop((gone.kind, gone.id), None)
        self._gone[gone.kind, gone.id] = (gone.version, self._clock())
        return True

    def _forget(self) -> None:
        # Both are in the order of their times, because a later entry is always put last.
        before = self._clock() - self._kept_seconds
        while self._ended and self._ended[oldest := next(iter(self._ended))] <= before:
            del self._ended[oldest]
            self.rows["reservations"].pop(oldest, None)
        while self._gone and self._gone[first := next(iter(self._gone))][1] <= before:
            del self._gone[first]
