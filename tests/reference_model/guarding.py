"""Planned starts of protected reservations, and what later work may use before them. Source: EASY backfill."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil, inf

from scheduler.model.reservations import Component, Reservation
from scheduler.model.run_times import list_classes
from tests.reference_model.fitting import could_hold, find_free, find_lease_limit, find_need, fits
from tests.reference_model.picture import Amounts, Picture, Site, list_essential

SHARE = 0.95
FEWEST = 5


def find_quantile(values: Sequence[float], elapsed: float) -> float | None:
    """Rule: the 95 % quantile of the longer ones."""
    longer = sorted(value for value in values if value > elapsed)
    return longer[max(0, ceil(SHARE * len(longer)) - 1)] if longer else None


def estimate(picture: Picture, each: Reservation, elapsed: float) -> float:
    """Rule: "The most similar class answers that knows at least 5 run times, and one that is longer. If the request has
    an `expected_runtime`, the shorter of two counts", and never more than an enforced `max_runtime`. inf: unknown.
    """
    classes = list_classes(each.request, each.principal)
    known = [picture.run_times[name] for name in classes if name in picture.run_times]
    found = [find_quantile(row.seconds, elapsed) for row in known if len(row.seconds) >= FEWEST]
    estimates = [next((value for value in found if value is not None), inf)]
    stated, own = each.request.expected_runtime, picture.run_times.get(classes[0])
    if stated is not None:
        ratio: float | None = None
        if own is None or len(own.seconds) < FEWEST:
            ratio = 1.0 if elapsed < stated else None
        elif len(own.ratios) >= FEWEST:
            ratio = find_quantile(own.ratios, elapsed / stated)
        estimates.append(inf if ratio is None else stated * ratio)
    most, account = each.request.max_runtime, picture.find_account(each)
    if most is not None and account is not None and account.enforce_max_runtime and most > elapsed:
        estimates.append(most)
    return min(estimates)


def find_end(picture: Picture, name: str, component: str) -> float:
    """Rule: a lease that is revoked ends when its grace ends, another one after its estimated run time."""
    for each in picture.reservations:
        if each.id == name:
            own = [lease.revoke_by for lease in each.leases if lease.component == component]
            for until in (*own, each.revoke_by):
                if until is not None:
                    return until
            if each.leased_at is None:
                return inf
            seconds = estimate(picture, each, picture.now - each.leased_at)
            while each.leased_at + seconds <= picture.now:
                seconds = estimate(picture, each, seconds)
            return each.leased_at + seconds
    return inf


@dataclass(eq=False)
class Planned:
    """Instances of a protected reservation that are planned on a slot. `spare`, `load`: what is free then, and the
    number of leases, with these instances.
    """

    site: Site
    start: float
    spare: dict[str, float] | None
    load: int
    count: int


def look_ahead(picture: Picture, site: Site, time: float) -> tuple[dict[str, float] | None, int]:
    """What is free on a slot at a time, before any planned instance; below 0 if it has less than its leases use. And
    the number of leases.
    """
    left = {key: each for key, each in site.leases.items() if find_end(picture, *key) > time}
    free = find_free(site)
    if free is None or site.capacity is None:
        return None, len(left) + len(site.taken)
    found = {}
    for name, amount in free.items():
        used = sum(each.get(name, 0) for each in site.leases.values())
        lacking = min(0.0, site.capacity[name] - used)
        found[name] = amount + lacking + sum(each.get(name, 0) for key, each in site.leases.items() if key not in left)
    return found, len(left) + len(site.taken)


def would_fit(picture: Picture, site: Site, given: Sequence[Amounts], time: float) -> bool:
    free, load = look_ahead(picture, site, time)
    most = site.pool.max_uses
    if most and site.row.uses + len(site.taken) + site.planned + len(given) > most:
        return False
    if load + len(given) > find_lease_limit(site.pool):
        return False
    names = {name for each in given for name in each}
    return fits({name: sum(each.get(name, 0) for each in given) for name in names}, free)


def plan(picture: Picture, each: Reservation, sites: Sequence[Site]) -> list[Planned] | None:
    """Rule: "The earliest time at which the slots that it needs are expected to be free. Of the slots that are free by
    then, those that are free last are planned", if all instances are equal. None: not known.
    """
    runs = [(part, len(list(alike))) for part, alike in groupby(component for _, component in list_essential(each))]
    given: dict[Site, list[Amounts]] = {}
    start = picture.now
    for part, count in runs:
        able = [site for site in sites if could_hold(picture, site, each, part)]
        openings = sorted(opening for site in able for opening in list_openings(picture, site, part, count, given))
        if len(openings) < count:
            return None
        start = max(start, openings[count - 1][0])
        if len(runs) == 1:
            openings = [opening for opening in reversed(openings) if opening[0] <= start]
        for _, order in openings[:count]:
            site = picture.sites[order]
            given.setdefault(site, []).append(find_need(part, site.pool))
    return [make_planned(picture, site, start, found) for site, found in given.items()]


def list_openings(
    picture: Picture, site: Site, part: Component, count: int, given: Mapping[Site, Sequence[Amounts]]
) -> Iterator[tuple[float, int]]:
    """From when on one, two, … instances fit on a slot beside those that are planned there. With the slot's order."""
    ends = {max(picture.now, find_end(picture, *key)) for key in site.leases} - {inf}
    need = find_need(part, site.pool)
    for more in range(1, count + 1):
        planned = [*given.get(site, []), *[need] * more]
        for time in sorted({picture.now, *ends}):
            if would_fit(picture, site, planned, time):
                yield time, picture.find_order(site)
                break


def make_planned(picture: Picture, site: Site, start: float, given: Sequence[Amounts]) -> Planned:
    """What stays free beside these instances."""
    free, load = look_ahead(picture, site, start)
    if free is not None:
        free = {name: max(0, amount - sum(each.get(name, 0) for each in given)) for name, amount in free.items()}
    return Planned(site, start, free, load + len(given), len(given))


def make_twin(planned: Planned) -> Site:
    """A slot with what is free beside planned instances, now and at their start."""
    site, free = planned.site, find_free(planned.site)
    spare = planned.spare or {}
    taken: list[Amounts] = [{}] * len(site.taken)
    load = max(site.load, planned.load) - len(taken)
    return Site(
        row=site.row,
        name=site.name,
        pool=site.pool,
        state=site.state,
        capacity=None if free is None else {name: min(amount, spare.get(name, 0)) for name, amount in free.items()},
        labels=site.labels,
        idle_since=site.idle_since,
        market=site.market,
        leases={("", str(number)): {} for number in range(load)},
        taken=taken,
        planned=site.planned,
    )
