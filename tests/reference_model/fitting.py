"""Which slots may take an instance, and which of them does. Sources: Orchard; Zoe for the labels."""

from collections.abc import Mapping, Sequence
from math import inf

from scheduler.model.pools import Pool
from scheduler.model.reservations import Component, Reservation
from tests.reference_model.picture import Amounts, Picture, Site, serving_pools, settings_of

ROUNDING = 1e-9


def find_need(component: Component, pool: Pool) -> Amounts:
    """Rule: "What a component leaves out is filled from its pool's `default_resources`"."""
    return {**pool.default_resources, **component.resources}


def fits(request: Amounts, free: Amounts | None) -> bool:
    """Rule: "For every key of the request, request <= what is free. A key that the slot lacks counts as 0"."""
    return free is None or all(amount <= free.get(name, 0) + ROUNDING for name, amount in request.items())


def find_free(site: Site) -> Amounts | None:
    """Rule: "The slot's amount - the sum over its leases, per key, never below 0"; what was given out in this tick
    counts.
    """
    if site.capacity is None:
        return None
    given = [*site.leases.values(), *site.taken]
    return {name: max(0, most - sum(each.get(name, 0) for each in given)) for name, most in site.capacity.items()}


def has_labels(labels: Mapping[str, str], reservation: Reservation, component: Component) -> bool:
    """Rule: "Required `labels` of a reservation and of its component (both apply): each on the slot with that very
    value".
    """
    required = [*reservation.request.labels.items(), *component.labels.items()]
    return all(name in labels and labels[name] == value for name, value in required)


def find_lease_limit(pool: Pool) -> float:
    """Rule: "1 in a pool that counts leases only, otherwise as many as fit", where `max_leases_per_slot` is not set."""
    if pool.max_leases_per_slot is not None:
        return pool.max_leases_per_slot
    return 1 if pool.resources is None and not pool.offerings else inf


def has_place(site: Site) -> bool:
    """Rule: "It has fewer than `max_leases_per_slot`"; and of `max_uses` some are left."""
    most = site.pool.max_uses
    is_used_up = most > 0 and site.row.uses + len(site.taken) + site.planned >= most
    return not is_used_up and site.load < find_lease_limit(site.pool)


def has_room(picture: Picture, site: Site, reservation: Reservation, component: Component) -> bool:
    """Whether the slot has capacity for one instance, whatever its state and whether or not it is cordoned."""
    if site.name not in serving_pools(picture.rules, reservation) or site.is_useless:
        return False
    if not has_labels(site.labels, reservation, component) or not has_place(site):
        return False
    return fits(find_need(component, site.pool), find_free(site))


def is_declined(site: Site, reservation: Reservation) -> bool:
    """Whether the holder declined the machine that is there: the slot had no other machine since the decline."""
    is_unused = site.row.epoch > 0 and not site.row.uses
    is_same = site.row.state == "ready" and site.row.since <= reservation.changed_at and not is_unused
    return site.id in reservation.declined and is_same


def list_able(
    picture: Picture,
    sites: Sequence[Site],
    reservation: Reservation,
    component: Component,
    *,
    are_cordoned: bool = False,
) -> list[Site]:
    """Rule: "The slots that may take it". Cordoned slots take nothing, except in the question whether they would have
    had room (`are_cordoned`); those that it declined are left out.
    """
    return [
        site
        for site in sites
        if site.row.cordoned == are_cordoned
        and not is_declined(site, reservation)
        and has_room(picture, site, reservation, component)
    ]


def rank_site(picture: Picture, site: Site, reservation: Reservation, component: Component) -> tuple[int, ...]:
    """Rule: "In this order: most labels of `prefers`; fewest labels beyond those required; the profile; slot order"."""
    required = {**reservation.request.labels, **component.labels}
    spreads = settings_of(picture.rules, reservation).profile == "spread"
    preferred = sum(site.labels.get(name) == value for name, value in reservation.request.prefers.items())
    beyond = sum(name not in required for name in site.labels)
    return (-preferred, beyond, site.load if spreads else -site.load, picture.find_order(site))


def could_hold(picture: Picture, site: Site, each: Reservation, component: Component) -> bool:
    """Whether it fits by its labels and its resources, if the slot were empty."""
    is_of_its = site.name in serving_pools(picture.rules, each)
    fitting = has_labels(site.labels, each, component) and fits(find_need(component, site.pool), site.capacity)
    return is_of_its and fitting
