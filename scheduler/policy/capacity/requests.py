"""The requests of reservations as the planner compares them with slots. They are computed once for all reservations
that are alike.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, repeat

from scheduler.model.reservations import Component, Shape
from scheduler.model.resources import Labels, Resources
from scheduler.model.rules import Rules, SchedulerKeys
from scheduler.policy.capacity.fits import find_obstacle, given_to


@dataclass(slots=True, eq=False)
class RequestClass:
    """A class of requests that fit on the same slots, in the same numbers: they have equal required labels and, in each
    pool, equal amounts. Two classes are equal only if they are one object.
    """


@dataclass(slots=True, eq=False)
class Amounts:
    """The amounts of one lease by resource. Equal amounts share one object, so that objects are compared by
    identity.
    """

    amounts: Resources


class SharedAmounts:
    """Makes one object for each different table of amounts (`Amounts`) and for each `RequestClass` in the demands under
    one version of the rules. Demands share these objects, so that comparing two of them takes no time.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, float], ...], Amounts] = {}
        self._alike: dict[object, RequestClass] = {}

    def find(self, amounts: Resources) -> Amounts:
        """Return the object that stands for these amounts. Equal amounts give the same object."""
        mark = tuple(amounts.items())
        return self._known.get(mark) or self._known.setdefault(mark, Amounts(amounts))

    def find_likeness(self, labels: Labels, own: Labels, steps: dict[str, Amounts]) -> RequestClass:
        """Return the class of the requests with these labels and amounts. `labels`: required by the reservation; `own`:
        required by the component; `steps`: pool -> the amounts there.
        """
        mark = (frozenset(labels.items()), frozenset(own.items()), tuple(steps.items()))
        return self._alike.get(mark) or self._alike.setdefault(mark, RequestClass())


@dataclass(slots=True, eq=False)
class InstanceRequest:
    """The request of one instance of a component. Equal instances share one object, so that objects are compared by
    identity.
    """

    component: Component
    labels: Labels
    """The labels that the reservation requires of each slot, without the further labels of its component."""
    prefers: Labels
    given: dict[str, dict[str, float]]
    """Pool that may serve the request -> the amounts by resource that the instance gets there."""
    steps: dict[str, Amounts]
    """Pool that may serve the request -> the same amounts as in `given`, as an `Amounts` object. Requests with equal
    amounts have the same object, which is a key of tables and is compared by identity.
    """
    likeness: RequestClass
    """The class of the request. Requests that differ only in preferred labels have the same class."""
    spreads: bool
    """Whether the best slot for the request is the one with the fewest leases; if False, it is the one with the most
    leases.
    """
    required: frozenset[tuple[str, str]]
    """The labels that a slot must have, as pairs (name, value): those of the reservation and of the component."""

    def could_hold(self, pool: str, capacity: Resources | None, labels: Labels) -> bool:
        """Return whether an empty slot of this pool, with these labels and the resources `capacity`, could hold one
        instance. `capacity` None: the slot has no resources and only its number of leases is limited. The amounts are
        then not compared.
        """
        return self.required <= labels.items() and find_obstacle(self.given[pool], capacity) is None

    def asks_as_much_as(self, other: "InstanceRequest") -> bool:
        """Return whether this request has the same required labels and pools as `other`, and at least the same amounts.
        If so, a slot that is too small for `other` is too small for this request, too.
        """
        return (
            self.required == other.required
            and self.given.keys() == other.given.keys()
            and all(
                self.given[pool].get(name, 0) >= amount
                for pool, amounts in other.given.items()
                for name, amount in amounts.items()
            )
        )

    def rank_labels(self, labels: Labels) -> tuple[int, int] | None:
        """Return the rank of a slot's labels for this request (the smallest rank is best); None if the slot lacks a
        required label.

        Slots with the most preferred labels come first, then slots with the fewest labels that are not required: that
        keeps special machines free. Source: Zoe.
        """
        if not self.required <= labels.items():
            return None
        preferred = len(self.prefers.items() & labels.items()) if self.prefers else 0
        return -preferred, len(labels) - len(self.required)


