"""EC2's market: rules are resolved by it, and the catalogue of instance types and the prices are read from EC2 or
imported.

To resolve rules is to replace the requirements in them by offerings of the instance types that meet them, and to add
missing prices from the table of prices. The result is ordinary rules, so no rule of the scheduler has to handle
requirements. It depends only on the rules and on the version of the market, so it is computed once for each pair of
them. The version increases only if an instance type or the amount of a price changes, so that ticks plan again from the
start only then.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from scheduler.model.costs import begin_of_hour
from scheduler.model.machines import Offering, Requirements, UnsoldOffering
from scheduler.model.market import ADDRESS, VOLUME, InstanceType, Price, PriceChange, StoredMarket
from scheduler.model.pools import Pool, has_price
from scheduler.model.rules import Rules
from scheduler.model.validation import Fault, InvalidInputError
from scheduler.ports import MarketReads, MarketSource, Store

MOST_TYPES: Final = 150
"""The most instance types that a requirement may match when its rules are applied. A fleet request of EC2 has at most
300 pairs of type and subnet.
"""
IMPORT: Final = "`leasehold prices import FILE`"
NO_PRICE: Final = "no price is known"
REFRESH: Final = "`leasehold prices refresh`"


def uses_market(rules: Rules) -> bool:
    """Return whether types or prices of any pool come from the market."""
    return any(pool.uses_market for pool in rules.pools.values())


def load_resolved(store: MarketReads, rules: Rules) -> Rules:
    """Return the rules, resolved with the catalogue and prices in the database."""
    return resolve_rules(rules, store.load_market()) if uses_market(rules) else rules


def check_requirements(store: MarketReads, rules: Rules, prefix: str = "") -> None:
    """Raise InvalidInputError if requirements in the rules have faults (`find_market_faults`). Rules without
    requirements have no such faults. `prefix`: the path of the rules, for the messages.
    """
    if has_requirements(rules) and (faults := [*find_market_faults(rules, store.load_market(), prefix)]):
        raise InvalidInputError(faults)


def has_requirements(rules: Rules) -> bool:
    """Return whether any offering has requirements in place of a type."""
    return any(each.require is not None for pool in rules.pools.values() for each in pool.offerings)


def resolve_document(document: Mapping[str, Any], rules: Rules) -> dict[str, Any]:
    """Return a copy of `document` (rules as a table) in which each pool has its offerings from `rules`. `rules`: the
    same rules after they were resolved. The copy is for programs that cannot read the market. Offerings that cannot be
    launched are omitted. If a pool has no offering that can be launched, it keeps its offerings of `document`.
    """
    pools = dict(document.get("pools", {}))
    for name, pool in document.get("pools", {}).items():
        sold = [each for each in rules.pools[name].offerings if each.is_for_sale]
        if sold:
            pools[name] = {**pool, "offerings": [each.model_dump(mode="json", exclude_unset=True) for each in sold]}
    return {**document, "pools": pools}


def resolve_rules(rules: Rules, market: StoredMarket) -> Rules:
    """Return the rules with their requirements replaced and their prices filled in from `market`. Rules that do not use
    the market are returned unchanged.
    """
    changed = {
        name: pool.model_copy(update={"offerings": tuple(_resolve_pool(pool, market))})
        for name, pool in rules.pools.items()
        if pool.uses_market
    }
    return rules.model_copy(update={"pools": {**rules.pools, **changed}}) if changed else rules


def _resolve_pool(pool: Pool, market: StoredMarket) -> Iterator[Offering]:
    """Yield the offerings of a pool, with each requirement replaced by the offerings of the types that meet it. If no
    type meets a requirement, yield the requirement unchanged, because a pool without any offering launches the type of
    its launch template or image. If two requirements give offerings with the same name, yield only the first one.
    """
    seen = {each.name for each in pool.offerings if each.require is None}
    for entry in pool.offerings:
        if entry.require is None:
            yield _judge(pool, entry, market)
            continue
        resolved = [make_offering(pool, entry, kind, market) for kind in list_types(pool, entry, market)]
        yield from (each for each in resolved if each.name not in seen)
        seen |= {each.name for each in resolved}
        if not resolved:
            yield entry


def list_types(pool: Pool, entry: Offering, market: StoredMarket) -> list[InstanceType]:
    """Return the instance types, sorted by name, that meet the requirements of `entry` and that EC2 offers in one of
    its zones.
    """
    if entry.require is None:
        return []
    zones = set(find_zones(pool, entry))
    return sorted(
        (
            kind
            for kind in market.types
            if entry.require.meets(kind, entry.market) and (not zones or zones & set(kind.zones))
        ),
        key=lambda kind: kind.name,
    )


def find_zones(pool: Pool, offering: Offering) -> tuple[str, ...]:
    """Return the zones in which an offering of the pool may be launched; (): in any zone of the region."""
    return pool.zones if offering.zone is None else (offering.zone,)


def find_price(pool: Pool, offering: Offering, market: StoredMarket) -> Price | None:
    """Return the price that the table of prices has for an offering of the pool: the lowest one of its zones. Return
    None if it has none.
    """
    return market.find_price(offering.instance_type, offering.market, find_zones(pool, offering))


def list_unlisted(pool: Pool, applied: Pool, market: StoredMarket) -> list[Offering]:
    """Return offerings of the types of the catalogue that the pool could launch beside its own: the processor can run
    what its image is made for, EC2 offers the type in its zones, and its price in a market of the pool is known.
    `applied`: the pool before it was resolved.
    """
    # The image may be made for the architectures that the pool requires, else for those that all its types have.
    named = {each.require.architecture for each in applied.offerings if each.require is not None}
    known = [market.type_by_name.get(each.instance_type) for each in applied.offerings if each.require is None]
    common = [set[str](kind.architectures) for kind in known if kind is not None]
    architectures = set[str](named) or (set.intersection(*common) if common else set())
    zones = set(pool.zones)
    kinds = [
        kind
        for kind in market.types
        if architectures and architectures <= set(kind.architectures) and not kind.is_bare_metal
        if not zones or zones & set(kind.zones)
    ]
    found = []
    for name in sorted({each.market for each in pool.offerings}):
        entry = Offering(name="any", market=name)
        for kind in (each for each in kinds if name in each.markets):
            price = find_price(pool, Offering(name=kind.name, market=name), market)
            if price is not None:
                made = make_offering(pool, entry, kind, market)
                held, labels = made.resources, made.labels
                found.append(Offering(name=kind.name, market=name, price=price.price, resources=held, labels=labels))
    return found


def make_offering(pool: Pool, entry: Offering, kind: InstanceType, market: StoredMarket) -> Offering:
    """Return the offering of the instance type `kind`, which meets the requirements of `entry`. Price, resources and
    labels that `entry` sets by hand have precedence. The name does not depend on other offerings, because slots store
    it.
    """
    resources, labels = (entry.require or Requirements()).describe(kind)
    values: dict[str, Any] = {
        "name": f"{kind.name}/{entry.market}" + (f"/{entry.zone}" if entry.zone else ""),
        "type": kind.name,
        "market": entry.market,
        "zone": entry.zone,
        "resources": {**resources, **(entry.resources or {})},
        "labels": {**labels, **(entry.labels or {})},
    }
    if has_price(entry):
        values["price"] = entry.price
    return _judge(pool, Offering(**values), market)


def _judge(pool: Pool, offering: Offering, market: StoredMarket) -> Offering:
    """Return an offering with the price from the table of prices, unless it has its own. If its price is unknown or too
    high, the result is marked as not for sale.
    """
    if pool.takes_prices and not has_price(offering):
        found = find_price(pool, offering, market)
        if found is None:
            return _hold_back(offering, NO_PRICE)
        offering = offering.model_copy(update={"price": found.price})
    most = pool.market.max_price
    if most is not None and offering.price > most:
        return _hold_back(offering, f"costs more than max_price ({most:g})")
    share = pool.market.spot_below
    usual = market.find_price(offering.instance_type, "on-demand", find_zones(pool, offering))
    if offering.market == "spot" and share is not None and usual and offering.price > share * usual.price:
        return _hold_back(offering, f"costs more than {share:g} of the on-demand price ({usual.price:g})")
    return offering


def _hold_back(offering: Offering, reason: str) -> UnsoldOffering:
    return UnsoldOffering(**{name: getattr(offering, name) for name in offering.model_fields_set}, reason=reason)


def find_market_faults(rules: Rules, market: StoredMarket, prefix: str = "") -> Iterator[Fault]:
    """Yield a fault for each requirement that matches no type, or more than MOST_TYPES, or only types without a price.
    `prefix`: the path of the rules, for the messages.
    """
    for name, pool in rules.pools.items():
        for index, entry in enumerate(pool.offerings):
            if entry.require is not None:
                path = f"{prefix}.pools.{name}.offerings[{index}].require".removeprefix(".")
                yield from _find_fault(path, pool, entry, market)


def _find_fault(path: str, pool: Pool, entry: Offering, market: StoredMarket) -> Iterator[Fault]:
    if not market.types:
        yield Fault(path, f"a catalogue of instance types ({REFRESH} reads it from EC2)", "none")
        return
    found = list_types(pool, entry, market)
    if not found:
        yield Fault(path, f"at least one {entry.market} type of the catalogue", _explain(pool, entry, market))
    elif len(found) > MOST_TYPES:
        yield Fault(path, f"at most {MOST_TYPES} instance types", f"{len(found)}: narrow the requirements")
    elif not has_price(entry) and not any(
        market.find_price(kind.name, entry.market, find_zones(pool, entry)) is not None for kind in found
    ):
        how = REFRESH if entry.market == "spot" else IMPORT
        yield Fault(path, f"a type with a known {entry.market} price ({how}), or `price`", f"{len(found)} without one")


def _explain(pool: Pool, entry: Offering, market: StoredMarket) -> str:
    """Return a sentence about why no type of the catalogue meets the requirements of an offering.

    For each single requirement, the types are counted that miss this requirement only. The sentence names the
    requirement with the highest count, if there is any.
    """
    counts: dict[str, int] = {}
    zones = set(find_zones(pool, entry))
    for kind in market.types:
        misses = [] if entry.require is None else [*entry.require.list_misses(kind, entry.market)]
        misses += ["zone"] if zones and not zones & set(kind.zones) else []
        if len(misses) == 1:
            counts[misses[0]] = counts.get(misses[0], 0) + 1
    if not counts:
        return f"none of {len(market.types)}"
    key = max(sorted(counts), key=lambda each: counts[each])
    return f"none of {len(market.types)}; {counts[key]} miss only {key}"


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
    if has_requirements(rules) and (
        not known.types or min(each.seen_at for each in known.types) <= now - catalogue_age
    ):
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
