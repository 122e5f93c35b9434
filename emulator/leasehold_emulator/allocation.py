"""Divide the instances of a launch among the places that the request names, as EC2 does: by the number of instances for
which each place has room, and by the allocation strategy.

A place is an instance type in a zone. A limit (a quota, or the capacity that is configured) may concern several places
at once. Source: EC2 user guide, "Allocation strategies for EC2 Fleet".
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil, inf
from typing import Final, Literal

import msgspec
from moto.ec2.models.instance_types import INSTANCE_TYPES

from leasehold_emulator.calls import Call, Place, Strategy
from leasehold_emulator.error_codes import find_message
from leasehold_emulator.instances import count_free_addresses
from leasehold_emulator.lives import Life
from leasehold_emulator.settings import EmulatorSettings, FaultRule
from scheduler.model.quota_classes import find_quota_class

NO_CAPACITY: Final = "InsufficientInstanceCapacity"
NO_ADDRESSES: Final = "InsufficientFreeAddressesInSubnet"
SPOT_QUOTA: Final = "MaxSpotInstanceCountExceeded"
UNKNOWN_TYPE: Final = 1
"""Number of vCPUs that an unknown instance type is assumed to have."""

Price = Callable[[Place], float]
"""Returns the price of an instance at a place, in dollars per hour."""


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A limit on the instances at some places (instance types in zones). `left`: the units (instances or vCPUs) that
    may still be used. `costs`: place -> units that an instance at this place uses; a place without an entry is not
    limited. `error`: EC2's error for a launch that exceeds the limit.
    """

    kind: Literal["quota", "capacity"]
    left: int
    costs: Mapping[Place, int]
    error: FaultRule


class Allocation(msgspec.Struct, frozen=True):
    """How a launch is divided. `counts`: place -> number of its instances. `full`: place that got fewer instances than
    it should -> the limit that prevented the others.
    """

    counts: Mapping[Place, int]
    full: Mapping[Place, Limit]

    @property
    def total(self) -> int:
        """The number of instances at all places together. A place is an instance type in a zone."""
        return sum(self.counts.values())


def list_limits(call: Call, places: Sequence[Place], settings: EmulatorSettings, alive: Sequence[Life]) -> list[Limit]:
    """Return the limits (quotas, capacities and free addresses) that concern a launch at these places. `alive`: the
    instances of the region that are neither terminated nor stopped.
    """
    market = call.market or "on-demand"
    return [
        *_list_quotas(market, places, settings, [life for life in alive if life.market == market]),
        *_list_capacities(market, places, settings, alive),
        *_list_subnets(call.region, places),
    ]


def allocate(call: Call, places: Sequence[Place], limits: Sequence[Limit], price: Price) -> Allocation:
    """Divide the instances that a launch requests among these places.

    If all instances must have one type, or be in one zone, choose the type or zone that can have the most instances. If
    several can have equally many, choose the cheapest.
    """
    options, (_, wanted) = call.fleet_options, call.wanted
    groups: dict[tuple[str | None, str | None], list[Place]] = {}
    for place in places:
        key = (place.type if options.single_type else None, place.zone if options.single_zone else None)
        groups.setdefault(key, []).append(place)
    tried = [_divide(wanted, group, limits, options.strategy, price) for group in groups.values()]

    def merit(allocation: Allocation) -> tuple[int, float]:
        return -allocation.total, sum(price(place) * count for place, count in allocation.counts.items())

    best = min(tried, key=merit, default=Allocation({}, {}))
    if best.total == wanted:
        return best
    return Allocation(best.counts, {place: limit for each in tried for place, limit in each.full.items()})


def find_full(places: Iterable[Place], limits: Sequence[Limit]) -> Limit | None:
    """Return the first limit that one more instance at each of these places (instance type and zone) would exceed; None
    if no limit would be exceeded.
    """
    for place in places:
        full = next((each for each in limits if place in each.costs and not _fit(each, place)), None)
        if full is not None:
            return full
        limits = [_use(limit, place, 1) for limit in limits]
    return None


def count_vcpus(instance_type: str | None) -> int:
    """Return the number of vCPUs of an EC2 instance type; UNKNOWN_TYPE if moto does not know the type."""
    known = INSTANCE_TYPES.get(instance_type or "")
    return int(known["VCpuInfo"]["DefaultVCpus"]) if known else UNKNOWN_TYPE


