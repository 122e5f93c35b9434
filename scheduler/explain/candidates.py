"""Where changes are looked for that could end a wait: the pools and slots that may serve a reservation."""

from collections.abc import Iterable
from typing import Final

from scheduler.explain.search import Search
from scheduler.model.labels import Labels
from scheduler.model.reservations import Component, Reservation, list_instances
from scheduler.model.rules import Pool
from scheduler.model.slots import Slot

MOST_SLOTS_MORE: Final = 64
"""So many more slots, and no more, are thought of."""
MOST_CANDIDATES: Final = 12
"""Of one kind where there may be as many as there are slots."""


def list_pools(search: Search) -> list[tuple[str, Pool]]:
    """The pools that may serve it, by name, in the order in which they are configured."""
    request = search.reservation.request
    return [(name, search.rules.pools[name]) for name in search.rules.serving_pools(request.pool, request.system)]


def list_slots(search: Search) -> Iterable[tuple[Slot, Pool]]:
    """The ready slots of the pools that may serve it, always in the same order."""
    pools = dict(list_pools(search))
    for slot in sorted(search.view.slots.values(), key=lambda each: (each.pool, len(each.id), each.id)):
        if slot.pool in pools and slot.state == "ready":
            yield slot, pools[slot.pool]


def list_hosts(search: Search) -> Iterable[tuple[Slot, Pool]]:
    """Those of them that are hosts of static pools: an operator can give a host more resources and other labels. A
    machine of EC2 stays as it was launched.
    """
    return ((slot, pool) for slot, pool in list_slots(search) if not pool.is_elastic)


def count_wanted(search: Search) -> int:
    """Slots that all who wait could use, at most; those before it take theirs first."""
    wanted = 0
    for each in search.view.by_phase["pending"].values():
        wanted += sum(component.count for component in each.request.components if component.kind == "essential")
        if wanted >= MOST_SLOTS_MORE:
            return MOST_SLOTS_MORE
    return wanted


def list_components(reservation: Reservation) -> list[Component]:
    """Those of which it has essential instances."""
    return [each for each in reservation.request.components if each.kind == "essential"]


def only_component(reservation: Reservation) -> Component | None:
    """Its component where it has one essential instance; None for a gang."""
    found = list_instances(reservation.request, "essential")
    return found[0].component if len(found) == 1 else None


def required_labels(reservation: Reservation, component: Component) -> Labels:
    """What a slot has to have for an instance of this component."""
    return {**reservation.request.labels, **component.labels}


def find_lacking(labels: Labels, required: Labels) -> dict[str, str]:
    """The required labels that are not among these with that very value."""
    return {name: value for name, value in required.items() if labels.get(name) != value}


def describe_labels(labels: Labels) -> str:
    """Labels in words."""
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()))
