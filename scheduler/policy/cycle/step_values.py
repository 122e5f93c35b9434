"""The types of the values that the steps of `plan()` pass on.

Each step takes the cycle's state with the type that the step before it returned, and returns it with another type. So
mypy reports a step that is called before the step that it depends on.
"""

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NewType

from scheduler.model.reservations import Reservation
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_index import SlotIndex
from scheduler.policy.cycle.queue import Queue
from scheduler.policy.cycle.state import CycleState

Unexpired = NewType("Unexpired", CycleState)
"""The cycle's state after expired reservations have ended: they have no leases any more."""
Healed = NewType("Healed", CycleState)
"""The cycle's state after repairs: lost, interrupted and stuck slots are repaired, and reservations that lost a slot
are pending again.
"""
Charged = NewType("Charged", Healed)
"""The cycle's state after quota accounts have earned and paid; `CycleState.balances` has their balances."""
Warm = NewType("Warm", CycleState)
"""The cycle's state after the launches for the minimum and the warm reserve of each pool."""
Tiered = NewType("Tiered", CycleState)
"""The cycle's state after machines were stopped, launched and terminated for the stopped tier of each pool."""
ToStop = Mapping[str, int]
"""Pool -> how many of its slots in flight or idle will be stopped when they are ready, or idle for long enough."""
ScaledIn = NewType("ScaledIn", CycleState)
"""The cycle's state after slots that were idle for too long have begun to drain."""
Replaced = NewType("Replaced", CycleState)
"""The cycle's state after slots whose machines are to be replaced have begun to drain."""
WithHeadroom = NewType("WithHeadroom", CycleState)
"""The cycle's state after slots have begun to drain so that withheld launches can run."""
Scaled = NewType("Scaled", CycleState)
"""The cycle's state after all launches and drains are decided."""
Shared = NewType("Shared", CycleState)
"""The cycle's state after all decisions are made; only the time of the next cycle is still to be found."""

FailedBoots = Mapping[str, Sequence[str]]
"""Pool -> ids of the slots whose boot timed out in this cycle. Their failures are not in the database before the
commit.
"""


@dataclass(frozen=True, slots=True)
class Protected:
    """The slots and launches that the starvation guard keeps for reservations that have waited for too long."""

    gangs: Collection[str]
    """Ids of protected gangs. Launches that could serve such a gang are not made for reservations behind it."""
    kept: Mapping[str, SlotIndex]
    """Id of a gang -> the ready slots that are kept for it. "" -> the slots that are kept for all protected single
    instances.
    """


class ElasticShortage(NamedTuple):
    """Elastic instances of one reservation for which no slot has capacity, in pools that launch machines for elastic
    instances.
    """

    reservation: Reservation
    demand: Demand
    """The demand for one of the elastic instances."""
    instances: int
    """How many elastic instances of the reservation have this demand."""


@dataclass(frozen=True, slots=True)
class Unplaced:
    """The reservations and elastic instances that fit on no slot that is ready or in flight: the input of the step that
    launches slots.
    """

    queue: Queue
    """Reservations that fit on no slot that is ready or in flight, in queue order."""
    deferred: Collection[str]
    """Ids of reservations behind a gang in a queue without backfill.

    They get ready slots only after slots were launched for the gang.
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
    awaited: Mapping[int, Sequence[InstanceRequest]]
    """Index in `demands` -> the requests of protected gangs without launches that come directly before this demand in
    the queue. For this demand and all later ones, no launch is made that could serve one of these requests.
    """


@dataclass(frozen=True, slots=True)
class Headroom:
    """The slots that have to end so that withheld launches can run in a later cycle."""

    launches: Mapping[str, int]
    """Pool -> how many launches `max_slots` or EC2's quota withholds."""
    spared: Container[str]
    """Ids of slots without leases that must not end: the reservations with withheld launches would use them too."""
    beyond: Mapping[str, int]
    """Pool -> how many of these launches `max_slots` withholds. EC2's quota withholds the others."""