@dataclass(slots=True, eq=False)
class Demand:
    """What a reservation requests, and the pools that may serve it.

    Reservations with equal requests (one shape) share one demand, so each question about it is answered once. A
    reservation that declined slots, or that was interrupted too often for the rules of a pool (`impatient`), has a
    demand of its own.
    """

    shape: Shape
    pools: tuple[str, ...]
    """The pools that may serve the demand."""
    queue: str
    """The name of the queue in which the reservation waits: the name of its system, if the configuration has settings
    for this system; else "" (the common queue).
    """
    settings: SchedulerKeys
    """The scheduler settings (`SchedulerKeys`) of the queue in which the reservation waits."""
    needs: tuple[InstanceRequest, ...]
    """One request for each instance that is placed with all others or not at all. These are the essential instances.
    Under `elastic: rigid` in queues other than `quota`, the elastic instances follow them.
    """
    elastic: tuple[InstanceRequest, ...] = ()
    """One request for each elastic instance, in the order in which elastic instances are granted."""
    declined: tuple[str, ...] = ()
    """Ids of slots that holders of the reservation declined; searches ignore these slots."""
    impatient: tuple[str, ...] = ()
    """Pools whose `on_demand_after` is reached by the number of times that the reservation was interrupted. It may use
    their on-demand offerings at any price.
    """
    payer: str = ""
    """The account of the reservation, if a budget limits what its launches may cost; "": no budget does, or there is no
    account.
    """
    runs: tuple[tuple[InstanceRequest, int], ...] = field(init=False)
    """The requests of `needs` in runs of equal ones, as (request, how many of it follow each other)."""
    alike: tuple[tuple[RequestClass, int], ...] = field(init=False)
    """The classes of the requests in `needs`, one entry for each class: (class, number of its requests)."""
    is_shared: bool = field(init=False)
    """Whether all reservations with equal requests share the demand. False if the demand belongs to one reservation
    that declined slots (`declined`) or was interrupted too often for the rules of a pool (`impatient`).
    """

    def __post_init__(self) -> None:
        self.is_shared = not self.declined and not self.impatient
        if len(self.needs) == 1:
            self.runs = ((self.needs[0], 1),)  # speed: almost all demands have one instance
            self.alike = ((self.needs[0].likeness, 1),)
        else:
            self.runs = tuple((need, len(list(alike))) for need, alike in groupby(self.needs))
            counts = Counter[RequestClass]()
            for need, count in self.runs:
                counts[need.likeness] += count
            self.alike = tuple(counts.items())

    @property
    def elastic_runs(self) -> list[tuple[InstanceRequest, int]]:
        """The requests of the elastic components, one entry for each: (request, number of instances)."""
        found = {need.component.name: need for need in dict.fromkeys(self.elastic)}
        return [(found[each.name], each.count) for each in self.shape.components if each.kind == "elastic"]


class Demands(dict[Shape, Demand]):
    """A table (shape -> demand) for one `Rules` object. A demand is made when its shape is looked up for the first
    time.
    """

    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self._rules, self._steps = rules, SharedAmounts()
        self._of_payers: dict[tuple[Demand, str], Demand] = {}

    def find(self, shape: Shape, account: str | None) -> Demand:
        """Return the demand of a reservation of this shape and account. An account that a budget limits has demands of
        its own; all other accounts share the demand of the shape.
        """
        demand = self[shape]
        if account is None or account not in self._rules.limited_accounts:
            return demand
        key = (demand, account)
        return self._of_payers.get(key) or self._of_payers.setdefault(key, replace(demand, payer=account))

    def __missing__(self, shape: Shape) -> Demand:
        queue, settings, pools = self._rules.find_route(shape.pool, shape.system, needs_agent=shape.needs_agent)
        of_component: dict[str, InstanceRequest] = {}
        for component in shape.components:
            given = {name: given_to(component, self._rules.pools[name]) for name in pools}
            steps = {name: self._steps.find(each) for name, each in given.items()}
            of_component[component.name] = InstanceRequest(
                component,
                shape.labels,
                shape.prefers,
                given,
                steps,
                self._steps.find_likeness(shape.labels, component.labels, steps),
                spreads=settings.profile == "spread",
                required=frozenset((*shape.labels.items(), *component.labels.items())),
            )
        needs, elastic = _repeat(shape, of_component, "essential"), _repeat(shape, of_component, "elastic")
        if settings.elastic == "rigid" and settings.queue != "quota":  # quota grants them by its own rules
            needs += elastic
        demand = self[shape] = Demand(shape, pools, queue, settings, needs, elastic)
        return demand


class LastDemands:
    """Keeps the demands of the last cycle, so that the next cycle under the same rules can use them again."""

    def __init__(self) -> None:
        self._rules: Rules | None = None
        self._demands: Demands | None = None

    def find(self, rules: Rules, most: int) -> Demands:
        """Return the table of demands under these rules. A new table is made for other rules, and if the table has more
        than `most` shapes, because many of them may be in use no longer.
        """
        demands = self._demands
        if demands is None or rules is not self._rules or len(demands) > most:
            self._rules, self._demands = rules, (demands := Demands(rules))
        return demands


def _repeat(shape: Shape, needs: dict[str, InstanceRequest], kind: str) -> tuple[InstanceRequest, ...]:
    """Return one request for each instance of this kind (essential or elastic)."""
    return tuple(
        chain.from_iterable(repeat(needs[each.name], each.count) for each in shape.components if each.kind == kind)
    )
