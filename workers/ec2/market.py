"""EC2's catalogue of instance types and its prices (the port `MarketSource`): boto3 calls, page by page."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

from scheduler.model.market import InstanceType, Price
from scheduler.model.slots import Market
from workers.ec2.batches import cut_ids, read_pages
from workers.ec2.budget import CallBudget
from workers.ec2.clients import Ec2Access, make_client
from workers.ec2.price_list import open_price_list, read_list
from workers.settings import LINUX

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_pricing import PricingClient

TYPES_A_PAGE: Final = 100
PRICES_A_PAGE: Final = 1000
TYPES_A_CALL: Final = 100
"""Most instance types in one request for spot prices."""
LOOK_BACK_SECONDS: Final = 300.0
ACCELERATORS: Final = (
    ("gpus", "GpuInfo", "Gpus"),
    (None, "InferenceAcceleratorInfo", "Accelerators"),
    ("neurons", "NeuronInfo", "NeuronDevices"),
    ("fpgas", "FpgaInfo", "Fpgas"),
)
"""Where EC2's answer about an instance type lists the accelerators: (kind, field of the answer, list in this field). A
type that has several of these lists has the same devices in each.
"""
GIB_IN_GB: Final = 10**9 / 2**30
MARKETS: Final[tuple[Market, ...]] = ("spot", "on-demand")


class Ec2Market:
    """The instance types and prices of one region. `scheduler.ports.MarketSource` describes what each method promises.

    `open_price_list` makes the client of the Pricing API, when on-demand prices are read for the first time.
    """

    def __init__(
        self,
        client: "EC2Client",
        open_price_list: Callable[[], "PricingClient"],
        *,
        product: str = LINUX,
        types_a_call: int = TYPES_A_CALL,
    ) -> None:
        self._client, self._open_price_list = client, open_price_list
        self._types_a_call, self._product = types_a_call, product

    def read_types(self, seen_at: float) -> list[InstanceType]:
        """Return all instance types that EC2 offers in the region, with their zones. `seen_at`: the time that is
        recorded with the types.
        """
        zones: dict[str, set[str]] = {}
        pages = self._client.get_paginator("describe_instance_type_offerings").paginate(
            LocationType="availability-zone", PaginationConfig={"PageSize": PRICES_A_PAGE}
        )
        for page in read_pages(pages):
            for each in page["InstanceTypeOfferings"]:
                zones.setdefault(each["InstanceType"], set()).add(each["Location"])
        types = self._client.get_paginator("describe_instance_types").paginate(
            PaginationConfig={"PageSize": TYPES_A_PAGE}
        )
        found = (each for page in read_pages(types) for each in page["InstanceTypes"])
        return [
            read_type(each, sorted(zones[name]), seen_at)
            for each in found
            if (name := each["InstanceType"]) in zones and "VCpuInfo" in each
        ]

    def read_spot_prices(self, types: Sequence[str], zones: Sequence[str], seen_at: float) -> list[Price]:
        """Return the present spot price of each of these instance types in each of these zones. If `zones` is empty,
        return the prices in every zone. `seen_at`: the time that is recorded with the prices.
        """
        found: dict[tuple[str, str, str], tuple[datetime, Price]] = {}
        filters = [{"Name": "availability-zone", "Values": list(zones)}] if zones else []
        # The clocks of EC2 and of the cluster may differ, and EC2 refuses a time that is not past.
        since = datetime.fromtimestamp(seen_at - LOOK_BACK_SECONDS, UTC)
        for batch in cut_ids(types, self._types_a_call):
            pages = self._client.get_paginator("describe_spot_price_history").paginate(
                InstanceTypes=cast("Any", batch),
                ProductDescriptions=[self._product],
                Filters=cast("Any", filters),
                # EC2 returns the last change before this time, too. The last change of all is the present price.
                StartTime=since,
                PaginationConfig={"PageSize": PRICES_A_PAGE},
            )
            for page in read_pages(pages):
                for each in page["SpotPriceHistory"]:
                    price = Price(
                        type=each["InstanceType"],
                        zone=each["AvailabilityZone"],
                        market="spot",
                        price=float(each["SpotPrice"]),
                        seen_at=seen_at,
                        source="spot-history",
                    )
                    known = found.get(price.key)
                    if known is None or known[0] < each["Timestamp"]:
                        found[price.key] = each["Timestamp"], price
        return [price for _, (_, price) in sorted(found.items())]

    def read_on_demand_prices(self, types: Sequence[str], seen_at: float) -> list[Price]:
        """Return the on-demand price of each of these instance types, by one call for each type. A type for which the
        price list has no price, or several different ones, is omitted.
        """
        return [*read_list(self._price_list, self._client.meta.region_name, types, seen_at, self._product)]

    @cached_property
    def _price_list(self) -> "PricingClient":
        return self._open_price_list()


def read_type(answer: Mapping[str, Any], zones: Sequence[str], seen_at: float) -> InstanceType:
    usages = answer.get("SupportedUsageClasses", MARKETS)
    return InstanceType(
        name=answer["InstanceType"],
        cpus=float(answer["VCpuInfo"]["DefaultVCpus"]),
        memory_mib=float(answer["MemoryInfo"]["SizeInMiB"]),
        # The first architecture becomes the label `architecture` of a machine. So the 32-bit one comes last, and a type
        # that supports both gets the label of its 64-bit architecture.
        architectures=tuple(
            sorted(answer["ProcessorInfo"]["SupportedArchitectures"], key=lambda each: (each == "i386", each))
        ),
        is_current=bool(answer.get("CurrentGeneration", True)),
        **_read_accelerators(answer),
        local_disk_gib=round(answer.get("InstanceStorageInfo", {}).get("TotalSizeInGB", 0) * GIB_IN_GB, 1),
        is_bare_metal=bool(answer.get("BareMetal", False)),
        markets=tuple(market for market in MARKETS if market in usages),
        zones=tuple(zones),
        seen_at=seen_at,
    )


def _read_accelerators(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of InstanceType about accelerators: their number, the name of the first one, and the number of
    each kind.
    """
    found: dict[str, Any] = {}
    for kind, table, key in ACCELERATORS:
        devices = answer.get(table, {}).get(key, ())
        # EC2 reports a count of 0 for a part of a device.
        if count := sum(int(each.get("Count", 0)) or 1 for each in devices):
            found = {"accelerators": count, "accelerator": devices[0].get("Name"), **found}
            found |= {kind: count} if kind else {}
    return found


def make_market(access: Ec2Access, budget: CallBudget | None = None, product: str = LINUX) -> Ec2Market:
    """Return the Ec2Market of a region. Its EC2 calls take their tokens from `budget`; None: the calls have no limit.
    `product`: the operating system whose prices are read, as `market.product`. Raises CloudError if boto3 cannot make a
    client.
    """
    client = make_client(access)
    if budget is not None:
        budget.guard(client)
    return Ec2Market(client, lambda: open_price_list(access), product=product)
