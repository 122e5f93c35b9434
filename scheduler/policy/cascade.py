"""The cascade: elastic instances of those who are served, in rank order, each where there is room for it.

One queue has one, and its settings say what it may do: `rigid` and `malleable` only give, `flexible` and `yielding`
also take back, for who ranks before and for essential instances of newcomers. Source: the flexible heuristic of Pace,
Venzano, Carra and Michiardi (arXiv 1611.09528), as Zoe should have carried it out. Where it lifts all elastic instances
and serves them anew, only those are taken off here that are in the way, the last one first: who stays is the same, and
nobody moves for nothing.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from scheduler.model.reservations import Reservation
from scheduler.model.resources import Resources
from scheduler.model.rules import SchedulerKeys
from scheduler.policy.bare import Bare
from scheduler.policy.draft import Draft
from scheduler.policy.needs import Demand, Need
from scheduler.policy.places import Place
from scheduler.policy.seats import Group, Seat, Seating, list_groups
from scheduler.policy.turns import GRANT_STEPS, find_payer
from scheduler.policy.using import MORE

_NOBODY = (1 << 62, 0)
"""A rank behind everybody's."""


def _rank(group: Group) -> tuple[int, int]:
    return group.rank


class Cascade:
    """Who is served in one queue, and where each elastic instance of theirs stands."""

    def __init__(self, draft: Draft, settings: SchedulerKeys, ranks: Mapping[str, int]) -> None:
        """`ranks`: by id, the place of each reservation in the one order of those who wait and those who are leased."""
        self.settings = settings
        self._draft, self._ranks = draft, ranks
        self._seating = Seating(draft)
        self.groups: list[Group] = []
        self._bare: Bare | None = None
        self._behind = Behind(())
        self._first_touched: tuple[int, int] = _NOBODY
        """The rank of the first group of which something was taken off and not yet put back."""
        self._refused: set[Demand] = set()
        """For whom nothing can be taken off, as long as nobody else is served."""

    @property
    def takes_back(self) -> bool:
        """Whether what is held may be taken back."""
        return self.settings.elastic in {"flexible", "yielding"}

    def seats(self) -> Iterator[Seat]:
        """Every seat, in rank order."""
        return (seat for group in self.groups for seat in group.seats)

    def serve_leased(self, reservations: Sequence[Reservation]) -> None:
        """Begin with those who are leased already."""
        for each in reservations:
            leases = [lease for lease in each.leases if (each.id, lease.component) not in self._draft.vacated]
            demand = self._draft.demand_of(each)
            self.groups += list_groups(self._draft, each, demand, self._ranks[each.id], leases)
        self.groups.sort(key=_rank)
        if self.takes_back:
            self._seating.lift_overfull(self.seats())
        self._serve(self.groups)

    def follow(self, reservation: Reservation, demand: Demand, places: Sequence[Place]) -> None:
        """It was placed: its elastic instances take part from now on. `places`: those of its elastic instances, where
        these are placed with the others.
        """
        self._refused.clear()
        if not demand.elastic:
            return
        groups = self._join(reservation, demand)
        if places:
            seats = [seat for group in groups for seat in group.open_all()]
            for seat, place in zip(seats, places, strict=False):
                seat.stand(place)
        if self.takes_back:
            self._serve_again(groups[0].rank)
        else:
            self._serve(groups)

    def make_room(self, reservation: Reservation, demand: Demand) -> list[Place] | None:
        """Places for its essential instances, for which elastic ones are taken off theirs as far as the setting allows
        it, and its elastic ones served; None, and everything is as it was.

        `yielding`: essential instances of anybody go before elastic ones of others. `flexible`: only if the use of the
        pools grows by it or, with `preemption`, if it has room beside what those before it are granted.
        """
        if not self.takes_back or demand in self._refused:
            return None
        if self._find_bare().could_hold(demand):
            for first, must_grow in self._list_ways(reservation):
                places = self._try(reservation, demand, first, must_grow=must_grow)
                if places is not None:
                    self._refused.clear()
                    self.spend(demand, places)
                    for place in places:
                        place.wanted = True
                    return places
        self._refused.add(demand)
        return None

    def _find_bare(self) -> Bare:
        if self._bare is None or self._bare.size != len(self._draft.ready):
            self._bare = Bare(self._draft.ready, self.seats())
        return self._bare

    def spend(self, demand: Demand, places: Sequence[Place]) -> None:
        """Somebody got, or keeps, the room of these places."""
        if self._bare is not None:
            self._bare.take(demand.needs, places)

    def _list_ways(self, reservation: Reservation) -> Iterator[tuple[int, bool]]:
        """From which group on elastic instances may be taken off for it, and whether the use has to grow by it."""
        if self.settings.elastic == "yielding":
            yield 0, False
            return
        yield 0, True
        if self.settings.preemption:
            yield self._find_first((self._ranks[reservation.id], 0)), False

    def _find_first(self, rank: tuple[int, int]) -> int:
        """The index of the first group that ranks there or behind."""
        return bisect_left(self.groups, rank, key=_rank)

    def _try(self, reservation: Reservation, demand: Demand, first: int, *, must_grow: bool) -> list[Place] | None:
        seating, mark, use, groups = self._seating, self._seating.mark, self._seating.use, list(self.groups)
        places = self._take_places(demand, first)
        if places is not None:
            self._join(reservation, demand)
            self._serve_again(min(self._first_touched, (self._ranks[reservation.id], 0)))
            if not must_grow or seating.use > use + MORE:
                return places
        self.groups = groups
        seating.undo(mark)
        seating.tell()
        return None

    def _take_places(self, demand: Demand, first: int) -> list[Place] | None:
        """A place for each of its essential instances; None as soon as one of them finds none."""
        places: list[Place] = []
        self._first_touched = _NOBODY
        for need, alike in groupby(demand.needs):
            takeoff = TakeOff(need, self.groups[first:], self._seating, demand.declined)
            for _ in alike:
                place = self._find(takeoff)
                if place is None:
                    return None
                self._seating.take(place, need)
                places.append(place)
        return places

    def _join(self, reservation: Reservation, demand: Demand) -> list[Group]:
        groups = list_groups(self._draft, reservation, demand, self._ranks[reservation.id], ())
        for group in groups:
            insort(self.groups, group, key=_rank)
        return groups

    def _serve_again(self, rank: tuple[int, int]) -> None:
        """Serve all that rank there or behind: what ranks before is as it would be anyway."""
        self._serve(self.groups[self._find_first(rank) :])

    def _serve(self, groups: Sequence[Group]) -> None:
        self._behind = Behind(groups if self.takes_back else ())
        for group in groups:
            self._behind.leave(group)
            if group.missing:
                self._serve_group(group)
        self._behind = Behind(())
        self._seating.tell()

    def _serve_group(self, group: Group) -> None:
        """What was taken off goes back where it was, then those that are missing get a place, lowest index first."""
        if not (group.lifted or self._seating.find(group.need) is not None or self._could_find_behind(group)):
            return
        turns, payer = self._draft.turns, find_payer(group.holder)
        for seat in [seat for seat in group.seats if seat.is_missing] if group.lifted else ():
            if self._seating.fits_home(seat):
                self._seating.move(seat, seat.home)
        takeoff: TakeOff | None = None
        place: Place | None = None
        for seat in group.walk_missing():
            # What has a deadline has no second place meanwhile.
            if seat.place is None and not (seat.lease is not None and self.settings.preemption_grace):
                place = self._seating.find_again(group.need, place)
                if place is None and self._could_find_behind(group):
                    if takeoff is None:
                        behind = self.groups[self._find_first(group.rank) + 1 :]
                        takeoff = TakeOff(group.need, behind, self._seating)
                    place = self._find(takeoff)
                if place is None or turns.is_spent(payer):
                    return
                self._seating.move(seat, place)
                turns.spend(payer, GRANT_STEPS)

    def _could_find_behind(self, group: Group) -> bool:
        """Whether who ranks behind could give back a place for one of them: most often nobody can."""
        return self.takes_back and self._behind.could_give(group.need, self._seating)

    def _find(self, takeoff: "TakeOff") -> Place | None:
        """A place for one more instance, once elastic ones are taken off theirs for it, if it takes that."""
        place = self._seating.find(takeoff.need, takeoff.declined)
        if place is not None:
            return place
        for group, seat in takeoff.list_next():
            self._behind.leave_one(seat)
            self._seating.move(seat, None)
            self._first_touched = min(self._first_touched, group.rank)
        return self._seating.find(takeoff.need, takeoff.declined)


