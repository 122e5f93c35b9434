"""One round of placing by quota: what its steps share. Lots by level, idle places, running work, limits of accounts.

Here leases are given: a decision, and what it changes for the steps that follow.
"""

from collections.abc import Iterable, Iterator, Sequence

from scheduler.model.accounts import FREE
from scheduler.model.decisions import Placement
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.resources import Resources, fits, subtract, total
from scheduler.policy.asks import Ask, Asks
from scheduler.policy.draft import Draft, Queue
from scheduler.policy.fanout import AccountLimits, find_likeness
from scheduler.policy.levels import count_required
from scheduler.policy.lots import Lot
from scheduler.policy.needs import Demand
from scheduler.policy.places import Place
from scheduler.policy.running import Run, Running
from scheduler.policy.weighing import weigh


class Round:
    """What a tick knows while it places by quota."""

    def __init__(self, draft: Draft, running: Running, waiters: Queue) -> None:
        self.draft, self.running = draft, running
        self.limits = AccountLimits(draft, running)
        self.asks = Asks()
        self.lots: list[list[Lot]] = [[] for _ in range(FREE + 1)]
        """By level, as balances have it; in the order of their first reservations."""
        self.places = [place for place in draft.all_places() if _is_open(draft, place)]
        """Slots that may take leases, full ones too, in slot order."""
        self.idle = [place for place in self.places if place.has_place]
        """Those with room for one more lease."""
        self.preempted: set[Place] = set()
        """At most one preemption a slot and tick."""
        self.served: set[str] = set()
        """Who got leases, or a claim."""
        self._given: dict[Place, list[Resources]] = {}
        self._required: dict[Demand, tuple[int, Ask, Ask | None]] = {}
        self._open_lots(waiters)

    def _open_lots(self, waiters: Queue) -> None:
        groups = self.draft.group_waiters()
        if groups is None or len(groups[1]) != len(waiters.ids):
            alike = self._group(waiters)
        else:
            alike = [(self.draft.demand_of(rows[0]), rows) for rows in groups[0]]
        for number, (demand, rows) in enumerate(alike):
            self._open_lot(number, demand, rows)

    def _group(self, waiters: Queue) -> list[tuple[Demand, list[Reservation]]]:
        account_of, found = self.draft.balances.account_of, dict[tuple[str | None, Demand], list[Reservation]]()
        for reservation, demand in waiters:
            account = account_of(reservation)
            found.setdefault((account.id if account else None, demand), []).append(reservation)
        return [(demand, rows) for (_, demand), rows in found.items()]

    def _open_lot(self, number: int, demand: Demand, rows: list[Reservation]) -> None:
        if demand not in self._required:
            self._required[demand] = (count_required(demand.shape), *self._find_asks(demand))
        account, level = self.draft.balances.account_of(rows[0]), self.draft.balances.level_of(rows[0])
        likeness = find_likeness(account, demand.shape) if account and account.max_fanout else None
        self.lots[level].append(Lot(number, account, demand, level, likeness, *self._required[demand], rows))

    def _find_asks(self, demand: Demand) -> tuple[Ask, Ask | None]:
        need = demand.needs[0]
        required = {**need.labels, **need.component.labels}
        ask = self.asks.find(required, need.steps)
        if not need.prefers:
            return ask, ask
        if any(required.get(name, value) != value for name, value in need.prefers.items()):
            return ask, None
        return ask, self.asks.find({**required, **need.prefers}, need.steps)

    def list_open(self, level: int) -> Iterator[Lot]:
        """The lots of a paid level for which something is still to be tried there."""
        return (lot for lot in self.lots[level] if not lot.is_served and not self.limits.is_fanned_out(lot))

    def assign(self, lot: Lot, places: Sequence[Place], level: int) -> None:
        """The first one of the lot gets a place for each instance."""
        reservation = self.serve(lot)
        self.limits.note(lot, places)
        leases = make_leases(self.draft, lot.demand, places, level)
        for place, lease in zip(places, leases, strict=True):
            self._spend(place, lease.resources)
        self.running.add(reservation, leases)
        self.draft.assign(reservation, name_placements(leases), level)

    def serve(self, lot: Lot) -> Reservation:
        """Its first one has its place; the next one's turn comes."""
        reservation = lot.first
        lot.served += 1
        self.served.add(reservation.id)
        return reservation

    def _spend(self, place: Place, amounts: Resources) -> None:
        place.given += 1
        place.wanted = True
        if place.free is not None:
            place.free = subtract(place.free, amounts)
            self._given.setdefault(place, []).append(amounts)

    def hold(self, reservation: Reservation, leases: tuple[Lease, ...]) -> None:
        """It has these leases from now on, in whatever state they are."""
        for place in self._list_places(leases):
            own = {(reservation.id, lease.component): lease for lease in leases if lease.slot == place.slot.id}
            place.redeemed += sum(lease.state == "held" for lease in own.values())
            place.leases = {**place.leases, **own}
            place.wanted = True
            self.recount(place)
            if place.pool.max_uses:
                self.idle = [each for each in self.idle if each is not place]
        self.running.add(reservation, leases)

    def end(self, run: Run) -> None:
        """It is pending again, but gets no place in this tick: the room that it leaves elsewhere is the next one's."""
        self.draft.end(run.reservation)
        self.draft.preempted.append(run.reservation)
        self.running.end(run.reservation.id)
        for place in self._list_places(run.leases):
            self.recount(place)

    def _list_places(self, leases: Iterable[Lease]) -> list[Place]:
        names = dict.fromkeys(lease.slot for lease in leases)
        return [self.draft.places[name] for name in names if name in self.draft.places]

    def recount(self, place: Place) -> None:
        """Work out what is free there after its leases have changed."""
        place.count_free()
        if place.free is not None and place in self._given:
            place.free = subtract(place.free, total(self._given[place]))

    def given_on(self, place: Place) -> Sequence[Resources]:
        """What this tick has assigned there."""
        return self._given.get(place, ())

    def sum_capacity(self, pool: str) -> Resources:
        """What all its slots that may take leases have."""
        return total(place.capacity or {} for place in self.places if place.slot.pool == pool)

    def give_up(self, holder: Reservation, lease: Lease, left: Lease | None) -> None:
        """One of its elastic leases goes (at once: nothing is `left` of it); the others run on."""
        others = (each for each in self.running.runs[holder.id].leases if each.component != lease.component)
        self.running.add(holder, (*others, *([left] if left else ())))

    def reopen(self, places: Iterable[Place]) -> None:
        """There may be room for one more lease on these again."""
        known = {*self.idle, *(place for place in places if place.has_place)}
        self.idle = [place for place in self.places if place in known]

    def drop_full(self) -> None:
        """Slots without room for one more lease are not idle any more."""
        self.idle = [place for place in self.idle if place.has_place]


