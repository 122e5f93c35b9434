"""The cascade: elastic instances of those who are served, in rank order, each where there is room for it.

One queue has one, and its settings say what it may do: `rigid` and `malleable` only give, `flexible` and `yielding`
also take back, for who ranks before and for essential instances of newcomers. Source: the flexible heuristic of Pace,
Venzano, Carra and Michiardi (arXiv 1611.09528), as Zoe should have carried it out. Where it lifts all elastic instances
and serves them anew, only those are taken off here that are in the way, the last one first: who stays is the same, and
nobody moves for nothing.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence

from scheduler.model.reservations import Reservation
from scheduler.model.rules import SchedulerKeys
from scheduler.policy.bare import Bare
from scheduler.policy.draft import Draft
from scheduler.policy.needs import Demand, Need
from scheduler.policy.places import Place
from scheduler.policy.seats import Group, Seat, Seating, list_groups

_NOBODY = (1 << 62, 0)
"""A rank behind everybody's."""
MORE = 1e-9
"""Use that differs by less does not differ: sums of fractions are not exact."""


def _rank(group: Group) -> tuple[int, int]:
    return group.rank


class Cascade:
    """Who is served in one queue, and where each elastic instance of theirs stands."""

    def __init__(self, draft: Draft, settings: SchedulerKeys, ranks: Mapping[str, int]) -> None:
        """`ranks`: by id, the place of each reservation in the one order of those who wait and those who are leased."""
        self.settings = settings
        self._draft, self._ranks = draft, ranks
        self._seating = Seating(draft)
        self._groups: list[Group] = []
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
        return (seat for group in self._groups for seat in group.seats)

    def serve_leased(self, reservations: Sequence[Reservation]) -> None:
        """Begin with those who are leased already."""
        for each in reservations:
            leases = [lease for lease in each.leases if (each.id, lease.component) not in self._draft.vacated]
            demand = self._draft.demand_of(each)
            self._groups += list_groups(self._draft, each, demand, self._ranks[each.id], leases)
        self._groups.sort(key=_rank)
        if self.takes_back:
            self._seating.lift_overfull(self.seats())
        self._serve(self._groups)

    def follow(self, reservation: Reservation, demand: Demand, places: Sequence[Place]) -> None:
        """It was placed: its elastic instances take part from now on. `places`: those of its elastic instances, where
        these are placed with the others.
        """
        self._refused.clear()
        if not demand.elastic:
            return
        groups = self._join(reservation, demand)
        seats = [seat for group in groups for seat in group.seats]
        for seat, place in zip(seats, places, strict=False):
            seat.place = place
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
        if self._find_bare().has_room(demand):
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
        return bisect_left(self._groups, rank, key=_rank)

    def _try(self, reservation: Reservation, demand: Demand, first: int, *, must_grow: bool) -> list[Place] | None:
        seating, mark, use, groups = self._seating, self._seating.mark, self._seating.use, list(self._groups)
        places: list[Place] = []
        self._first_touched = _NOBODY
        for need in demand.needs:
            place = self._find(need, first, demand.declined)
            if place is None:
                break
            seating.take(place, need)
            places.append(place)
        else:
            self._join(reservation, demand)
            self._serve_again(min(self._first_touched, (self._ranks[reservation.id], 0)))
            if not must_grow or seating.use > use + MORE:
                return places
        self._groups = groups
        seating.undo(mark)
        return None

    def _join(self, reservation: Reservation, demand: Demand) -> list[Group]:
        groups = list_groups(self._draft, reservation, demand, self._ranks[reservation.id], ())
        for group in groups:
            insort(self._groups, group, key=_rank)
        return groups

    def _serve_again(self, rank: tuple[int, int]) -> None:
        """Serve all that rank there or behind: what ranks before is as it would be anyway."""
        self._serve(self._groups[self._find_first(rank) :])

    def _serve(self, groups: Sequence[Group]) -> None:
        self._behind = Behind(groups if self.takes_back else ())
        for group in groups:
            self._behind.leave(group)
            self._serve_group(group)

    def _serve_group(self, group: Group) -> None:
        """What was taken off goes back where it was, then those that are missing get a place, lowest index first."""
        missing = [seat for seat in group.seats if seat.is_missing]
        for seat in missing:
            if self._seating.fits_home(seat):
                self._seating.move(seat, seat.home)
        for seat in missing:
            # What has a deadline has no second place meanwhile.
            if seat.place is None and not (seat.lease is not None and self.settings.preemption_grace):
                place = self._seating.find(group.need) or self._find_behind(group)
                if place is None:
                    return
                self._seating.move(seat, place)

    def _find_behind(self, group: Group) -> Place | None:
        """A place that who ranks behind gives back, if any of them could: most often none can."""
        if not self.takes_back or not self._behind.could_give(group.need, self._seating):
            return None
        return self._find(group.need, self._find_first(group.rank) + 1)

    def _find(self, need: Need, first: int, declined: Sequence[str] = ()) -> Place | None:
        """A place for one instance, once elastic ones of the groups from there on were taken off theirs, the last one
        first; those that are in nobody's way go back when it is their turn.
        """
        place = self._seating.find(need, declined)
        if place is not None:
            return place
        for group in reversed(self._groups[first:]):
            for seat in group.list_last_first():
                freed = seat.place
                if freed is None or not _could_serve(need, freed, declined, self._seating):
                    continue
                self._behind.leave_one(seat)
                self._seating.move(seat, None)
                self._first_touched = min(self._first_touched, group.rank)
                if freed.has_place and need.could_hold(freed.slot.pool, freed.free, freed.labels):
                    return self._seating.find(need, declined)
        return None


class Behind:
    """What elastic instances that are still to be served stand on, added up by place."""

    def __init__(self, groups: Iterable[Group]) -> None:
        self._on: dict[Place, list[Seat]] = {}
        for group in groups:
            for seat in group.seats:
                if seat.place is not None:
                    self._on.setdefault(seat.place, []).append(seat)

    def leave(self, group: Group) -> None:
        """It is its turn: it does not stand behind any more."""
        for seat in group.seats:
            self.leave_one(seat)

    def leave_one(self, seat: Seat) -> None:
        """It is taken off its place."""
        there = self._on.get(seat.place) if seat.place is not None else None
        if there and seat in there:
            there.remove(seat)

    def could_give(self, need: Need, seating: Seating) -> bool:
        """Whether one instance would have room somewhere without those who stand there."""
        return any(
            seats and _could_serve(need, place, (), seating) and _would_fit(need, place, seats)
            for place, seats in self._on.items()
        )


def _could_serve(need: Need, place: Place, declined: Sequence[str], seating: Seating) -> bool:
    """Whether the slot, if it were empty, could hold it, and seats may be taken off it."""
    if place.slot.id in declined or place.slot.pool not in need.given or not seating.is_free_to_move(place):
        return False
    return need.could_hold(place.slot.pool, place.capacity, place.labels)


def _would_fit(need: Need, place: Place, seats: Sequence[Seat]) -> bool:
    """Whether it has room on this place without these elastic instances."""
    if place.load - len(seats) >= place.pool.lease_limit or place.uses_left <= 0:
        return False
    if place.free is None:
        return True
    free = dict(place.free)
    for seat in seats:
        for name, amount in seat.amounts_on(place).items():
            if name in free:
                free[name] += amount
    return need.could_hold(place.slot.pool, free, place.labels)
