"""The cascade: it grants and reclaims elastic instances of one queue, for its leased reservations in rank order.

Under the settings `elastic: rigid` and `malleable` it only grants. Under `flexible` and `yielding` it also reclaims,
for groups of earlier rank and for essential instances of pending reservations. Source: the flexible heuristic of Pace,
Venzano, Carra and Michiardi (arXiv 1611.09528), the base of Zoe. The heuristic lifts all elastic instances and places
them again. The cascade lifts only instances whose capacity is needed, the last in rank first. The result has the same
instances, and none moves without need.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import Final

from scheduler.model.reservations import Reservation
from scheduler.model.rules import SchedulerKeys
from scheduler.policy.capacity.gang import OpenSlot, Runs, Shareable, Space, place
from scheduler.policy.capacity.requests import Demand, InstanceRequest, RequestClass
from scheduler.policy.capacity.slot_index import SlotIndex
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.cycle.work_budget import GRANT_STEPS, find_payer
from scheduler.policy.elastic.assignment import MORE, Assignment
from scheduler.policy.elastic.instances import (
    RECLAIMS,
    ElasticGroup,
    ElasticInstance,
    GrantLimits,
    Rank,
    list_groups,
)
from scheduler.policy.elastic.victim_search import RelaxedCapacity, VictimSearch

_FIRST: Final[Rank] = (0, 0)
"""A rank that is not behind any other rank."""
_LAST: Final[Rank] = (1 << 62, 0)
"""A rank behind the ranks of all groups of elastic instances."""
_rank = attrgetter("rank")


class Cascade:
    """Grants and reclaims the elastic instances of one queue, in rank order, in the scratch copy of the cycle."""

    def __init__(
        self,
        cycle: CycleState,
        settings: SchedulerKeys,
        ranks: Mapping[str, int],
        linked: Mapping[str, str],
        limits: GrantLimits | None = None,
    ) -> None:
        """Start without elastic instances. `settings`: the settings of the queue that this object serves.

        `ranks`: reservation id -> position in the queue's order, leased reservations included. `linked`: pool -> the
        pool that stands for all pools linked with it (see `link_pools`). `limits`: finds, for an elastic instance, the
        slots that it must not get because of the limits of its account; None: no account has such limits.
        """
        self.settings, self._linked, self._limits = settings, linked, limits
        self._cycle, self._ranks = cycle, ranks
        self._assignment = Assignment(cycle)
        self.groups: list[ElasticGroup] = []
        self._relaxed: RelaxedCapacity | None = None
        self._kept: RelaxedCapacity | None = None
        """The capacity that the slots kept by the starvation guard would have without elastic instances. It is computed
        again when the guard keeps another slot; None: not computed yet.
        """
        self._kept_out: dict[Demand, bool] = {}
        """Demand -> whether it would fit on the slots that the starvation guard keeps, without the elastic instances
        there (see `_kept`).
        """
        self._victims = VictimSearch(self.groups, self._assignment)
        self._lifted: list[ElasticGroup] = []
        """Groups with instances that `_lift` took off their slots. `_serve` has still to find slots for them."""
        self._displaced: dict[ElasticGroup, None] = {}
        """All groups with instances that may go back to the slots of their leases."""
        self._without_slot: dict[RequestClass, tuple[Rank, int]] = {}
        """Request class -> (the first rank for which no slot was found, `Assignment.stamp` at that time).

        While `Assignment.stamp` is the same, no slot is found for this rank and later ones.
        """
        self._first_touched: Rank = _LAST
        """The rank of the first group with an instance that was lifted off its slot and is not back yet."""
        self._refused: dict[str, set[Demand]] = defaultdict(set)
        """Pool -> the demands for which no reclaim suffices. Linked pools have one entry, under the pool that stands
        for them (see `link_pools`). The entry is removed when a reservation gets slots in one of these pools.
        """
        self._has_grace = bool(settings.preemption_grace)
        """Whether an instance that is lifted keeps its slot for a grace period, and gets no other meanwhile."""

    @property
    def takes_back(self) -> bool:
        """Whether the queue's setting `elastic` allows that held instances are reclaimed (`flexible`, `yielding`)."""
        return self.settings.elastic in RECLAIMS

    def elastic_instances(self) -> Iterator[ElasticInstance]:
        """Return the `ElasticInstance` objects of this queue in rank order. Instances without a lease have an object
        only if a grant was tried for them (see `ElasticGroup.unopened`).
        """
        return (elastic_instance for group in self.groups for elastic_instance in group.elastic_instances)

    def serve_leased(self, reservations: Sequence[Reservation], claimants: Sequence[Reservation]) -> None:
        """Grant or reclaim elastic instances of the reservations that were leased before this cycle. Call it first.

        `claimants`: reservations that claimed slots before this cycle, if the setting `elastic` allows reclaims. Their
        elastic instances are served at their ranks, too.
        """
        for each in reservations:
            leases = [lease for lease in each.leases if (each.id, lease.component) not in self._cycle.vacated]
            self.groups += list_groups(self._cycle, each, self._cycle.demand_of(each), self._ranks[each.id], leases)
        for each in claimants:
            self.groups += list_groups(self._cycle, each, self._cycle.demand_of(each), self._ranks[each.id], ())
        self.groups.sort(key=_rank)
        if self.takes_back:
            self._assignment.enter(self.groups)
            self._assignment.note_leaving(reservations)
            self._assignment.lift_overfull()
            self._displaced = {group: None for group in self.groups if group.lifted}
            self._serve(_FIRST)
        else:
            self._fill(self.groups)

    def follow(self, reservation: Reservation, demand: Demand, slot_infos: Sequence[SlotInfo]) -> None:
        """Add the elastic instances of a reservation that was placed in this cycle, and grant them slots. If the
        setting `elastic` allows it, elastic instances of later rank are reclaimed for them.

        `slot_infos`: the slots of these elastic instances, if they were placed together with the essential ones.
        """
        self._refused.pop(self._linked[demand.pools[0]], None)
        if not demand.elastic:
            return
        groups = self._join(reservation, demand)
        if slot_infos:
            elastic_instances = [elastic_instance for group in groups for elastic_instance in group.open_all()]
            for elastic_instance, slot_info in zip(elastic_instances, slot_infos, strict=False):
                elastic_instance.stand(slot_info)
        if self.takes_back:
            self._serve(groups[0].rank)
        else:
            self._fill(groups)

    def make_room(self, reservation: Reservation, demand: Demand) -> list[SlotInfo] | None:
        """Reclaim elastic instances and return slots for all essential instances of a reservation; None if no reclaim
        suffices.

        Under `yielding`, essential instances have precedence over all elastic ones. Under `flexible`, instances are
        reclaimed in two cases: (1) the utilisation of the pools (`weigh_use`) is greater afterwards; (2) the setting
        `preemption` is on, and the reclaimed instances belong to reservations that rank behind this one.
        """
        if not self.takes_back or not demand.pools or demand in self._refused[self._linked[demand.pools[0]]]:
            return None
        if self._relaxed is None:
            self._relaxed = RelaxedCapacity([self._cycle.ready], self.elastic_instances())
        if self._relaxed.could_hold(demand):
            self._displaced = {group: None for group in self._displaced if group.lifted}
            for first, must_grow in self._list_ways(reservation):
                slot_infos = self._try(reservation, demand, first, must_grow=must_grow)
                if slot_infos is not None:
                    self._refused.pop(self._linked[demand.pools[0]], None)
                    self.spend(demand, slot_infos)
                    for slot_info in slot_infos:
                        slot_info.wanted = True
                    return slot_infos
        self._refused[self._linked[demand.pools[0]]].add(demand)
        return None

    def is_kept_out(self, demand: Demand, kept: Collection[SlotIndex]) -> bool:
        """Return whether a reclaim could serve a demand if the starvation guard did not keep the slots in `kept`. Call
        it only if a reclaim without these slots did not suffice.
        """
        if not self.takes_back or not demand.pools:
            return False
        if self._kept is None or self._kept.size != sum(map(len, kept)):
            self._kept, self._kept_out = RelaxedCapacity(kept, self.elastic_instances()), {}
        if len(demand.needs) == 1 or self._relaxed is None:
            if demand not in self._kept_out:
                self._kept_out[demand] = self._kept.could_hold(demand)
            return self._kept_out[demand]
        return not self._relaxed.could_hold(demand) and self._kept.could_hold_with(self._relaxed, demand)

    def spend(self, demand: Demand, slot_infos: Sequence[SlotInfo]) -> None:
        """Subtract the requests of a reservation from the relaxed capacity of these slots (what they would have left
        after all possible reclaims). Call it when the reservation was placed there or capacity is kept for it there.
        """
        if self._relaxed is not None:
            self._relaxed.take(demand.needs, slot_infos)

    def find_refused(self, group: ElasticGroup) -> Collection[str]:
        """Return the ids of the slots on which the limits of its account refuse a group one more instance; () if they
        refuse none.
        """
        if self._limits is not None:
            self._limits.update(group)
        return group.refused or ()

    def _list_ways(self, reservation: Reservation) -> Iterator[tuple[Rank, bool]]:
        """Yield the ways to reclaim that the settings permit, in the order in which they are tried. Each is a pair: (1)
        the smallest rank whose instances may be lifted; (2) whether the utilisation of the pools has to grow.
        """
        if self.settings.elastic == "yielding":
            yield _FIRST, False
            return
        yield _FIRST, True
        if self.settings.preemption:
            yield (self._ranks[reservation.id], 0), False

    def _try(
        self, reservation: Reservation, demand: Demand, first: Rank, *, must_grow: bool, is_forecast: bool = False
    ) -> list[SlotInfo] | None:
        if must_grow and self._has_grace:
            # The utilisation that counts is the one after the grace, when lifted instances may have other slots.
            self._has_grace = False
            would_grow = self._try(reservation, demand, first, must_grow=True, is_forecast=True) is not None
            self._has_grace = True
            return self._try(reservation, demand, first, must_grow=False) if would_grow else None
        assignment, mark, use = self._assignment, self._assignment.mark, self._assignment.use
        joined: list[ElasticGroup] = []
        slot_infos = place(demand, _LiftSpace(self, self._assignment, self._cycle.ready, demand, first))
        if slot_infos is not None:
            joined = self._join(reservation, demand)
            # Nothing changes for groups before the first one that an instance was lifted from.
            self._serve(min(self._first_touched, (self._ranks[reservation.id], 0)))
            if must_grow and assignment.use <= use + MORE:
                slot_infos = None
        if slot_infos is None or is_forecast:
            assignment.undo(mark)
            self._leave(joined)
            self._lifted.clear()
            assignment.update_index()
        return slot_infos

    def _join(self, reservation: Reservation, demand: Demand) -> list[ElasticGroup]:
        groups = list_groups(self._cycle, reservation, demand, self._ranks[reservation.id], ())
        for group in groups:
            insort(self.groups, group, key=_rank)
        self._assignment.enter(groups)
        return groups

    def _leave(self, groups: Sequence[ElasticGroup]) -> None:
        """Remove groups that `_join` added to `groups`. None of their instances is on a slot."""
        for group in groups:
            del self.groups[bisect_left(self.groups, group.rank, key=_rank)]
            self._assignment.missing.drop(group)

    def _fill(self, groups: Sequence[ElasticGroup]) -> None:
        """Grant the missing instances of these groups that fit. No instance is lifted for them."""
        for group in groups:
            if group.missing and not self._is_without_slot(group):
                self._serve_group(group)
        self._assignment.update_index()

    def _serve(self, start: Rank) -> None:
        """Serve the groups with missing instances in rank order, beginning at the rank `start`.

        If no slot is found for a group, none is found for later groups with the same `RequestClass` either. The free
        capacity, and the capacity that may be reclaimed from groups behind, only shrink. Instances that were lifted may
        return to their own slots.
        """
        missing, done = self._assignment.missing, set[RequestClass]()
        displaced = [group for group in self._displaced if group.lifted and group.rank >= start]
        left = [(group.rank, group) for group in [*missing.list_next(start), *displaced]]
        heapify(left)
        while left or self._lifted:
            self._add_lifted(left, done, start)
            rank, group = heappop(left)
            likeness = group.need.likeness
            if rank < start or (likeness in done and not group.lifted):
                continue
            start = _after(rank)
            if self._is_without_slot(group) or not self._serve_group(group):
                done.add(likeness)
            elif (following := missing.find_next(likeness, start)) is not None:
                heappush(left, (following.rank, following))
        self._assignment.update_index()

    def _add_lifted(self, left: list[tuple[Rank, ElasticGroup]], done: set[RequestClass], start: Rank) -> None:
        """Move the groups in `_lifted`, whose instances lost their slots, to `left`, the groups still to be served.

        An instance may wait for a slot with revoking leases, if their capacity and the free capacity suffice together.
        A lift adds free capacity. So if there are revoking leases, the request classes for which no slot was found
        (`done`) are tried again, from the rank `start` on.
        """
        if self._lifted and self._assignment.is_awaiting:
            found = (self._assignment.missing.find_next(likeness, start) for likeness in done)
            self._lifted += [group for group in found if group is not None]
            done.clear()
        for group in self._lifted:
            heappush(left, (group.rank, group))
        self._lifted.clear()

    def _is_without_slot(self, group: ElasticGroup) -> bool:
        """Return whether a group certainly gets no slot, because an earlier group of its `RequestClass` got none."""
        rank, stamp = self._without_slot.get(group.need.likeness, (_LAST, 0))
        return not group.lifted and rank <= group.rank and stamp == self._assignment.stamp

    def _serve_group(self, group: ElasticGroup) -> bool:
        """Put lifted instances of a group back on the slots of their leases, if they still fit there. Then find slots
        for its other missing instances, lowest index first.

        Return whether later groups whose requests have the same `RequestClass` may still find slots.
        """
        self.find_refused(group)
        if self._fill_group(group) or group.refused is not None:
            return True  # other groups of the class may get the slots that are refused to this one
        likeness, stamp = group.need.likeness, self._assignment.stamp
        rank, known = self._without_slot.get(likeness, (_LAST, stamp))
        self._without_slot[likeness] = (min(rank, group.rank) if known == stamp else group.rank, stamp)
        return False

    def _fill_group(self, group: ElasticGroup) -> bool:
        if not (group.lifted or self._assignment.could_place(group.need) or self._find_victims(group)):
            return False
        turns, payer = self._cycle.turns, find_payer(group.holder)
        for elastic_instance in [each for each in group.elastic_instances if each.is_missing] if group.lifted else ():
            if self._assignment.fits_home(elastic_instance):
                self._assignment.move(elastic_instance, elastic_instance.home)
        slot_info = None
        for elastic_instance in group.walk_missing():
            # With a grace a revoked instance keeps its slot until the deadline, so it gets no second one meanwhile.
            keeps_slot = elastic_instance.lease is not None and self._has_grace
            if elastic_instance.slot_info is not None or elastic_instance.expects or keeps_slot:
                continue
            declined = self.find_refused(group)
            slot_info = self._assignment.find_again(group.need, slot_info, declined)
            # Leases that were revoked earlier make room first: otherwise each cycle of their grace would revoke more.
            if slot_info is None and self._assignment.expect(elastic_instance):
                continue
            if slot_info is None and (victims := self._find_victims(group, declined)):
                slot_info = self._lift(victims, group.need, declined)
            if slot_info is None:
                return False
            if turns.is_spent(payer):
                return True
            self._assignment.move(elastic_instance, slot_info)
            turns.spend(payer, GRANT_STEPS)
        return True

    def _find_victims(self, group: ElasticGroup, declined: Collection[str] = ()) -> Sequence[ElasticInstance]:
        """Return the elastic instances to lift so that one more instance of this group fits on a slot; () if no lift
        helps. They belong to groups of later rank. `declined`: ids of slots to ignore.
        """
        return self._victims.find(group.need, _after(group.rank), declined) if self.takes_back else ()

    def find(self, need: InstanceRequest, first: Rank, declined: Collection[str]) -> SlotInfo | None:
        """Return a slot for one more instance; None if it fits on none. If no slot has free capacity, lift elastic
        instances of groups from the rank `first` on.
        """
        slot_info = self._assignment.find(need, declined)
        if slot_info is None and (victims := self._victims.find(need, first, declined)):
            slot_info = self._lift(victims, need, declined)
        return slot_info

    def lift_all(self, needs: Collection[InstanceRequest], first: Rank) -> None:
        """Lift all elastic instances of groups from the rank `first` on, on slots that could serve one of the requests
        `needs`. Those that need not go are put back when their groups are served.
        """
        for group in self.groups[bisect_left(self.groups, first, key=_rank) :]:
            for each in group.elastic_instances:
                home = each.slot_info
                if home is not None and any(self._assignment.could_serve(need, home) for need in needs):
                    self._note_lift(each)

    def begin_lifts(self) -> int:
        """Return a mark for `undo_lifts`, before instances are lifted for a reservation."""
        self._first_touched = _LAST
        return self._assignment.mark

    def undo_lifts(self, mark: int) -> None:
        """Undo the lifts and placements since `begin_lifts` returned `mark`."""
        self._assignment.undo(mark)
        self._lifted.clear()
        self._first_touched = _LAST
        self._assignment.update_index()

    def _lift(
        self, victims: Sequence[ElasticInstance], need: InstanceRequest, declined: Collection[str] = ()
    ) -> SlotInfo | None:
        """Lift the elastic instances `victims` off their slot. Return the slot on which an instance of the request then
        fits; None if it fits on none.
        """
        for elastic_instance in victims:
            self._note_lift(elastic_instance)
        return self._assignment.find(need, declined)

    def _note_lift(self, elastic_instance: ElasticInstance) -> None:
        self._assignment.move(elastic_instance, None)
        self._lifted.append(elastic_instance.group)
        self._displaced[elastic_instance.group] = None
        self._first_touched = min(self._first_touched, elastic_instance.group.rank)


