"""Reading: EC2's descriptions as the port's `Machine`."""

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
"""EC2's state → ours. A stopped machine serves nobody: it is on its way out like a stopping one."""


MOST_DIGITS: Final = 16
"""Of a number below 2**53."""
INTERRUPTIONS: Final = frozenset({"Server.SpotInstanceTermination", "Server.SpotInstanceShutdown"})
"""Reasons of a state that mean that EC2 took the spot capacity back."""


def read_machine(instance: "InstanceTypeDef") -> Machine:
    """One instance of DescribeInstances or RunInstances; `healthy` is not known from there."""
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
    """The instances of the reservations of one answer (EC2's word for a batch of instances)."""
    for reservation in reservations:
        for instance in reservation.get("Instances", ()):
            yield read_machine(instance)


def read_fleet(instance: Mapping[str, Any], tags: Mapping[str, str]) -> Machine:
    """One entry of CreateFleet's `Instances`: EC2 says no more than id, type, market and override."""
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
    """EC2's two status checks: True when both are ok, False when one is impaired, else not known yet."""
    checks = {
        status.get("InstanceStatus", {}).get("Status"),
        status.get("SystemStatus", {}).get("Status"),
    }
    if "impaired" in checks:
        return False
    return True if checks == {"ok"} else None


def with_health(machine: Machine, health: bool | None) -> Machine:  # noqa: FBT001 - a value, not a switch
    """The machine with what its status checks say."""
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
    """The number of a tag; 0 for anything else, because anybody in the account may write tags."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else 0


def _market(lifecycle: str | None) -> Market:
    return "spot" if lifecycle == "spot" else "on-demand"
