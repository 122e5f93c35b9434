"""The ports to the market: the rows about instance types and prices in the database, and EC2's answers about them."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from scheduler.model.launch_backoff import Hold
from scheduler.model.market import InstanceType, Price, PriceChange, StoredMarket


class RulesVersion(msgspec.Struct, frozen=True):
    """The two versions that determine the rules in force. `document`: the version of the rules document that was
    applied. `market`: the version of the catalogue and prices, from which offerings with requirements get their
    instance types and prices.
    """

    document: int
    market: int


class MarketWrites(Protocol):
    """The methods of a transaction that write the catalogue of instance types and the prices. They
    lock no other row.
    """

    def save_types(self, types: Sequence[InstanceType]) -> None:
        """Insert or replace instance types in the catalogue, by name."""

    def delete_types(self, names: Iterable[str]) -> None:
        """Delete the instance types with these names from the catalogue. Unknown names are ignored."""

    def save_prices(self, prices: Sequence[Price]) -> None:
        """Insert or replace prices, one for each instance type, zone and market (`Price.key`). Of several prices with
        equal keys the last one counts.
        """

    def save_price_changes(self, changes: Sequence[PriceChange]) -> None:
        """Insert or replace changes of prices, one for each instance type, zone, market and hour
        (`PriceChange.key`).
        """

    def count_market_change(self) -> None:
        """Increase the version of the market by one, because an instance type or the amount of a price changed. No
        other transaction changes the version until this one ends.
        """


class MarketReads(Protocol):
    """The methods of a store that read the facts on which launches depend: versions, instance types, prices and launch
    back-offs. They lock nothing.
    """

    def rules_versions(self) -> RulesVersion:
        """Return the version of the scheduling rules in force and the version of the market, by one cheap query."""

    def load_market(self) -> StoredMarket:
        """Return the catalogue of instance types, sorted by name, and all prices, sorted by instance type, zone and
        market. Both are of one moment.
        """

    def find_holds(self) -> list[Hold]:
        """Return every launch back-off (hold), sorted by id."""


class PriceHistory(Protocol):
    """The methods of a store that read and prune the history of prices. They lock nothing except the rows that they
    delete.
    """

    def read_price_changes(self, types: Sequence[str]) -> list[PriceChange]:
        """Return the stored price changes of these instance types, sorted by instance type, zone, market and hour."""


class MarketSource(Protocol):
    """The port to EC2's catalogue and prices. Every method calls EC2 and may raise CloudError."""

    def read_types(self, seen_at: float) -> list[InstanceType]:
        """Return all instance types that EC2 offers in the region, with their zones. `seen_at`: the present time, which
        the result records.
        """

    def read_spot_prices(self, types: Sequence[str], zones: Sequence[str], seen_at: float) -> list[Price]:
        """Return the present spot price of each of these instance types in each of these zones. If `zones` is empty: in
        every zone of the region. A pair of type and zone that EC2 has no price for is missing. `seen_at`: the present
        time, which the result records.
        """

    def read_on_demand_prices(self, types: Sequence[str], seen_at: float) -> list[Price]:
        """Return the on-demand price of each of these instance types (or EXTRAS) in the region, from AWS's price list.
        A type without exactly one price is missing. `seen_at`: the present time, which the result records.
        """