@dataclass(slots=True)
class _Passed:
    """What stands on one place of those who were passed, and what would be free there without them."""

    seats: list[tuple[Group, Seat]]
    free: Resources | None
    granted: int = 0
    """Of these, those that this tick has put there."""


class TakeOff:
    """Which elastic instances of some groups are taken off their places for instances of one need, one after the other.

    The last one in rank goes first, until one of the places has room. Those who stand on other places are in nobody's
    way. Each is looked at once, however many instances there are: where it did not help the first one, it helps the
    next one only together with others who stand there.
    """

    def __init__(self, need: Need, groups: Sequence[Group], seating: Seating, declined: Sequence[str] = ()) -> None:
        self.need, self.declined, self._seating = need, declined, seating
        self._left = ((group, seat) for group in reversed(groups) for seat in group.list_last_first())
        self._passed: dict[Place, _Passed] = {}
        self._serving: dict[Place, bool] = {}
        """By place whether it, if it were empty, could hold one, and seats may be taken off it."""

    def list_next(self) -> Sequence[tuple[Group, Seat]]:
        """Those who have to go for one more; nobody where that does not help."""
        for group, seat in self._left:
            place = seat.place
            if place is None or not self._could_serve(place):
                continue
            passed = self._passed.get(place)
            if passed is None:
                passed = self._passed[place] = _Passed([], place.free)
            passed.seats.append((group, seat))
            passed.granted += seat.is_granted
            if passed.free is not None:
                amounts = seat.amounts_on(place)
                passed.free = {name: free + amounts.get(name, 0) for name, free in passed.free.items()}
            if self._has_room(place, passed):
                del self._passed[place]
                return passed.seats
        return ()

    def _could_serve(self, place: Place) -> bool:
        known = self._serving.get(place)
        if known is None:
            known = self._serving[place] = _could_serve(self.need, place, self.declined, self._seating)
        return known

    def _has_room(self, place: Place, passed: _Passed) -> bool:
        if place.load - len(passed.seats) >= place.pool.lease_limit or place.uses_left + passed.granted <= 0:
            return False
        return self.need.could_hold(place.slot.pool, passed.free, place.labels)


