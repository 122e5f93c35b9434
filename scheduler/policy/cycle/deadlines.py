"""When slots time out, and when the next cycle is due. All times are in seconds. Source: the autoscaler's tick."""

from math import inf, nextafter

from scheduler.model.pools import Pool
from scheduler.model.rules import Rules, Terms, list_deadlines_of_lease
from scheduler.model.slots import Slot
from scheduler.model.transitions import HOLDING, SlotState


def is_silent(slot: Slot, pool: Pool | None, now: float) -> bool:
    """Return whether a static host that is in service sent nothing for longer than `offline_timeout`.
    Source: Orchard.
    """
    if pool is None or pool.is_elastic or slot.state not in HOLDING or slot.last_seen is None:
        return False
    return now - slot.last_seen > pool.offline_timeout


def find_timeout(state: SlotState, pool: Pool) -> float:
    """Return for how many seconds a slot of the pool may be in a state; infinity: without limit (`drain_timeout` 0)."""
    limits = {
        "launching": pool.launch_timeout,
        "booting": pool.boot_timeout,
        "binding": pool.binding_timeout,
        "draining": pool.drain_timeout or inf,
        "terminating": pool.terminating_timeout,
    }
    return limits.get(state, inf)


def find_deadline(slot: Slot, pool: Pool) -> float:
    """Return when a slot that stays in its state times out; infinity for a state without a timeout. The stop of a
    machine that the cloud has not confirmed has the timeout of a termination.
    """
    if slot.state == "stopped" and slot.power == "stop":
        return slot.since + pool.terminating_timeout
    return slot.since + find_timeout(slot.state, pool)


def has_timed_out(slot: Slot, pool: Pool | None, now: float) -> bool:
    """Return whether the slot has been in its state for at least the timeout of that state."""
    return pool is not None and now >= find_deadline(slot, pool)


class Timers:
    """Collects the times at which a deadline is reached, to find when the next cycle is needed.

    Only the steps of a plan add times. Functions that answer a question never do.
    """

    def __init__(self, now: float) -> None:
        self._now = now
        self.first = inf
        """The earliest instant at which something falls due; infinity if nothing does."""
        self.lease_terms: set[Terms] = set()
        """What determines how long the leases assigned in this cycle last.

        Many leases have equal terms: their ends are worked out once.
        """

    def add(self, *instants: float | None) -> None:
        """Note that a cycle is due at each of these instants, or at once if it has passed. None adds nothing."""
        for instant in instants:
            if instant is not None:
                self.first = min(self.first, max(instant, self._now))

    def add_ends_of_leases(self, rules: Rules) -> None:
        """Note that a cycle is due when the first lease assigned in this cycle expires or has to be confirmed."""
        for terms in self.lease_terms:
            self.add(*list_deadlines_of_lease(terms, rules, self._now))

    def add_after(self, start: float, limit: float) -> None:
        """Note that a cycle is due at the first instant that is more than `limit` seconds after `start`."""
        instant = nextafter(max(start + limit, self._now), inf)
        while instant - start <= limit:  # the sum was rounded down
            instant = nextafter(instant, inf)
        self.add(instant)
