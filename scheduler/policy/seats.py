"""Seats: the elastic instances of those who are leased, in the scratch copy of a tick.

Each may be taken off its slot and put back or elsewhere, and whatever was tried can be undone as a whole. Source: Zoe,
where undoing restores the list of what was tried but not the platform that it was tried on.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from scheduler.model.reservations import Instance, Lease, Reservation
from scheduler.model.resources import Resources, fits, subtract, total
from scheduler.policy.draft import Draft
from scheduler.policy.needs import Demand, Need
from scheduler.policy.places import Place, count_used


@dataclass(slots=True, eq=False)
class Seat:
    """One elastic instance of a reservation that is leased, or gets its lease in this tick."""

    holder: Reservation
    instance: Instance
    need: Need
    lease: Lease | None = None
    """What it holds; None = it is missing."""
    home: Place | None = None
    """Where it holds that, if it can be taken off: not from a slot that is out of service."""
    place: Place | None = None
    """Where it is in the scratch copy; None = nowhere, or where it cannot be taken off."""

    @property
    def is_missing(self) -> bool:
        """Whether a place is wanted for it."""
        return self.place is None and (self.lease is None or self.home is not None)

    @property
    def is_revoked(self) -> bool:
        """Whether it does not stay where it is."""
        return self.home is not None and self.place is not self.home

    @property
    def is_granted(self) -> bool:
        """Whether it gets a new place."""
        return self.place is not None and self.place is not self.home

    def amounts_on(self, place: Place) -> Resources:
        """What it takes there: what it was given at home, what it would be given elsewhere."""
        if place is self.home and self.lease is not None:
            return self.lease.resources
        return self.need.given[place.slot.pool]


@dataclass(slots=True, eq=False)
class Group:
    """The instances of one component of one reservation. They are alike: those held are kept before others are
    granted, lowest index first, and taken back highest index first.
    """

    rank: tuple[int, int]
    """The place of its reservation in the order of all, then that of the component."""
    need: Need
    seats: list[Seat] = field(default_factory=list)

    def list_last_first(self) -> Iterator[Seat]:
        """In the order in which they are taken off: those that this tick granted before those that are held."""
        yield from (seat for seat in reversed(self.seats) if seat.is_granted)
        yield from (seat for seat in reversed(self.seats) if seat.place is not None)


_Entry = tuple[Seat | Need, Place | None]
"""Of the journal: a seat with where it was before, or the need of an essential instance with the place that it took."""


class Seating:
    """Moves seats and places essential instances; knows how much of the fleet is in use, and can go back."""

    def __init__(self, draft: Draft) -> None:
        self._rooms = draft.ready
        self._journal: list[_Entry] = []
        self.use = 0.0
        """The use of the pools, of which only differences count: of each pool the sum over its resources of (amount
        leased / amount that its ready slots have), or the number of leases where these alone are counted.
        """
        self._totals: dict[str, Resources] = {}
        by_pool: dict[str, list[Resources]] = {}
        for place in self._rooms.list_places():
            by_pool.setdefault(place.slot.pool, []).append(place.capacity or {})
        self._totals = {name: total(amounts) for name, amounts in by_pool.items()}

    def is_free_to_move(self, place: Place | None) -> bool:
        """Whether seats may be taken off there, or put there."""
        return place is not None and self._rooms.has(place)

    def find(self, need: Need, declined: Sequence[str] = ()) -> Place | None:
        """Where one instance has room as things are."""
        return self._rooms.find(need, declined)

    def fits_home(self, seat: Seat) -> bool:
        """Whether what was taken off its slot still has its room there."""
        home, lease = seat.home, seat.lease
        if home is None or lease is None or not self._rooms.has(home) or home.load >= home.pool.lease_limit:
            return False
        return home.free is None or fits(lease.resources, home.free)

    def move(self, seat: Seat, place: Place | None) -> None:
        """Take it off where it is, and put it there."""
        self._journal.append((seat, seat.place))
        self._move(seat, place)

    def take(self, place: Place, need: Need) -> None:
        """Spend the room of an essential instance there."""
        self._journal.append((need, place))
        self._put(place, need.given[place.slot.pool], is_new=True)

    @property
    def mark(self) -> int:
        """Where to go back to."""
        return len(self._journal)

    def undo(self, mark: int) -> None:
        """Go back to how things were at that mark."""
        while len(self._journal) > mark:
            what, place = self._journal.pop()
            if isinstance(what, Seat):
                self._move(what, place)
            elif place is not None:
                self._remove(place, what.given[place.slot.pool], is_new=True)

    def lift_overfull(self, seats: Iterable[Seat]) -> None:
        """Take off what stands on slots that hold more than they have: who fits is put back in his turn."""
        on: dict[Place, list[Seat]] = {}
        for seat in seats:
            if seat.place is not None:
                on.setdefault(seat.place, []).append(seat)
        for place, lifted in on.items():
            if _is_overfull(place):
                self._lift_all(place, lifted)

    def _lift_all(self, place: Place, seats: Sequence[Seat]) -> None:
        """Their amounts cannot be added to what is free, which is never told below 0."""
        keys = {(seat.holder.id, seat.instance.name) for seat in seats}
        kept = [lease for key, lease in place.leases.items() if key not in keys]
        place.lifted += len(seats)
        if place.capacity is not None:
            place.free = subtract(place.capacity, count_used(kept))
        self._rooms.regroup(place)
        for seat in seats:
            self.use -= self._weigh(place, seat.amounts_on(place))
            seat.place = None

    def _move(self, seat: Seat, place: Place | None) -> None:
        if seat.place is not None:
            self._remove(seat.place, seat.amounts_on(seat.place), is_new=seat.place is not seat.home)
        if place is not None:
            self._put(place, seat.amounts_on(place), is_new=place is not seat.home)
        seat.place = place

    def _put(self, place: Place, amounts: Resources, *, is_new: bool) -> None:
        if is_new:
            place.given += 1
        else:
            place.lifted -= 1
        place.free = None if place.free is None else subtract(place.free, amounts)
        self.use += self._weigh(place, amounts)
        self._rooms.regroup(place)

    def _remove(self, place: Place, amounts: Resources, *, is_new: bool) -> None:
        if is_new:
            place.given -= 1
        else:
            place.lifted += 1
        free = place.free
        place.free = None if free is None else {name: free[name] + amounts.get(name, 0) for name in free}
        self.use -= self._weigh(place, amounts)
        self._rooms.regroup(place)

    def _weigh(self, place: Place, amounts: Resources) -> float:
        if place.capacity is None:
            return 1.0
        have = self._totals[place.slot.pool]
        return sum(amount / have[name] for name, amount in amounts.items() if have.get(name))


def _is_overfull(place: Place) -> bool:
    if place.load > place.pool.lease_limit:
        return True
    return place.capacity is not None and not fits(count_used(place.leases.values()), place.capacity)


def list_groups(
    draft: Draft, reservation: Reservation, demand: Demand, position: int, leases: Iterable[Lease]
) -> list[Group]:
    """The seats of one reservation, by component: those of which its holder gave one back of its own accord get no
    more than they hold.
    """
    held = {lease.component: lease for lease in leases if lease.kind == "elastic"}
    named = zip(demand.shape.elastic, demand.elastic, strict=True)
    declined = reservation.declined if reservation.phase == "leased" else ()
    unwanted = {need for instance, need in named if instance.name in declined}
    groups: list[Group] = []
    for instance, need in zip(demand.shape.elastic, demand.elastic, strict=True):
        if not groups or groups[-1].need is not need:
            groups.append(Group((position, len(groups)), need))
        lease = held.get(instance.name)
        if lease is not None or need not in unwanted:
            groups[-1].seats.append(_open_seat(draft, reservation, instance, need, lease))
    return groups


def _open_seat(draft: Draft, holder: Reservation, instance: Instance, need: Need, lease: Lease | None) -> Seat:
    home = _find_home(draft, holder, lease) if lease is not None else None
    return Seat(holder, instance, need, lease, home, home)


def _find_home(draft: Draft, holder: Reservation, lease: Lease) -> Place | None:
    """The place of a lease that may be taken off it: on a slot in service, and not one that has to go afterwards."""
    place = draft.places.get(lease.slot)
    if place is None or lease.state != "held" or (holder.id, lease.component) not in place.leases:
        return None
    goes = place.pool.recycle_unclean and not draft.settings_of(holder).preemption_grace
    return place if draft.ready.has(place) and not goes else None
