"""Static hosts that sent no heartbeat for too long.

The slot of each pool that was heard longest ago is kept between cycles, and a cycle examines only slots that changed.
"""

from collections.abc import Iterable

from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import HOLDING
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.deadlines import is_silent
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.plan_cache import list_touched

Heard = tuple[float, str]
"""The time of a slot's last heartbeat, and the slot's id."""


class OldestHeartbeats:
    """By static pool: the last heartbeat that is longest ago, of the slots that hold leases or may take some."""

    def __init__(self) -> None:
        self._rules: Rules | None = None
        self._revision = 0
        self._oldest: dict[str, Heard | None] = {}
        """None: no slot of the pool was heard. Pools of which it is unknown are missing."""

    def follow(self, cycle: CycleState) -> None:
        """Update the heartbeats by the changes of the view."""
        if cycle.rules is not self._rules:
            self._oldest = {}
        for name in list_touched(cycle.view, self._revision) if self._oldest else ():
            self._note(name, cycle.view.slots.get(name))
        self._rules, self._revision = cycle.rules, cycle.view.revision

    def _note(self, name: str, slot: Slot | None) -> None:
        heard = None if slot is None else _find_heard(slot)
        for pool in [pool for pool, oldest in self._oldest.items() if oldest and oldest[1] == name]:
            if slot is None or slot.pool != pool or heard != self._oldest[pool]:
                del self._oldest[pool]
        if slot is not None and heard is not None and slot.pool in self._oldest:
            self._oldest[slot.pool] = min(heard, self._oldest[slot.pool] or heard)

    def find(self, pool: str, slot_infos: Iterable[SlotInfo]) -> float | None:
        """Return the time (seconds) of the last heartbeat that is longest ago; None if no slot of the pool was heard.

        `slot_infos`: the slots of the pool. They are examined if the slot that was heard longest ago has changed.
        """
        if pool not in self._oldest:
            found = (_find_heard(each.slot) for each in slot_infos)
            self._oldest[pool] = min(filter(None, found), default=None)
        oldest = self._oldest[pool]
        return None if oldest is None else oldest[0]


def find_silent(cycle: CycleState) -> set[str]:
    """Return the ids of static hosts without a heartbeat for longer than `offline_timeout`; they take no lease."""
    static = [(name, pool) for name, pool in cycle.rules.pools.items() if not pool.is_elastic]
    if not static:
        return set()
    silent, heartbeats = set(), cycle.cache.recall(OldestHeartbeats)
    heartbeats.follow(cycle)
    moved = {each.slot.pool for each in cycle.list_restless() if each.state != each.slot.state}
    for name, pool in static:
        slot_infos = cycle.pools[name]
        oldest = heartbeats.find(name, slot_infos)
        if oldest is None:
            continue
        if name not in moved and not cycle.is_past(oldest, pool.offline_timeout):  # the others are not silent either
            cycle.timers.add_after(oldest, pool.offline_timeout)
            continue
        heard = [each for each in slot_infos if each.state in HOLDING]
        for slot_info in [each for each in heard if is_silent(each.slot, pool, cycle.now)]:
            slot_info.stuck = True
            silent.add(slot_info.slot.id)
        seen = [each.slot.last_seen for each in heard if each.slot.last_seen is not None]
        lasting = [instant for instant in seen if not cycle.is_past(instant, pool.offline_timeout)]
        if lasting:
            cycle.timers.add_after(min(lasting), pool.offline_timeout)
    return silent


def _find_heard(slot: Slot) -> Heard | None:
    return (slot.last_seen, slot.id) if slot.last_seen is not None and slot.state in HOLDING else None
