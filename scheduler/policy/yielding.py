"""Under `quota`: who finds no idle place gets one that elastic instances of others give back, before whole reservations
are preempted for him.

`yielding`: essential instances of anybody go before elastic ones of others, whatever their levels. `flexible`: only if
more of the pools is used by it. No balance changes, since nothing is taken over: what an elastic lease has cost stays
with its account. Source: Zoe, in the order that qscheduler gives.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace

import msgspec

from scheduler.model.accounts import FREE
from scheduler.model.decisions import Claim, Revoke
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.resources import Resources
from scheduler.policy.draft import Draft
from scheduler.policy.lots import Lot
from scheduler.policy.needs import Need
from scheduler.policy.order import sort_queue
from scheduler.policy.places import Place
from scheduler.policy.rounds import Round, has_room_beside, make_leases, name_placements
from scheduler.policy.using import MORE, weigh_use


@dataclass(slots=True, eq=False)
class Part:
    """One elastic lease that may be taken off its slot."""

    holder: Reservation
    lease: Lease
    place: Place

    @property
    def key(self) -> tuple[str, str]:
        """Under which its place has it."""
        return self.holder.id, self.lease.component


def take_back(tick: Round, lots: Iterable[Lot], level: int) -> None:
    """Of these lots, the first in order gets the places that elastic instances give back, then the next.

    Taken off are only those who are in the way, the last one in rank first, highest index first. With a
    `preemption_grace` their holders have until then, and the newcomer claims the places meanwhile.
    """
    heap = [(lot.rank, lot.number, lot) for lot in lots if _may_take(lot)] if tick.draft.view.stretching else []
    if not heap:
        return
    heapify(heap)
    parts = _Parts(tick)
    while heap and parts.left:
        rank, number, lot = heap[0]
        found = None
        if not lot.is_served and (level == FREE or not tick.limits.is_fanned_out(lot)):
            if rank != lot.rank:
                heapreplace(heap, (lot.rank, number, lot))
                continue
            found = _Trial(tick, parts.left, lot).run()
        if found is None:
            heappop(heap)
        else:
            _carry_out(tick, lot, *found, level)
            parts.forget(found[1])


def _may_take(lot: Lot) -> bool:
    return not lot.is_served and lot.demand.settings.elastic in {"flexible", "yielding"}


class _Parts:
    """All that may be given back, whoever ranks last first."""

    def __init__(self, tick: Round) -> None:
        draft, places = tick.draft, {place.slot.id: place for place in tick.places}
        self.left: list[Part] = []
        for holder in _list_holders(draft):
            instances = [instance.name for instance in draft.demand_of(holder).shape.elastic]
            held = {lease.component: lease for lease in holder.leases if lease.kind == "elastic"}
            mine = [held[name] for name in instances if name in held]
            found = [Part(holder, lease, places[lease.slot]) for lease in mine if lease.slot in places]
            self.left += [part for part in found if _is_free_to_go(draft, part)]
        self.left.reverse()

    def forget(self, gone: Sequence[Part]) -> None:
        """These are given back."""
        self.left = [part for part in self.left if part not in gone]


def _list_holders(draft: Draft) -> Iterator[Reservation]:
    """Those who are served by quota and hold elastic instances, in rank order."""
    found = [
        each
        for each in draft.view.stretching.values()
        if each.id not in draft.over and each.id not in draft.returning and draft.settings_of(each).queue == "quota"
    ]
    return iter(sort_queue(draft, found).reservations if found else ())


def _is_free_to_go(draft: Draft, part: Part) -> bool:
    """Whether it holds its place still, and the slot does not go with it."""
    present = part.place.leases.get(part.key)
    settings = draft.settings_of(part.holder)
    if present is None or present.state != "held" or settings.elastic not in {"flexible", "yielding"}:
        return False
    return bool(settings.preemption_grace) or not part.place.pool.recycle_unclean


@dataclass(slots=True)
class _Trial:
    """Places for one reservation, on trial."""

    tick: Round
    parts: Sequence[Part]
    lot: Lot
    gone: list[Part] = field(default_factory=list)
    taken: dict[Place, list[Resources]] = field(default_factory=dict)

    def run(self) -> tuple[list[Place], list[Part]] | None:
        """A place for each of its instances and who gives way; None where that does not help."""
        places: list[Place] = []
        for need in self.lot.demand.needs:
            place = self._find(need)
            if place is None:
                return None
            self.taken.setdefault(place, []).append(need.given[place.slot.pool])
            places.append(place)
        self._put_back()
        if self.tick.limits.refuses(self.lot.account, places) or not self._is_worth_it():
            return None
        # Room that comes free when others let go, for whom nobody has to be asked, is waited for without a claim.
        return (places, self.gone) if self.gone or all(self._fits(each, at_once=True) for each in places) else None

    def _put_back(self) -> None:
        """Those who are in nobody's way, the first one in rank first."""
        for number in reversed(range(len(self.gone))):
            part = self.gone.pop(number)
            if not self._fits(part.place):
                self.gone.insert(number, part)

    def _find(self, need: Need) -> Place | None:
        """The first place with room, else one of those that come free as one after the other is taken off."""
        for place in self.tick.idle:
            if self._could_serve(place, need) and self._fits(place, need):
                return place
        for part in self.parts:
            if part in self.gone or not self._could_serve(part.place, need):
                continue
            self.gone.append(part)
            if self._fits(part.place, need):
                return part.place
        return None

    def _could_serve(self, place: Place, need: Need) -> bool:
        if place.slot.pool not in need.given or place.slot.id in self.lot.demand.declined:
            return False
        return need.could_hold(place.slot.pool, place.capacity, place.labels)

    def _fits(self, place: Place, need: Need | None = None, *, at_once: bool = False) -> bool:
        """Whether all that was taken there, and this, has room without those who are gone."""
        wanted = [*self.taken.get(place, ()), *([need.given[place.slot.pool]] if need else ())]
        gone = {part.key for part in self.gone}
        staying = [lease for key, lease in place.leases.items() if key not in gone]
        if self.lot.demand.settings.preemption_grace and not at_once:
            staying = [lease for lease in staying if lease.state != "revoking"]
        return has_room_beside(place, staying, self.tick.given_on(place), wanted)

    def _is_worth_it(self) -> bool:
        if self.lot.demand.settings.elastic == "yielding":
            return True
        places = [*self.taken, *(part.place for part in self.gone)]
        have = {name: self.tick.sum_capacity(name) for name in {place.slot.pool for place in places}}
        given = sum(weigh_use(place, each, have) for place, taken in self.taken.items() for each in taken)
        return given > sum(weigh_use(part.place, part.lease.resources, have) for part in self.gone) + MORE


