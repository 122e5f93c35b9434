"""Quota: how many more instances a market of a region may have."""

from collections.abc import Iterable
from typing import Final, Literal

from moto.ec2.models.instance_types import INSTANCE_TYPES

from workers.ec2.emulator.lives import Life
from workers.ec2.emulator.settings import Quota

UNKNOWN_TYPE: Final = 1
"""vCPUs of an unknown instance type."""


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
    machines, vcpus = _limits(quota, market)
    if machines is None and vcpus is None:
        return None, ""
    there = [life for life in alive if life.market == market]
    limits = []
    if machines is not None:
        limits.append(
            (machines - len(there), "MaxSpotInstanceCountExceeded" if market == "spot" else "InstanceLimitExceeded")
        )
    if vcpus is not None:
        left = vcpus - sum(count_vcpus(life.type) for life in there)
        code = "MaxSpotInstanceCountExceeded" if market == "spot" else "VcpuLimitExceeded"
        limits.append((left // count_vcpus(instance_type), code))
    remaining, code = min(limits)
    return max(0, remaining), code


def _limits(quota: Quota, market: Literal["spot", "on-demand"]) -> tuple[int | None, int | None]:
    if market == "spot":
        return quota.spot_machines, quota.spot_vcpus
    return quota.on_demand_machines, quota.on_demand_vcpus
