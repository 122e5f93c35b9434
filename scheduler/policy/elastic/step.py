"""The elastic part of the step `place`. It grants and reclaims elastic instances under the setting `elastic` of each
queue. It turns the moves of these instances into the decisions `Grant`, `Revoke` and `Claim`.

If an assignment needs the capacity of elastic instances, their revokes are decided before the assignment. Grants are
decided after it. With a `preemption_grace` a revoked instance keeps its slot until the deadline, and no other lease
gets the capacity before that. Meanwhile the reservation that needs the slots claims them, and other grants wait for a
later cycle. A queue without elastic components costs nothing here. Source: Zoe; the setting `yielding` is new here.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from scheduler.model.decisions import Assign, Claim, Decision, Grant, Placement, Revoke
from scheduler.model.reservations import LeaseState, Reservation, is_claimant
from scheduler.model.resources import Resources
from scheduler.policy.capacity.fits import Occupancy, Usage, is_overfull
from scheduler.policy.capacity.requests import Demand
from scheduler.policy.capacity.slot_index import SlotIndex
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.queue import Queue
from scheduler.policy.cycle.state import CycleState, ElasticShortage, make_revoke
from scheduler.policy.elastic.cascade import Cascade, link_pools
from scheduler.policy.elastic.instances import ElasticGroup, ElasticInstance, GrantLimits
from scheduler.policy.queueing.order import sort_queue

RECLAIMING: Final = "elastic instances of other reservations are being reclaimed for it"


class _SlotUsage:
    """The leases on one slot as they are after the decisions that were recorded here."""

    def __init__(self, slot_info: SlotInfo, given: Mapping[tuple[str, str], Resources]) -> None:
        """Start with the leases on the slot in the scratch copy.

        `given`: (reservation, component) -> the amounts that this cycle has assigned on the slot; they are added.
        """
        self._slot_info = slot_info
        self._occupancy = Occupancy(slot_info.leases.values())
        self.add = self._occupancy.add
        for amounts in (amounts for key, amounts in given.items() if key not in slot_info.leases):
            self.add("held", amounts)

    def revoke(self, elastic_instance: ElasticInstance, *, is_over: bool) -> None:
        """Record that the lease of an instance on the slot is revoked. `is_over`: the lease ends at once; if False, it
        goes on as a revoking lease until a deadline.
        """
        amounts = elastic_instance.amounts_on(self._slot_info)
        self.add("held", amounts, -1)
        if not is_over:
            self.add("revoking", amounts)

    def fits(self, lease: Resources) -> bool:
        """Return whether a recorded lease with these amounts fits beside the others. A resource of which it uses
        nothing does not count: a host that registered with less may lack it.
        """
        used, pool = self._occupancy.sum(), self._slot_info.pool
        amounts = {name: used.amounts[name] for name, amount in lease.items() if amount > 0}
        return not is_overfull(Usage(used.count, amounts), pool.lease_limit, self._slot_info.capacity)


def _move(placed: Sequence[tuple[_SlotUsage, Placement]], before: LeaseState, after: LeaseState) -> None:
    """Change the state of the recorded leases of an assignment."""
    for usage, each in placed:
        usage.add(before, each.resources, -1)
        usage.add(after, each.resources)


class ElasticDecisions:
    """Turns the moves of all elastic instances of a cycle into decisions: grants, revokes and claims."""

    def __init__(self, cycle: CycleState, start: int, claiming: Iterable[str]) -> None:
        """Start without elastic instances. `start`: the number of decisions that the cycle had before the placing
        began. `claiming`: ids of the reservations that have claims since earlier cycles.
        """
        self._cycle, self._start = cycle, start
        self._usages: dict[str, _SlotUsage] = {}
        """Slot id -> the leases on the slot. Only slots on which instances are revoked are contained."""
        self._given: dict[str, dict[tuple[str, str], Resources]] = {}
        """Slot id -> (reservation, component) -> the amounts of a lease on this slot, for all leases that the cycle
        assigned before the placing began (in its first `start` decisions).
        """
        for decision in cycle.decisions[:start]:
            if isinstance(decision, Assign):
                for each in decision.leases:
                    self._given.setdefault(each.slot, {})[decision.reservation, each.component] = each.resources
        self._revoked: dict[str, list[ElasticInstance]] = {}
        """Slot id -> the elastic instances that have to be revoked there and are not revoked yet, last in rank
        first.
        """
        self._late: list[ElasticInstance] = []
        """Elastic instances whose grants come after all other decisions, because revokes may have to come before
        them.
        """
        self._early: dict[str, list[ElasticInstance]] = {}
        """Reservation id -> its granted instances, if its queue reclaims nothing: no revoke has to come before these
        grants. The grants come directly after the reservation's assignment. If it was leased before this cycle, they
        come before all assignments.
        """
        self._claiming = {*claiming}
        self._nameless: dict[ElasticGroup, list[ElasticInstance]] = {}
        """Group -> its elastic instances whose names are free for further grants, highest index first: they have
        neither a lease that goes on nor a grant of this cycle. `_take_name` takes them from the end.
        """

    def add(self, elastic_instances: Sequence[ElasticInstance], *, takes_back: bool) -> None:
        """Add the elastic instances of one queue, in rank order; `write` turns their moves into decisions.
        `takes_back`: whether the queue reclaims elastic instances, so that revokes may have to come before grants.
        """
        moved = [
            elastic_instance
            for elastic_instance in elastic_instances
            if elastic_instance.slot_info is not elastic_instance.home
        ]
        for elastic_instance in moved:
            if elastic_instance.is_granted and takes_back:
                self._late.append(elastic_instance)
            elif elastic_instance.is_granted:
                self._early.setdefault(elastic_instance.holder.id, []).append(elastic_instance)
        for elastic_instance in reversed(moved):
            if elastic_instance.is_revoked and elastic_instance.home is not None:
                slot = elastic_instance.home.slot.id
                if slot not in self._usages:
                    self._usages[slot] = _SlotUsage(elastic_instance.home, self._given.get(slot, {}))
                self._revoked.setdefault(slot, []).append(elastic_instance)

    def write(self) -> None:
        """Insert the grants and revokes of elastic instances into the decisions, in the order that the commit needs."""
        decisions = self._cycle.decisions
        placed = decisions[self._start :]
        assigned = {decision.reservation for decision in placed if isinstance(decision, Assign)}
        decisions[self._start :] = [
            *self._grant(each for holder, early in self._early.items() if holder not in assigned for each in early),
            *(written for decision in placed for written in self._write(decision)),
            *self._revoke_others(),
            *self._grant(self._late),
        ]

    def _write(self, decision: Decision) -> Iterator[Decision]:
        if not isinstance(decision, Assign):
            yield decision
            return
        yield from self._make_way(decision)
        yield from self._grant(self._early.get(decision.reservation, ()))

    def _make_way(self, assign: Assign) -> Iterator[Decision]:
        """Yield the revokes that an assignment needs, then the assignment. If it has to wait for leases that are
        revoked with a deadline, here or earlier, yield a claim in place of the assignment.
        """
        mine = [(self._usages[each.slot], each) for each in assign.leases if each.slot in self._usages]
        for usage, each in mine:
            usage.add("held", each.resources)
        if all(usage.fits(each.resources) for usage, each in mine):
            yield assign
            return
        is_over = self._find_revoke_by(assign.reservation) is None
        if not is_over:
            _move(mine, "held", "claimed")
        for usage, each in mine:
            while not usage.fits(each.resources) and self._revoked[each.slot]:
                elastic_instance = self._revoked[each.slot].pop(0)
                usage.revoke(elastic_instance, is_over=is_over)
                yield self._revoke(elastic_instance, assign.reservation)
        if not is_over:
            # An earlier claim may need what is revoked here, and leave what is free now.
            _move(mine, "claimed", "held")
        if all(usage.fits(each.resources) for usage, each in mine):
            yield assign
        else:
            # Without a grace, too, leases that were revoked earlier may still use an overfull slot.
            _move(mine, "held", "claimed")
            self._claiming.add(assign.reservation)
            self._cycle.wait(assign.reservation, "no_capacity", RECLAIMING)
            yield Claim(reservation=assign.reservation, leases=assign.leases)

    def _find_revoke_by(self, reservation: str) -> float | None:
        return self._cycle.find_revoke_by(self._cycle.settings_of(self._cycle.view.reservations[reservation]))

    def _revoke_others(self) -> Iterator[Decision]:
        """Yield the revokes that no assignment needs: of instances that lost their slot to an instance of a better
        rank, and of instances that no longer fit.
        """
        for slot, elastic_instances in self._revoked.items():
            for elastic_instance in elastic_instances:
                self._usages[slot].revoke(
                    elastic_instance, is_over=self._find_revoke_by(elastic_instance.holder.id) is None
                )
                yield self._revoke(elastic_instance, None)

    def _revoke(self, elastic_instance: ElasticInstance, room_for: str | None) -> Revoke:
        assert elastic_instance.lease is not None, "only held instances are revoked"  # noqa: S101
        revoke_by = self._find_revoke_by(elastic_instance.holder.id)
        return make_revoke(elastic_instance.holder.id, elastic_instance.lease, "reclaimed", revoke_by, room_for)

    def _grant(self, elastic_instances: Iterable[ElasticInstance]) -> Iterator[Decision]:
        """Yield a grant for each of these elastic instances that fits now. The other instances wait for a later
        cycle.
        """
        for elastic_instance in elastic_instances:
            slot_info = elastic_instance.slot_info
            if slot_info is None or elastic_instance.holder.id in self._claiming or elastic_instance.group.is_preempted:
                continue
            slot, amounts, usage = (
                slot_info.slot,
                elastic_instance.amounts_on(slot_info),
                self._usages.get(slot_info.slot.id),
            )
            if usage is not None:
                usage.add("held", amounts)
                if not usage.fits(amounts):
                    usage.add("held", amounts, -1)
                    continue
            slot_info.wanted = True
            yield Grant(
                reservation=elastic_instance.holder.id,
                component=self._take_name(elastic_instance.group),
                slot=slot.id,
                epoch=slot.epoch,
                resources=dict(amounts),
            )

    def _take_name(self, group: ElasticGroup) -> str:
        """Return the name for the next grant of a group: that of the instance with the lowest index that has neither a
        lease nor a grant.

        Instances of a group are alike, so it does not matter which instance a grant was found for. Source: Zoe.
        """
        if group not in self._nameless:
            ends_at_once = self._find_revoke_by(group.holder.id) is None
            self._nameless[group] = [
                each
                for each in reversed(group.elastic_instances)
                if each.lease is None or (each.is_revoked and ends_at_once)
            ]
        return self._nameless[group].pop().instance.name


class ElasticStep:
    """Grants and reclaims elastic instances in one cycle. There may be several queues: the common one, and one for each
    system with settings of its own. Each queue with elastic components has one `Cascade`, which finds what to reclaim.
    """

    def __init__(self, cycle: CycleState, waiters: Queue, limits: GrantLimits | None = None) -> None:
        """Start the step: serve the elastic instances of the leased reservations.

        `waiters`: the pending reservations in queue order; some of them were assigned their leases in this cycle.
        `limits`: finds the slots on which the limits of an account refuse its instances; None: no account has such
        limits.
        """
        self._cycle, self._limits = cycle, limits
        self._start = len(cycle.decisions)
        self._cascades: dict[str, Cascade] = {}
        self._queue = Queue()
        self._claiming: set[str] = set()
        """Ids of the reservations that still wait for slots that they claim. In this cycle capacity is kept for their
        elastic instances. A later cycle grants these instances, when the claims have become leases.
        """
        self.pools: set[str] = set()
        """The pools in which elastic instances may be placed. Reclaims may give capacity back there while the queue is
        served.
        """
        leased = [each for each in cycle.view.stretching.values() if cycle.stays_leased(each)]
        if leased or any(demand.elastic for demand in cycle.demands.values()):
            self._open(leased, waiters)

    @property
    def is_active(self) -> bool:
        """Whether any reservation of the cycle has elastic components."""
        return bool(self._cascades)

    def _open(self, leased: Sequence[Reservation], waiters: Queue) -> None:
        self._queue = queue_of_all = sort_queue(self._cycle, [*leased, *waiters.reservations])
        ranks = {each.id: rank for rank, each in enumerate(queue_of_all.reservations)}
        members: dict[str, list[Reservation]] = {}
        for reservation, demand in queue_of_all:
            if demand.elastic:
                self.pools.update(demand.pools)
                known = members.setdefault(demand.queue, [])
                if reservation.phase == "leased":
                    known.append(reservation)
        linked = link_pools(queue_of_all.different) if members else {}
        claimants = self._list_claimants(waiters)
        placed = {each.reservation for each in self._cycle.decisions if isinstance(each, Assign)}
        for queue, served in members.items():
            settings = self._cycle.rules.settings_of_queue(queue)
            cascade = self._cascades[queue] = Cascade(self._cycle, settings, ranks, linked, self._limits)
            claiming = claimants.get(queue, ()) if cascade.takes_back else ()
            cascade.serve_leased(served, claiming)
            self._claiming.update(each.id for each in claiming if each.id not in placed)
            placed.difference_update(each.id for each in claiming)
        for reservation, demand in waiters if placed else ():
            if reservation.id in placed:
                self.serve(reservation, demand, [])

    def _list_claimants(self, waiters: Queue) -> dict[str, list[Reservation]]:
        """Return the reservations with claims and elastic components by queue, also those that got their slots in this
        cycle.
        """
        found: dict[str, list[Reservation]] = {}
        for reservation, demand in waiters if self._cycle.list_claimants() else ():
            if demand.elastic and is_claimant(reservation):
                found.setdefault(demand.queue, []).append(reservation)
        return found

    def serve(
        self, reservation: Reservation, demand: Demand, slot_infos: list[SlotInfo] | None
    ) -> list[SlotInfo] | None:
        """Return the slots of a reservation. There are two cases:

        (1) `slot_infos`: the slots on which the reservation was placed. Find slots for its elastic instances, and
        return `slot_infos`. (2) `slot_infos` None: the reservation fits nowhere without reclaims. Reclaim elastic
        instances, and return the slots on which the reservation fits then. Return None if no reclaim suffices.
        """
        cascade = self._cascades.get(demand.queue)
        if cascade is None:
            return slot_infos
        if slot_infos is None:
            return cascade.make_room(reservation, demand)
        cascade.spend(demand, slot_infos)
        cascade.follow(reservation, demand, slot_infos[len(demand.shape.essential) :])
        return slot_infos

    def is_kept_out(self, demand: Demand, kept: Collection[SlotIndex]) -> bool:
        """Return whether a reclaim could make capacity for a demand if the starvation guard did not keep the slots in
        `kept`.
        """
        return (cascade := self._cascades.get(demand.queue)) is not None and cascade.is_kept_out(demand, kept)

    def spend(self, demand: Demand, slot_infos: list[SlotInfo]) -> None:
        """Subtract the requests of a reservation from the relaxed capacity of these slots (what they would have left
        after all possible reclaims). Call it when the reservation was placed there or capacity is kept for it there.
        """
        if (cascade := self._cascades.get(demand.queue)) is not None:
            cascade.spend(demand, slot_infos)

    def finish(self) -> list[ElasticShortage]:
        """Turn the moves of elastic instances into decisions. Return the elastic instances without a slot that may
        cause launches.
        """
        if not self._cascades:
            return []
        settlement = ElasticDecisions(self._cycle, self._start, self._claiming)
        for cascade in self._cascades.values():
            settlement.add(list(cascade.elastic_instances()), takes_back=cascade.takes_back)
        settlement.write()
        if any(self._cycle.rules.pools[name].launch_for_elastic for name in self.pools):
            return self._list_shortages()
        return []

    def _list_shortages(self) -> list[ElasticShortage]:
        """Return the elastic instances without a slot that may use a pool with `launch_for_elastic`, in rank order.

        Instances of pending reservations are included, because their essential instances may wait for capacity in
        flight.
        """
        shortages: list[ElasticShortage] = []
        groups: dict[str, list[ElasticGroup]] = {}
        for cascade in self._cascades.values():
            for group in cascade.groups:
                known = groups.setdefault(group.holder.id, [])
                if not cascade.find_refused(group):
                    known.append(group)
        for reservation, demand in self._queue:
            if reservation.phase == "leased" or reservation.id in groups:
                served = groups.get(reservation.id, ())
                missing = [(group.need, group.count_unleased()) for group in served]
            else:
                missing = [] if len(demand.needs) > len(demand.shape.essential) else demand.elastic_runs
            pools = tuple(name for name in demand.pools if self._cycle.rules.pools[name].launch_for_elastic)
            for need, count in missing if pools else ():
                if count:
                    instance = Demand(demand.shape, pools, demand.queue, demand.settings, (need,), payer=demand.payer)
                    shortages.append(ElasticShortage(reservation, instance, count))
        return shortages
