"""Keep the rows of the view away from Python's garbage collector.

A full collection looks at every object and stops all threads meanwhile. With 100,000 reservations that takes more than
0.1 s. The rows form no cycles, so reference counts free them.
"""

import gc
from typing import Final

CHANGES: Final = 5000
"""Number of rows that may change before all rows are exempted from collections again. Until then, a full collection
looks at the rows that are new since the last exemption. With fewer than CHANGES new rows it takes some milliseconds.
"""


class GarbageKeeper:
    """Exempts the rows that exist at present from all later collections of garbage (`gc.freeze`). Only one thread may
    use it.
    """

    def __init__(self) -> None:
        self._changes = 0

    def note(self, changes: int, *, is_new: bool) -> None:
        """Record that `changes` rows have changed. `is_new`: all rows of the view were read.

        Exempt all present rows from later garbage collections in two cases: (1) `is_new` is True; (2) at least CHANGES
        rows have changed since the last exemption.
        """
        self._changes += changes
        if is_new or self._changes >= CHANGES:
            self._changes = 0
            # Cycles of garbage would never be freed afterwards.
            gc.collect()
            gc.freeze()
