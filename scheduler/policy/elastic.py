"""Step 5's part about elastic instances: who gets and who gives back, as each queue's `elastic` setting says.

A queue without a reservation that has elastic components costs nothing here. Source: Zoe; `yielding` is ours.
"""

from collections.abc import Iterable, Iterator, Sequence

from scheduler.model.decisions import Assign
from scheduler.model.reservations import Reservation
from scheduler.policy.cascade import Cascade
from scheduler.policy.draft import Draft, Queue
from scheduler.policy.needs import Demand, Need
from scheduler.policy.order import sort_queue
from scheduler.policy.places import Place
from scheduler.policy.reclaim import Settlement
from scheduler.policy.seats import Group


class Elastic:
    """The cascades of one tick, one for each queue in which there is anything elastic."""

    def __init__(self, draft: Draft, waiters: Queue) -> None:
        """Serves the elastic instances of those who are leased already; some of the waiters are since this tick."""
        self._draft = draft
        self._start = len(draft.decisions)
        self._cascades: dict[str, Cascade] = {}
        self._everybody = Queue()
        self.pools: set[str] = set()
        """Where elastic instances may stand, so that more than the order of the queue decides who gets what."""
        leased = [each for each in draft.view.stretching.values() if _is_served(draft, each)]
        if leased or draft.has_elastic_demand():
            self._open(leased, waiters)

    @property
    def is_active(self) -> bool:
        """Whether there is anything elastic."""
        return bool(self._cascades)

    def _open(self, leased: Sequence[Reservation], waiters: Queue) -> None:
        self._everybody = everybody = sort_queue(self._draft, [*leased, *waiters.reservations])
        ranks = {each.id: rank for rank, each in enumerate(everybody.reservations)}
        members: dict[str, list[Reservation]] = {}
        for reservation, demand in everybody:
            if demand.elastic:
                self.pools.update(demand.pools)
                known = members.setdefault(demand.queue, [])
                if reservation.phase == "leased":
                    known.append(reservation)
        for queue, served in members.items():
            settings = self._draft.rules.settings_of_queue(queue)
            self._cascades[queue] = Cascade(self._draft, settings, ranks)
            self._cascades[queue].serve_leased(served)
        placed = {each.reservation for each in self._draft.decisions if isinstance(each, Assign)}
        for reservation, demand in waiters if placed else ():
            if reservation.id in placed:
                self.serve(reservation, demand, [])

    def serve(self, reservation: Reservation, demand: Demand, places: list[Place] | None) -> list[Place] | None:
        """Let one take part that found these places, or find it places that elastic instances give back."""
        cascade = self._cascades.get(demand.queue)
        if cascade is None:
            return places
        if places is None:
            return cascade.make_room(reservation, demand)
        cascade.spend(demand, places)
        cascade.follow(reservation, demand, places[len(demand.shape.essential) :])
        return places

    def spend(self, demand: Demand, places: list[Place]) -> None:
        """Somebody got, or keeps, the room of these places."""
        if (cascade := self._cascades.get(demand.queue)) is not None:
            cascade.spend(demand, places)

    def finish(self) -> None:
        """Turn what has changed into decisions; note who would be helped by a launch."""
        if not self._cascades:
            return
        settlement = Settlement(self._draft, self._start)
        for cascade in self._cascades.values():
            settlement.add(list(cascade.seats()), takes_back=cascade.takes_back)
        settlement.write()
        if any(self._draft.rules.pools[name].launch_for_elastic for name in self.pools):
            self._note_wishes()

    def _note_wishes(self) -> None:
        """Room is wanted for those without a place, where elastic instances alone may cause launches, in rank order:
        of those who are served, and of those who wait, should their essential ones have room that is on its way.
        """
        groups: dict[str, list[Group]] = {}
        for cascade in self._cascades.values():
            for group in cascade.groups:
                groups.setdefault(group.holder.id, []).append(group)
        for reservation, demand in self._everybody:
            if reservation.phase == "leased" or reservation.id in groups:
                served = groups.get(reservation.id, ())
                missing = [(group.need, group.count_unleased()) for group in served]
            else:
                missing = [] if len(demand.needs) > len(demand.shape.essential) else demand.elastic_runs
            self._draft.stretching += [(reservation, *each) for each in self._make_wishes(demand, missing)]

    def _make_wishes(self, demand: Demand, missing: Iterable[tuple[Need, int]]) -> Iterator[tuple[Demand, int]]:
        pools = tuple(name for name in demand.pools if self._draft.rules.pools[name].launch_for_elastic)
        for need, count in missing if pools else ():
            if count:
                yield Demand(demand.shape, pools, demand.queue, demand.settings, (need,)), count


def _is_served(draft: Draft, reservation: Reservation) -> bool:
    """Whether it still is leased, and is to stay so."""
    return reservation.id not in draft.over and reservation.id not in draft.returning
