"""The elastic instances of leased reservations, in the scratch copy of a cycle.

An instance may be lifted off its slot and put back or elsewhere, and all moves of a trial can be undone. Source: Zoe,
where an undo restores the list of the moves but not the slots.
"""

from bisect import insort
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from scheduler.model.reservations import Component, Instance, Lease, Reservation
from scheduler.model.resources import Resources, subtract, total
from scheduler.policy.capacity.fits import Usage, find_obstacle, is_overfull, measure
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState

MORE: Final = 1e-9
"""Smaller differences do not count: sums of fractions are not exact."""


def weigh_use(slot_info: SlotInfo, amounts: Resources, have: Mapping[str, Resources]) -> float:
    """Return what a lease with these amounts adds to the utilisation of its pool, which `flexible` compares.

    It is the sum over its resources of (amount leased / amount that the pool has), or 1 if the slot counts leases only.
    `have`: by pool, the sum of its slots in service. Source: Zoe's flexible heuristic.
    """
    if slot_info.capacity is None:
        return 1.0
    all_of_it = have[slot_info.slot.pool]
    return sum(amount / all_of_it[name] for name, amount in amounts.items() if all_of_it.get(name))


RECLAIMS: Final = frozenset({"flexible", "yielding"})
"""The values of the setting `elastic` under which held elastic instances may be reclaimed."""


@dataclass(slots=True, eq=False)
class ElasticInstance:
    """One elastic instance of a reservation that is leased, or is leased in this cycle."""

    group: "ElasticGroup"
    holder: Reservation
    instance: Instance
    need: InstanceRequest
    index: int = 0
    """Its position among the elastic instances of its reservation."""
    lease: Lease | None = None
    """Its lease; None: it holds nothing."""
    home: SlotInfo | None = None
    """The slot of its lease; None if it cannot be lifted, for example from a slot that is out of service."""
    slot_info: SlotInfo | None = None
    """Its slot in the scratch copy; None: on no slot, or on one from which it cannot be lifted."""

    @property
    def is_missing(self) -> bool:
        """Whether it needs a slot."""
        return self.slot_info is None and (self.lease is None or self.home is not None)

    @property
    def is_revoked(self) -> bool:
        """Whether it leaves the slot of its lease."""
        return self.home is not None and self.slot_info is not self.home

    @property
    def is_granted(self) -> bool:
        """Whether it gets a new slot."""
        return self.slot_info is not None and self.slot_info is not self.home

    def stand(self, slot_info: SlotInfo | None) -> None:
        """Set its slot in the scratch copy; None: it is lifted."""
        change = (slot_info is None) - (self.slot_info is None)
        self.group.missing += change
        if self.home is not None:
            self.group.lifted += change
        self.slot_info = slot_info

    def amounts_on(self, slot_info: SlotInfo) -> Resources:
        """Return its amounts on a slot: those of its lease at home, those that the pool would give it elsewhere."""
        if slot_info is self.home and self.lease is not None:
            return self.lease.resources
        return self.need.given[slot_info.slot.pool]


