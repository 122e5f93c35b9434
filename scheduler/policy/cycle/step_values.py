"""The types of the values that one step of `plan()` passes to a later one, beside the cycle's state."""

from collections import Counter
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scheduler.model.reservations import Reservation
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_index import SlotIndex
from scheduler.policy.cycle.queue import Queue

ToStop = Mapping[str, int]
"""Pool -> how many of its slots in flight and of its idle slots may be stopped later for the stopped tier. A slot that
was launched for the tier is stopped as soon as it is ready, others after `idle_scale_down` seconds without a lease.
"""
FailedBoots = Mapping[str, Sequence[str]]
"""Pool -> ids of the slots whose boot timed out in this cycle. Their failures are not in the database before the
commit.
"""


@dataclass(frozen=True, slots=True)
class Protected:
    """What the starvation guard keeps for reservations that have waited for too long: slots, and launches for gangs."""

    gangs: Collection[str]
    """Ids of protected gangs. Launches that could serve such a gang are not made for reservations behind the gang."""
    kept: Mapping[str, SlotIndex]
    """Id of a reservation with a planned start, or of another protected gang -> the ready slots that are kept for it.
    The key "" -> those that are kept for all other protected reservations with a single instance.
    """


class ElasticShortage(NamedTuple):
    """Elastic instances of one reservation for which no slot has capacity. The pools of `demand` launch machines for
    elastic instances (`launch_for_elastic`).
    """

    reservation: Reservation
    demand: Demand
    """The demand of a single elastic instance; all instances of this entry are alike."""
    instances: int
    """The number of elastic instances without a slot."""


@dataclass(frozen=True, slots=True)
class Unplaced:
    """The input of the step that launches slots: the reservations and elastic instances that fit on no slot that is
    ready or in flight.
    """

    queue: Queue
    """Reservations that fit on no slot that is ready or in flight, in queue order."""
    deferred: Collection[str]
    """Ids of reservations behind a gang in a queue without backfill.

    They are placed on ready slots only after slots were launched for the gang.
    """
    protected: Protected
    elastic: Sequence[ElasticShortage]
    """Elastic instances for which no slot has capacity, in the order in which launches are tried for them."""
    uncovered: Collection[Demand] = ()
    """Demands that are known not to fit on the slots that are ready or in flight."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """The demands whose launches only `max_slots` or EC2's quota withholds. `demands` has one entry for each such
    reservation, in queue order.
    """

    closed: Container[str]
    """The pools in which a launch for a pending reservation is withheld, by `max_slots`, EC2's quota or a budget. A
    machine that such a pool launched for its reserve or tier could be the next to end for the withheld launch.
    """
    demands: Sequence[Demand]
    kept: Mapping[str, SlotIndex]
    """The ready slots that the starvation guard keeps for reservations, as in `Protected.kept`."""
    awaited: Mapping[int, Sequence[InstanceRequest]]
    """Position in `demands` -> requests of gangs that the starvation guard protects (`Protected.gangs`) and that got no
    launches. These gangs are in the queue before the demand at this position, and behind the demand before it. For this
    demand and all later ones, no launch is made that could serve one of these requests.
    """


@dataclass(frozen=True, slots=True)
class Headroom:
    """How many launches are withheld in each pool, and which slots (`spared`) are protected. For each withheld launch
    one slot that no reservation needs ends, so that the launch can run in a later cycle. Protected slots do not end.
    """

    launches: Mapping[str, int]
    """Pool -> how many launches are withheld there, by `max_slots` or EC2's quota."""
    spared: Collection[str]
    """Ids of slots without leases that must not end. A reservation with withheld launches needs them, too: some of its
    instances would be placed on these slots, and the others on the slots that are launched later.
    """
    beyond: Mapping[str, int]
    """Pool -> how many of the launches in `launches` are withheld by `max_slots`. EC2's quota withholds the others."""
    closed: Container[str]
    """The pools that launch nothing for their warm reserve and their stopped tier, see `Shortfall.closed`."""
    by_quota: Mapping[str, Counter[str]]
    """Pool -> subject of the back-off for EC2's quota -> how many launches it withholds."""
    expected: Mapping[str, int]
    """Pool -> how many launches the pool makes as soon as `max_slots` withholds none of a reservation's launches, those
    in `beyond` included. A gang may wait for another pool, while this one still has room for its launches.
    """
