"""The values that the steps of `plan()` hand on, so that mypy refuses a step before the step that it depends on.

A stage is the cycle's state after a step. Each step takes the stage that it needs and returns the next one.
"""

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NewType

from scheduler.model.reservations import Reservation
from scheduler.policy.capacity.requests import Demand
from scheduler.policy.capacity.slot_index import SlotIndex
from scheduler.policy.cycle.queue import Queue
from scheduler.policy.cycle.state import CycleState

Unexpired = NewType("Unexpired", CycleState)
"""The cycle after expired reservations have ended: they hold nothing any more."""
Healed = NewType("Healed", CycleState)
"""The cycle after repairs.

Lost, interrupted and stuck slots are repaired; the reservations that lost theirs are pending again.
"""
Charged = NewType("Charged", Healed)
"""The cycle after quota accounts have earned and paid; `CycleState.balances` holds what they have left."""
Warm = NewType("Warm", CycleState)
"""The cycle after the launches for the minimum and the warm reserve of each pool."""
ScaledIn = NewType("ScaledIn", CycleState)
"""The cycle after slots that were idle for too long have begun to drain."""
Scaled = NewType("Scaled", CycleState)
"""The cycle after all launches and drains are decided."""
Shared = NewType("Shared", CycleState)
"""The cycle after all decisions are made; only the time of the next cycle is to be found."""

FailedBoots = Mapping[str, Sequence[str]]
"""By pool: the slots whose boot timed out in this cycle. They count as failures before the commit has counted them."""


@dataclass(frozen=True, slots=True)
class Protected:
    """What the starvation guard keeps for reservations that have waited for too long."""

    gangs: Collection[str]
    """Ids of protected gangs: launches that could serve them are withheld from reservations behind them."""
    kept: Mapping[str, SlotIndex]
    """Ready slots, by the gang that they are kept for; under "" the slots for all protected single instances."""


class ElasticShortage(NamedTuple):
    """Elastic instances without capacity, in pools that launch for them."""

    reservation: Reservation
    demand: Demand
    """The demand for one of the elastic instances."""
    instances: int
    """How many elastic instances of the reservation have this demand."""


@dataclass(frozen=True, slots=True)
class Unplaced:
    """What the step that places reservations leaves to the step that launches slots: reservations and elastic instances
    without a slot.
    """

    queue: Queue
    """Reservations for which no slot is ready or in flight, in queue order."""
    deferred: Collection[str]
    """Ids of reservations behind a gang in a queue without backfill.

    Ready slots are searched for them after the gang had its launches.
    """
    protected: Protected
    elastic: Sequence[ElasticShortage]
    """Elastic instances for which no slot has capacity, in the order in which they are served."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Launches that only `max_slots` or EC2's quota withholds: one demand for each reservation, in queue order."""

    demands: Sequence[Demand]
    kept: Mapping[str, SlotIndex]
    """Ready slots that the starvation guard keeps, as in `Protected.kept`."""


@dataclass(frozen=True, slots=True)
class Headroom:
    """What has to go so that withheld launches can run in a later cycle."""

    launches: Mapping[str, int]
    """By pool: how many launches are withheld."""
    spared: Container[str]
    """Ids of slots without leases that reservations with withheld launches would use beside these launches."""