@dataclass(slots=True, eq=False)
class ElasticGroup:
    """The elastic instances of one component of one reservation.

    They are alike. Held instances are kept before others are granted. Grants take the lowest index first, reclaims the
    highest.
    """

    rank: tuple[int, int]
    """The position of its reservation, then that of the component."""
    need: InstanceRequest
    holder: Reservation
    unopened: Iterator[int]
    """The indices of instances that hold nothing and have no object yet, lowest first.

    Speed: an object is made when its instance is to be granted, so that the cost of a cycle does not grow with the
    instances that are missing.
    """
    instances: Sequence[Instance]
    """The elastic instances of its reservation, by index."""
    elastic_instances: list[ElasticInstance] = field(default_factory=list)
    """By index."""
    missing: int = 0
    """The number of instances that need a slot, with an object or without."""
    lifted: int = 0
    """The number of these that may go back to the slots of their leases."""
    first_unopened: int | None = field(init=False)

    def __post_init__(self) -> None:
        self.first_unopened = next(self.unopened, None)

    def count_unleased(self) -> int:
        """Return how many instances hold nothing and got no slot in this cycle."""
        return self.missing - sum(each.lease is not None and each.is_missing for each in self.elastic_instances)

    def walk_missing(self) -> Iterator[ElasticInstance]:
        """Yield the instances that need a slot, lowest index first; missing objects are made."""
        waiting = [elastic_instance for elastic_instance in self.elastic_instances if elastic_instance.is_missing]
        for elastic_instance in waiting:
            if elastic_instance.lease is not None:
                yield from self._open_up_to(elastic_instance.index)
            yield elastic_instance
        yield from self._open_up_to(None)

    def _open_up_to(self, end: int | None) -> Iterator[ElasticInstance]:
        """Make the objects of the instances below this index, one after the other."""
        while self.first_unopened is not None and (end is None or self.first_unopened < end):
            yield self._open()

    def open_all(self) -> list[ElasticInstance]:
        """Return all instances; missing objects are made."""
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

    def list_last_first(self) -> Iterator[ElasticInstance]:
        """Yield the instances in the order in which they are lifted: those granted in this cycle before held ones."""
        yield from (
            elastic_instance for elastic_instance in reversed(self.elastic_instances) if elastic_instance.is_granted
        )
        yield from (
            elastic_instance
            for elastic_instance in reversed(self.elastic_instances)
            if elastic_instance.slot_info is not None and not elastic_instance.is_granted
        )


@dataclass(slots=True)
class _Entry:
    """The state before a move. Amounts are stored, because subtracting and adding fractions is not exact."""

    elastic_instance: ElasticInstance | None
    stood: SlotInfo | None
    use: float
    slot_infos: tuple[tuple[SlotInfo, int, int, Resources | None], ...]
    """(slot, given, lifted, free) of each slot that changed."""


