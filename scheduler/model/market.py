"""What EC2 offers and what it costs: the catalogue of instance types, and the table of prices."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Final, Literal

import msgspec

from scheduler.model.slots import Market

Source = Literal["spot-history", "pricing-api", "price-list", "file"]
"""Where a price comes from: EC2's history of spot prices, AWS's Pricing API, AWS's price list as a file, or a simple
file.
"""
VOLUME: Final = "volume/gp3"
ADDRESS: Final = "address/ipv4"
EXTRAS: Final = frozenset({VOLUME, ADDRESS})
"""What the table of prices has beside instance types: a GiB of a volume, and a public IPv4 address in use. No instance
type has such a name. Their market is `on-demand`, and only the cost ledger reads them.
"""
CPUS: Final = "cpus"
MEMORY: Final = "memory_mib"
ACCELERATORS: Final = "accelerators"
KINDS: Final = ("gpus", "neurons", "fpgas")
"""The kinds of accelerators. Each is a resource and a requirement beside ACCELERATORS, which counts any of them."""


class InstanceType(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about one EC2 instance type in the cluster's region."""

    name: str
    cpus: float
    memory_mib: float
    architectures: tuple[str, ...]
    """Architectures whose programs the type can run. The first one is the architecture of the type."""
    is_current: bool = True
    accelerators: int = 0
    """Number of GPUs or other accelerators."""
    accelerator: str | None = None
    """Name of the accelerator; None without one."""
    gpus: int = 0
    neurons: int = 0
    """Number of AWS's Inferentia and Trainium devices."""
    fpgas: int = 0
    local_disk_gib: float = 0.0
    is_bare_metal: bool = False
    markets: tuple[Market, ...] = ("spot", "on-demand")
    zones: tuple[str, ...] = ()
    """Availability zones in which EC2 offers the type, sorted."""
    seen_at: float
    """Cluster time at which EC2 reported these facts, in seconds since the epoch."""

    @property
    def family(self) -> str:
        """The family of the type: `m5d` of `m5d.xlarge`."""
        return self.name.partition(".")[0]

    @property
    def resources(self) -> dict[str, float]:
        """The resources of a machine of this type, by the names that reservations request, without its local disks.
        A GPU is one of the `accelerators` and one of the `gpus`; likewise `neurons` and `fpgas`.
        """
        counts = {name: float(getattr(self, name)) for name in (ACCELERATORS, *KINDS)}
        return {CPUS: self.cpus, MEMORY: self.memory_mib} | {name: count for name, count in counts.items() if count}

    @property
    def labels(self) -> dict[str, str]:
        """The labels of a machine of this type that do not name the type or its family. Machines of other types may
        have the same labels, e.g. `architecture`. See `type_labels` for the labels that name the type.
        """
        found = {"architecture": self.architectures[0]}
        return found | ({"accelerator": self.accelerator} if self.accelerator else {})

    @property
    def type_labels(self) -> dict[str, str]:
        return {"instance_type": self.name, "instance_family": self.family}


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """The price of one instance type in one market, in dollars per hour."""

    type: str
    """Name of the instance type, or one of EXTRAS."""
    zone: str
    """Availability zone; the name of a region for a price that holds in all its zones."""
    market: Market
    price: float
    seen_at: float
    """Cluster time at which the price was read last, in seconds since the epoch."""
    source: Source

    @property
    def key(self) -> tuple[str, str, str]:
        """The key of the row (type, zone, market): a later price with the same key replaces this one."""
        return self.type, self.zone, self.market


class PriceChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the price of an instance type. There is one row for each hour with changes. `price`: the price in
    dollars per hour after the last change in that hour.
    """

    type: str
    zone: str
    """As in `Price`: an availability zone, or a region."""
    market: Market
    hour: float
    """Begin of the hour, in seconds since the epoch."""
    price: float

    @property
    def key(self) -> tuple[str, str, str, float]:
        """The key of the row (type, zone, market, hour): a later change in the same hour replaces this one."""
        return self.type, self.zone, self.market, self.hour


class StoredMarket(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The catalogue of instance types and the prices that the database has. `version` grows whenever a fact or an
    amount changes, and stays if only the times change at which the facts and prices were read.
    """

    version: int = 0
    types: tuple[InstanceType, ...] = ()
    prices: tuple[Price, ...] = ()

    @cached_property
    def type_by_name(self) -> Mapping[str, InstanceType]:
        return {each.name: each for each in self.types}

    @cached_property
    def _prices_of(self) -> Mapping[tuple[str, str], list[Price]]:
        found: dict[tuple[str, str], list[Price]] = {}
        for each in self.prices:
            found.setdefault((each.type, each.market), []).append(each)
        return found

    def find_price(self, kind: str, market: Market, zones: Iterable[str] = ()) -> Price | None:
        """Return the lowest stored price of the instance type `kind` in a market, within these zones (no zones given:
        in any zone). Return None if no such price is stored.
        """
        wanted = tuple(zones)
        known = self._prices_of.get((kind, market), ())
        # A price of a region holds in each of its zones.
        fitting = [each for each in known if not wanted or any(each.zone in {zone, zone[:-1]} for zone in wanted)]
        return min(fitting, key=lambda each: (each.price, each.zone), default=None)
