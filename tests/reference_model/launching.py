"""What may be launched, and what delays it. Source: Arvados; the autoscaler's tick for the counting."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from scheduler.model.launch_backoff import Hold
from scheduler.model.pools import Pool, offering_key
from scheduler.model.reservations import Component, Reservation
from tests.reference_model.budgeting import is_over_budget
from tests.reference_model.fitting import find_need, fits, has_labels
from tests.reference_model.holding import count_refusals_for_quota, find_refusal_for_quota, is_lasting
from tests.reference_model.picture import IN_FLIGHT, Amounts, Picture, Site, find_bucket, find_capacity, serving_pools

CODES = ("behind_queue", "at_max_slots", "at_quota", "over_budget", "capacity", "throttled", "misconfigured")
"""If several codes apply, the first is reported."""
ROOM = ("at_max_slots", "at_quota")


@dataclass(frozen=True)
class Offer:
    """What a new slot of a pool could be. A pool without offerings counts as one offering without a name."""

    pool: str
    key: str
    market: str
    price: float
    capacity: Amounts | None
    labels: tuple[tuple[str, str], ...]
    bucket: str = ""
    """What EC2 counts its machine against."""


def list_offers(name: str, pool: Pool, *, sold: bool = True) -> list[Offer]:
    """Rule: "Order: price ascending, then more memory, then more cpus, then name".

    `sold`: only offerings that a launch may choose. Those without a known type, or with an unknown or too high price,
    may be sold later.
    """
    if not pool.offerings:
        return [Offer(name, "", "", 0, pool.resources, tuple(pool.labels.items()))]
    offers = [
        Offer(
            pool=name,
            key=offering_key(pool, each),
            market=each.market,
            price=each.price,
            capacity=pool.resources if each.resources is None else each.resources,
            labels=tuple({**pool.labels, **(each.labels or {})}.items()),
            bucket=find_bucket(pool, offering_key(pool, each), each.market),
        )
        for each in pool.offerings
        if each.is_for_sale or not sold
    ]
    return sorted(offers, key=_rank)


def _rank(offer: Offer) -> tuple[float, float, float, str]:
    held = offer.capacity or {}
    return (offer.price, -held.get("memory_mib", 0), -held.get("cpus", 0), offer.key)


def list_fitting(
    name: str, pool: Pool, reservation: Reservation, component: Component, *, sold: bool = True
) -> list[Offer]:
    """The pool's offerings that have the resources and labels of the component."""
    return [
        offer
        for offer in list_offers(name, pool, sold=sold)
        if pool.provider == "ec2"
        and has_labels(dict(offer.labels), reservation, component)
        and fits(find_need(component, pool), offer.capacity)
    ]


def choose_eligible(offers: Sequence[Offer], pool: Pool) -> list[Offer]:
    """Rule: "With the cheapest price p; eligible is each with price <= p * `price_factor` (inclusive; below 1
    counts as 1). p is the cheapest that *fits*, held or not."
    """
    most = _read(min((offer.price for offer in offers), default=0)) * _read(max(1, pool.price_factor))
    return [offer for offer in offers if _read(offer.price) <= most]


def _read(number: float) -> Decimal:
    """The number as it is written: 0.7 times 1.5 is 1.05, but not in binary fractions."""
    return Decimal(str(number))


def list_eligible(picture: Picture, reservation: Reservation, component: Component) -> list[Offer]:
    """What could be launched for one instance, in all pools that serve it, best first.

    Beyond `price_factor` a pool may have `on_demand_after` = k: "after k interruptions of a reservation, or k capacity
    errors in a row on all its spot offerings, on-demand ones count as eligible for it".
    """
    found = []
    for name in serving_pools(picture.rules, reservation):
        pool = picture.rules.pools[name]
        fitting = list_fitting(name, pool, reservation, component)
        turn = find_turn(picture, name)
        ever = list_fitting(name, pool, reservation, component, sold=False)
        if turn == "spot" and all(offer.market != "spot" for offer in ever):
            turn = ""  # no spot machine could ever hold it
        found += choose_by_turn(picture, pool, fitting, turn, reservation.interruptions)
    return found


def choose_by_turn(
    picture: Picture, pool: Pool, fitting: Sequence[Offer], turn: str, interruptions: int = 0
) -> list[Offer]:
    """Rule: "If it is the turn of on-demand, only on-demand offerings are launched. If it is spot's turn, spot ones,
    and on-demand ones only by `on_demand_after`"; `price_factor` compares offerings of that market.
    """
    eligible = choose_eligible([offer for offer in fitting if turn in ("", offer.market)], pool)
    may_fall_back = turn != "on-demand" and pool.on_demand_after > 0
    if not may_fall_back or not is_impatient(picture, pool, eligible, turn, interruptions):
        return eligible
    return eligible + [offer for offer in fitting if offer.market == "on-demand" and offer not in eligible]


