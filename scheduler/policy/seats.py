"""Seats: the elastic instances of those who are leased, in the scratch copy of a tick.

Each may be taken off its slot and put back or elsewhere, and whatever was tried can be undone as a whole. Source: Zoe,
where undoing restores the list of what was tried but not the platform that it was tried on.
"""

from bisect import insort
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from scheduler.model.reservations import Component, Instance, Lease, Reservation
from scheduler.model.resources import Resources, fits, subtract, total
from scheduler.policy.draft import Draft
from scheduler.policy.needs import Demand, Need
from scheduler.policy.places import Place, count_used
from scheduler.policy.using import weigh_use


@dataclass(slots=True, eq=False)
class Seat:
    """One elastic instance of a reservation that is leased, or gets its lease in this tick."""

    group: "Group"
    holder: Reservation
    instance: Instance
    need: Need
    index: int = 0
    """Its place among the elastic instances of its reservation."""
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

    def stand(self, place: Place | None) -> None:
        """From now on it is there in the scratch copy."""
        change = (place is None) - (self.place is None)
        self.group.missing += change
        if self.home is not None:
            self.group.lifted += change
        self.place = place

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
    holder: Reservation
    unopened: Iterator[int]
    """The instances that hold nothing and have no seat yet, lowest index first: a seat is made when the instance is to
    be granted, so that the cost of a tick grows with what it grants and not with what is missing.
    """
    instances: Sequence[Instance]
    """The elastic instances of its reservation, by index."""
    seats: list[Seat] = field(default_factory=list)
    """By index."""
    missing: int = 0
    """For how many instances a place is wanted, with a seat or without."""
    lifted: int = 0
    """Of these, how many may go back to where they are held."""
    first_unopened: int | None = field(init=False)

    def __post_init__(self) -> None:
        self.first_unopened = next(self.unopened, None)

    def count_unleased(self) -> int:
        """How many instances hold nothing and got no place in this tick."""
        opened = sum(seat.place is None and seat.lease is None for seat in self.seats)
        leased = sum(seat.lease is not None and seat.is_missing for seat in self.seats)
        unopened = self.missing - leased - opened
        return opened + unopened

    def walk_missing(self) -> Iterator[Seat]:
        """The seats for which a place is wanted, lowest index first; those that are not there yet are made."""
        waiting = [seat for seat in self.seats if seat.is_missing]
        for seat in waiting:
            if seat.lease is not None:
                yield from self._open_up_to(seat.index)
            yield seat
        yield from self._open_up_to(None)

    def _open_up_to(self, end: int | None) -> Iterator[Seat]:
        """Make the seats of the instances below this index, one after the other."""
        while self.first_unopened is not None and (end is None or self.first_unopened < end):
            yield self._open()

    def open_all(self) -> list[Seat]:
        """All seats, made for every instance."""
        while self.first_unopened is not None:
            self._open()
        return self.seats

    def _open(self) -> Seat:
        index = self.first_unopened
        assert index is not None, "there is one more"  # noqa: S101
        self.first_unopened = next(self.unopened, None)
        seat = Seat(self, self.holder, self.instances[index], self.need, index)
        insort(self.seats, seat, key=_index)
        return seat

    def list_last_first(self) -> Iterator[Seat]:
        """In the order in which they are taken off: those that this tick granted before those that are held."""
        yield from (seat for seat in reversed(self.seats) if seat.is_granted)
        yield from (seat for seat in reversed(self.seats) if seat.place is not None and not seat.is_granted)


@dataclass(slots=True)
class _Entry:
    """Of the journal: what was before a move. Amounts are kept, since adding what was subtracted is not exact."""

    seat: Seat | None
    stood: Place | None
    use: float
    places: tuple[tuple[Place, int, int, Resources | None], ...]
    """Of each place that changed what was given, lifted and free."""


