"""The page Offers: what launches would buy, pool by pool in the order of choice, its price, and what prevents it."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leasehold.console.page import Page, backend, caller, render
from leasehold.console.pages.doctor import HOLDS
from leasehold.web.money import read_offers
from scheduler.model.market import PriceChange
from scheduler.operations.rules.offers import Offer
from scheduler.ports import Store
from workers.settings import MarketSettings

SOURCES: Final = {
    "spot-history": "EC2's spot prices",
    "pricing-api": "AWS's Pricing API",
    "price-list": "AWS's price list, imported",
    "file": "an imported file",
    "rules": "set by hand in the rules",
}
"""Source of a price -> the text that the page shows for the source."""
SPANS: Final = {"1d": 86400.0, "7d": 7 * 86400.0, "30d": 30 * 86400.0}
MOST_CURVES: Final = 5
"""The most curves of prices: more cannot be distinguished."""


async def show_offers(request: Request) -> Response:
    """List the offers of all pools, or of the pool in the address."""
    services = backend(request)
    if refusal := caller(request).find_refusal("rules"):
        return render(request, "offers.html", page="offers", refusal=refusal)
    chosen = request.query_params.get("pool", "")[:200]
    span = request.query_params.get("span", "7d")
    pools, offers, now = await services.run(read_page, services.store, services.settings.market, chosen)
    shown = [each for each in offers if each.pool == (offers[0].pool if offers else "")]
    curve = await services.run(read_curve, services.store, shown, now - SPANS.get(span, SPANS["7d"]), now)
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
        drawn=shown[0].pool if shown else "",
        curve=msgspec.json.encode(curve).decode(),
        is_empty=not curve["series"],
        newest=[*zip(curve["at"], zip(*(each["values"] for each in curve["series"]), strict=True), strict=False)][-12:],
        names=[each["name"] for each in curve["series"]],
        span=span if span in SPANS else "7d",
        spans=list(SPANS),
    )


def read_page(store: Store, settings: MarketSettings, chosen: str) -> tuple[list[str], list[Offer], float]:
    """Return the names of the pools that launch machines, the offers of the pool `chosen` ("": of all pools), and
    cluster time. A pool that launches no machines has no offers.
    """
    rules = store.load_rules().rules
    pools = [name for name, pool in rules.pools.items() if pool.is_elastic]
    is_known = not chosen or chosen in pools
    offers = read_offers(store, settings, [chosen] if chosen else []) if is_known else []
    return pools, offers, store.now()


def read_curve(store: Store, offers: Sequence[Offer], since: float, now: float) -> dict[str, Any]:
    """Return the prices of the first offers (at most MOST_CURVES) whose price comes from the table of prices, over the
    time from `since` to `now`, in the form that `curves.js` draws.
    """
    priced = [each for each in offers if each.seen_at is not None][:MOST_CURVES]
    return make_curve(store.read_price_changes(sorted({each.type or "" for each in priced})), priced, since, now)


def make_curve(changes: Iterable[PriceChange], offers: Sequence[Offer], since: float, now: float) -> dict[str, Any]:
    """Return the price of each offer at each change since `since`, and at the end. A price holds until its next change.
    Before the first stored change the price is not known (None).
    """
    known: dict[tuple[str | None, str | None, str], list[tuple[float, float]]] = {}
    for each in sorted(changes, key=lambda change: change.hour):
        known.setdefault((each.type, each.zone, each.market), []).append((each.hour, each.price))
    steps = [known.get((each.type, each.zone, each.market), []) for each in offers]
    at = sorted({since, *(max(since, hour) for found in steps for hour, _ in found)})
    series = [
        {"name": f"{each.key} {each.zone}", "values": [*(_find_price(found, time) for time in at), each.price]}
        for each, found in zip(offers, steps, strict=True)
    ]
    return {"at": [*map(round, at), round(now)], "series": series, "stepped": True, "digits": 4}


def _find_price(steps: Sequence[tuple[float, float]], at: float) -> float | None:
    return next((price for hour, price in reversed(steps) if hour <= at), None)


PAGE: Final = Page("offers", "Offers", "/offers", 34, [Route("/offers", show_offers)])
