"""Machines that are replaced: too old, drifted, or too expensive. Source: Karpenter (expiration, drift, consolidation,
disruption budgets); the jitter is Leasehold's own.
"""

from math import ceil
from zlib import crc32

from scheduler.model.slots import Slot
from tests.reference_model.launching import (
    Offer,
    choose_eligible,
    find_refusal,
    find_turn,
    is_at_quota,
    is_probing,
    list_offers,
)
from tests.reference_model.picture import Picture, Site


def replace(picture: Picture, name: str) -> None:
    """Rule: at most `disruption_budget` slots at a time; drifted and old ones first (idle ones, then the oldest), then
    expensive ones.
    """
    rules = picture.rules.pools[name].replacement
    for site in sorted(picture.list_in_pool(name), key=lambda each: find_birth(each.row)):
        is_stopped = site.state == site.row.state == "stopped" and not site.row.cordoned
        if is_stopped and (reason := find_end_of_life(picture, site)):  # "it costs no capacity": without a budget
            picture.decide("terminate", site.id, reason)
            site.state = "terminating"
    old = [(site, reason) for site in picture.list_in_pool(name) if (reason := find_end(picture, site))]
    old.sort(key=lambda each: (not each[0].is_idle, find_birth(each[0].row)))
    free = max(0, count_allowed(picture, name) - count_under_way(picture, name))
    for site, reason in old[:free]:
        picture.decide("drain", site.id, reason)
        site.state = "draining"
    free -= len(old)
    for site in picture.list_in_pool(name):
        if free > 0 and rules.min_saving and not find_end(picture, site) and is_costly(picture, site):
            picture.decide("drain", site.id, "consolidated")
            site.state = "draining"
            free -= 1


def count_allowed(picture: Picture, name: str) -> int:
    """A number, or a share of the active slots, rounded up."""
    budget = picture.rules.pools[name].replacement.disruption_budget
    if budget.endswith("%"):
        return ceil(sum(site.is_active for site in picture.list_in_pool(name)) * int(budget.rstrip("%")) / 100)
    return int(budget)


def count_under_way(picture: Picture, name: str) -> int:
    """Rule: the greatest of: slots that leave; slots in flight that no reservation waits for; ready slots that
    `min_slots` lacks.
    """
    sites = picture.list_in_pool(name)
    leaving = [site for site in sites if site.state in ("draining", "terminating")]
    coming = [site for site in sites if site.is_coming and not site.is_in_use]
    ready = [site for site in sites if site.state == "ready" and not site.row.cordoned]
    return max(len(leaving), len(coming), picture.rules.pools[name].min_slots - len(ready))


def find_birth(row: Slot) -> float:
    """When the machine was launched, as far as it is known."""
    return row.since if row.launched_at is None else row.launched_at


def find_end(picture: Picture, site: Site) -> str:
    """Why the machine of a ready slot is to be replaced; "" if it is not."""
    row = site.row
    if site.state != "ready" or row.cordoned or row.stranger or site.is_useless or site.is_in_use:
        return ""
    return find_end_of_life(picture, site)


def is_too_old(picture: Picture, site: Site) -> bool:
    """Whether the machine is to be replaced, whatever the state of its slot."""
    return bool(find_end_of_life(picture, site))


def find_end_of_life(picture: Picture, site: Site) -> str:
    """Why a machine is to be replaced; "" if it is not."""
    rules, row = site.pool.replacement, site.row
    if rules.drift == "replace" and row.launch_digest not in (None, site.pool.launch_digest):
        return "drifted"
    shorter = rules.max_age * rules.max_age_jitter * crc32(f"{row.id}/{row.epoch}".encode()) / 2**32
    if rules.max_age and picture.now >= find_birth(row) + rules.max_age - shorter:
        return "aged"
    return ""


def is_costly(picture: Picture, site: Site) -> bool:
    """Rule: an idle slot goes if the pool would launch, once the slot is gone, an offering that is as large, has the
    same labels, and saves `min_saving` of the price.
    """
    price, pool = site.row.price, site.pool
    if not site.is_idle or site.row.stranger or site.is_useless or not price:
        return False
    site.state = "draining"
    turn = find_turn(picture, site.name)
    site.state = "ready"
    offers = [offer for offer in list_offers(site.name, pool) if turn in ("", offer.market)]
    for offer in choose_eligible(offers, pool):
        is_cheaper = 0 < offer.price <= price * (1 - pool.replacement.min_saving)
        if is_cheaper and dict(offer.labels) == dict(site.labels) and is_as_large(offer, site):
            is_held = find_refusal(picture, offer) or is_at_quota(picture, offer)
            if not is_held and not is_probing(picture, offer):
                return True
    return False


def is_as_large(offer: Offer, site: Site) -> bool:
    """Whether the offering has all that the slot has."""
    if offer.capacity is None or site.capacity is None:
        return offer.capacity is site.capacity
    return all(offer.capacity.get(name, 0) >= amount for name, amount in site.capacity.items())
