"""What the tests of the market share: instance types, rules with requirements, and a stand-in for EC2's market."""

from collections.abc import Sequence
from typing import Any

import msgspec

from scheduler.model.market import InstanceType, Price, StoredMarket
from scheduler.model.rules import Rules, read_rules
from scheduler.operations.market import resolve_rules
from scheduler.policy.scaling.offerings import list_choices
from scheduler.ports import CloudError
from tests.operations.harness import NOW
from tests.store.test_market import a_type

SMALL, LARGE = a_type("m5.large"), a_type("m5.xlarge", cpus=4.0, memory_mib=16384.0)
ARM = a_type("m7g.large", architectures=("arm64",))
GPU = a_type("g5.xlarge", cpus=4.0, memory_mib=16384.0, accelerators=1, accelerator="A10G", zones=("eu-1b",))
TYPES = (SMALL, LARGE, ARM, GPU)


def some_rules(require: dict[str, Any] | None = None, *more: dict[str, Any], **pool: Any) -> dict[str, Any]:
    """Return a document with one pool, whose first offering has requirements."""
    first = {"name": "general", "require": require or {}}
    table = {"system": "x86_64-linux", "max_slots": 5, "lease_ttl": 0, "offerings": [first, *more], **pool}
    return {"pools": {"linux": table}}


def a_market(*prices: Price, types: Sequence[InstanceType] = TYPES) -> StoredMarket:
    return StoredMarket(types=tuple(types), prices=prices)


def resolve(document: dict[str, Any], market: StoredMarket) -> Rules:
    return resolve_rules(read_rules(document), market)


def names(rules: Rules) -> list[str]:
    return [each.name for each in rules.pools["linux"].offerings]


def sold(rules: Rules) -> list[tuple[str | None, float]]:
    """Return the offerings that a launch may choose, in the order of choice, with their prices."""
    return [(each.key, each.price) for each in list_choices(rules.pools["linux"])]


class Source:
    """A market of EC2 with given types and prices, which counts its calls."""

    def __init__(self, *prices: Price, types: Sequence[InstanceType] = TYPES) -> None:
        self.types, self.prices, self.catalogues = list(types), list(prices), 0
        self.asked: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        self.listed: list[tuple[str, ...]] = []
        """The types of each call for on-demand prices."""
        self.error: CloudError | None = None

    def read_types(self, seen_at: float) -> list[InstanceType]:
        """See MarketSource."""
        self.catalogues += 1
        return [msgspec.structs.replace(each, seen_at=seen_at) for each in self.types]

    def read_spot_prices(self, types: Sequence[str], zones: Sequence[str], seen_at: float) -> list[Price]:
        """See MarketSource."""
        if self.error is not None:
            raise self.error
        self.asked.append((tuple(types), tuple(zones)))
        found = [each for each in self.prices if each.type in types and (not zones or each.zone in zones)]
        return [msgspec.structs.replace(each, seen_at=seen_at) for each in found]

    def read_on_demand_prices(self, types: Sequence[str], seen_at: float) -> list[Price]:
        """See MarketSource."""
        if self.error is not None:
            raise self.error
        self.listed.append(tuple(types))
        found = [each for each in self.prices if each.type in types and each.market == "on-demand"]
        return [msgspec.structs.replace(each, seen_at=seen_at) for each in found]


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now
