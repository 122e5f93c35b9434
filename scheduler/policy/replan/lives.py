"""Finds whether a full cycle would replace a machine now; if so, the kept cycle cannot go on.

The life of a machine ends when the machine has drifted, or is older than the rules of its pool allow.
"""

from math import inf

from scheduler.policy.capacity.slot_info import find_life
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.scaling.launch_limits import LaunchLimits
from scheduler.policy.scaling.replacement import list_replaceable


class Lives:
    """Finds whether any machine in the slots of a kept cycle has to be replaced now, and if none has, when the first
    life of a machine ends. The caller makes sure that no slot of the cycle is in flight; such slots are not tested.
    """

    def __init__(self, cycle: CycleState, limits: LaunchLimits) -> None:
        self._cycle, self._limits = cycle, limits
        self._first: float | None = None
        """The earliest end of a machine's life (seconds since the epoch). None: lives have changed since it was
        computed.
        """

    def forget(self) -> None:
        """Record that the life of a machine has changed, so that the earliest end is computed again."""
        self._first = None

    def stay(self) -> bool:
        """Return True if no machine is replaced in this tick; else False. If no life has ended yet, schedule a cycle
        for the end of the first one.
        """
        if self._first is None:
            self._first = self._find_first()
        if self._cycle.is_due(self._first):
            return not list_replaceable(self._cycle, self._limits)
        self._cycle.timers.add(self._first)
        return True

    def _find_first(self) -> float:
        """Return the earliest end of a machine's life; infinity: none ends. Return minus infinity if each tick has to
        examine the machines.

        There are two reasons for minus infinity: a machine has drifted; or the rules replace machines by cheaper
        offerings, which depends on leases.
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
