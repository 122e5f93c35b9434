"""Needs and demands: what reservations look for, worked out once a tick for all that are alike."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, groupby, repeat

from scheduler.model.labels import Labels, count_preferred, has_labels, shape_of
from scheduler.model.reservations import Component, Shape
from scheduler.model.resources import Resources, merge
from scheduler.model.rules import Pool, SchedulerKeys
from scheduler.policy.capacity.fits import find_obstacle


@dataclass(slots=True, eq=False)
class Amounts:
    """So much is given with one lease. Compared by identity: there is one for all alike."""

    amounts: Resources


@dataclass(slots=True, eq=False)
class RequestClass:
    """Of needs that the same places can hold, as often. Compared by identity: there is one for all alike."""


class SharedAmounts:
    """The steps of one tick, and which needs are alike."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, float], ...], Amounts] = {}
        self._alike: dict[object, RequestClass] = {}

    def find(self, amounts: Resources) -> Amounts:
        """The one for so much."""
        mark = tuple(amounts.items())
        return self._known.get(mark) or self._known.setdefault(mark, Amounts(amounts))

    def find_likeness(self, labels: Labels, own: Labels, steps: dict[str, Amounts]) -> RequestClass:
        """The one of all that require these labels, and so much in these pools."""
        mark = (shape_of(labels), shape_of(own), tuple(steps.items()))
        return self._alike.get(mark) or self._alike.setdefault(mark, RequestClass())


@dataclass(slots=True, eq=False)
class InstanceRequest:
    """What one instance of a component asks of a place. Compared by identity: there is one for all alike."""

    component: Component
    labels: Labels
    """What the whole reservation requires, beside the component's own labels."""
    prefers: Labels
    given: dict[str, dict[str, float]]
    """By pool that may serve it: what it is given there."""
    steps: dict[str, Amounts]
    """The same, one object for all alike."""
    likeness: RequestClass
    """Of this and all other needs that the same places can hold, whatever they prefer."""
    spreads: bool
    """Whether the slot with fewest leases is taken first, not the one with most."""

    def could_hold(self, pool: str, capacity: Resources | None, labels: Labels) -> bool:
        """Whether a slot of this pool with this much left, and these labels, could take it."""
        if not (has_labels(labels, self.labels) and has_labels(labels, self.component.labels)):
            return False
        return find_obstacle(self.given[pool], capacity) is None

    def asks_as_much_as(self, other: "InstanceRequest") -> bool:
        """Whether no place has room for this one that has none for the other one."""
        if self.labels != other.labels or self.component.labels != other.component.labels:
            return False
        return self.given.keys() == other.given.keys() and all(
            self.given[pool].get(name, 0) >= amount
            for pool, amounts in other.given.items()
            for name, amount in amounts.items()
        )

    def rank_labels(self, labels: Labels) -> tuple[int, int] | None:
        """Most preferred labels first, then fewest beyond those required: plain machines have few (Zoe). None without
        those.
        """
        required, own = self.labels, self.component.labels
        if not has_labels(labels, required) or not has_labels(labels, own):
            return None
        surplus = len(labels) - len({**required, **own} if own else required)
        return -count_preferred(labels, self.prefers), surplus


@dataclass(slots=True, eq=False)
class Demand:
    """What a reservation needs. All with the same shape share one, but those who declined slots or are impatient:
    what a tick finds out about a demand holds for everybody who shares it.
    """

    shape: Shape
    pools: tuple[str, ...]
    """The pools that may serve it."""
    queue: str
    """Whose queue it waits in: its system's own, or "" for the common one."""
    settings: SchedulerKeys
    """The scheduler's settings that hold for it."""
    needs: tuple[InstanceRequest, ...]
    """One for each instance that is placed with all others or not at all, in that order: for each essential one and,
    under `rigid`, for each elastic one after them.
    """
    elastic: tuple[InstanceRequest, ...] = ()
    """One for each elastic instance, in the order in which they are granted."""
    declined: tuple[str, ...] = ()
    """Slots that are left out."""
    impatient: tuple[str, ...] = ()
    """Pools whose on-demand offerings it may have whatever they cost: it was interrupted there too often."""
    runs: tuple[tuple[InstanceRequest, int], ...] = field(init=False)
    """Its needs, equal ones that follow each other once, with their number."""
    alike: tuple[tuple[RequestClass, int], ...] = field(init=False)
    """How many of its needs are alike."""

    def __post_init__(self) -> None:
        if len(self.needs) == 1:
            self.runs = ((self.needs[0], 1),)  # as almost all are: counting takes its time
            self.alike = ((self.needs[0].likeness, 1),)
        else:
            self.runs = tuple(count_runs(self.needs))
            counts = Counter[RequestClass]()
            for need, count in self.runs:
                counts[need.likeness] += count
            self.alike = tuple(counts.items())

    @property
    def elastic_runs(self) -> list[tuple[InstanceRequest, int]]:
        """Its elastic needs, by component."""
        found = {need.component.name: need for need in dict.fromkeys(self.elastic)}
        return [(found[each.name], each.count) for each in self.shape.components if each.kind == "elastic"]

    @property
    def is_shared(self) -> bool:
        """Whether it is the one of its shape: it excludes no slots and may have no more of its own."""
        return not self.declined and not self.impatient


Needs = tuple[InstanceRequest, ...]


def count_runs(needs: Iterable[InstanceRequest]) -> list[tuple[InstanceRequest, int]]:
    """Needs, equal ones that follow each other once, with their number."""
    return [(need, len(list(alike))) for need, alike in groupby(needs)]


def make_needs(
    shape: Shape, pools: Iterable[tuple[str, Pool]], steps: SharedAmounts, *, spreads: bool
) -> tuple[Needs, Needs]:
    """The needs of a shape in these pools, of its essential and of its elastic instances; those of one component
    share one.
    """
    serving = list(pools)
    needs: dict[str, InstanceRequest] = {}
    for component in shape.components:
        given = {name: given_to(component, pool) for name, pool in serving}
        alike = {name: steps.find(each) for name, each in given.items()}
        likeness = steps.find_likeness(shape.labels, component.labels, alike)
        needs[component.name] = InstanceRequest(component, shape.labels, shape.prefers, given, alike, likeness, spreads)
    return _repeat(shape, needs, "essential"), _repeat(shape, needs, "elastic")


def _repeat(shape: Shape, needs: dict[str, InstanceRequest], kind: str) -> Needs:
    """One for each instance of this kind."""
    counts = ((needs[each.name], each.count) for each in shape.components if each.kind == kind)
    return tuple(chain.from_iterable(repeat(need, count) for need, count in counts))


def given_to(component: Component, pool: Pool) -> dict[str, float]:
    """What an instance is given in that pool: its wishes over the pool's defaults."""
    return merge(pool.default_resources, component.resources) if pool.default_resources else component.resources
