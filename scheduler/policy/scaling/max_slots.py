"""How many more slots each pool may have: every `max_slots` that limits it.

A pool is limited by its own `max_slots`, by that of its system and by that over all pools. Source: the autoscaler (how
slots are counted).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from scheduler.policy.cycle.state import CycleState
from scheduler.policy.scaling.offerings import PoolLaunches


class SlotBounds:
    """The numbers of slots that the pools may have in one cycle. `pools`: their launches so far, which count.

    `goes_on`: a function that returns whether something that ends at a time (seconds since the epoch) lasts, and
    schedules a cycle for its end.
    """

    def __init__(self, cycle: CycleState, pools: Mapping[str, PoolLaunches], goes_on: Callable[[float], bool]) -> None:
        self._rules, self._pools, self._goes_on = cycle.rules, pools, goes_on
        self._strangers = {hold.pool: hold for hold in cycle.view.holds.values() if hold.kind == "strangers"}
        self._bounds = {name: tuple(self._list(name)) for name in self._rules.pools}

    def _list(self, name: str) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield each `max_slots` that limits a pool, as (its value, the pools whose slots count towards it)."""
        rules = self._rules
        pool, own = rules.pools[name], rules.scheduler.system.get(rules.pools[name].system)
        yield pool.max_slots or 0, (name,)
        if rules.scheduler.max_slots:
            yield rules.scheduler.max_slots, tuple({**rules.pools, **self._strangers})
        if own is not None and own.max_slots:
            yield own.max_slots, rules.pools_of_system[pool.system]

    def find_least(self, name: str) -> int:
        """Return the lowest `max_slots` that limits this pool: its own, its system's or the one over all pools."""
        return min(most for most, _ in self._bounds[name])

    def count_left(self, name: str) -> int:
        """Return how many more launches this pool may have: the lesser of two numbers, how many more active slots each
        `max_slots` allows, and how many empty slots the pool has. Other limits are not tested.
        """
        left = min(most - self._count(pools) for most, pools in self._bounds[name])
        return max(0, min(left, len(self._pools[name].empty)))

    def may_grow(self, name: str) -> bool:
        """Return whether a pool has a slot that `max_slots` allows to launch, or a stopped slot that may be started."""
        has_tier = self._rules.pools[name].stopped_slots > 0
        return self.count_left(name) > 0 or (has_tier and bool(self._pools[name].startable))

    def is_full(self, name: str) -> bool:
        """Return whether no slot of a pool may be launched."""
        if not self._pools[name].empty:
            return True
        for most, pools in self._bounds[name]:  # noqa: SIM110  called for each launch, and a generator takes twice as long
            if self._count(pools) >= most:
                return True
        return False

    def count_strangers(self) -> int:
        """Return how many machines with the tags of any pool belonged to no slot at the last comparison with EC2."""
        return sum(map(self._count_strangers, self._strangers))

    def _count(self, pools: Sequence[str]) -> int:
        """Return the number of active slots of these pools plus the number of their machines that belong to no slot."""
        if len(pools) == 1 and not self._strangers:
            return self._pools[pools[0]].active
        known = (self._pools[name].active for name in pools if name in self._pools)
        return sum(known) + sum(map(self._count_strangers, pools))

    def _count_strangers(self, name: str) -> int:
        hold = self._strangers.get(name)
        return hold.active if hold is not None and self._goes_on(hold.until) else 0
