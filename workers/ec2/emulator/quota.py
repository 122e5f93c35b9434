"""Quota: how many more instances a market of a region takes, counted on those that are there."""

from collections.abc import Iterable
from typing import Final, Literal

from moto.ec2.models.instance_types import INSTANCE_TYPES

from workers.ec2.emulator.lives import Life
from workers.ec2.emulator.settings import Quota

UNKNOWN_TYPE: Final = 1
"""The vCPUs of an instance type that nobody knows."""


def count_vcpus(instance_type: str | None) -> int:
    """The vCPUs of an instance type."""
    known = INSTANCE_TYPES.get(instance_type or "")
    return int(known["VCpuInfo"]["DefaultVCpus"]) if known else UNKNOWN_TYPE


def find_room(
    quota: Quota,
    market: Literal["spot", "on-demand"],
    instance_type: str | None,
    alive: Iterable[Life],
) -> tuple[int | None, str]:
    """How many more of a type there may be (None: any number), and EC2's code for one too many.

    `alive`: what is not terminated in the region, of both markets.
    """
    machines, vcpus = _limits(quota, market)
    if machines is None and vcpus is None:
        return None, ""
    there = [life for life in alive if life.market == market]
    rooms = []
    if machines is not None:
        rooms.append(
            (machines - len(there), "MaxSpotInstanceCountExceeded" if market == "spot" else "InstanceLimitExceeded")
        )
    if vcpus is not None:
        left = vcpus - sum(count_vcpus(life.type) for life in there)
        code = "MaxSpotInstanceCountExceeded" if market == "spot" else "VcpuLimitExceeded"
        rooms.append((left // count_vcpus(instance_type), code))
    room, code = min(rooms)
    return max(0, room), code


def _limits(quota: Quota, market: Literal["spot", "on-demand"]) -> tuple[int | None, int | None]:
    if market == "spot":
        return quota.spot_machines, quota.spot_vcpus
    return quota.on_demand_machines, quota.on_demand_vcpus
