"""What the launches of one cycle in one pool depend on, and how many there were."""

from functools import cached_property

from scheduler.model.transitions import INACTIVE
from scheduler.policy.capacity.requests import InstanceRequest
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.scaling.market_mix import MarketMix, count_mix
from scheduler.policy.scaling.offerings import Choice, list_choices
from scheduler.policy.scaling.stopped_slots import list_startable


class PoolLaunches:
    """The offerings and slots that launches in one pool may take, and the launches and starts that were decided.

    Speed: a tick that considers no launch counts no slots. After the repairs, only launches change whether a slot is
    active, empty, or cordoned and ready, so that a later count finds the same slots.
    """

    def __init__(self, cycle: CycleState, name: str) -> None:
        self._cycle, self._name = cycle, name
        self.launches = self.starts = 0

    @cached_property
    def active(self) -> int:
        """How many slots of the pool are active, with those that this cycle launches."""
        return sum(each.state not in INACTIVE for each in self._cycle.pools[self._name])

    @cached_property
    def choices(self) -> list[Choice]:
        """The offerings that a new slot of the pool could be, cheapest first."""
        return list_choices(self._cycle.rules.pools[self._name])

    @cached_property
    def mix(self) -> MarketMix:
        """How the slots of the pool divide among the markets."""
        return count_mix((each.state, each.market) for each in self._cycle.pools[self._name])

    @cached_property
    def empty(self) -> list[SlotInfo]:
        """The slots that a launch may take. The next launch takes the last one, which is the first in slot order."""
        slot_infos = reversed(self._cycle.pools[self._name])
        return [each for each in slot_infos if each.state == "empty" and not each.slot.cordoned]

    @cached_property
    def cordoned(self) -> list[SlotInfo]:
        """The cordoned slots that are ready."""
        slot_infos = self._cycle.pools[self._name]
        return [each for each in slot_infos if each.slot.cordoned and each.state == "ready" and not each.stuck]

    @cached_property
    def startable(self) -> list[SlotInfo]:
        """The stopped slots that may be started, cheapest first."""
        return list_startable(self._cycle.pools[self._name], self._cycle.now)

    def list_fitting(self, need: InstanceRequest) -> list[Choice]:
        """Return the choices for a new slot that could hold one instance, cheapest first."""
        return [each for each in self.choices if need.could_hold(self._name, each.capacity, each.labels)]
