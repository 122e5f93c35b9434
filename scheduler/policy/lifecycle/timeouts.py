"""Timeouts: how long a slot may be in a state, and a static host without a heartbeat."""

from math import inf

from scheduler.model.rules import Pool
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
    """Return when a slot that stays in its state times out; infinity for a state without a timeout."""
    return slot.since + find_timeout(slot.state, pool)


def has_timed_out(slot: Slot, pool: Pool | None, now: float) -> bool:
    """Return whether the slot has been in its state for at least the timeout of that state."""
    return pool is not None and now >= find_deadline(slot, pool)
