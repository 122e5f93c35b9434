"""Spot prices of the EC2 emulator: one seeded random walk (`PriceWalk`) for each instance type and zone.

The emulator does not know AWS's prices, so it invents them: an on-demand price from the size of the type, and spot
prices as a share of it. They are for trials only.
"""

import re
import time
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from typing import Any, Final
from xml.sax.saxutils import escape

import msgspec
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
from werkzeug.wrappers import Response

from leasehold_emulator.calls import Call
from leasehold_emulator.settings import SpotMarket
from leasehold_emulator.type_pages import find_page, write_page
from scheduler.simulation.price_walk import PriceWalk

ACTION: Final = "DescribeSpotPriceHistory"
PRODUCT: Final = "Linux/UNIX"
A_CPU: Final = 0.032
A_GIB: Final = 0.004
AN_ACCELERATOR: Final = 0.6
"""Dollars per hour in an invented on-demand price: A_CPU for a vCPU, A_GIB for a GiB of memory, AN_ACCELERATOR for an
accelerator.
"""
A_GB_MONTH: Final = 0.08
AN_ADDRESS: Final = 0.005
"""Dollars for a GB of a gp3 volume in a month, and for an hour of a public IPv4 address."""
MOST_RESULTS: Final = 1000
_FILTER: Final = re.compile(r"Filter\.(\d+)\.(Name|Value\.\d+)")


class Quote(msgspec.Struct, frozen=True):
    """The present spot price of an instance type in a zone. `at`: when it changed, in seconds since the epoch."""

    type: str
    zone: str
    price: float
    at: float


class SpotPrices:
    """The spot prices of all instance types and zones. Not thread-safe; the middleware uses it under its lock."""

    def __init__(self, settings: SpotMarket, seed: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._settings, self._seed, self._began = settings, seed, clock()
        self._walks: dict[tuple[str, str], PriceWalk] = {}

    def change(self, settings: SpotMarket, seed: int) -> None:
        """Use these settings from now on. If the seed, or a setting other than the fixed prices, differs from the
        present one, start the random walks of the prices again.
        """
        same = settings.model_copy(update={"fixed": ()}) == self._settings.model_copy(update={"fixed": ()})
        if same and seed == self._seed:
            self._settings = settings
        else:
            self.restart(settings, seed)

    def restart(self, settings: SpotMarket, seed: int) -> None:
        """Start the random walks of all prices again, from now on and with these settings."""
        self._settings, self._seed, self._began = settings, seed, self._clock()
        self._walks = {}

    def find(self, kind: str, zone: str) -> Quote:
        """Return the present spot price of an instance type in a zone."""
        settings = self._settings
        for fixed in settings.fixed:
            if fixed.type == kind and fixed.zone in {None, zone}:
                return Quote(kind, zone, fixed.price, time.time())
        steps, rest = divmod((self._clock() - self._began) * settings.speed, settings.step_seconds)
        key = kind, zone
        if key not in self._walks:
            shares, step = (settings.low, settings.high), settings.step_seconds
            self._walks[key] = PriceWalk(*shares, settings.volatility, step, f"{self._seed}:{kind}:{zone}")
        price = round(find_on_demand_price(kind) * self._walks[key].find_share(int(steps)), 4)
        return Quote(kind, zone, price, time.time() - rest / settings.speed if settings.speed else time.time())

    def describe(self, call: Call) -> Response:
        """Return the answer to a call of DescribeSpotPriceHistory: the page of the present prices that the call
        requests. The times in the call have no effect, because earlier prices are not kept.
        """
        wanted, (first, most) = _read_filters(call), find_page(call, MOST_RESULTS)
        pairs = [*_list_pairs(call.region, wanted["instance-type"], wanted["availability-zone"])]
        if wanted["product-description"] and PRODUCT not in wanted["product-description"]:
            pairs = []
        items = "".join(_write(self.find(*pair)) for pair in pairs[first : first + most])
        following = first + most if len(pairs) > first + most else None
        return write_page(ACTION, f"<spotPriceHistorySet>{items}</spotPriceHistorySet>", following)


def find_on_demand_price(kind: str) -> float:
    """Return the invented on-demand price of an instance type in dollars per hour: by vCPUs, memory and GPUs."""
    facts: dict[str, Any] = INSTANCE_TYPES.get(kind, {})
    gpus = sum(int(each.get("Count", 0)) for each in facts.get("GpuInfo", {}).get("Gpus", ()))
    cpus = facts.get("VCpuInfo", {}).get("DefaultVCpus", 1)
    gib = facts.get("MemoryInfo", {}).get("SizeInMiB", 1024) / 1024
    return round(float(A_CPU * cpus + A_GIB * gib + AN_ACCELERATOR * gpus), 4)


def list_on_demand_prices(region: str) -> list[dict[str, Any]]:
    """Return the invented on-demand prices of a region as rows that `leasehold prices import` reads."""
    names = sorted({each["InstanceType"] for each in INSTANCE_TYPE_OFFERINGS["region"].get(region, ())})
    return [
        {"type": name, "region": region, "market": "on-demand", "price": find_on_demand_price(name)} for name in names
    ]


def _list_pairs(region: str, types: Collection[str], zones: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield, sorted, each pair (instance type, zone) of these types and zones for which the region has spot prices. If
    `types` is empty, yield pairs of all types; if `zones` is empty, pairs of all zones.
    """
    offered = INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, ())
    for kind, zone in sorted({(each["InstanceType"], each["Location"]) for each in offered}):
        is_spot = "spot" in INSTANCE_TYPES.get(kind, {}).get("SupportedUsageClasses", ())
        if is_spot and (not types or kind in types) and (not zones or zone in zones):
            yield kind, zone


def _read_filters(call: Call) -> dict[str, set[str]]:
    """Return name of a filter -> its values. A call names them by its parameters `Filter.N`, or by other parameters
    with the same meaning, like `InstanceType.N`.
    """
    names, values = dict[str, str](), dict[str, set[str]]()
    for key, value in call.parameters.items():
        if match := _FILTER.fullmatch(key):
            if match[2] == "Name":
                names[match[1]] = value
            else:
                values.setdefault(match[1], set()).add(value)
    found: dict[str, set[str]] = {"instance-type": set(), "availability-zone": set(), "product-description": set()}
    for number, name in names.items():
        found.setdefault(name, set()).update(values.get(number, ()))
    for key, value in call.parameters.items():
        for start, name in (("InstanceType.", "instance-type"), ("ProductDescription.", "product-description")):
            if key.startswith(start):
                found[name].add(value)
    return found


def _write(quote: Quote) -> str:
    at = datetime.fromtimestamp(quote.at, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return (
        f"<item><instanceType>{escape(quote.type)}</instanceType><productDescription>{PRODUCT}</productDescription>"
        f"<spotPrice>{quote.price:.6f}</spotPrice><timestamp>{at}</timestamp>"
        f"<availabilityZone>{escape(quote.zone)}</availabilityZone></item>"
    )
