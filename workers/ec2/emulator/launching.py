"""Launches: the instances and places that faults and quota allow are forwarded to moto."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal

import msgspec
from moto.ec2.models.instance_types import INSTANCE_TYPES
from werkzeug.wrappers import Response

from workers.ec2.emulator.answers import add_fleet_errors, answer_empty_fleet, answer_error
from workers.ec2.emulator.calls import Call, Place
from workers.ec2.emulator.faults import FaultTable
from workers.ec2.emulator.lives import Life, Lives
from workers.ec2.emulator.settings import FaultRule, Quota

NO_CAPACITY: Final = "InsufficientInstanceCapacity"
UNKNOWN_TYPE: Final = 1
"""vCPUs of an unknown instance type."""


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """The allowed part of a launch: number of instances, failed places, and the errors for the rest."""

    count: int
    out: Mapping[Place, FaultRule]
    errors: list[FaultRule]
    faults: list[str]


def launch(call: Call, grant: Grant, forward: Callable[[Call], Response]) -> Response:
    """Return the answer to a launch; `forward` carries out the granted part."""
    if grant.count == 0:
        if call.action == "CreateFleet":
            return answer_empty_fleet(str(call.market), grant.errors)
        first = grant.errors[0]
        return answer_error(str(first.code), first.message, first.http_status)
    answer = forward(call.without(list(grant.out)).asking_for(grant.count))
    if call.action == "CreateFleet" and grant.errors:
        add_fleet_errors(answer, str(call.market), grant.errors)
    return answer


def grant_launch(call: Call, table: FaultTable, lives: Lives, now: float) -> Grant:
    """Return which part of a launch is granted by the faults in force and by quota.

    RunInstances gets between its MinCount and its MaxCount, or an error. CreateFleet of type instant gets what is
    available, with errors for the rest.
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
    """Return the free places, each with its number of instances and the error for one more, and the full places."""
    quota, now = lives.settings.quota, time.time()
    alive = [
        life
        for life in lives.all.values()
        if life.region == call.region and (life.terminated_at is None or now < life.terminated_at)
    ]
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
    """Return the vCPUs of an instance type."""
    known = INSTANCE_TYPES.get(instance_type or "")
    return int(known["VCpuInfo"]["DefaultVCpus"]) if known else UNKNOWN_TYPE


def find_remaining(
    quota: Quota,
    market: Literal["spot", "on-demand"],
    instance_type: str | None,
    alive: Iterable[Life],
) -> tuple[int | None, str]:
    """Return how many more instances of a type may be launched (None: any number), and EC2's code for one too many.

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