def _list_quotas(
    market: str, places: Sequence[Place], settings: EmulatorSettings, there: Sequence[Life]
) -> Iterable[Limit]:
    quota = settings.quota
    is_spot = market == "spot"
    machines = quota.spot_machines if is_spot else quota.on_demand_machines
    if machines is not None:
        error = FaultRule(code=SPOT_QUOTA if is_spot else "InstanceLimitExceeded")
        yield Limit(kind="quota", left=machines - len(there), costs=dict.fromkeys(places, 1), error=error)
    vcpus = quota.spot_vcpus if is_spot else quota.on_demand_vcpus
    if vcpus is not None:
        yield _limit_vcpus(market, vcpus, places, there)
    for limited in quota.classes:
        if limited.market == market:
            concerned = [place for place in places if find_quota_class(place.type or "") == limited.name]
            using = [life for life in there if find_quota_class(life.type) == limited.name]
            yield _limit_vcpus(market, limited.vcpus, concerned, using)


def _limit_vcpus(market: str, vcpus: int, places: Iterable[Place], there: Iterable[Life]) -> Limit:
    """Return the limit by which instances at these places may have at most `vcpus` vCPUs together with those that are
    there already.
    """
    error = FaultRule(code=SPOT_QUOTA)
    if market == "on-demand":
        message = find_message("VcpuLimitExceeded").replace("vCPU limit allows", f"vCPU limit of {vcpus} allows")
        error = FaultRule(code="VcpuLimitExceeded", message=message)
    used = sum(count_vcpus(life.type) for life in there)
    costs = {place: count_vcpus(place.type) for place in places}
    return Limit(kind="quota", left=vcpus - used, costs=costs, error=error)


def _list_capacities(
    market: str, places: Sequence[Place], settings: EmulatorSettings, alive: Sequence[Life]
) -> Iterable[Limit]:
    error = FaultRule(code=NO_CAPACITY)
    for capacity in settings.capacity:
        if capacity.market not in {None, market}:
            continue
        used = sum(
            capacity.type in {None, life.type}
            and capacity.zone in {None, life.zone}
            and capacity.market in {None, life.market}
            for life in alive
        )
        costs = {
            place: 1 for place in places if capacity.type in {None, place.type} and capacity.zone in {None, place.zone}
        }
        yield Limit(kind="capacity", left=capacity.machines - used, costs=costs, error=error)


def _list_subnets(region: str, places: Sequence[Place]) -> Iterable[Limit]:
    """Yield a limit for each subnet that the places name: its free addresses."""
    for subnet in dict.fromkeys(place.subnet for place in places if place.subnet is not None):
        free = count_free_addresses(region, subnet)
        if free is not None:
            message = find_message(NO_ADDRESSES).replace("the subnet", f"subnet '{subnet}'")
            costs = {place: 1 for place in places if place.subnet == subnet}
            yield Limit(kind="capacity", left=free, costs=costs, error=FaultRule(code=NO_ADDRESSES, message=message))


def _divide(
    wanted: int, places: Sequence[Place], limits: Sequence[Limit], strategy: Strategy, price: Price
) -> Allocation:
    counts, full = dict[Place, int](), dict[Place, Limit]()
    left, untried, limits = wanted, list(places), list(limits)
    while left and untried:
        rooms = {place: _find_room(place, limits) for place in untried}
        place, share = _choose(left, rooms, strategy, price)
        given = int(min(share, rooms[place]))
        if given < share:
            full[place] = min((each for each in limits if place in each.costs), key=lambda each: _fit(each, place))
        if given:
            counts[place] = given
            left -= given
            limits = [_use(limit, place, given) for limit in limits]
        untried.remove(place)
    return Allocation(counts, full)


def _find_room(place: Place, limits: Iterable[Limit]) -> float:
    """Return how many instances the limits permit at a place: a whole number, or infinity if no limit concerns the
    place.
    """
    return min((_fit(limit, place) for limit in limits if place in limit.costs), default=inf)


def _fit(limit: Limit, place: Place) -> int:
    return max(0, limit.left // limit.costs[place])


def _use(limit: Limit, place: Place, count: int) -> Limit:
    return msgspec.structs.replace(limit, left=limit.left - count * limit.costs.get(place, 0))


def _choose(left: int, rooms: Mapping[Place, float], strategy: Strategy, price: Price) -> tuple[Place, int]:
    """Return (1) the place that gets instances next, and (2) the number of instances that it should get. `left`: the
    number of instances that have no place yet.

    `rooms`: place -> number of instances that the limits permit there, for the places that were not tried yet. Among
    equal places the first one of the request is chosen.
    """
    match strategy:
        case "lowest-price":
            return min(rooms, key=price), left
        case "price-capacity-optimized":
            # EC2 takes the cheapest of the places with the most capacity. Here these are the places that have room for
            # all instances, or if there are none, those with the most room.
            return min(rooms, key=lambda place: (-min(left, rooms[place]), price(place))), left
        case "capacity-optimized":
            return max(rooms, key=rooms.__getitem__), left
        case "diversified":
            return next(iter(rooms)), ceil(left / len(rooms))
        case "prioritized":
            return next(iter(rooms)), left