def _is_open(draft: Draft, place: Place) -> bool:
    """Ready, uncordoned, not offline, nobody unknown on it, and of a queue that is `quota`."""
    return draft.is_offered(place) and draft.rules.settings_of(place.slot.pool, None).queue == "quota"


def has_room_beside(
    place: Place, staying: Sequence[Lease], given: Iterable[Resources], wanted: Sequence[Resources]
) -> bool:
    """Whether so much more has room on a place when only these leases, and what this tick has given there, stay."""
    if len(staying) + place.given + len(wanted) > place.pool.lease_limit or place.uses_left < len(wanted):
        return False
    if place.capacity is None:
        return True
    taken = total([*(lease.resources for lease in staying), *given])
    return fits(total(wanted), subtract(place.capacity, taken))


def make_leases(draft: Draft, demand: Demand, places: Sequence[Place], level: int) -> tuple[Lease, ...]:
    """The leases of all its instances as they begin: they have cost nothing yet."""
    return tuple(
        Lease(
            component=instance.name,
            slot=place.slot.id,
            epoch=place.slot.epoch,
            token=0,
            resources=need.given[place.slot.pool],
            level=level,
            charged_at=draft.now,
            weight=weigh(need.given[place.slot.pool], place.slot, place.pool, demand.settings),
            assigned_at=draft.now,
        )
        for instance, need, place in zip(demand.shape.essential, demand.needs, places, strict=True)
    )


def name_placements(leases: Iterable[Lease]) -> tuple[Placement, ...]:
    """Leases as decisions name them."""
    return tuple(Placement(each.component, each.slot, each.epoch, each.resources) for each in leases)