class Assignment:
    """Moves elastic instances and places essential ones in the scratch copy; keeps the utilisation, and can undo."""

    def __init__(self, cycle: CycleState) -> None:
        self._slot_index = cycle.ready
        self._journal: list[_Entry] = []
        self._changed: dict[int, SlotInfo] = {}
        """By order: the changed slots that the slot index does not know of yet; one update for many moves."""
        self.use = 0.0
        """The utilisation of the pools; only differences matter, see `weigh_use`."""
        by_pool: dict[str, list[Resources]] = {}
        for slot_info in self._slot_index.list_slot_infos():
            by_pool.setdefault(slot_info.slot.pool, []).append(slot_info.capacity or {})
        self._totals: dict[str, Resources] = {name: total(amounts) for name, amounts in by_pool.items()}

    def may_move_on(self, slot_info: SlotInfo | None) -> bool:
        """Return whether elastic instances may be lifted off a slot, or put there."""
        return slot_info is not None and self._slot_index.has(slot_info)

    def find(self, need: InstanceRequest, declined: Sequence[str] = ()) -> SlotInfo | None:
        """Return the best slot for one instance, None if it fits on none."""
        self.update_index()
        return self._slot_index.find(need, declined)

    def find_again(self, need: InstanceRequest, last: SlotInfo | None) -> SlotInfo | None:
        """Do the same after one was put on `last`. Speed: a search that packs finds that slot until it is full."""
        is_packing = last is not None and not need.spreads and last.has_place
        if last is not None and is_packing and need.could_hold(last.slot.pool, last.free, last.labels):
            return last
        return self.find(need)

    def update_index(self) -> None:
        """Update the slot index, so that all searches find the changed slots as they are now."""
        for slot_info in self._changed.values():
            self._slot_index.regroup(slot_info)
        self._changed.clear()

    def fits_home(self, elastic_instance: ElasticInstance) -> bool:
        """Return whether an instance that was lifted still fits on the slot of its lease."""
        home, lease = elastic_instance.home, elastic_instance.lease
        if home is None or lease is None or not self._slot_index.has(home):
            return False
        # Its use of the machine was counted when it was granted.
        return find_obstacle(lease.resources, home.free, home.pool.lease_limit - home.load) is None

    def move(self, elastic_instance: ElasticInstance, slot_info: SlotInfo | None) -> None:
        """Lift an instance off its slot, and put it on another one (None: on none)."""
        self._note(elastic_instance, slot_info)
        if elastic_instance.slot_info is not None:
            self._remove(
                elastic_instance.slot_info,
                elastic_instance.amounts_on(elastic_instance.slot_info),
                is_new=elastic_instance.slot_info is not elastic_instance.home,
            )
        if slot_info is not None:
            self._put(slot_info, elastic_instance.amounts_on(slot_info), is_new=slot_info is not elastic_instance.home)
        elastic_instance.stand(slot_info)

    def take(self, slot_info: SlotInfo, need: InstanceRequest) -> None:
        """Spend the capacity of an essential instance on a slot."""
        self._note(None, slot_info)
        self._put(slot_info, need.given[slot_info.slot.pool], is_new=True)

    def _note(self, elastic_instance: ElasticInstance | None, to: SlotInfo | None) -> None:
        stood = None if elastic_instance is None else elastic_instance.slot_info
        slot_infos = tuple((each, each.given, each.lifted, each.free) for each in (stood, to) if each is not None)
        self._journal.append(_Entry(elastic_instance, stood, self.use, slot_infos))

    @property
    def mark(self) -> int:
        """The present state, for `undo`."""
        return len(self._journal)

    def undo(self, mark: int) -> None:
        """Undo all moves since that mark."""
        while len(self._journal) > mark:
            entry = self._journal.pop()
            for slot_info, given, lifted, free in entry.slot_infos:
                slot_info.given, slot_info.lifted, slot_info.free = given, lifted, free
                self._changed[slot_info.order] = slot_info
            if entry.elastic_instance is not None:
                entry.elastic_instance.stand(entry.stood)
            self.use = entry.use

    def lift_overfull(self, elastic_instances: Iterable[ElasticInstance]) -> None:
        """Lift the elastic instances of overfull slots; those that fit are put back when their group is served."""
        on: dict[SlotInfo, list[ElasticInstance]] = {}
        for elastic_instance in elastic_instances:
            if elastic_instance.slot_info is not None:
                on.setdefault(elastic_instance.slot_info, []).append(elastic_instance)
        for slot_info, lifted in on.items():
            if not (_is_overfull(slot_info) or _lacks_a_name(slot_info, lifted)):
                continue
            slot_info.lifted += len(lifted)
            if slot_info.capacity is not None:  # `free` is never below 0, so it is worked out again without them
                keys = {(each.holder.id, each.instance.name) for each in lifted}
                kept = [lease for key, lease in slot_info.leases.items() if key not in keys]
                slot_info.free = subtract(slot_info.capacity, measure(kept).amounts)
            self._changed[slot_info.order] = slot_info
            for each in lifted:
                self.use -= weigh_use(slot_info, each.amounts_on(slot_info), self._totals)
                each.stand(None)

    def _put(self, slot_info: SlotInfo, amounts: Resources, *, is_new: bool) -> None:
        if is_new:
            slot_info.given += 1
        else:
            slot_info.lifted -= 1
        slot_info.free = None if slot_info.free is None else subtract(slot_info.free, amounts)
        self.use += weigh_use(slot_info, amounts, self._totals)
        self._changed[slot_info.order] = slot_info

    def _remove(self, slot_info: SlotInfo, amounts: Resources, *, is_new: bool) -> None:
        if is_new:
            slot_info.given -= 1
        else:
            slot_info.lifted += 1
        free = slot_info.free
        slot_info.free = None if free is None else {name: free[name] + amounts.get(name, 0) for name in free}
        self.use -= weigh_use(slot_info, amounts, self._totals)
        self._changed[slot_info.order] = slot_info


