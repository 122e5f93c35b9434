"""The page Offers: what launches would buy, pool by pool in the order of choice, its price, and what prevents it."""

from itertools import groupby
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leasehold.console.page import Page, backend, caller, render
from leasehold.web.money import read_offers
from scheduler.model.launch_backoff import Kind
from scheduler.operations.market.offers import Offer
from scheduler.ports import Store
from workers.market_settings import MarketSettings

SOURCES: Final = {
    "spot-history": "EC2's spot prices",
    "pricing-api": "AWS's Pricing API",
    "price-list": "AWS's price list, imported",
    "file": "an imported file",
    "rules": "set by hand in the rules",
}
"""Source of a price -> its text."""
HOLDS: Final[dict[Kind, str]] = {
    "capacity": "EC2 lacked capacity",
    "quota": "EC2's quota is used up",
    "throttled": "EC2 throttled launches",
    "auth": "AWS refused the credentials",
    "misconfigured": "EC2 refused the request as misconfigured",
    "unhealthy": "boots fail one after the other",
}
"""Kind of a launch back-off -> its text."""


async def show_offers(request: Request) -> Response:
    """List the offers of all pools, or of the pool in the address."""
    services = backend(request)
    if refusal := caller(request).find_refusal("rules"):
        return render(request, "offers.html", page="offers", refusal=refusal)
    chosen = request.query_params.get("pool", "")[:200]
    pools, offers, now = await services.run(read_page, services.store, services.settings.market, chosen)
    return render(
        request,
        "offers.html",
        page="offers",
        refusal="",
        chosen=chosen,
        pools=pools,
        groups=[(name, [*rows]) for name, rows in groupby(offers, key=lambda each: each.pool)],
        now=now,
        sources=SOURCES,
        holds=HOLDS,
    )


def read_page(store: Store, settings: MarketSettings, chosen: str) -> tuple[list[str], list[Offer], float]:
    """Return the names of the pools that launch machines, the offers of the chosen pool (none: of all), and the
    present time.
    """
    rules = store.load_rules().rules
    pools = [name for name, pool in rules.pools.items() if pool.is_elastic]
    is_known = not chosen or chosen in pools
    offers = read_offers(store, settings, [chosen] if chosen else []) if is_known else []
    return pools, offers, store.now()


PAGE: Final = Page("offers", "Offers", "/offers", 34, [Route("/offers", show_offers)])
