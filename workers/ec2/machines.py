"""Convert EC2's descriptions into the port's `Machine`."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from scheduler.model.slots import Machine, Market
from workers.ec2.requests import TAG_CLUSTER_ID, TAG_HIGHEST, TAG_LAUNCH, TAG_OFFERING, TAG_POOL, TAG_SLOT

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import InstanceStatusTypeDef, InstanceTypeDef

STATES: Final[Mapping[str, Literal["pending", "running", "stopping", "terminated"]]] = {
    "pending": "pending",
    "running": "running",
    "stopping": "stopping",
    "stopped": "stopping",
    "shutting-down": "stopping",
    "terminated": "terminated",
}
"""EC2's state → ours. A stopped machine cannot serve, so it counts as stopping."""


MOST_DIGITS: Final = 16
"""Digits of the largest number below 2**53."""
INTERRUPTIONS: Final = frozenset({"Server.SpotInstanceTermination", "Server.SpotInstanceShutdown"})
"""State reasons of machines whose spot capacity EC2 has taken back."""


def read_machine(instance: "InstanceTypeDef") -> Machine:
    """Return the machine of one instance in an answer of DescribeInstances or RunInstances; `healthy` is None."""
    tags = {tag.get("Key"): tag.get("Value") for tag in instance.get("Tags", ())}
    launched = instance.get("LaunchTime")
    return Machine(
        id=instance["InstanceId"],
        state=STATES[instance["State"]["Name"]],
        address=instance.get("PrivateIpAddress") or instance.get("PublicIpAddress"),
        type=instance.get("InstanceType"),
        zone=instance.get("Placement", {}).get("AvailabilityZone"),
        market=_market(instance.get("InstanceLifecycle")),
        launched_at=launched.timestamp() if launched else None,
        interrupted=instance.get("StateReason", {}).get("Code") in INTERRUPTIONS,
        **_read_tags(tags),
    )


def read_machines(reservations: Iterable[Mapping[str, Any]]) -> Iterator[Machine]:
    """Yield the machines of EC2's "reservations", which are batches of instances."""
    for reservation in reservations:
        for instance in reservation.get("Instances", ()):
            yield read_machine(instance)


def read_fleet(instance: Mapping[str, Any], tags: Mapping[str, str]) -> Machine:
    """Return the machine of one entry of CreateFleet's `Instances`, which has only id, type, market and override."""
    override = instance.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
    return Machine(
        id=instance["InstanceIds"][0],
        state="pending",
        type=instance.get("InstanceType"),
        zone=override.get("AvailabilityZone"),
        market=_market(instance.get("Lifecycle")),
        **_read_tags(tags),
    )


def read_health(status: "InstanceStatusTypeDef") -> bool | None:
    """Return the result of EC2's two status checks: True if both are ok, False if one is impaired, else None."""
    checks = {
        status.get("InstanceStatus", {}).get("Status"),
        status.get("SystemStatus", {}).get("Status"),
    }
    if "impaired" in checks:
        return False
    return True if checks == {"ok"} else None


def with_health(machine: Machine, health: bool | None) -> Machine:  # noqa: FBT001 - a value, not a switch
    """Return the machine with the result of its status checks."""
    return msgspec.structs.replace(machine, healthy=health)


def _read_tags(tags: Mapping[Any, str | None]) -> dict[str, Any]:
    term, _, token = (tags.get(TAG_HIGHEST) or "").partition(".")
    return {
        "slot": tags.get(TAG_SLOT),
        "pool": tags.get(TAG_POOL),
        "launch_id": tags.get(TAG_LAUNCH),
        "offering": tags.get(TAG_OFFERING),
        "cluster_id": tags.get(TAG_CLUSTER_ID),
        "highest_term": _read_number(term),
        "highest_token": _read_number(token),
    }


def _read_number(text: str) -> int:
    """Return the number in a tag, or 0 for other texts: every user of the AWS account may write tags."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else 0


def _market(lifecycle: str | None) -> Market:
    return "spot" if lifecycle == "spot" else "on-demand"