def _lacks_a_name(slot_info: SlotInfo, elastic_instances: Iterable[ElasticInstance]) -> bool:
    """Return whether these instances use a resource that the slot no longer names, because its host registered again.

    A name that a slot lacks counts as 0. Source: Orchard.
    """
    capacity = slot_info.capacity
    if capacity is None:
        return False
    unknown = (
        used
        for elastic_instance in elastic_instances
        if not (used := elastic_instance.amounts_on(slot_info)).keys() <= capacity.keys()
    )
    return any(amount > 0 and name not in capacity for used in unknown for name, amount in used.items())


def _is_overfull(slot_info: SlotInfo) -> bool:
    load, limit = slot_info.load, slot_info.pool.lease_limit
    if load <= limit and all(amount > 0 for amount in (slot_info.free or {}).values()):
        return False  # speed: most slots have something left of each resource
    usage = Usage(load, measure(slot_info.leases.values()).amounts)
    return is_overfull(usage, limit, slot_info.capacity)


def list_groups(
    cycle: CycleState, reservation: Reservation, demand: Demand, position: int, leases: Iterable[Lease]
) -> list[ElasticGroup]:
    """Return the elastic instances of one reservation, by component.

    A component of which the holder gave an instance back gets no new ones: its wish is to shrink.
    """
    held = [lease for lease in leases if lease.kind == "elastic"]
    declined = reservation.declined if reservation.phase == "leased" else ()
    groups: list[ElasticGroup] = []
    first = 0
    for need, count in demand.elastic_runs:
        numbers = _number(need.component, held)
        is_unwanted = any(find_number(need.component, name) is not None for name in declined)
        unopened = () if is_unwanted else _list_others(first, count, numbers)
        group = ElasticGroup((position, len(groups)), need, reservation, iter(unopened), demand.shape.elastic)
        group.missing = 0 if is_unwanted else count - len(numbers)
        for number, lease in sorted(numbers.items()):
            index, home = first + number, cycle.slot_infos.get(lease.slot)
            if home is not None and not (cycle.ready.has(home) and is_reclaimable(cycle, home, reservation, lease)):
                home = None  # it cannot be lifted
            elastic_instance = ElasticInstance(
                group, reservation, demand.shape.elastic[index], need, index, lease, home, home
            )
            group.elastic_instances.append(elastic_instance)
            group.missing += elastic_instance.is_missing
        groups.append(group)
        first += count
    return groups


def _number(component: Component, leases: Iterable[Lease]) -> dict[int, Lease]:
    """Return the leases of a component's instances, by the number of the instance."""
    numbered = ((find_number(component, lease.component), lease) for lease in leases)
    return {number: lease for number, lease in numbered if number is not None}


def _list_others(first: int, count: int, numbers: Container[int]) -> Iterator[int]:
    """Yield the indices of all instances of a component except these."""
    return (first + number for number in range(count) if number not in numbers)


def find_number(component: Component, name: str) -> int | None:
    """Return the number of the component's instance with this name; None if there is none."""
    if component.count == 1:
        return 0 if name == component.name else None
    stem, _, digits = name.rpartition(".")
    if stem != component.name or not digits.isdecimal() or (digits[0] == "0" and digits != "0"):
        return None
    return int(digits) if int(digits) < component.count else None


def is_reclaimable(cycle: CycleState, slot_info: SlotInfo, holder: Reservation, lease: Lease) -> bool:
    """Return whether an elastic lease may be reclaimed for another reservation: it is held, and its slot stays."""
    present = slot_info.leases.get((holder.id, lease.component))
    if present is None or present.state != "held":
        return False
    # A lease that ends without a grace is unclean: a pool that recycles such slots would lose the slot.
    return bool(cycle.settings_of(holder).preemption_grace) or not slot_info.pool.recycle_unclean
