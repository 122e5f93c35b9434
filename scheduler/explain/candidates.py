"""Candidates for changes that could end a wait: the pools and slots that may serve a reservation."""

from collections.abc import Iterable
from typing import Final

from scheduler.explain.search import Search
from scheduler.model.labels import Labels
from scheduler.model.reservations import Component, Reservation, list_instances
from scheduler.model.rules import Pool
from scheduler.model.slots import Slot

MOST_SLOTS_MORE: Final = 64
"""Most slots that a suggested change adds."""
MOST_CANDIDATES: Final = 12
"""Most changes of one kind that are tried if there could be one for each slot."""


def list_pools(search: Search) -> list[tuple[str, Pool]]:
    """Return name and rules of the pools that may serve the reservation, in configured order."""
    request = search.reservation.request
    return [(name, search.rules.pools[name]) for name in search.rules.serving_pools(request.pool, request.system)]


def list_slots(search: Search) -> Iterable[tuple[Slot, Pool]]:
    """Yield the ready slots of these pools, by pool and number."""
    pools = dict(list_pools(search))
    for slot in sorted(search.view.slots.values(), key=lambda each: (each.pool, len(each.id), each.id)):
        if slot.pool in pools and slot.state == "ready":
            yield slot, pools[slot.pool]


def list_hosts(search: Search) -> Iterable[tuple[Slot, Pool]]:
    """Return the ready slots of static pools. An operator can give a host more resources and other labels; an EC2
    machine stays as it was launched.
    """
    return ((slot, pool) for slot, pool in list_slots(search) if not pool.is_elastic)


def count_wanted(search: Search) -> int:
    """Return how many slots all pending reservations could use, at most MOST_SLOTS_MORE. Reservations before this one
    take theirs first.
    """
    wanted = 0
    for each in search.view.by_phase["pending"].values():
        wanted += sum(component.count for component in each.request.components if component.kind == "essential")
        if wanted >= MOST_SLOTS_MORE:
            return MOST_SLOTS_MORE
    return wanted


def list_components(reservation: Reservation) -> list[Component]:
    """Return its essential components."""
    return [each for each in reservation.request.components if each.kind == "essential"]


def only_component(reservation: Reservation) -> Component | None:
    """Return the component of its single essential instance; None for a gang."""
    found = list_instances(reservation.request, "essential")
    return found[0].component if len(found) == 1 else None


def required_labels(reservation: Reservation, component: Component) -> Labels:
    """Return the labels that a slot needs for an instance of this component."""
    return {**reservation.request.labels, **component.labels}


def find_lacking(labels: Labels, required: Labels) -> dict[str, str]:
    """Return the required labels that are missing or have another value."""
    return {name: value for name, value in required.items() if labels.get(name) != value}


def describe_labels(labels: Labels) -> str:
    """Return labels as text: `name=value, ...`."""
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()))
