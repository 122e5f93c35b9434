"""What has lasted too long: a slot in its state, a static host without a heartbeat. Asked of the rows as they now are,
by the commit and by whoever tells people; what a plan sees falls due in `heal.py`, which also knows when to wake.
"""

from math import inf

from scheduler.model.rules import Pool
from scheduler.model.slots import Slot
from scheduler.model.transitions import HOLDING


def is_silent(slot: Slot, pool: Pool | None, now: float) -> bool:
    """Whether a static host that serves was not heard of for longer than `offline_timeout` (Orchard: strictly)."""
    if pool is None or pool.is_elastic or slot.state not in HOLDING or slot.last_seen is None:
        return False
    return now - slot.last_seen > pool.offline_timeout


def has_timed_out(slot: Slot, pool: Pool | None, now: float) -> bool:
    """Whether it has been in its state for the timeout of that state; a `drain_timeout` of 0 never comes."""
    if pool is None:
        return False
    limits = {
        "launching": pool.launch_timeout,
        "booting": pool.boot_timeout,
        "binding": pool.binding_timeout,
        "draining": pool.drain_timeout or inf,
        "terminating": pool.terminating_timeout,
    }
    return now >= slot.since + limits.get(slot.state, inf)
