"""Which stopped slot is started, and as what. Source: EC2 Auto Scaling (warm pools of stopped instances)."""

from collections.abc import Callable, Iterable

from tests.reference_model.healing import is_configured
from tests.reference_model.launching import Offer, choose_eligible, find_refusal, is_limited, list_offers, own_offer
from tests.reference_model.picture import Picture, Site
from tests.reference_model.replacing import is_too_old


def find_start(
    picture: Picture, pools: Iterable[str], may_be: Callable[[Offer], bool], account: str = ""
) -> tuple[Site, Offer] | None:
    """Rule: a stopped slot that fits is started before anything is launched: pools in their order, in each the cheapest
    slot first. What holds back a launch of its offering holds it back too, except `max_slots`. Without capacity for its
    offering it is started as a larger one, if the pool has `resize_stopped`.
    """
    for name in pools:
        sites = [site for site in picture.list_in_pool(name) if is_startable(picture, site)]
        for site in sorted(sites, key=lambda site: site.row.price or 0):
            for offer in list_forms(picture, site, may_be, account):
                if may_be(offer) and not find_hindrance(picture, offer, account):
                    return site, offer
    return None


def is_startable(picture: Picture, site: Site) -> bool:
    """A stopped slot that counts, is not to be replaced, and whose offering is sold now."""
    offers = {offer.key for offer in list_offers(site.name, site.pool)}
    all_offers = {offer.key for offer in list_offers(site.name, site.pool, sold=False)}
    is_sold = (site.row.offering or "") not in all_offers - offers
    return site.is_in_tier and is_sold and is_configured(site.row, site.pool) and not is_too_old(picture, site)


def list_forms(picture: Picture, site: Site, may_be: Callable[[Offer], bool], account: str) -> list[Offer]:
    """What the slot could be started as: what it is; only if EC2 lacks capacity for that, one as large or larger."""
    own = own_offer(site)
    if not may_be(own) or find_hindrance(picture, own, account) != "capacity" or not site.pool.resize_stopped:
        return [own]
    known = [offer for offer in list_offers(site.name, site.pool, sold=False) if offer.key == own.key]
    if not known:
        return []
    larger = [
        offer
        for offer in list_offers(site.name, site.pool)
        if offer.market == own.market and is_no_smaller(offer, known[0])
    ]
    zones = {key: each.zone for key, each in site.pool.offering_by_key.items()}
    return [
        offer
        for offer in choose_eligible(larger, site.pool)
        if offer.key != own.key and zones[offer.key] in (None, site.row.zone)
    ]


def is_no_smaller(offer: Offer, own: Offer) -> bool:
    """All resources and labels of the other one."""
    if offer.capacity is None or own.capacity is None:
        is_large = offer.capacity is own.capacity
    else:
        is_large = all(offer.capacity.get(name, 0) >= amount for name, amount in own.capacity.items())
    return is_large and set(own.labels) <= set(offer.labels)


def find_hindrance(picture: Picture, offer: Offer, account: str) -> str:
    """What holds a start back."""
    return "at_quota" if is_limited(picture, offer) else find_refusal(picture, offer, account)


def start_stopped(picture: Picture, site: Site, offer: Offer, reason: str, account: str = "") -> Site:
    site.state, site.is_new = "booting", True
    site.price, site.account, site.bucket = offer.price, account, offer.bucket
    site.capacity, site.labels, site.leases = offer.capacity, dict(offer.labels), {}
    picture.decide("start", site.id, offer.key or "-", reason)
    return site


def start_for_reserve(picture: Picture, name: str, reason: str, keys: set[str]) -> bool:
    """Rule: the minimum and the reserve start a stopped slot if its offering could be launched for them."""
    found = find_start(picture, [name], lambda _: True)
    if found is None or found[1].key not in keys:
        return False
    start_stopped(picture, *found, reason)
    return True
