"""The writes of a transaction of the memory store to the catalogue of instance types and to the prices."""

from collections.abc import Iterable, Mapping, Sequence

from typing_extensions import override

from scheduler.model.market import InstanceType, Price, PriceChange, StoredMarket
from scheduler.ports.market import MarketWrites


class MemoryMarketWrites(MarketWrites):
    """The part of a transaction of the memory store that writes instance types and prices. The writes are collected
    until the transaction ends. See MarketWrites.
    """

    _market: StoredMarket
    _price_changes: list[PriceChange]

    @override
    def save_types(self, types: Sequence[InstanceType]) -> None:
        self._keep_types({**self._market.type_by_name, **{each.name: each for each in types}})

    @override
    def delete_types(self, names: Iterable[str]) -> None:
        gone = set(names)
        self._keep_types({name: each for name, each in self._market.type_by_name.items() if name not in gone})

    @override
    def save_prices(self, prices: Sequence[Price]) -> None:
        known = self._market
        kept = {each.key: each for each in (*known.prices, *prices)}
        rows = tuple(kept[key] for key in sorted(kept))
        self._market = StoredMarket(version=known.version, types=known.types, prices=rows)

    @override
    def save_price_changes(self, changes: Sequence[PriceChange]) -> None:
        self._price_changes += changes

    @override
    def count_market_change(self) -> None:
        known = self._market
        self._market = StoredMarket(version=known.version + 1, types=known.types, prices=known.prices)

    def _keep_types(self, types: Mapping[str, InstanceType]) -> None:
        known, rows = self._market, tuple(types[name] for name in sorted(types))
        self._market = StoredMarket(version=known.version, types=rows, prices=known.prices)