def _carry_out(tick: Round, lot: Lot, places: list[Place], gone: list[Part], level: int) -> None:
    draft, grace, newcomer = tick.draft, lot.demand.settings.preemption_grace, lot.first
    revoke_by = draft.now + grace if grace else None
    for part in gone:
        draft.decide(_revoke(part, newcomer, revoke_by))
        if revoke_by is None:
            draft.end_instance(part.holder, part.lease.component, part.lease.slot)
            tick.give_up(part.holder, part.lease, None)
        else:
            leaving = msgspec.structs.replace(part.lease, state="revoking", revoke_by=revoke_by, charged_at=None)
            part.place.leases = {**part.place.leases, part.key: leaving}
            tick.give_up(part.holder, part.lease, leaving)
        tick.recount(part.place)
    if revoke_by is None or not gone:
        tick.assign(lot, places, level)
        tick.reopen(part.place for part in gone)
        return
    tick.serve(lot)
    tick.limits.note(lot, places)
    claims = make_leases(draft, lot.demand, places, level)
    draft.decide(Claim(reservation=newcomer.id, leases=name_placements(claims), level=level))
    tick.hold(newcomer, tuple(msgspec.structs.replace(each, state="claimed") for each in claims))
    draft.wait(newcomer.id, "no_capacity", "elastic instances of others give its place back")


def _revoke(part: Part, newcomer: Reservation, revoke_by: float | None) -> Revoke:
    return Revoke(
        reservation=part.holder.id,
        component=part.lease.component,
        slot=part.lease.slot,
        reason="reclaimed",
        epoch=part.lease.epoch,
        revoke_by=revoke_by,
        room_for=newcomer.id,
    )
