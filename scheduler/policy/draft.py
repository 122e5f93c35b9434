"""The draft: the scratch copy of the view that all steps of a tick spend from, and what they decided so far."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, count
from math import inf, nextafter
from operator import attrgetter

import msgspec

from scheduler.model.decisions import WAITING_CODES, Decision, Plan, Waiting
from scheduler.model.moves import HOLDING
from scheduler.model.reservations import Reservation, Shape
from scheduler.model.rules import Pool, Rules, SchedulerKeys
from scheduler.model.slots import Slot, slot_order
from scheduler.model.view import View
from scheduler.policy.balances import Balances
from scheduler.policy.needs import Demand, Steps, make_needs
from scheduler.policy.places import Leases, Place, capacity_of
from scheduler.policy.rooms import Rooms

_RANK_OF_CODE = {code: rank for rank, code in enumerate(WAITING_CODES)}

_id = attrgetter("id")


def _slot_order(slot: Slot) -> tuple[str, int, str]:
    return slot_order(slot.id)


@dataclass(slots=True)
class Queue:
    """Who waits, and what each needs; in two lists, because there may be a million."""

    reservations: list[Reservation] = field(default_factory=list)
    demands: list[Demand] = field(default_factory=list)
    oldest: float = inf
    """When the one that waits longest was created."""

    def __iter__(self) -> Iterator[tuple[Reservation, Demand]]:
        return zip(self.reservations, self.demands, strict=True)

    def add(self, reservation: Reservation, demand: Demand) -> None:
        """One more, the last one so far."""
        self.reservations.append(reservation)
        self.demands.append(demand)


class Draft:
    """What a tick knows and has decided: places by pool, who is pending, decisions, reasons, wake-ups."""

    def __init__(self, view: View, rules: Rules, now: float) -> None:
        self.view, self.rules, self.now = view, rules, now
        self.decisions: list[Decision] = []
        self.waiting: dict[str, Waiting] = {}
        self.pending = dict(view.by_phase["pending"])
        self.returning: dict[str, Reservation] = {}
        """Interrupted ones that keep their leases for a grace: demand for a launch, not yet for a lease."""
        self.balances = Balances({})
        """What quota accounts have left, once they were charged; none exist where no queue is `quota`."""
        self.charged: tuple[str, ...] = ()
        """The accounts that this tick charges."""
        self.preempted: list[Reservation] = []
        """Those who are pending again because better work took their place at once: others come first in this tick."""
        self.over: set[str] = set()
        """Reservations whose leases this tick has ended."""
        self.places: dict[str, Place] = {}
        self.pools: dict[str, list[Place]] = {}
        self.vanished: list[Slot] = []
        """Slots with machines of ours whose pool the rules no longer list, in their order."""
        self.ready = Rooms([])
        self.coming = Rooms([])
        self.launched = Rooms([])
        """Where instances may go: at once, when it arrives, and what this tick launches."""
        self.kept: dict[str, Rooms] = {}
        """Ready ones that the starvation guard keeps, by the gang that it protects, under "" for all others together:
        nothing else is left for these to take.
        """
        self.withheld: list[Demand] = []
        """Who would get a launch but for quota or `max_slots`, in queue order."""
        self.withheld_launches: dict[str, int] = {}
        """By pool: how many launches that comes to."""
        self.spared: set[str] = set()
        """Slots without leases that they would use besides."""
        self.failed_boots: dict[str, list[str]] = {}
        """By pool: the slots whose boots this tick ended."""
        self._demands: dict[Shape, Demand] = {}
        self._steps = Steps()
        self._wake_at = inf
        self._open_pools()

    def _open_pools(self) -> None:
        slots: dict[str, list[Slot]] = {name: [] for name in self.rules.pools}
        for slot in self.view.slots.values():
            if slot.pool in slots:
                slots[slot.pool].append(slot)
            elif slot.machine is None and slot.state != "empty":
                self.vanished.append(slot)
        self.vanished.sort(key=lambda slot: (slot.pool, slot_order(slot.id)))
        orders = count()
        for name, pool in self.rules.pools.items():
            ordered = sorted(slots[name], key=_slot_order)
            places = [self._open_place(slot, pool, order) for slot, order in zip(ordered, orders, strict=False)]
            self.pools[name] = places
            self.places.update({place.slot.id: place for place in places})

    def _open_place(self, slot: Slot, pool: Pool, order: int) -> Place:
        return Place(
            slot=slot,
            pool=pool,
            order=order,
            state=slot.state,
            capacity=capacity_of(slot, pool),
            labels=slot.labels,
            leases=self.leases_on(slot) if slot.state in HOLDING else {},
            market=slot.market or "",
            price=slot.price or 0.0,
            unconfirmed=slot.unconfirmed,
            idle_since=slot.since if slot.idle_since is None else slot.idle_since,
        )

    def leases_on(self, slot: Slot) -> Leases:
        """The leases of the slot's present epoch, as they were before this tick."""
        found = self.view.leases_on.get(slot.id)
        return {key: lease for key, lease in found.items() if lease.epoch == slot.epoch} if found else {}

    def decide(self, decision: Decision) -> None:
        """Append a decision to the plan."""
        self.decisions.append(decision)

    def end(self, reservation: Reservation) -> None:
        """Its leases are over, and it is no longer pending: nothing in this tick counts it any more."""
        self.over.add(reservation.id)
        self.pending.pop(reservation.id, None)
        self.returning.pop(reservation.id, None)
        for lease in reservation.leases:
            place = self.places.get(lease.slot)
            if place is not None and (reservation.id, lease.component) in place.leases:
                place.end_lease((reservation.id, lease.component), self.now)

    def requeue(self, reservation: Reservation) -> None:
        """Its leases are over and it is pending again, with its place in the queue."""
        self.end(reservation)
        self.pending[reservation.id] = msgspec.structs.replace(reservation, phase="pending", leases=())

    def list_in_phase(self, phase: str) -> list[Reservation]:
        """The reservations of one phase whose leases this tick has not ended, in order of submission."""
        found = [each for each in self.view.by_phase[phase].values() if each.id not in self.over]
        return sorted(found, key=lambda each: each.sequence)

    def demand_of(self, reservation: Reservation) -> Demand:
        """What it needs, and the pools that may serve it; one object for all that are alike."""
        shape = self.view.shapes[reservation.id]
        demand = self._demands.get(shape)
        if demand is None:
            demand = self._demands[shape] = self._make_demand(shape)
        if not reservation.declined and not reservation.interruptions:
            return demand
        impatient = self._find_impatient(reservation, demand.pools)
        if not reservation.declined and not impatient:
            return demand
        return replace(demand, declined=reservation.declined, impatient=impatient)

    def add_demands(self, rows: list[Reservation], oldest: float) -> Queue:
        """These reservations, each with what it needs."""
        shapes = list(map(self.view.shapes.__getitem__, map(_id, rows)))
        for shape in set(shapes).difference(self._demands):
            self._demands[shape] = self._make_demand(shape)
        demands = list(map(self._demands.__getitem__, shapes))
        if special := self.view.special:
            demands = [
                self.demand_of(each) if each.id in special else demand
                for each, demand in zip(rows, demands, strict=True)
            ]
        return Queue(rows, demands, oldest)

    def _make_demand(self, shape: Shape) -> Demand:
        asked = shape.pool, shape.system
        pools, settings = self.rules.serving_pools(*asked), self.rules.settings_of(*asked)
        serving = [(name, self.rules.pools[name]) for name in pools]
        needs = make_needs(shape, serving, self._steps, spreads=settings.profile == "spread")
        return Demand(shape, pools, self.rules.queue_of(*asked), settings, needs)

    def settings_of(self, reservation: Reservation) -> SchedulerKeys:
        """The scheduler's settings that hold for it."""
        return self.rules.settings_of(reservation.request.pool, reservation.request.system)

    def _find_impatient(self, reservation: Reservation, pools: Iterable[str]) -> tuple[str, ...]:
        """The pools in which its machines were interrupted so often that it may have an on-demand one."""
        limits = {name: self.rules.pools[name].on_demand_after for name in pools}
        return tuple(name for name, most in limits.items() if most and reservation.interruptions >= most)

    def wait(self, reservation: Reservation, code: str, detail: str) -> None:
        """Say why it is left unplaced; of several codes the first in the order of WAITING_CODES stands."""
        self.wait_all((reservation,), code, detail)

    def wait_all(self, reservations: Iterable[Reservation], code: str, detail: str) -> None:
        """Say the same of many."""
        waiting, rank = self.waiting, _RANK_OF_CODE[code]
        for reservation in reservations:
            known = waiting.get(reservation.id)
            if known is None or rank <= _RANK_OF_CODE[known.code]:
                waiting[reservation.id] = Waiting(reservation.id, code, detail)

    def is_due(self, instant: float) -> bool:
        """Whether now >= instant; if not, the next tick is asked for at that instant."""
        if self.now >= instant:
            return True
        self._wake_at = min(self._wake_at, instant)
        return False

    def is_past(self, start: float, limit: float) -> bool:
        """Whether now - start > limit, strictly; if not, a tick is asked for at the first instant after."""
        if self.now - start > limit:
            return True
        instant = nextafter(max(start + limit, self.now), inf)
        while instant - start <= limit:
            instant = nextafter(instant, inf)
        self._wake_at = min(self._wake_at, instant)
        return False

    def wake_by(self, instant: float | None) -> None:
        """Ask for a tick at that instant, at once if it is past; None asks for nothing."""
        if instant is not None:
            self._wake_at = min(self._wake_at, max(instant, self.now))

    def is_offered(self, place: Place) -> bool:
        """Whether a slot takes leases: ready, uncordoned, not offline, and nobody unknown runs there."""
        return place.state == "ready" and not (place.slot.cordoned or place.stuck or place.slot.stranger)

    def open_rooms(self) -> None:
        """Let placing begin: whatever heal left in service, ready or on its way."""
        open_places = [place for place in self.all_places() if not place.slot.cordoned and not place.stuck]
        self.ready = Rooms(place for place in open_places if self.is_offered(place))
        self.coming = Rooms(place for place in open_places if place.is_coming)
        self.launched, self.kept = Rooms([]), {}

    def all_places(self) -> Iterable[Place]:
        """Every slot of a configured pool, pools as configured, slots in their order."""
        return self.places.values()

    def finish(self, queue: Queue) -> Plan:
        """The plan, with those who wait in the order of the queue."""
        told = map(self.waiting.get, map(_id, chain(queue.reservations, self.preempted)))
        waiting = tuple([each for each in told if each is not None])
        wake_at = None if self._wake_at == inf else self._wake_at
        return Plan(tuple(self.decisions), waiting, wake_at, self.charged)
