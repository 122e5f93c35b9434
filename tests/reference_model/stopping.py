"""The stopped tier. Source: EC2 Auto Scaling (warm pools of stopped instances); that surplus fills the tier first is
Leasehold's own rule.
"""

from tests.reference_model.healing import is_configured
from tests.reference_model.keeping import count_reserve, count_serving
from tests.reference_model.launching import choose_eligible, count_left, find_code, list_offers, start
from tests.reference_model.picture import Picture, Site
from tests.reference_model.replacing import is_too_old


def keep_tier(picture: Picture, name: str, kept: set[str], room: int | None) -> int:
    """Rule: "A pool keeps `stopped_slots` stopped slots": too many are terminated (those that are to be replaced first,
    then the dearest); if some are missing, surplus ready slots are stopped, except those in `kept`, and the rest is
    launched.
    Return how many slots are to be stopped later. `room`: what a launch leaves for reservations; None: no launch.
    """
    pool = picture.rules.pools[name]
    if not pool.stopped_slots:
        return 0
    sites = picture.list_in_pool(name)
    present = [site for site in sites if site.state == "stopped" and not site.row.cordoned]
    lacking = pool.stopped_slots - len(present)
    going = [site for site in present if site.is_in_tier and is_configured(site.row, pool)]
    going.sort(key=lambda site: (not is_too_old(picture, site), -site.price))
    for site in going[: max(0, -lacking)]:
        picture.decide("terminate", site.id, "surplus")
        site.state = "terminating"
    for site in sorted(sites, key=lambda site: site.idle_since):
        is_over = picture.now > site.idle_since + pool.idle_scale_down
        is_fresh = site.row.launch_reason == "stopped" and not site.row.uses
        may_go = site.is_idle and site.id not in kept and (is_over or is_fresh) and may_stop(picture, site)
        if may_go and lacking > 0 and count_spare(picture, name) > 0:
            picture.decide("stop", site.id, "booted" if is_fresh else "idle")
            site.state = "stopped"
            lacking -= 1
    while room is not None and lacking > max(0, min(count_later(picture, name), count_spare(picture, name))):
        if (room and count_left(picture, name) <= room) or not launch_for_tier(picture, name):
            break
    return max(0, min(lacking, count_later(picture, name)))


def count_spare(picture: Picture, name: str) -> int:
    """Rule: scale-in keeps `min_slots` in service and `target_warm_slots` in reserve."""
    pool = picture.rules.pools[name]
    return min(count_serving(picture, name) - pool.min_slots, count_reserve(picture, name) - pool.target_warm_slots)


def count_later(picture: Picture, name: str) -> int:
    """Idle slots and slots in flight of the kind that may be stopped."""
    return sum(
        may_stop(picture, site) and (site.is_idle or (site.is_serving and site.is_coming and not site.is_in_use))
        for site in picture.list_in_pool(name)
    )


def may_stop(picture: Picture, site: Site) -> bool:
    """Rule: only an on-demand machine that need not be replaced is stopped."""
    return site.market == "on-demand" and (site.state != site.row.state or not is_too_old(picture, site))


def launch_for_tier(picture: Picture, name: str) -> bool:
    """Launch the first eligible on-demand offering that does not pause; return whether there was one."""
    pool = picture.rules.pools[name]
    offers = choose_eligible([each for each in list_offers(name, pool) if each.market == "on-demand"], pool)
    offer = next((each for each in offers if not find_code(picture, each)), None)
    if offer is not None:
        start(picture, offer, "stopped")
    return offer is not None