@dataclass(slots=True)
class _Standing:
    """Elastic instances on one place, added up."""

    count: int = 0
    amounts: dict[str, float] = field(default_factory=dict)

    def add(self, amounts: Resources, times: int) -> None:
        self.count += times
        for name, amount in amounts.items():
            self.amounts[name] = self.amounts.get(name, 0.0) + times * amount


class Behind:
    """What elastic instances that are still to be served stand on, added up by place once somebody asks.

    What is free on a place and what stands on it together only shrink while groups are served: who could not be given
    a place once will not be later, nor will those who need as much.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups, self._left = groups, 0
        self._on: dict[Place, _Standing] | None = None
        self._refused: list[Need] = []

    def leave(self, group: Group) -> None:
        """It is its turn, after those before it: it does not stand behind any more."""
        self._left += 1
        if self._on is not None:
            for seat in group.seats:
                self.leave_one(seat)

    def leave_one(self, seat: Seat) -> None:
        """It is taken off its place, or will be served now."""
        if self._on is not None and seat.place is not None:
            self._on[seat.place].add(seat.amounts_on(seat.place), -1)

    def could_give(self, need: Need, seating: Seating) -> bool:
        """Whether one instance may have room somewhere without those who stand there; if not, it has none."""
        if any(need.asks_as_much_as(other) for other in self._refused):
            return False
        standing = self._add_up().items()
        if any(_could_serve(need, place, (), seating) and _would_fit(need, place, each) for place, each in standing):
            return True
        self._refused.append(need)
        return False

    def _add_up(self) -> dict[Place, _Standing]:
        if self._on is None:
            self._on = {}
            for group in self.groups[self._left :]:
                for seat in group.seats:
                    if seat.place is not None:
                        there = self._on.setdefault(seat.place, _Standing())
                        there.add(seat.amounts_on(seat.place), 1)
        return self._on


def _could_serve(need: Need, place: Place, declined: Sequence[str], seating: Seating) -> bool:
    """Whether the slot, if it were empty, could hold it, and seats may be taken off it."""
    if place.slot.id in declined or place.slot.pool not in need.given or not seating.is_free_to_move(place):
        return False
    return need.could_hold(place.slot.pool, place.capacity, place.labels)


def _would_fit(need: Need, place: Place, standing: _Standing) -> bool:
    """Whether it may have room on this place without these; sums are not exact, so one more is let through."""
    if not standing.count or place.load - standing.count >= place.pool.lease_limit:
        return False
    if place.uses_left + standing.count <= 0:
        return False
    if place.free is None:
        return True
    free = {name: amount + standing.amounts.get(name, 0) + MORE for name, amount in place.free.items()}
    return need.could_hold(place.slot.pool, free, place.labels)
