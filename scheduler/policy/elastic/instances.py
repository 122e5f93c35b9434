"""The elastic instances of leased reservations, in the scratch copy of a cycle.

A search (`elastic/cascade.py`) may lift an instance off its slot, and put it back or on another slot. Source: Zoe.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Final, Protocol

from scheduler.model.reservations import Instance, Lease, Reservation
from scheduler.model.resources import Resources
from scheduler.policy.capacity.requests import Demand, InstanceRequest, RequestClass
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.elastic.wanted import find_number, find_wanted

RECLAIMS: Final = frozenset({"flexible", "yielding"})
"""The values of the setting `elastic` under which held elastic instances may be reclaimed."""


Rank = tuple[int, int]
"""The position of a group in the order in which groups are served: (position of its reservation, position of its
component).
"""
_rank = attrgetter("rank")


@dataclass(slots=True, eq=False)
class ElasticInstance:
    """One elastic instance of a reservation that is leased already, or that is placed in this cycle."""

    group: "ElasticGroup"
    holder: Reservation
    instance: Instance
    need: InstanceRequest
    index: int = 0
    """The position of the instance among all elastic instances of its reservation, from 0."""
    lease: Lease | None = None
    """The lease of the instance; None: it has no lease."""
    home: SlotInfo | None = None
    """The slot of the instance's lease. None if the instance has no lease or cannot be lifted, for example because its
    slot drains.
    """
    slot_info: SlotInfo | None = None
    """The slot on which the instance is in the scratch copy. None: it is on no slot, or on a slot from which it cannot
    be lifted.
    """
    expects: bool = False
    """Whether capacity is promised to the instance that becomes free when revoking leases end. The instance waits for
    this, and nothing more is reclaimed for it.
    """

    @property
    def is_missing(self) -> bool:
        """Whether the elastic instance needs a slot: it has no lease, or it was lifted off the slot of its lease."""
        return self.slot_info is None and (self.lease is None or self.home is not None)

    @property
    def is_revoked(self) -> bool:
        """Whether the lease of the elastic instance has to be revoked, because the instance is not on the lease's slot
        any more.
        """
        return self.home is not None and self.slot_info is not self.home

    @property
    def is_granted(self) -> bool:
        """Whether the elastic instance is on a slot in the scratch copy for which it has no lease yet."""
        return self.slot_info is not None and self.slot_info is not self.home

    def stand(self, slot_info: SlotInfo | None) -> None:
        """Put the elastic instance on this slot in the scratch copy of the cycle; None takes it off its slot."""
        change = (slot_info is None) - (self.slot_info is None)
        self.group.missing += change
        if self.home is not None:
            self.group.lifted += change
        self.slot_info = slot_info

    def amounts_on(self, slot_info: SlotInfo) -> Resources:
        """Return the instance's amounts on a slot: those of its lease if the lease is on this slot, else those that the
        slot's pool gives.
        """
        if slot_info is self.home and self.lease is not None:
            return self.lease.resources
        return self.need.given[slot_info.slot.pool]


@dataclass(slots=True, eq=False)
class ElasticGroup:
    """The elastic instances of one component of one reservation. They are all alike.

    Held instances keep their slots before missing ones are granted. Grants take the lowest index first, reclaims the
    highest.
    """

    rank: Rank
    need: InstanceRequest
    holder: Reservation
    unopened: Iterator[int]
    """The indices of the instances that have no lease and no `ElasticInstance` object yet, lowest first. An object is
    made only when the instance is to be granted, so that the cost of a cycle does not grow with the number of missing
    instances.
    """
    instances: Sequence[Instance]
    """All elastic instances of the reservation (also of its other components), by index."""
    elastic_instances: list[ElasticInstance] = field(default_factory=list)
    """The instances of the group for which an object was made, sorted by index."""
    missing: int = 0
    """The number of instances of the group that need a slot, with and without an object."""
    lifted: int = 0
    """The number of instances of the group that were lifted off the slot of their lease, and may return to it."""
    is_noted: bool = False
    """Whether `MissingInstances` contains the group at present."""
    refused: Collection[str] | None = None
    """The ids of the slots that no further instance of the group may get, because of the limits of its account. None:
    the account has no limits. While slots are refused, missing instances launch nothing.
    """
    is_preempted: bool = False
    """Whether this cycle has preempted an instance of the group. Then it grants none."""
    first_unopened: int | None = field(init=False)

    def __post_init__(self) -> None:
        self.first_unopened = next(self.unopened, None)

    def count_unleased(self) -> int:
        """Return how many instances of the group have no lease, got no slot in this cycle, and have no promise of
        capacity (`expects`).
        """
        return self.missing - sum(
            each.expects or (each.lease is not None and each.is_missing) for each in self.elastic_instances
        )

    def walk_missing(self) -> Iterator[ElasticInstance]:
        """Yield the instances of the group that need a slot, lowest index first. Make the objects of instances that
        have none yet.
        """
        waiting = [elastic_instance for elastic_instance in self.elastic_instances if elastic_instance.is_missing]
        for elastic_instance in waiting:
            if elastic_instance.lease is not None:
                yield from self._open_up_to(elastic_instance.index)
            yield elastic_instance
        yield from self._open_up_to(None)

    def _open_up_to(self, end: int | None) -> Iterator[ElasticInstance]:
        """Make the missing objects of the instances whose index is below `end` (None: of all), and yield each."""
        while self.first_unopened is not None and (end is None or self.first_unopened < end):
            yield self._open()

    def open_all(self) -> list[ElasticInstance]:
        """Return all instances of the group. Make the objects of instances that have none yet."""
        while self.first_unopened is not None:
            self._open()
        return self.elastic_instances

    def _open(self) -> ElasticInstance:
        index = self.first_unopened
        assert index is not None, "there is one more"  # noqa: S101
        self.first_unopened = next(self.unopened, None)
        elastic_instance = ElasticInstance(self, self.holder, self.instances[index], self.need, index)
        insort(self.elastic_instances, elastic_instance, key=attrgetter("index"))
        return elastic_instance


class GrantLimits(Protocol):
    """Finds the slots on which the limits of an account refuse its elastic instances."""

    def update(self, group: ElasticGroup) -> None:
        """Set `group.refused` to the ids of the slots on which the limits of the group's account refuse the group one
        more instance.

        The slots that this cycle has granted to this group, and to the groups of earlier calls, count
        towards the limits.
        """


class MissingInstances:
    """The elastic groups that have missing instances, by request class and in rank order."""

    def __init__(self) -> None:
        self._groups: dict[RequestClass, list[ElasticGroup]] = {}

    def note(self, group: ElasticGroup) -> None:
        """Add a group, if it has missing instances and was not added yet."""
        if group.missing and not group.is_noted:
            group.is_noted = True
            insort(self._groups.setdefault(group.need.likeness, []), group, key=_rank)

    def drop(self, group: ElasticGroup) -> None:
        """Remove a group, if it was added."""
        if group.is_noted:
            group.is_noted = False
            groups = self._groups[group.need.likeness]
            del groups[bisect_left(groups, group.rank, key=_rank)]

    def find_next(self, likeness: RequestClass, start: Rank) -> ElasticGroup | None:
        """Return the first group of a request class, from the rank `start` on, that has missing instances."""
        groups = self._groups.get(likeness, [])
        at = bisect_left(groups, start, key=_rank)
        while at < len(groups):
            group = groups[at]
            if group.missing:
                return group
            group.is_noted = False
            del groups[at]
        return None

    def list_next(self, start: Rank) -> list[ElasticGroup]:
        """Return, for each request class, the first group from the rank `start` on that has missing instances."""
        return [group for likeness in self._groups if (group := self.find_next(likeness, start)) is not None]


def list_groups(
    cycle: CycleState, reservation: Reservation, demand: Demand, position: int, leases: Iterable[Lease]
) -> list[ElasticGroup]:
    """Return the elastic instances of one reservation as groups, one for each component. `position`: the position of
    the reservation in the order in which reservations are served. `leases`: its present leases.

    An instance that the holder gave back is not granted again, and a component gets no more instances than the holder
    wants (`wanted.py`). A component of which this cycle has preempted an instance gets none.
    """
    held = [lease for lease in leases if lease.kind == "elastic"]
    has_grace = bool(demand.settings.preemption_grace)
    declined = reservation.declined if reservation.phase == "leased" else ()
    groups: list[ElasticGroup] = []
    first = 0
    for need, count in demand.elastic_runs:
        numbers = {
            number: lease for lease in held if (number := find_number(need.component, lease.component)) is not None
        }
        most, returned = find_wanted(need.component, declined)
        excluded = numbers.keys() | returned
        missing = max(min(count - len(excluded), most - len(numbers)), 0)
        preempted = cycle.preempted_instances.get(reservation.id, ())
        if is_preempted := any(find_number(need.component, name) is not None for name in preempted):
            missing = 0
        unopened = islice(_list_others(first, count, excluded), missing) if missing else ()
        group = ElasticGroup((position, len(groups)), need, reservation, iter(unopened), demand.shape.elastic)
        group.missing, group.is_preempted = missing, is_preempted
        for number, lease in sorted(numbers.items()):
            index, home = first + number, cycle.slot_infos.get(lease.slot)
            if home is not None and not (
                cycle.ready.has(home) and _is_free_to_go(home, reservation, lease, has_grace=has_grace)
            ):
                home = None  # it cannot be lifted
            elastic_instance = ElasticInstance(
                group, reservation, demand.shape.elastic[index], need, index, lease, home, home
            )
            group.elastic_instances.append(elastic_instance)
            group.missing += elastic_instance.is_missing
        groups.append(group)
        first += count
    return groups


def _list_others(first: int, count: int, numbers: Container[int]) -> Iterator[int]:
    """Yield the indices of a component's instances except the numbers in `numbers`. `first`: the index of its first
    instance; `count`: how many it has.
    """
    return (first + number for number in range(count) if number not in numbers)


def is_reclaimable(cycle: CycleState, slot_info: SlotInfo, holder: Reservation, lease: Lease) -> bool:
    """Return whether an elastic lease may be reclaimed for another reservation. There are two conditions: the lease is
    held; its end does not make the pool replace the slot (`recycle_unclean`).
    """
    return _is_free_to_go(slot_info, holder, lease, has_grace=bool(cycle.settings_of(holder).preemption_grace))


def _is_free_to_go(slot_info: SlotInfo, holder: Reservation, lease: Lease, *, has_grace: bool) -> bool:
    present = slot_info.leases.get((holder.id, lease.component))
    if present is None or present.state != "held":
        return False
    # A lease that ends without a grace is unclean: a pool that recycles such slots would lose the slot.
    return has_grace or not slot_info.pool.recycle_unclean
