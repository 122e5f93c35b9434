"""Decide which part of a launch call the EC2 emulator grants, by the injected faults, the quota and the capacity. Then
moto launches this part.
"""

import time
from collections.abc import Mapping
from typing import Final

import msgspec

from leasehold_emulator.allocation import NO_CAPACITY, Price, allocate, list_limits
from leasehold_emulator.answers import PlacedFault
from leasehold_emulator.calls import Call, Place
from leasehold_emulator.faults import FaultTable
from leasehold_emulator.lives import Life, Lives
from leasehold_emulator.settings import FaultRule

ALONE: Final = FaultRule(
    code="InvalidParameterCombination",
    message="MinTargetCapacity needs SingleInstanceType or SingleAvailabilityZone",
)
DUPLICATES: Final = FaultRule(code="InvalidFleetConfig")


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a launch call that is granted. `counts`: place (instance type and zone) -> number of instances.
    `errors`: the errors in the answer, each with the place that failed (None: the error concerns no single place).
    `faults`: the names of the faults and limits that applied, for the log.
    """

    counts: Mapping[Place, int]
    errors: list[PlacedFault]
    faults: list[str]


def grant_launch(call: Call, table: FaultTable, lives: Lives, price: Price, now: float) -> Grant:
    """Return the part of a launch call that the injected faults, the quota and the capacity of the EC2 emulator permit.

    RunInstances gets a number of instances from its MinCount to its MaxCount, or no instance and an error. CreateFleet
    of type instant gets the available instances, and errors for the missing ones. With MinTargetCapacity it gets at
    least MinTargetCapacity instances, or none.
    """
    out = table.take_for_places(call, call.places, now)
    places = [place for place in call.places if place not in out]
    allocation = allocate(call, places, list_limits(call, places, lives.settings, _list_alive(call, lives)), price)
    errors: list[PlacedFault] = [*out.items(), *((place, limit.error) for place, limit in allocation.full.items())]
    faults = [f"place:{rule.code}" for rule in out.values()]
    faults += [f"{limit.kind}:{limit.error.code}" for limit in allocation.full.values()]
    counts, least = dict(allocation.counts), call.wanted[0]
    short = table.take("short", call, now) if counts else None
    if short is not None and short.deliver is not None and short.deliver < allocation.total:
        counts = _shorten(counts, short.deliver)
        errors += [(None, short)] if short.code else []
        faults.append("short")
    if sum(counts.values()) < max(1, least):
        counts = {}
        if call.action == "RunInstances" and not errors:
            errors = [(None, FaultRule(code=NO_CAPACITY))]
    return Grant(counts=counts, errors=errors, faults=list(dict.fromkeys(faults)))


def find_refusal(call: Call) -> FaultRule | None:
    """Return EC2's error for a CreateFleet whose options contradict each other, or that names an instance type twice in
    a zone; None if EC2 accepts the request.
    """
    options = call.fleet_options
    if options.least and not (options.single_type or options.single_zone):
        return ALONE
    pools = [(place.type, _find_named_zone(call, place)) for place in call.places if place.type is not None]
    return DUPLICATES if len(set(pools)) < len(pools) else None


def _find_named_zone(call: Call, place: Place) -> str | None:
    """Return the zone that an override names itself or by its subnet, or its subnet if that is unknown; None if EC2
    chooses the zone.
    """
    config, number = place.override or ("", "")
    is_named = f"LaunchTemplateConfigs.{config}.Overrides.{number}.AvailabilityZone" in call.parameters
    return (place.zone or place.subnet) if place.subnet or is_named else None


def _list_alive(call: Call, lives: Lives) -> list[Life]:
    now = time.time()
    return [life for life in lives.all.values() if life.region == call.region and life.counts_for_quota(now)]


def _shorten(counts: Mapping[Place, int], most: int) -> dict[Place, int]:
    """Return `counts` (place -> number of instances) reduced to at most `most` instances in all. The first places keep
    their instances.
    """
    kept: dict[Place, int] = {}
    for place, count in counts.items():
        given = min(count, most - sum(kept.values()))
        if given:
            kept[place] = given
    return kept