def find_turn(picture: Picture, name: str) -> str:
    """Rule: "Slots that are ready or in flight count, those that leave do not. Of n + 1 slots, the base and the share
    of the slots above it, rounded up, have to be on-demand"; "" if the price decides.
    """
    market = picture.rules.pools[name].market
    markets = [site.market for site in picture.list_in_pool(name) if site.state in (*IN_FLIGHT, "ready", "imagined")]
    if market.on_demand_share is None:
        lacks_one = markets.count("on-demand") < market.on_demand_base and bool(market.on_demand_base)
        return "on-demand" if lacks_one else ""
    above = max(0, len(markets) + 1 - market.on_demand_base)
    required = len(markets) + 1 - above
    while required - (len(markets) + 1 - above) < market.on_demand_share * above - 1e-9:
        required += 1
    return "on-demand" if markets.count("on-demand") < required else "spot"


def is_impatient(picture: Picture, pool: Pool, eligible: Sequence[Offer], turn: str, interruptions: int) -> bool:
    """See `list_eligible`. On spot's turn without a spot offering for sale there is nothing to wait for."""
    spot = [offer for offer in eligible if offer.market == "spot"]
    if not spot:
        return turn == "spot"
    is_refused = all(count_refusals(picture, offer) >= pool.on_demand_after for offer in spot)
    return is_refused or interruptions >= pool.on_demand_after


def count_refusals(picture: Picture, offer: Offer) -> int:
    """Refusals in a row of a spot offering, for capacity or for the quota of its bucket."""
    hold = find_hold(picture, offer.pool, "capacity", offer.key)
    refusal = find_refusal_for_quota(picture.history, offer.pool, offer.bucket)
    for_quota = 0 if refusal is None else count_refusals_for_quota(picture.history, offer.pool, offer.bucket)
    return max(hold.streak if hold else 0, for_quota)


def find_hold(picture: Picture, pool: str, kind: str, subject: str = "") -> Hold | None:
    """The launch back-off of that kind, over or not."""
    for hold in picture.holds:
        if (hold.pool, hold.kind) == (pool, kind) and (kind == "unhealthy" or hold.subject == subject):
            return hold
    return None


def is_held(picture: Picture, pool: str, kind: str, subject: str = "") -> bool:
    """Rule: "A hold ends when now >= its end"."""
    hold = find_hold(picture, pool, kind, subject)
    return hold is not None and picture.now < hold.until


def is_spot_resting(picture: Picture, offer: Offer) -> bool:
    """Rule: "After `on_demand_after` refusals in a row a spot offering is tried again when `spot_again_after` has
    passed since the last one".
    """
    pool, hold = picture.rules.pools[offer.pool], find_hold(picture, offer.pool, "capacity", offer.key)
    if hold is None or offer.market != "spot" or not pool.on_demand_after or hold.streak < pool.on_demand_after:
        return False
    return picture.now < hold.refused_at + pool.market.spot_again_after


def is_at_quota(picture: Picture, offer: Offer) -> bool:
    """Rule: "A pool is *at quota* while a quota hold lasts"; it concerns a class of types in one market, or the pool if
    the machine that was refused had no offering.
    """
    return find_limit(picture, offer) is not None


def find_limit(picture: Picture, offer: Offer) -> str | None:
    """The bucket whose quota hold lasts for this offer, the narrowest one; None if none does."""
    found = list_refusals(picture, offer)
    return next((bucket for bucket, index in found.items() if is_lasting(picture.history, index, picture.now)), None)


def list_refusals(picture: Picture, offer: Offer) -> dict[str, int]:
    """The last refusals for a quota that this offer needs, by bucket, the narrowest one first."""
    found = {name: find_refusal_for_quota(picture.history, offer.pool, name) for name in (offer.bucket, "")}
    return {bucket: index for bucket, index in found.items() if index is not None}


def may_probe(picture: Picture, offer: Offer) -> bool:
    """Whether a quota hold is over and no launch has succeeded since. A success ends the hold."""
    return bool(list_refusals(picture, offer)) and not is_at_quota(picture, offer)


def is_probing(picture: Picture, offer: Offer) -> bool:
    """Rule: "After a back-off of an EC2 quota one start, else one launch, is the trial of that quota (market and
    class); while it is under way no other start or launch of that quota follows".
    """
    sites = picture.list_in_pool(offer.pool)
    asked = [site.bucket for site in sites if is_asked_for(site)]
    over = [
        bucket
        for bucket, index in list_refusals(picture, offer).items()
        if not is_lasting(picture.history, index, picture.now)
    ]
    return any(bucket in asked or (not bucket and asked) for bucket in over)


def is_limited(picture: Picture, offer: Offer) -> bool:
    """Whether a quota hold that concerns this offer lasts, or the trial after it is under way."""
    return is_at_quota(picture, offer) or is_probing(picture, offer)


