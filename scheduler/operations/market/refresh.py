"""Reads the catalogue of instance types and the prices from EC2, and imports prices. The version of the market
increases only if an instance type or the amount of a price changes, so that ticks plan again from the start only then.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from scheduler.model.costs import begin_of_hour
from scheduler.model.machines import Offering
from scheduler.model.market import ADDRESS, VOLUME, InstanceType, Price, PriceChange, StoredMarket
from scheduler.model.pools import Pool, has_price
from scheduler.model.rules import Rules
from scheduler.operations.market.resolve import find_zones, has_requirements, list_types
from scheduler.ports import MarketSource, Store


class OnDemandReader:
    """Reads on-demand prices from AWS's price list when they are due. A process keeps this object from task to task."""

    def __init__(self) -> None:
        self._tried_at: float | None = None
        self.is_refused = False
        """Whether AWS refused the last call of its price list."""

    def read(self, store: Store, source: MarketSource, rules: Rules, interval: float) -> "Refreshed | None":
        """Read the on-demand prices that were not read for `interval` seconds, at most once in an interval. Return None
        if nothing was due. Raises CloudError.
        """
        now = store.now()
        if self._tried_at is not None and 0 <= now - self._tried_at < interval:
            return None
        self._tried_at = now
        return refresh_on_demand(store, source, rules, age=interval)


class Refreshed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a refresh: how many types and prices were read, and whether any type or amount of a price
    changed.
    """

    types: int = 0
    """Number of instance types read for the catalogue; 0: the catalogue was not read."""
    prices: int = 0
    changed: bool = False


def refresh_market(
    store: Store, source: MarketSource, rules: Rules, *, catalogue_age: float = 0.0, all_pools: bool = False
) -> Refreshed:
    """Read the catalogue from EC2 if the rules have requirements and the catalogue is older than `catalogue_age`
    seconds. Then read the spot prices of the offerings of the pools. Nothing is written unless EC2 answers every call.

    `all_pools`: also read prices for offerings in pools that do not use the market. Raises CloudError.
    """
    now, known = store.now(), store.load_market()
    types: list[InstanceType] | None = None
    if has_requirements(rules) and _is_older(known, now - catalogue_age):
        types = source.read_types(now)
    catalogue = known if types is None else StoredMarket(version=known.version, types=tuple(types), prices=known.prices)
    prices = [
        price
        for zones, names in _list_wanted(rules, catalogue, all_pools=all_pools).items()
        for price in source.read_spot_prices(sorted(names), zones, now)
    ]
    changed = save_market(store, types=types, prices=prices)
    return Refreshed(types=len(types or ()), prices=len(prices), changed=changed)


def refresh_on_demand(
    store: Store, source: MarketSource, rules: Rules, *, age: float = 0.0, all_pools: bool = False
) -> Refreshed:
    """Read the on-demand prices of the instance types that the pools may use, of volumes and of public addresses, as
    far as they were not read for `age` seconds. If AWS lists no price for a type, the known price stays. Raises
    CloudError; then nothing is written.

    `all_pools`: also for offerings with a price set by hand, and in pools that do not use the market.
    """
    now, known = store.now(), store.load_market()
    fresh = {each.type for each in known.prices if each.market == "on-demand" and each.seen_at > now - age}
    wanted = _list_on_demand(rules, known, all_pools=all_pools) - fresh
    prices = source.read_on_demand_prices(sorted(wanted), now) if wanted else []
    return Refreshed(prices=len(prices), changed=save_market(store, prices=prices) if prices else False)


def _list_on_demand(rules: Rules, market: StoredMarket, *, all_pools: bool) -> set[str]:
    """Return the instance types whose on-demand price the pools need, because they are launched on demand or because a
    spot price is compared with it; also VOLUME and ADDRESS, if machines of the pools may have them. `all_pools`: also
    for offerings with a price set by hand, and in pools that do not use the market.
    """
    wanted: set[str] = set()
    for pool in rules.pools.values():
        if not pool.is_elastic:
            continue
        wanted |= {VOLUME, ADDRESS} if pool.ec2.volume_gib else {ADDRESS}
        if not (all_pools or pool.uses_market):
            continue
        for entry in pool.offerings:
            is_compared = entry.market == "spot" and pool.market.spot_below is not None
            is_bought = entry.market == "on-demand" and (all_pools or not has_price(entry))
            if is_bought or is_compared:
                wanted |= _list_names(pool, entry, market)
    return wanted


def _list_names(pool: Pool, entry: Offering, market: StoredMarket) -> set[str]:
    if entry.require is None:
        return {entry.instance_type}
    return {each.name for each in list_types(pool, entry, market)}


def _is_older(market: StoredMarket, before: float) -> bool:
    return not market.types or min(each.seen_at for each in market.types) <= before


def _list_wanted(rules: Rules, market: StoredMarket, *, all_pools: bool) -> dict[tuple[str, ...], set[str]]:
    """Return the instance types whose spot prices the pools need, as a table: zones of a pool -> the types that are
    needed in these zones. Offerings with a price set by hand need none, except with `all_pools`.
    """
    wanted: dict[tuple[str, ...], set[str]] = {}
    for pool in rules.pools.values():
        if not pool.is_elastic or not (all_pools or pool.uses_market):
            continue
        for entry in pool.offerings:
            if entry.market != "spot" or (has_price(entry) and not all_pools):
                continue
            wanted.setdefault(find_zones(pool, entry), set()).update(_list_names(pool, entry, market))
    return wanted


def save_market(store: Store, *, types: Sequence[InstanceType] | None = None, prices: Iterable[Price] = ()) -> bool:
    """Store prices, and `types` as the whole catalogue (None: the catalogue stays). Return whether any type or the
    amount of a price changed; then the version of the market increases. Prices whose amount changed are added to the
    history of prices.
    """
    known, given = store.load_market(), list(prices)
    amounts = {each.key: each.price for each in known.prices}
    history = [
        PriceChange(
            type=each.type, zone=each.zone, market=each.market, hour=begin_of_hour(each.seen_at), price=each.price
        )
        for each in given
        if amounts.get(each.key) != each.price
    ]
    changed = bool([*_list_changes(known, types, given)])
    with store.transaction() as transaction:
        if types is not None:
            transaction.delete_types(known.type_by_name.keys() - {each.name for each in types})
            transaction.save_types(types)
        transaction.save_prices(given)
        transaction.save_price_changes(history)
        if changed:
            transaction.count_market_change()
    return changed


def _list_changes(known: StoredMarket, types: Sequence[InstanceType] | None, prices: Iterable[Price]) -> Iterator[str]:
    """Yield the names of the instance types that are new, gone or changed, or whose prices change. `types`: the new
    catalogue; None: the catalogue stays.
    """
    amounts = {each.key: each.price for each in known.prices}
    yield from (each.type for each in prices if amounts.get(each.key) != each.price)
    if types is None:
        return
    yield from known.type_by_name.keys() - {each.name for each in types}
    for each in types:
        before = known.type_by_name.get(each.name)
        if before is None or msgspec.structs.replace(before, seen_at=each.seen_at) != each:
            yield each.name
