"""The cascade: grants and reclaims elastic instances of the leased reservations of one queue, in rank order.

Under `rigid` and `malleable` it only grants. Under `flexible` and `yielding` it also reclaims, for groups of earlier
rank and for essential instances of newcomers. Source: the flexible heuristic of Pace, Venzano, Carra and Michiardi
(arXiv 1611.09528), the base of Zoe. The heuristic lifts all elastic instances and places them again. The cascade lifts
only those that stand in the way, the last in rank first: the same instances stay, and none moves without need.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from operator import attrgetter

from scheduler.model.reservations import Reservation
from scheduler.model.resources import Resources, subtract
from scheduler.model.rules import SchedulerKeys
from scheduler.policy.capacity.fits import Usage, find_obstacle
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_index import SlotIndex
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.cycle.work_budget import GRANT_STEPS, find_payer
from scheduler.policy.elastic.assignment import MORE, Assignment
from scheduler.policy.elastic.instances import RECLAIMS, ElasticGroup, ElasticInstance, list_groups

_LAST = (1 << 62, 0)
"""A rank that is behind the rank of every group of elastic instances."""
_rank = attrgetter("rank")
ROUNDING = 1e-6
"""This part of an instance may be missing: sums of fractions are not exact, and no fitting demand may be refused."""


@dataclass(slots=True)
class _Headroom:
    """An upper bound of what one slot could take; a search asks the exact rule, `find_obstacle`, afterwards."""

    slot_info: SlotInfo
    free: Resources | None
    leases: float
    """The number of leases that the slot could take in addition."""

    def count(self, need: InstanceRequest, most: int) -> int:
        """Return how many instances of a request would fit on the slot, up to `most`."""
        pool = self.slot_info.slot.pool
        if self.leases <= 0 or pool not in need.given or not need.could_hold(pool, None, self.slot_info.labels):
            return 0
        fit = min(self.leases, most)
        if self.free is not None:
            for name, amount in need.given[pool].items():
                if amount > 0:
                    fit = min(fit, self.free.get(name, 0) / amount + ROUNDING)
        return int(fit)


class RelaxedCapacity:
    """The capacity of the ready slots if all elastic instances that may be reclaimed were gone.

    Under load most pending reservations would not fit even then. A sum shows this without moving an instance. Essential
    instances that are placed are subtracted, and nothing is ever added.
    """

    def __init__(self, slot_index: SlotIndex, elastic_instances: Iterable[ElasticInstance]) -> None:
        self.size = len(slot_index)
        """The number of slots at the start; the starvation guard may remove some later."""
        self._refused: list[tuple[InstanceRequest, int]] = []
        """Requests that are known not to fit, as (request, number of instances)."""
        self._headrooms: dict[int, _Headroom] = {}
        for slot_info in slot_index.list_slot_infos():
            leases = min(slot_info.pool.lease_limit - slot_info.load, slot_info.uses_left)
            self._headrooms[slot_info.order] = _Headroom(slot_info, slot_info.free, leases)
        for elastic_instance in elastic_instances:
            stands_on = elastic_instance.slot_info
            if stands_on is None or (headroom := self._headrooms.get(stands_on.order)) is None:
                continue
            headroom.leases += 1
            if headroom.free is not None:
                amounts = elastic_instance.amounts_on(stands_on)
                headroom.free = {name: free + amounts.get(name, 0) for name, free in headroom.free.items()}

    def could_hold(self, demand: Demand) -> bool:
        """Return whether the instances of each component would fit if they were alone; if not, no reclaim helps."""
        return all(self._could_hold(need, count, demand.declined) for need, count in Counter(demand.needs).items())

    def _could_hold(self, need: InstanceRequest, count: int, declined: Sequence[str]) -> bool:
        if any(count >= refused and need.asks_as_much_as(other) for other, refused in self._refused):
            return False
        left = count
        for headroom in self._headrooms.values():
            if headroom.slot_info.slot.id not in declined:
                left -= headroom.count(need, left)
            if left <= 0:
                return True
        if not declined:
            self._refused.append((need, count))
        return False

    def take(self, needs: Sequence[InstanceRequest], slot_infos: Sequence[SlotInfo]) -> None:
        """Lower the upper bound of what fits by the requests that were placed, or are kept, on these ready slots."""
        for need, slot_info in zip(needs, slot_infos, strict=False):
            headroom = self._headrooms.get(slot_info.order)
            if headroom is not None:
                headroom.leases -= 1
                if headroom.free is not None:
                    headroom.free = subtract(headroom.free, need.given[slot_info.slot.pool])


class Cascade:
    """The elastic instances of one queue, and the slot of each in the scratch copy."""

    def __init__(self, cycle: CycleState, settings: SchedulerKeys, ranks: Mapping[str, int]) -> None:
        """Start the cascade of one queue. `ranks`: reservation id -> position among pending and leased ones."""
        self.settings = settings
        self._cycle, self._ranks = cycle, ranks
        self._assignment = Assignment(cycle)
        self.groups: list[ElasticGroup] = []
        self._relaxed: RelaxedCapacity | None = None
        self._behind = ReclaimableCapacity(())
        self._first_touched: tuple[int, int] = _LAST
        """The rank of the first group with an instance that was lifted off its slot and is not back yet."""
        self._refused: set[Demand] = set()
        """Demands for which a reclaim is of no use, until another reservation gets slots."""

    @property
    def takes_back(self) -> bool:
        """Whether the `elastic` setting of the queue lets held instances be reclaimed."""
        return self.settings.elastic in RECLAIMS

    def elastic_instances(self) -> Iterator[ElasticInstance]:
        """Return every elastic instance of the queue, in rank order."""
        return (elastic_instance for group in self.groups for elastic_instance in group.elastic_instances)

    def serve_leased(self, reservations: Sequence[Reservation]) -> None:
        """Grant or reclaim elastic instances of the reservations that were leased before this cycle."""
        for each in reservations:
            leases = [lease for lease in each.leases if (each.id, lease.component) not in self._cycle.vacated]
            demand = self._cycle.demand_of(each)
            self.groups += list_groups(self._cycle, each, demand, self._ranks[each.id], leases)
        self.groups.sort(key=_rank)
        if self.takes_back:
            self._assignment.lift_overfull(self.elastic_instances())
            self._assignment.note_leaving(reservations)
        self._serve(self.groups)

    def follow(self, reservation: Reservation, demand: Demand, slot_infos: Sequence[SlotInfo]) -> None:
        """Serve the elastic instances of a reservation that was placed in this cycle, from now on.

        `slot_infos`: the slots of these instances, if they were placed together with the essential ones.
        """
        self._refused.clear()
        if not demand.elastic:
            return
        groups = self._join(reservation, demand)
        if slot_infos:
            elastic_instances = [elastic_instance for group in groups for elastic_instance in group.open_all()]
            for elastic_instance, slot_info in zip(elastic_instances, slot_infos, strict=False):
                elastic_instance.stand(slot_info)
        if self.takes_back:
            self._serve(self.groups[self._find_first(groups[0].rank) :])
        else:
            self._serve(groups)

    def make_room(self, reservation: Reservation, demand: Demand) -> list[SlotInfo] | None:
        """Return slots for a reservation's essential instances after reclaiming elastic ones; None if they never fit.

        `yielding`: essential instances have precedence over elastic ones. `flexible`: only if the utilisation of the
        pools grows or, with `preemption`, if the elastic instances rank behind this reservation.
        """
        if not self.takes_back or demand in self._refused:
            return None
        if self._relaxed is None or self._relaxed.size != len(self._cycle.ready):
            self._relaxed = RelaxedCapacity(self._cycle.ready, self.elastic_instances())
        if self._relaxed.could_hold(demand):
            for first, must_grow in self._list_ways(reservation):
                slot_infos = self._try(reservation, demand, first, must_grow=must_grow)
                if slot_infos is not None:
                    self._refused.clear()
                    self.spend(demand, slot_infos)
                    for slot_info in slot_infos:
                        slot_info.wanted = True
                    return slot_infos
        self._refused.add(demand)
        return None

    def spend(self, demand: Demand, slot_infos: Sequence[SlotInfo]) -> None:
        """Subtract a reservation's requests, placed or kept on these slots, from what a reclaim could free."""
        if self._relaxed is not None:
            self._relaxed.take(demand.needs, slot_infos)

    def _list_ways(self, reservation: Reservation) -> Iterator[tuple[int, bool]]:
        """Yield ways to reclaim: (first group whose instances may be lifted, whether the utilisation has to grow)."""
        if self.settings.elastic == "yielding":
            yield 0, False
            return
        yield 0, True
        if self.settings.preemption:
            yield self._find_first((self._ranks[reservation.id], 0)), False

    def _find_first(self, rank: tuple[int, int]) -> int:
        """Return the index of the first group of elastic instances with this rank or a later one."""
        return bisect_left(self.groups, rank, key=_rank)

    def _try(self, reservation: Reservation, demand: Demand, first: int, *, must_grow: bool) -> list[SlotInfo] | None:
        assignment, mark, use, groups = self._assignment, self._assignment.mark, self._assignment.use, list(self.groups)
        slot_infos = self._take_slots(demand, first)
        if slot_infos is not None:
            self._join(reservation, demand)
            # Nothing changes for groups before the first one that an instance was lifted from.
            start = self._find_first(min(self._first_touched, (self._ranks[reservation.id], 0)))
            self._serve(self.groups[start:])
            if not must_grow or assignment.use > use + MORE:
                return slot_infos
        self.groups = groups
        assignment.undo(mark)
        assignment.update_index()
        return None

    def _take_slots(self, demand: Demand, first: int) -> list[SlotInfo] | None:
        """Return a slot for each essential instance; None once an instance finds no slot."""
        slot_infos: list[SlotInfo] = []
        self._first_touched = _LAST
        for need, alike in groupby(demand.needs):
            search = VictimSearch(need, self.groups[first:], self._assignment, demand.declined)
            for _ in alike:
                slot_info = self._find(search)
                if slot_info is None:
                    return None
                self._assignment.take(slot_info, need)
                slot_infos.append(slot_info)
        return slot_infos

    def _join(self, reservation: Reservation, demand: Demand) -> list[ElasticGroup]:
        groups = list_groups(self._cycle, reservation, demand, self._ranks[reservation.id], ())
        for group in groups:
            insort(self.groups, group, key=_rank)
        return groups

    def _serve(self, groups: Sequence[ElasticGroup]) -> None:
        self._behind = ReclaimableCapacity(groups if self.takes_back else ())
        for group in groups:
            self._behind.leave(group)
            if group.missing:
                self._serve_group(group)
        self._behind = ReclaimableCapacity(())
        self._assignment.update_index()

    def _serve_group(self, group: ElasticGroup) -> None:
        """Put lifted instances of a group back on their slots, then find slots for missing ones, lowest index first."""
        if not (group.lifted or self._assignment.could_place(group.need) or self._could_find_behind(group)):
            return
        turns, payer = self._cycle.turns, find_payer(group.holder)
        for elastic_instance in [each for each in group.elastic_instances if each.is_missing] if group.lifted else ():
            if self._assignment.fits_home(elastic_instance):
                self._assignment.move(elastic_instance, elastic_instance.home)
        search, slot_info = None, None
        for elastic_instance in group.walk_missing():
            # With a grace a revoked instance keeps its slot until the deadline, so it gets no second one meanwhile.
            keeps_slot = elastic_instance.lease is not None and self.settings.preemption_grace
            if elastic_instance.slot_info is not None or elastic_instance.expects or keeps_slot:
                continue
            slot_info = self._assignment.find_again(group.need, slot_info)
            # Leases that were revoked earlier make room first: otherwise each cycle of their grace would revoke more.
            if slot_info is None and self._assignment.expect(elastic_instance):
                continue
            if slot_info is None and self._could_find_behind(group):
                if search is None:
                    behind = self.groups[self._find_first(group.rank) + 1 :]
                    search = VictimSearch(group.need, behind, self._assignment)
                slot_info = self._find(search)
            if slot_info is None or turns.is_spent(payer):
                return
            self._assignment.move(elastic_instance, slot_info)
            turns.spend(payer, GRANT_STEPS)

    def _could_find_behind(self, group: ElasticGroup) -> bool:
        """Return whether groups that rank behind this one could give back a slot. Speed: most often none can."""
        return self.takes_back and self._behind.could_give(group.need, self._assignment)

    def _find(self, search: "VictimSearch") -> SlotInfo | None:
        """Return a slot for one more instance; if there is none, first lift elastic instances that rank behind."""
        slot_info = self._assignment.find(search.need, search.declined)
        if slot_info is not None:
            return slot_info
        for group, elastic_instance in search.list_next():
            self._behind.leave_one(elastic_instance)
            self._assignment.move(elastic_instance, None)
            self._first_touched = min(self._first_touched, group.rank)
        return self._assignment.find(search.need, search.declined)