def is_asked_for(site: Site) -> bool:
    """Whether the cloud has not answered yet: a launch, or the start of a stopped machine."""
    is_start = site.state == "booting" and (site.row.power == "start" or site.row.state == "stopped")
    return site.state == "launching" or is_start


def is_unhealthy(picture: Picture, name: str) -> bool:
    """Rule: "Boots that fail in a row hold the pool, `misconfigured`" for `error_cooldown`; then one is tried
    alone.
    """
    pool, hold = picture.rules.pools[name], find_hold(picture, name, "unhealthy")
    failed = picture.failed_boots.count(name)
    streak = failed + (hold.streak if hold else 0)
    if not pool.unhealthy_after or streak < pool.unhealthy_after:
        return False
    until = hold.until if hold and not failed else picture.now + pool.error_cooldown
    return picture.now < until or any(site.is_coming for site in picture.list_in_pool(name))


def list_bounds(picture: Picture, name: str) -> list[tuple[int, list[str]]]:
    """Each `max_slots` that holds for a pool and the pools that it counts: its own, its system's, that over all."""
    rules = picture.rules
    pool = rules.pools[name]
    alike = [each for each, other in rules.pools.items() if other.system == pool.system]
    own = rules.scheduler.system.get(pool.system)
    bounds = [(pool.max_slots or 0, [name])]
    if rules.scheduler.max_slots:
        bounds.append((rules.scheduler.max_slots, list(rules.pools)))
    if own is not None and own.max_slots:
        bounds.append((own.max_slots, alike))
    return bounds


def count_active(picture: Picture, pools: Iterable[str]) -> int:
    """Active slots, and machines with the project's tags that belong to no slot."""
    names = list(pools)
    strangers = (hold for hold in picture.holds if hold.kind == "strangers" and picture.now < hold.until)
    active = sum(site.is_active for site in picture.sites if site.name in names)
    return active + sum(hold.active for hold in strangers if hold.pool in names)


def list_empty(picture: Picture, name: str) -> list[Site]:
    """Rule: "Launches take empty slots in slot order"; a cordoned one takes nothing."""
    return [site for site in picture.list_in_pool(name) if site.state == "empty" and not site.row.cordoned]


def count_left(picture: Picture, name: str) -> int:
    """Rule: "*Full* while active = `max_slots` (or no slot is `empty`)": how many more there may be."""
    left = min(most - count_active(picture, pools) for most, pools in list_bounds(picture, name))
    return max(0, min(left, len(list_empty(picture, name))))


def find_code(picture: Picture, offer: Offer, account: str = "") -> str:
    """What delays this launch now, the first that applies; "" if nothing does."""
    if count_left(picture, offer.pool) == 0:
        return "at_max_slots"
    if is_limited(picture, offer):
        return "at_quota"
    return find_refusal(picture, offer, account)


def find_refusal(picture: Picture, offer: Offer, account: str = "") -> str:
    """What delays it, except a lack of slots."""
    if is_over_budget(picture, offer, account):
        return "over_budget"
    if is_held(picture, offer.pool, "capacity", offer.key) or is_spot_resting(picture, offer):
        return "capacity"
    if is_held(picture, offer.pool, "throttled"):
        return "throttled"
    is_wrong = is_held(picture, offer.pool, "misconfigured", offer.key) or is_held(picture, "*", "auth")
    # Rule: "A pool whose image was not found yet launches nothing".
    is_wrong = is_wrong or (picture.rules.pools[offer.pool].ec2.image or "").startswith(("ssm:", "newest:"))
    return "misconfigured" if is_wrong or is_unhealthy(picture, offer.pool) else ""


def start(picture: Picture, offer: Offer, reason: str, account: str = "") -> Site:
    """Launch it on the first empty slot."""
    site = list_empty(picture, offer.pool)[0]
    site.state, site.is_new, site.market, site.bucket = "launching", True, offer.market, offer.bucket
    site.price, site.account = offer.price, account
    site.capacity, site.labels, site.leases = offer.capacity, dict(offer.labels), {}
    picture.decide("launch", site.id, offer.key or "-", reason)
    return site


def stop(picture: Picture, site: Site) -> None:
    """Take the last launch or start back."""
    picture.decisions.pop()
    site.state, site.is_new = "stopped" if site.row.state == "stopped" else "empty", False
    if site.state == "stopped":
        offer = own_offer(site)
        site.price, site.capacity, site.labels = offer.price, offer.capacity, dict(offer.labels)
        site.bucket = offer.bucket


def own_offer(site: Site) -> Offer:
    """What a stopped slot was launched as."""
    row = site.row
    capacity = find_capacity(row, site.pool)
    labels, bucket = tuple(row.labels.items()), find_bucket(site.pool, row.offering or "", row.market or "")
    return Offer(site.name, row.offering or "", row.market or "", row.price or 0, capacity, labels, bucket)