class Seating:
    """Moves seats and places essential instances; knows how much of the fleet is in use, and can go back."""

    def __init__(self, draft: Draft) -> None:
        self._rooms = draft.ready
        self._journal: list[_Entry] = []
        self._changed: dict[int, Place] = {}
        """Those of which searches are still to be told, by their order: once, however much is moved there."""
        self.use = 0.0
        """The use of the pools, of which only differences count: see `weigh_use`."""
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
        self.tell()
        return self._rooms.find(need, declined)

    def find_again(self, need: Need, last: Place | None) -> Place | None:
        """The same, after one was put on the last place that was found: who packs finds it again until it is full."""
        is_packing = last is not None and not need.spreads and last.has_place
        if last is not None and is_packing and need.could_hold(last.slot.pool, last.free, last.labels):
            return last
        return self.find(need)

    def tell(self) -> None:
        """Let all searches, others' too, find the places as they now are."""
        for place in self._changed.values():
            self._rooms.regroup(place)
        self._changed.clear()

    def fits_home(self, seat: Seat) -> bool:
        """Whether what was taken off its slot still has its room there."""
        home, lease = seat.home, seat.lease
        if home is None or lease is None or not self._rooms.has(home) or home.load >= home.pool.lease_limit:
            return False
        return home.free is None or fits(lease.resources, home.free)

    def move(self, seat: Seat, place: Place | None) -> None:
        """Take it off where it is, and put it there."""
        self._note(seat, place)
        if seat.place is not None:
            self._remove(seat.place, seat.amounts_on(seat.place), is_new=seat.place is not seat.home)
        if place is not None:
            self._put(place, seat.amounts_on(place), is_new=place is not seat.home)
        seat.stand(place)

    def take(self, place: Place, need: Need) -> None:
        """Spend the room of an essential instance there."""
        self._note(None, place)
        self._put(place, need.given[place.slot.pool], is_new=True)

    def _note(self, seat: Seat | None, to: Place | None) -> None:
        stood = None if seat is None else seat.place
        places = tuple((each, each.given, each.lifted, each.free) for each in (stood, to) if each is not None)
        self._journal.append(_Entry(seat, stood, self.use, places))

    @property
    def mark(self) -> int:
        """Where to go back to."""
        return len(self._journal)

    def undo(self, mark: int) -> None:
        """Go back to how things were at that mark."""
        while len(self._journal) > mark:
            entry = self._journal.pop()
            for place, given, lifted, free in entry.places:
                place.given, place.lifted, place.free = given, lifted, free
                self._changed[place.order] = place
            if entry.seat is not None:
                entry.seat.stand(entry.stood)
            self.use = entry.use

    def lift_overfull(self, seats: Iterable[Seat]) -> None:
        """Take off what stands on slots that hold more than they have: who fits is put back in his turn."""
        on: dict[Place, list[Seat]] = {}
        for seat in seats:
            if seat.place is not None:
                on.setdefault(seat.place, []).append(seat)
        for place, lifted in on.items():
            if _is_overfull(place) or _lacks_a_name(place, lifted):
                self._lift_all(place, lifted)

    def _lift_all(self, place: Place, seats: Sequence[Seat]) -> None:
        """Their amounts cannot be added to what is free, which is never told below 0."""
        keys = {(seat.holder.id, seat.instance.name) for seat in seats}
        kept = [lease for key, lease in place.leases.items() if key not in keys]
        place.lifted += len(seats)
        if place.capacity is not None:
            place.free = subtract(place.capacity, count_used(kept))
        self._changed[place.order] = place
        for seat in seats:
            self.use -= weigh_use(place, seat.amounts_on(place), self._totals)
            seat.stand(None)

    def _put(self, place: Place, amounts: Resources, *, is_new: bool) -> None:
        if is_new:
            place.given += 1
        else:
            place.lifted -= 1
        place.free = None if place.free is None else subtract(place.free, amounts)
        self.use += weigh_use(place, amounts, self._totals)
        self._changed[place.order] = place

    def _remove(self, place: Place, amounts: Resources, *, is_new: bool) -> None:
        if is_new:
            place.given -= 1
        else:
            place.lifted += 1
        free = place.free
        place.free = None if free is None else {name: free[name] + amounts.get(name, 0) for name in free}
        self.use -= weigh_use(place, amounts, self._totals)
        self._changed[place.order] = place


def _lacks_a_name(place: Place, seats: Iterable[Seat]) -> bool:
    """Whether these seats use a resource that the slot no longer names: its host has registered again without it, and
    a name that a slot lacks counts as 0. Source: Orchard.
    """
    capacity = place.capacity
    if capacity is None:
        return False
    unknown = (used for seat in seats if not (used := seat.amounts_on(place)).keys() <= capacity.keys())
    return any(amount > 0 and name not in capacity for used in unknown for name, amount in used.items())


def _is_overfull(place: Place) -> bool:
    if place.load > place.pool.lease_limit:
        return True
    if place.capacity is None or place.free is None or all(amount > 0 for amount in place.free.values()):
        return False
    return not fits(count_used(place.leases.values()), place.capacity)


def list_groups(
    draft: Draft, reservation: Reservation, demand: Demand, position: int, leases: Iterable[Lease]
) -> list[Group]:
    """The seats of one reservation, by component: those of which its holder gave one back of its own accord get no
    more than they hold.
    """
    held = [lease for lease in leases if lease.kind == "elastic"]
    declined = reservation.declined if reservation.phase == "leased" else ()
    groups: list[Group] = []
    first = 0
    for need, count in demand.elastic_runs:
        numbers = _number(need.component, held)
        is_unwanted = any(find_number(need.component, name) is not None for name in declined)
        unopened = () if is_unwanted else _list_others(first, count, numbers)
        group = Group((position, len(groups)), need, reservation, iter(unopened), demand.shape.elastic)
        group.missing = 0 if is_unwanted else count - len(numbers)
        for number, lease in sorted(numbers.items()):
            home, index = _find_home(draft, reservation, lease), first + number
            seat = Seat(group, reservation, demand.shape.elastic[index], need, index, lease, home, home)
            group.seats.append(seat)
            group.missing += seat.is_missing
        groups.append(group)
        first += count
    return groups


def _number(component: Component, leases: Iterable[Lease]) -> dict[int, Lease]:
    """Those that are held by instances of this component, by the number of the instance."""
    numbered = ((find_number(component, lease.component), lease) for lease in leases)
    return {number: lease for number, lease in numbered if number is not None}


def _list_others(first: int, count: int, numbers: Container[int]) -> Iterator[int]:
    """The indices of all instances of a component but these."""
    return (first + number for number in range(count) if number not in numbers)


def find_number(component: Component, name: str) -> int | None:
    """Which of the component's instances has this name; None where none has."""
    if component.count == 1:
        return 0 if name == component.name else None
    stem, _, digits = name.rpartition(".")
    if stem != component.name or not digits.isdecimal() or (digits[0] == "0" and digits != "0"):
        return None
    return int(digits) if int(digits) < component.count else None


def _index(seat: Seat) -> int:
    return seat.index


def _find_home(draft: Draft, holder: Reservation, lease: Lease) -> Place | None:
    """The place of a lease that may be taken off it: on a slot in service, and not one that has to go afterwards."""
    place = draft.places.get(lease.slot)
    present = place.leases.get((holder.id, lease.component)) if place is not None else None
    if place is None or present is None or present.state != "held":
        return None
    goes = place.pool.recycle_unclean and not draft.settings_of(holder).preemption_grace
    return place if draft.ready.has(place) and not goes else None
