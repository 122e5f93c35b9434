"""Finds whether a full cycle would replace a machine now; then the kept cycle cannot go on.

The life of a machine ends when it is older than the rules of its pool allow, or has drifted.
"""

from math import inf

from scheduler.policy.capacity.slot_info import find_life
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.scaling.launch_limits import LaunchLimits
from scheduler.policy.scaling.replacement import list_replaceable


class Lives:
    """Finds whether a machine of a kept cycle has to be replaced, and keeps the time at which the first one may have to
    be. No slot of the cycle may be in flight.
    """

    def __init__(self, cycle: CycleState, limits: LaunchLimits) -> None:
        self._cycle, self._limits = cycle, limits
        self._first: float | None = None
        """When the first life of a machine ends; None if lives have changed since it was found."""

    def forget(self) -> None:
        """Record that the life of a machine has changed, so that the end of the first life has to be found again."""
        self._first = None

    def stay(self) -> bool:
        """Return whether no machine is replaced in this tick. Schedule a cycle for the end of the first life."""
        if self._first is None:
            self._first = self._find_first()
        if self._cycle.is_due(self._first):
            return not list_replaceable(self._cycle, self._limits)
        self._cycle.timers.add(self._first)
        return True

    def _find_first(self) -> float:
        """Return when the first life of a machine ends; minus infinity if each tick has to look.

        Each tick has to look if a machine has drifted, or if cheaper offerings count, which depends on leases.
        """
        first = inf
        for name, slot_infos in self._cycle.pools.items():
            pool = self._cycle.rules.pools[name]
            if not (pool.is_elastic and pool.replacement.is_on):
                continue
            if pool.replacement.min_saving:
                return -inf
            for slot_info in slot_infos:
                if slot_info.state in {"ready", "stopped"}:
                    has_drifted, end = find_life(slot_info, pool)
                    first = min(first, -inf if has_drifted else end)
        return first