class _LiftSpace(Space):
    """The ready slots as a space for the essential instances of one reservation (`Space` in `capacity/gang.py`):
    elastic instances of groups from the rank `first` on may be lifted for them.
    """

    def __init__(self, cascade: Cascade, assignment: Assignment, ready: SlotIndex, demand: Demand, first: Rank) -> None:
        # `could_hold` is always true, because the relaxed capacity was compared before.
        self._cascade, self._assignment, self._ready = cascade, assignment, ready
        self._declined, self._first = demand.declined, first
        self._mark = cascade.begin_lifts()

    def find(self, need: InstanceRequest) -> SlotInfo | None:
        return self._cascade.find(need, self._first, self._declined)

    def take(self, slot_info: SlotInfo, need: InstanceRequest, most: int) -> int:  # noqa: ARG002  one at a time
        self._assignment.take(slot_info, need)
        return 1

    def undo(self) -> None:
        self._cascade.undo_lifts(self._mark)

    def list_shareable(self, need: InstanceRequest) -> Iterator[Shareable]:
        return self._ready.list_shareable(need, self._declined)

    def widen(self, runs: Runs) -> None:
        self._cascade.lift_all(dict.fromkeys(need for need, _ in runs), self._first)

    def list_open(self, needs: Collection[InstanceRequest]) -> Iterator[OpenSlot]:
        self._assignment.update_index()
        for slot_info in self._ready.list_slots_for(needs):
            if slot_info.slot.id not in self._declined:
                # Slots from which nothing was lifted come first.
                yield (slot_info.lifted > 0, slot_info.slot_class), slot_info, slot_info.remaining

    def charge(self, steps: int) -> None:
        self._ready.steps += steps


def link_pools(demands: Iterable[Demand]) -> dict[str, str]:
    """Return a table (pool -> the pool that stands for it and all pools linked with it).

    Two pools are linked if one demand may use both, or if a chain of such pools connects them.
    """
    linked: dict[str, str] = {}
    for pools in {demand.pools for demand in demands}:
        known = {linked.setdefault(name, name) for name in pools}
        if len(known) > 1:
            first = min(known)
            linked.update({name: first for name, own in linked.items() if own in known})
    return linked


def _after(rank: Rank) -> Rank:
    """Return the first rank behind this one."""
    position, component = rank
    return position, component + 1
