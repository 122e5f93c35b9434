"""Which slots may take an instance, and which of them does. Sources: Orchard; Zoe for the labels."""

from collections.abc import Callable, Mapping, Sequence
from math import inf

from scheduler.model.pools import Pool
from scheduler.model.reservations import Component, Reservation
from tests.reference_model.picture import Amounts, Picture, Site, list_essential, serving_pools, settings_of

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
    is_used_up = most > 0 and site.row.uses + len(site.taken) >= most
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


def choose_site(
    picture: Picture,
    sites: Sequence[Site],
    reservation: Reservation,
    component: Component,
    *,
    are_cordoned: bool = False,
) -> Site | None:
    """Rule: "Among the slots that may take it, in this order: most labels of `prefers`; fewest labels beyond those
    required; the profile; slot order." Cordoned slots take nothing, except in the question whether they would have had
    room (`are_cordoned`); those that it declined are left out.
    """
    able = [
        site
        for site in sites
        if site.row.cordoned == are_cordoned
        and not is_declined(site, reservation)
        and has_room(picture, site, reservation, component)
    ]
    required = {**reservation.request.labels, **component.labels}
    spreads = settings_of(picture.rules, reservation).profile == "spread"

    def rank(site: Site) -> tuple[int, int, int, int]:
        preferred = sum(site.labels.get(name) == value for name, value in reservation.request.prefers.items())
        beyond = sum(name not in required for name in site.labels)
        return (-preferred, beyond, site.load if spreads else -site.load, picture.sites.index(site))

    return min(able, key=rank) if able else None


def serve(
    picture: Picture,
    reservation: Reservation,
    stages: Sequence[Sequence[Site]],
    extend: Callable[[Component], Site | None] = lambda _: None,
    *,
    are_cordoned: bool = False,
) -> list[Site] | None:
    """Rule: "Each essential instance in turn takes the first slot that fits; if one finds none, the whole
    reservation is taken out again." One stage goes before the next; `extend` may find a slot where none has room.
    """
    found: list[Site] = []
    for _, component in list_essential(reservation):
        choices = (choose_site(picture, stage, reservation, component, are_cordoned=are_cordoned) for stage in stages)
        site = next((each for each in choices if each is not None), None) or extend(component)
        if site is None:
            for each in reversed(found):
                each.taken.pop()
            return None
        site.taken.append(find_need(component, site.pool))
        found.append(site)
    return found


def serve_with_launches(
    picture: Picture,
    reservation: Reservation,
    stages: Sequence[Sequence[Site]],
    extend: Callable[[Component], Site | None],
) -> list[Site] | None:
    """Rule: "as many launched as it takes for all of them to find room once everything is ready, each in its turn";
    of what `extend` finds.
    """
    everywhere = [site for stage in stages for site in stage]
    added: list[Site] = []

    def widen(component: Component) -> Site | None:
        site = extend(component)
        if site is not None:
            added.append(site)
            everywhere.append(site)
        return site

    found = serve(picture, reservation, stages, widen)
    for _ in list_essential(reservation):
        if found is None or not added or _hold_together(picture, reservation, found, everywhere):
            return found
        found = serve(picture, reservation, [everywhere], widen)
    for site in reversed(found or []):
        site.taken.pop()
    return None


def _hold_together(picture: Picture, reservation: Reservation, found: list[Site], sites: list[Site]) -> bool:
    """Whether all instances are served when all these slots are ready; if not, nothing that was found is used."""
    given = [site.taken.pop() for site in reversed(found)]
    again = serve(picture, reservation, [sites])
    for site in reversed(again or []):
        site.taken.pop()
    for site, amounts in zip(found, reversed(given), strict=True) if again is not None else ():
        site.taken.append(amounts)
    return again is not None
