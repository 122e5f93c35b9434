"""The catalogue of instance types and the prices in SQL, and the version that each change of either increases."""

from collections.abc import Iterable, Sequence
from typing import Final

from sqlalchemy import Delete, delete, func, select
from typing_extensions import override

from scheduler.model.launch_backoff import Hold
from scheduler.model.market import InstanceType, Price, PriceChange, StoredMarket
from scheduler.ports.market import MarketWrites, RulesVersion
from scheduler.store import tables
from scheduler.store.dialect import Dialect
from scheduler.store.session import Session
from scheduler.store.shapes import HOLDS, Shape
from scheduler.store.statements import COUNT

INSTANCE_TYPES: Final = Shape(tables.instance_types, InstanceType)
PRICES: Final = Shape(tables.prices, Price)
CHANGES: Final = Shape(tables.price_changes, PriceChange)
COUNTER: Final = "market"
"""Name of the counter with the version of the market."""
_PRICE, _TYPE = tables.prices.c, tables.instance_types.c
_VERSION: Final = select(tables.counters.c.value).where(tables.counters.c.name == COUNTER)
_VERSIONS: Final = select(
    func.coalesce(select(func.max(tables.rules.c.version)).scalar_subquery(), 0),
    func.coalesce(_VERSION.scalar_subquery(), 0),
)
_HOLDS: Final = select(*HOLDS.columns).order_by(tables.holds.c.id)
_TYPES: Final = select(*INSTANCE_TYPES.columns).order_by(_TYPE.name)
_PRICES: Final = select(*PRICES.columns).order_by(_PRICE.type, _PRICE.zone, _PRICE.market)


def read_rules_versions(session: Session) -> RulesVersion:
    """Return the version of the scheduling rules in force and the version of the market, by one statement."""
    ((document, market),) = session.fetch(_VERSIONS)
    return RulesVersion(int(document), int(market))


def read_market(session: Session) -> StoredMarket:
    """Return the catalogue of instance types and all prices, with the version of the market."""
    version = next((int(value) for (value,) in session.fetch(_VERSION)), 0)
    types = tuple(INSTANCE_TYPES.read_all(session.fetch(_TYPES)))
    return StoredMarket(version=version, types=types, prices=tuple(PRICES.read_all(session.fetch(_PRICES))))


def read_price_changes(session: Session, types: Iterable[str]) -> list[PriceChange]:
    """Return the stored price changes of these instance types, sorted by type, zone, market and hour."""
    change = tables.price_changes.c
    statement = select(*CHANGES.columns).where(change.type.in_(session.dialect.ids()))
    return sorted(map(CHANGES.read, session.fetch_for(statement, types)), key=lambda each: each.key)


def prune_price_changes(session: Session, before: float) -> int:
    """Delete the price changes of hours that began before `before`. Return the number of deleted rows."""
    return session.change(delete(tables.price_changes).where(tables.price_changes.c.hour < before))


def read_holds(session: Session) -> list[Hold]:
    """Return every launch back-off (hold), sorted by id."""
    return HOLDS.read_all(session.fetch(_HOLDS))


class SqlMarketWrites(MarketWrites):
    """The part of a SqlTransaction that writes instance types and prices. See MarketWrites."""

    _session: Session

    @override
    def save_types(self, types: Sequence[InstanceType]) -> None:
        by_name = {each.name: each for each in types}
        self._session.write(INSTANCE_TYPES.put(self._session.dialect), [by_name[name] for name in sorted(by_name)])

    @override
    def delete_types(self, names: Iterable[str]) -> None:
        self._session.change_for(_delete_types(self._session.dialect), names)

    @override
    def save_prices(self, prices: Sequence[Price]) -> None:
        by_key = {price.key: price for price in prices}
        self._session.write(PRICES.put(self._session.dialect), [by_key[key] for key in sorted(by_key)])

    @override
    def save_price_changes(self, changes: Sequence[PriceChange]) -> None:
        by_key = {each.key: each for each in changes}
        self._session.write(CHANGES.put(self._session.dialect), [by_key[key] for key in sorted(by_key)])

    @override
    def count_market_change(self) -> None:
        self._session.fetch(COUNT, counter=COUNTER, count=1)


def _delete_types(dialect: Dialect) -> Delete:
    return delete(tables.instance_types).where(_TYPE.name.in_(dialect.ids()))
