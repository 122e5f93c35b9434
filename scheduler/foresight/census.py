"""Counts a view by class: what waits, what runs, and what slots have free, as a play needs it.

A census lives as long as its process: it knows the lanes and kinds of earlier views again, so that the record of
arrivals stays valid.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from statistics import median

from scheduler.foresight.play import BOOT_SECONDS
from scheduler.foresight.present import (
    Coming,
    Held,
    Kind,
    Lane,
    Launchable,
    Offers,
    Part,
    Present,
    Room,
    Running,
    Vector,
    Waiting,
)
from scheduler.model.accounts import Account
from scheduler.model.budgets import NO_SPENDING, NOTHING_SPENT, Budget, Spent, find_allowed
from scheduler.model.pools import Pool
from scheduler.model.reservations import Lease, Request, Reservation, Shape, is_on_hold, make_shape
from scheduler.model.resources import Labels, Resources
from scheduler.model.rules import Rules
from scheduler.model.run_times import list_classes
from scheduler.model.slots import Slot
from scheduler.model.transitions import INACTIVE, UNPAID
from scheduler.model.view import View
from scheduler.policy.capacity.fits import capacity_of
from scheduler.policy.capacity.requests import Demand, Demands, InstanceRequest
from scheduler.policy.queueing.order import count_required, find_first_size
from scheduler.policy.scaling.offerings import could_serve, list_choices, list_configured

# The limits on all launches together: `max_slots` of the scheduler, and budgets in dollars.


@dataclass
class LaunchCaps:
    """What launches may take together. `left`: pool -> how many slots it may still get by its own `max_slots`."""

    left: Mapping[str, int]
    caps: list[float] = field(default_factory=list)
    """Slots, or dollars in an hour."""
    costs: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """Pool -> what one of its slots takes of the caps, as (number of the cap, amount)."""
    unplayed: set[str] = field(default_factory=set)
    """Pools with a limit that plays do not know: it changes with the time, or depends on the account."""

    def add(self, most: float, costs: Mapping[str, float]) -> None:
        """Limit the sum of the costs of a slot by pool."""
        for pool, each in costs.items():
            self.costs.setdefault(pool, []).append((len(self.caps), each))
        self.caps.append(max(0.0, most))


def find_launch_caps(
    rules: Rules, spending: Mapping[str, Spent], slots: Iterable[Slot], left: Mapping[str, int]
) -> LaunchCaps:
    """Return what limits the launches of these pools. `spending`: what budgets for a day or a month have spent."""
    found, rows = LaunchCaps(left), list(slots)
    if rules.scheduler.max_slots:
        active = sum(each.state not in INACTIVE for each in rows)
        found.add(rules.scheduler.max_slots - active, dict.fromkeys(left, 1.0))
    for name, budget in rules.budgets.items():
        prices = {
            # The price of a machine of a pool without offerings is not known, and counts as none.
            pool: {each.price for each in rules.pools[pool].offerings} or {0.0}
            for pool in left
            if budget.is_limit and budget.may_cover(pool)
        }
        if prices:
            _add_budget(found, budget, prices, find_allowed(budget, spending.get(name, NOTHING_SPENT)), rows)
    return found


def _add_budget(
    found: LaunchCaps, budget: Budget, prices: Mapping[str, set[float]], allowed: float, slots: Iterable[Slot]
) -> None:
    paid = (each for each in slots if each.state not in UNPAID and budget.covers(each.pool, each.launched_for or ""))
    most = allowed - sum(each.price or 0.0 for each in paid)
    if most >= sum(found.left[pool] * max(each) for pool, each in prices.items()):
        return
    if budget.is_timed or budget.accounts or any(len(each) > 1 for each in prices.values()):
        found.unplayed.update(prices)
        return
    # A machine without a known price is launched whatever the budget has left.
    found.add(most, {pool: price for pool, each in prices.items() if (price := max(each))})


MOST_KINDS = 200_000
"""With more kinds than this a census begins again."""
COMING = frozenset({"launching", "booting", "binding"})


@dataclass(frozen=True, slots=True)
class _Group:
    """Slots of one pool with equal capacity and labels."""

    number: int
    pool: str
    capacity: Resources | None
    labels: Labels
    names: tuple[str, ...]
    """The resources of a vector of the group; the number of leases follows them."""
    whole: Vector


class Census:
    """The groups, lanes and kinds under one version of the rules."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._demands = Demands(rules)
        self._groups: dict[object, _Group] = {}
        self._lanes: dict[object, Lane] = {}
        self._kinds: dict[object, Kind] = {}
        self._known: dict[str, tuple[Request, Kind]] = {}
        """Reservation -> its request and kind."""
        self._demand_of: dict[Lane, Demand] = {}
        self._offered = 0
        """The number of groups for which the lanes have their offers."""

    @property
    def is_full(self) -> bool:
        """Whether the census knows too many kinds."""
        return len(self._kinds) > MOST_KINDS

    def count(self, view: View, now: float, spending: Mapping[str, Spent] = NO_SPENDING) -> Present:
        """Return the present state. `spending`: what budgets for a day or a month have spent."""
        free, coming, active, boots = self._count_slots(view, now)
        waiting = [self._make_waiting(view, row) for row in view.waiters.list()[0] if not is_on_hold(row)]
        waiting.sort(key=lambda each: (each.rank, each.created_at))
        running = [
            each
            for phase in ("leased", "revoking")
            for row in view.by_phase[phase].values()
            for each in self._list_running(view, row)
        ]
        names = view.reservations
        if len(self._known) > 2 * len(names) + 100:
            self._known = {name: each for name, each in self._known.items() if name in names}
        launchable, caps = self._list_launchable(view, spending, active, boots)
        free += [{} for _ in range(len(self._groups) - len(free))]
        if self._offered != len(self._groups):
            self._offered = len(self._groups)
            for lane, demand in self._demand_of.items():
                lane.parts = self._find_parts(demand)
        room = Room([each.whole for each in self._groups.values()], free)
        lanes = list(self._lanes.values())
        unplayed = caps.unplayed | self._list_unplayed_pools(view, waiting, running)
        guesses = frozenset(
            lane
            for lane in lanes
            if (
                not unplayed.isdisjoint(self._demand_of[lane].pools)
                if lane.has_offers
                else self._may_be_launched(self._demand_of[lane])
            )
        )
        return Present(now, room, lanes, waiting, running, view.run_times, coming, launchable, caps.caps, guesses)

    def _list_unplayed_pools(self, view: View, waiting: list[Waiting], running: list[Running]) -> set[str]:
        """Return the pools that are given out by rules that plays do not know: the levels of accounts, or elastic
        instances that compete with new work.
        """
        found = set[str]()
        if any(map(_decides, view.accounts.values())):
            by_account = [each for each in self._demand_of.values() if each.settings.queue == "quota"]
            found.update(pool for demand in by_account for pool in demand.pools)
        growing = {lane: demand for lane, demand in self._demand_of.items() if _grows(demand)}
        if growing:
            here = {each.kind.lane for each in waiting} | {each.kind.lane for each in running}
            found.update(pool for lane in growing.keys() & here for pool in growing[lane].pools)
        return found

    def _may_be_launched(self, demand: Demand) -> bool:
        """Return whether each instance fits on a slot or on an offering, of which plays launch the cheapest only."""
        choices = [(name, each) for name in demand.pools for each in list_configured(self.rules.pools[name])]
        return all(
            any(_could_hold(need, each) for each in self._groups.values())
            or any(could_serve(name, each, (need,)) for name, each in choices if self.rules.pools[name].is_elastic)
            for need, _ in demand.runs
        )

    def find_kind(self, view: View, row: Reservation) -> Kind:
        """Return the kind of a reservation of the view."""
        known, most = self._known.get(row.id), view.find_max_runtime(row)
        if known is not None and known[0] is row.request and known[1].most == (inf if most is None else most):
            return known[1]
        kind = self._make_kind(view.shapes[row.id], row.request, row.principal, most)
        self._known[row.id] = row.request, kind
        return kind

    def find_kind_of_past(self, view: View, row: Reservation) -> Kind:
        """Return the kind of a reservation that may have ended."""
        return self._make_kind(_make_shape(row), row.request, row.principal, view.find_max_runtime(row))

    def translate(self, kind: Kind) -> Kind:
        """Return the kind of this census that is equal to one of an earlier census."""
        most = None if kind.most == inf else kind.most
        shape = make_shape(kind.request, needs_agent=kind.needs_agent)
        return self._make_kind(shape, kind.request, kind.principal, most)

    def _make_kind(self, shape: Shape, request: Request, principal: str | None, most: float | None) -> Kind:
        lane = self._find_lane(self._demands[shape])
        classes = list_classes(request, principal)
        key = (lane.number, classes[0], request.expected_runtime, most, shape.needs_agent)
        kind = self._kinds.get(key)
        if kind is None:
            limit = inf if most is None else most
            kind = self._kinds[key] = Kind(lane, request, principal, classes, limit, shape.needs_agent)
        return kind

    def find_rank(self, row: Reservation) -> float:
        """Return the rank of a reservation in its queue; the smallest is first. Under `dynsize` the lane has it."""
        match self.rules.settings_of(row.request.pool, row.request.system).queue:
            case "priority":
                return -row.priority
            case "size":
                return row.request.size
            case "quota":  # all at the free level, see `_list_unplayed_pools`
                return -float(count_required(_make_shape(row)))
            case _:
                return 0.0

    def _make_waiting(self, view: View, row: Reservation) -> Waiting:
        return Waiting(row.id, self.find_rank(row), row.created_at, self.find_kind(view, row), row.planned_start)

    def _list_running(self, view: View, row: Reservation) -> Iterator[Running]:
        """Yield what a reservation holds: once, and once more for each time at which elastic leases end alone."""
        held: dict[float, dict[tuple[int, Vector], int]] = {inf: {}}
        for lease in row.leases:
            slot = view.slots.get(lease.slot)
            if slot is None or not self._takes(lease, slot) or not _is_open(slot):
                continue
            group = self._find_group(slot, self.rules.pools[slot.pool])
            key = (group.number, _make_vector(group, lease.resources))
            until = held.setdefault(inf if lease.revoke_by is None else lease.revoke_by, {})
            until[key] = until.get(key, 0) + 1
        kind, begun = self.find_kind(view, row), row.leased_at if row.leased_at is not None else row.created_at
        for until_when, amounts_of in held.items():
            found = [Held(number, amounts, (), slots) for (number, amounts), slots in amounts_of.items()]
            yield Running(kind, begun, found, until_when if row.revoke_by is None else min(until_when, row.revoke_by))

    def _takes(self, lease: Lease, slot: Slot) -> bool:
        """Return whether a lease takes room of its slot from what waits: no elastic lease that is taken back for it."""
        if lease.state == "claimed" or slot.pool not in self.rules.pools or lease.epoch != slot.epoch:
            return False
        yields = lease.kind == "elastic" and lease.revoke_by is None
        return not yields or self.rules.settings_of(slot.pool, None).elastic != "yielding"

    def _count_slots(
        self, view: View, now: float
    ) -> tuple[list[dict[Vector, int]], list[Coming], dict[str, int], dict[str, list[float]]]:
        """Return what slots have free by group, what is on the way, and by pool the number of active slots and how long
        the machines that are ready took to come.
        """
        free: list[dict[Vector, int]] = []
        coming: list[tuple[int, str, float]] = []
        active: dict[str, int] = {}
        boots: dict[str, list[float]] = {}
        for slot in view.slots.values():
            pool = self.rules.pools.get(slot.pool)
            if pool is None or slot.state in INACTIVE:
                continue
            active[slot.pool] = active.get(slot.pool, 0) + 1
            if slot.state == "ready" and slot.launched_at is not None and pool.is_elastic:
                took = slot.since - slot.launched_at
                # A machine that was stopped and started was launched long before.
                if 0 <= took <= pool.launch_timeout + pool.boot_timeout + pool.binding_timeout:
                    boots.setdefault(slot.pool, []).append(took)
            if not _is_open(slot) and (slot.cordoned or slot.state not in COMING):
                continue
            group = self._find_group(slot, pool)
            if slot.state in COMING:
                begun = slot.launched_at if slot.launched_at is not None else slot.since
                coming.append((group.number, slot.pool, begun))
                continue
            free += [{} for _ in range(group.number + 1 - len(free))]
            left = group.whole
            for lease in view.leases_on.get(slot.id, {}).values():
                if self._takes(lease, slot):
                    used = _make_vector(group, lease.resources)
                    left = tuple(max(0.0, has - asks) for has, asks in zip(left, used, strict=True))
            free[group.number][left] = free[group.number].get(left, 0) + 1
        usual = {name: median(each) for name, each in boots.items()}
        expected = Counter((max(now, begun + usual.get(name, BOOT_SECONDS)), number) for number, name, begun in coming)
        return free, [Coming(at, number, slots) for (at, number), slots in expected.items()], active, boots

    def _list_launchable(
        self, view: View, spending: Mapping[str, Spent], active: Mapping[str, int], boots: Mapping[str, list[float]]
    ) -> tuple[list[Launchable], LaunchCaps]:
        """Return what may be launched, and what limits all launches together."""
        pools = {name: pool for name, pool in self.rules.pools.items() if pool.is_elastic}
        left = {name: (pool.max_slots or 0) - active.get(name, 0) for name, pool in pools.items()}
        caps = find_launch_caps(
            self.rules, spending, view.slots.values(), {name: slots for name, slots in left.items() if slots > 0}
        )
        found = [
            Launchable(
                self._find_first_group(name, pools[name]).number,
                slots,
                boots.get(name, ()),
                tuple(caps.costs.get(name, ())),
            )
            for name, slots in caps.left.items()
        ]
        return found, caps

    def _find_group(self, slot: Slot, pool: Pool) -> _Group:
        capacity = slot.resources if slot.resources is not None else capacity_of(slot, pool)
        return self._make_group(slot.pool, pool, capacity, slot.labels)

    def _find_first_group(self, name: str, pool: Pool) -> _Group:
        choice = (list_choices(pool) or list_configured(pool))[0]
        return self._make_group(name, pool, choice.capacity, choice.labels)

    def _make_group(self, name: str, pool: Pool, capacity: Resources | None, labels: Labels) -> _Group:
        amounts = capacity or {}
        key = (name, frozenset(amounts.items()), frozenset(labels.items()))
        group = self._groups.get(key)
        if group is None:
            names = tuple(sorted(amounts))
            whole = (*(float(amounts[each]) for each in names), pool.lease_limit if pool.lease_limit < inf else 0.0)
            group = self._groups[key] = _Group(len(self._groups), name, capacity, labels, names, whole)
        return group

    def _find_lane(self, demand: Demand) -> Lane:
        key = (demand.alike, demand.pools, demand.queue, bool(demand.elastic))
        lane = self._lanes.get(key)
        if lane is None:
            settings = demand.settings
            has_guard = settings.queue != "quota" and settings.backfill
            lane = self._lanes[key] = Lane(
                len(self._lanes),
                self._find_parts(demand),
                demand.queue,
                settings.starvation_guard if has_guard else 0.0,
                is_strict=settings.guard == "strict",
                backfill=settings.backfill or settings.queue == "quota",
                size=find_first_size(self.rules, demand.shape) if settings.queue == "dynsize" else 0.0,
                decay=settings.dynsize_decay,
            )
            self._demand_of[lane] = demand
        return lane

    def _find_parts(self, demand: Demand) -> tuple[Part, ...]:
        widths: dict[Offers, int] = {}
        pools = {name: place for place, name in enumerate(demand.pools)}
        for need, count in demand.runs:
            groups = [each for each in self._groups.values() if _could_hold(need, each)]
            groups.sort(key=lambda each: (pools[each.pool], each.number))
            offers = tuple((each.number, _make_vector(each, need.given[each.pool])) for each in groups)
            widths[offers] = widths.get(offers, 0) + count
        # What fits on few groups, and what is large, is placed first.
        places = {
            offers: (len(offers), [tuple(-each for each in amounts) for _, amounts in offers]) for offers in widths
        }
        return tuple(Part(offers, widths[offers]) for offers in sorted(widths, key=lambda each: places[each]))


def _make_shape(row: Reservation) -> Shape:
    return make_shape(row.request, needs_agent=row.run is not None)


def _is_open(slot: Slot) -> bool:
    """Return whether the slot takes new work. What other slots have free never comes back."""
    return slot.state == "ready" and not slot.cordoned


def _decides(account: Account) -> bool:
    """Return whether an account changes the order of service, and does not only pay nothing."""
    has_balance = any(each > 0 for each in (*account.charge_rate, *account.balance))
    return not account.forgotten and (has_balance or account.disable_free_tasks or bool(account.per_label_task_limits))


def _grows(demand: Demand) -> bool:
    """Return whether elastic instances of the demand take room from new work."""
    settings = demand.settings
    if not demand.elastic or settings.elastic == "yielding":
        return False
    return settings.elastic != "rigid" or settings.queue == "quota"


def _could_hold(need: InstanceRequest, group: _Group) -> bool:
    return group.pool in need.given and need.could_hold(group.pool, group.capacity, group.labels)


def _make_vector(group: _Group, amounts: Resources) -> Vector:
    return (*(float(amounts.get(name, 0.0)) for name in group.names), 1.0 if group.whole[-1] else 0.0)