@dataclass(slots=True)
class _Passed:
    """The elastic instances of one slot that a search has passed, and the amounts that are free without them."""

    elastic_instances: list[tuple[ElasticGroup, ElasticInstance]]
    free: Resources | None
    granted: int = 0
    """The number of passed instances that were placed on the slot in this cycle."""


class VictimSearch:
    """Searches for the elastic instances to take off their slots, so that instances of one request fit, one after the
    other.

    The search looks at the elastic instances in order, the last in rank first, and adds each one's capacity to its
    slot, until the request fits on a slot. Only the instances of that slot are taken off. The search for the next
    instance of the request continues at the same position.
    """

    def __init__(
        self,
        need: InstanceRequest,
        groups: Sequence[ElasticGroup],
        assignment: Assignment,
        declined: Sequence[str] = (),
    ) -> None:
        self.need, self.declined, self._assignment = need, declined, assignment
        self._left = ((group, each) for group in reversed(groups) for each in group.list_last_first())
        self._passed: dict[SlotInfo, _Passed] = {}
        self._serving: dict[SlotInfo, bool] = {}
        """By slot: the answer of `Assignment.could_serve`."""

    def list_next(self) -> Sequence[tuple[ElasticGroup, ElasticInstance]]:
        """Return the elastic instances to lift for one more instance of the request; none if no lift helps."""
        for group, elastic_instance in self._left:
            slot_info = elastic_instance.slot_info
            if slot_info is not None and slot_info not in self._serving:
                self._serving[slot_info] = self._assignment.could_serve(self.need, slot_info, self.declined)
            if slot_info is None or not self._serving[slot_info]:
                continue
            passed = self._passed.get(slot_info)
            if passed is None:
                passed = self._passed[slot_info] = _Passed([], slot_info.free)
            passed.elastic_instances.append((group, elastic_instance))
            passed.granted += elastic_instance.is_granted
            if passed.free is not None:
                amounts = elastic_instance.amounts_on(slot_info)
                passed.free = {name: free + amounts.get(name, 0) for name, free in passed.free.items()}
            leases = slot_info.pool.lease_limit - slot_info.load + len(passed.elastic_instances)
            uses = slot_info.uses_left + passed.granted
            if find_obstacle(self.need.given[slot_info.slot.pool], passed.free, leases, uses) is None:
                del self._passed[slot_info]
                return passed.elastic_instances
        return ()


