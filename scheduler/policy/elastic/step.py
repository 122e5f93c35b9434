"""The elastic part of placing: grants and reclaims under each queue's `elastic` setting.

A queue without elastic components costs nothing here. Source: Zoe; `yielding` is ours.
"""

from collections.abc import Iterable, Iterator, Sequence

from scheduler.model.decisions import Assign
from scheduler.model.reservations import Reservation
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.queue import Queue
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.cycle.step_values import ElasticShortage
from scheduler.policy.elastic.cascade import Cascade
from scheduler.policy.elastic.decisions import ElasticDecisions
from scheduler.policy.elastic.instances import ElasticGroup, is_served
from scheduler.policy.queueing.order import sort_queue


class ElasticStep:
    """The cascades of one cycle, one for each queue with elastic components."""

    def __init__(self, cycle: CycleState, waiters: Queue) -> None:
        """Serve the elastic instances of leased reservations; some of `waiters` are leased since this cycle."""
        self._cycle = cycle
        self._start = len(cycle.decisions)
        self._cascades: dict[str, Cascade] = {}
        self._queue = Queue()
        self.pools: set[str] = set()
        """The pools in which elastic instances may stand: capacity may be given back while the queue is served."""
        leased = [each for each in cycle.view.stretching.values() if is_served(cycle, each)]
        if leased or cycle.has_elastic_demand():
            self._open(leased, waiters)

    @property
    def is_active(self) -> bool:
        """Whether any reservation has elastic components."""
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
        for queue, served in members.items():
            settings = self._cycle.rules.settings_of_queue(queue)
            self._cascades[queue] = Cascade(self._cycle, settings, ranks)
            self._cascades[queue].serve_leased(served)
        placed = {each.reservation for each in self._cycle.decisions if isinstance(each, Assign)}
        for reservation, demand in waiters if placed else ():
            if reservation.id in placed:
                self.serve(reservation, demand, [])

    def serve(
        self, reservation: Reservation, demand: Demand, slot_infos: list[SlotInfo] | None
    ) -> list[SlotInfo] | None:
        """Let a reservation that was placed take part; for one that was not, reclaim elastic instances.

        `slot_infos`: the slots on which it was placed, None if it fits nowhere. Return its slots, or None.
        """
        cascade = self._cascades.get(demand.queue)
        if cascade is None:
            return slot_infos
        if slot_infos is None:
            return cascade.make_room(reservation, demand)
        cascade.spend(demand, slot_infos)
        cascade.follow(reservation, demand, slot_infos[len(demand.shape.essential) :])
        return slot_infos

    def spend(self, demand: Demand, slot_infos: list[SlotInfo]) -> None:
        """Note that a demand was placed on these slots, or keeps their capacity."""
        if (cascade := self._cascades.get(demand.queue)) is not None:
            cascade.spend(demand, slot_infos)

    def finish(self) -> list[ElasticShortage]:
        """Turn what has changed into decisions; return the elastic instances for which launches may help."""
        if not self._cascades:
            return []
        settlement = ElasticDecisions(self._cycle, self._start)
        for cascade in self._cascades.values():
            settlement.add(list(cascade.elastic_instances()), takes_back=cascade.takes_back)
        settlement.write()
        if any(self._cycle.rules.pools[name].launch_for_elastic for name in self.pools):
            return self._list_shortages()
        return []

    def _list_shortages(self) -> list[ElasticShortage]:
        """Return the elastic instances without a slot in pools with `launch_for_elastic`, in rank order.

        Pending reservations count too: their essential instances may have capacity that is in flight.
        """
        shortages: list[ElasticShortage] = []
        groups: dict[str, list[ElasticGroup]] = {}
        for cascade in self._cascades.values():
            for group in cascade.groups:
                groups.setdefault(group.holder.id, []).append(group)
        for reservation, demand in self._queue:
            if reservation.phase == "leased" or reservation.id in groups:
                served = groups.get(reservation.id, ())
                missing = [(group.need, group.count_unleased()) for group in served]
            else:
                missing = [] if len(demand.needs) > len(demand.shape.essential) else demand.elastic_runs
            shortages += [ElasticShortage(reservation, *each) for each in self._make_demands(demand, missing)]
        return shortages

    def _make_demands(
        self, demand: Demand, missing: Iterable[tuple[InstanceRequest, int]]
    ) -> Iterator[tuple[Demand, int]]:
        pools = tuple(name for name in demand.pools if self._cycle.rules.pools[name].launch_for_elastic)
        for need, count in missing if pools else ():
            if count:
                yield Demand(demand.shape, pools, demand.queue, demand.settings, (need,)), count
