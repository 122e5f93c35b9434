"""Decide which part of a launch call the EC2 emulator grants, by the injected faults and the quota. Then moto launches
this part.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec
from moto.ec2.models.instance_types import INSTANCE_TYPES

from workers.ec2.emulator.calls import Call, Place
from workers.ec2.emulator.faults import FaultTable
from workers.ec2.emulator.instances import Life, Lives
from workers.ec2.emulator.settings import FaultRule, Quota

NO_CAPACITY: Final = "InsufficientInstanceCapacity"
UNKNOWN_TYPE: Final = 1
"""Number of vCPUs that an unknown instance type is assumed to have."""


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a launch call that is granted: `count` instances. `out` has the places (instance type and zone) that
    failed, each with its error; `errors` are the errors for the instances that are not granted; `faults` names the
    faults that applied, for the log.
    """

    count: int
    out: Mapping[Place, FaultRule]
    errors: list[FaultRule]
    faults: list[str]

    def list_errors(self) -> list[tuple[Place | None, FaultRule]]:
        """Return the errors of the answer of a fleet, each with the place that failed; None: the error concerns no
        single place.
        """
        return [*self.out.items(), *((None, error) for error in self.errors[len(self.out) :])]


def grant_launch(call: Call, table: FaultTable, lives: Lives, now: float) -> Grant:
    """Return the part of a launch call that the injected faults and the quota of the EC2 emulator permit.

    RunInstances gets between its MinCount and its MaxCount, or an error. CreateFleet of type instant gets what is
    available, and errors for the rest.
    """
    out = table.take_for_places(call, call.places, now)
    faults = [f"place:{rule.code}" for rule in out.values()]
    rooms, full = _find_free(call, [place for place in call.places if place not in out], lives)
    out = {**out, **full}
    faults += [f"quota:{rule.code}" for rule in full.values()]
    least, most = call.wanted
    errors = list(out.values())
    count = int(min(most, *(room for room, _ in rooms))) if rooms else 0
    if count < most and rooms:
        # Fewer than requested: report the error of the nearest limit.
        errors.append(min(rooms, key=lambda found: found[0])[1])
        faults.append(f"quota:{errors[-1].code}")
    short = table.take("short", call, now) if count else None
    if short is not None and short.deliver is not None and short.deliver < count:
        count = short.deliver
        errors += [short] if short.code else []
        faults.append("short")
    if count < max(1, least):
        count = 0
        if call.action == "RunInstances" and not errors:
            errors = [FaultRule(code=NO_CAPACITY)]
    return Grant(count=count, out=out, errors=errors, faults=list(dict.fromkeys(faults)))


def _find_free(
    call: Call, places: list[Place], lives: Lives
) -> tuple[list[tuple[float, FaultRule]], dict[Place, FaultRule]]:
    """Return the places (instance type and zone) of a launch where the quota of the emulator has room, and the full
    places with their error.

    For a place with room, return the number of instances that may be launched there, and the error for one more.
    """
    quota, now = lives.settings.quota, time.time()
    alive = [life for life in lives.all.values() if life.region == call.region and life.counts_for_quota(now)]
    rooms: list[tuple[float, FaultRule]] = []
    full: dict[Place, FaultRule] = {}
    for place in places:
        room, code = find_remaining(quota, call.market or "on-demand", place.type, alive)
        error = FaultRule(code=code or NO_CAPACITY, message="the emulator's quota is used up")
        if room == 0:
            full[place] = error
        else:
            rooms.append((float("inf") if room is None else room, error))
    return rooms, full


def count_vcpus(instance_type: str | None) -> int:
    """Return the number of vCPUs of an EC2 instance type; UNKNOWN_TYPE if moto does not know the type."""
    known = INSTANCE_TYPES.get(instance_type or "")
    return int(known["VCpuInfo"]["DefaultVCpus"]) if known else UNKNOWN_TYPE


def find_remaining(
    quota: Quota,
    market: Literal["spot", "on-demand"],
    instance_type: str | None,
    alive: Iterable[Life],
) -> tuple[int | None, str]:
    """Return how many more instances of a type the quota permits (None: any number), and EC2's error code for one more
    than that.

    `alive`: the instances of both markets in the region that are not terminated.
    """
    machines, vcpus = quota.on_demand_machines, quota.on_demand_vcpus
    machines_code, vcpus_code = "InstanceLimitExceeded", "VcpuLimitExceeded"
    if market == "spot":
        machines, vcpus = quota.spot_machines, quota.spot_vcpus
        machines_code = vcpus_code = "MaxSpotInstanceCountExceeded"
    there = [life for life in alive if life.market == market]
    limits = [] if machines is None else [(machines - len(there), machines_code)]
    if vcpus is not None:
        left = vcpus - sum(count_vcpus(life.type) for life in there)
        limits.append((left // count_vcpus(instance_type), vcpus_code))
    if not limits:
        return None, ""
    remaining, code = min(limits)
    return max(0, remaining), code