class ReclaimableCapacity:
    """By slot, the amounts of the elastic instances of groups that are not served yet.

    While groups are served, free and reclaimable amounts together only shrink: if a request could not be given a slot
    once, neither it nor a larger one can be given one later.
    """

    def __init__(self, groups: Sequence[ElasticGroup]) -> None:
        self.groups, self._left = groups, 0
        self._on: dict[SlotInfo, Usage] | None = None
        self._refused: list[InstanceRequest] = []

    def leave(self, group: ElasticGroup) -> None:
        """Subtract the elastic instances of a group, which is served now, from the reclaimable capacity."""
        self._left += 1
        if self._on is not None:
            for elastic_instance in group.elastic_instances:
                self.leave_one(elastic_instance)

    def leave_one(self, elastic_instance: ElasticInstance) -> None:
        """Subtract one elastic instance, now lifted or about to be served, from the reclaimable capacity."""
        if self._on is not None and elastic_instance.slot_info is not None:
            self._on[elastic_instance.slot_info].add(elastic_instance.amounts_on(elastic_instance.slot_info), -1)

    def could_give(self, need: InstanceRequest, assignment: Assignment) -> bool:
        """Return whether one instance may fit on a slot without the reclaimable instances there; False is certain."""
        if any(need.asks_as_much_as(other) for other in self._refused):
            return False
        if self._on is None:
            self._on = {}
            for each in chain.from_iterable(group.elastic_instances for group in self.groups[self._left :]):
                if each.slot_info is not None:
                    self._on.setdefault(each.slot_info, Usage()).add(each.amounts_on(each.slot_info))
        for slot_info, standing in self._on.items():
            if assignment.could_serve(need, slot_info) and _would_fit(need, slot_info, standing):
                return True
        self._refused.append(need)
        return False


def _would_fit(need: InstanceRequest, slot_info: SlotInfo, standing: Usage) -> bool:
    """Return whether a request may fit on a slot without the reclaimable instances there; False is certain.

    MORE is added because sums of fractions are not exact; uses of the machine are not counted.
    """
    if not standing.count:
        return False
    free = slot_info.free
    if free is not None:
        free = {name: amount + standing.amounts.get(name, 0) + MORE for name, amount in free.items()}
    leases = slot_info.pool.lease_limit - slot_info.load + standing.count
    return find_obstacle(need.given[slot_info.slot.pool], free, leases) is None
