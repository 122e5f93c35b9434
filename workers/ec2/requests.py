"""Build the complete launch request to EC2 from the rules, as JSON values, so that it can be stored and sent again
unchanged.

There are two calls. CreateFleet (type instant) chooses the zone with the best chance among all subnets of a pool, but
requires a launch template. RunInstances takes an image and one subnet. So CreateFleet is used for a pool with a launch
template, and RunInstances for a pool with only an image. A client token lets both be repeated without a second machine.
"""

import base64
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from scheduler.model.machines import Offering
from scheduler.model.pools import Pool
from scheduler.model.rules import Rules
from scheduler.model.slots import Market
from scheduler.model.validation import Fault, InvalidInputError, show
from scheduler.ports import CloudError, LaunchOrder
from workers.ec2.user_data import render_user_data, variables_of

TAG_CLUSTER: Final = "leasehold:cluster"
TAG_CLUSTER_ID: Final = "leasehold:cluster-id"
TAG_HIGHEST: Final = "leasehold:highest"
TAG_POOL: Final = "leasehold:pool"
TAG_SLOT: Final = "leasehold:slot"
TAG_LAUNCH: Final = "leasehold:launch"
TAG_OFFERING: Final = "leasehold:offering"

ROOT_DEVICE: Final = "/dev/xvda"
"""Device to which `volume_gib` applies: the root device of Amazon Linux. For an image with another root device, a
launch template must set the size of the volume.
"""

MOST_TOKEN: Final = 64
METADATA_OPTIONS: Final = {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"}


class _Launch(msgspec.Struct, frozen=True, kw_only=True):
    """The input of one launch request: the launch order, and the parts of the rules that the request needs."""

    order: LaunchOrder
    pool: Pool
    offering: Offering | None
    subnets: tuple[str, ...]
    user_data: str | None
    tags: Mapping[str, str]

    @property
    def market(self) -> Market:
        return self.offering.market if self.offering else "spot"

    @property
    def zone(self) -> str | None:
        return self.offering.zone if self.offering else None


def freeze_request(order: LaunchOrder, rules: Rules, cluster: str, region: str) -> dict[str, Any]:
    """Return the EC2 request that launches the machine of `order`: `{"api": "RunInstances" | "CreateFleet",
    "parameters": …}`.

    Equal input gives equal output. Raises CloudError (misconfigured) that names the wrong or missing key of the rules.
    """
    launch = _look_up(order, rules, cluster, region)
    if launch.pool.ec2.launch_template:
        return {"api": "CreateFleet", "parameters": _create_fleet(launch)}
    if launch.pool.ec2.image:
        return {"api": "RunInstances", "parameters": _run_instances(launch)}
    raise _refuse(order.pool, "ec2.image", "an image, or else a launch_template", None)


def client_token(launch_id: str, generation: int) -> str:
    """Return EC2's idempotency token for the request number `generation` of a launch: at most 64 ASCII characters.

    `generation` grows only after EC2 has definitely refused the request before.
    """
    token = f"{launch_id}.{generation}"  # promise: one-machine-per-launch
    if len(token) <= MOST_TOKEN and token.isascii():
        return token
    return hashlib.sha256(token.encode()).hexdigest()


def subnets_for(subnets: tuple[str, ...], zone: str | None) -> tuple[str, ...]:
    """Return the ids of the subnets that a launch in `zone` may use, in their order; `zone` None: in any zone.

    A subnet is written as `subnet-…`, or as `ZONE:subnet-…` for launches in this zone only. A subnet without a zone is
    always used, and EC2 refuses the launch if it is in another zone.
    """
    pairs = [entry.rpartition(":") for entry in subnets]
    return tuple(subnet for subnet_zone, _, subnet in pairs if not subnet_zone or zone in {None, subnet_zone})


def _look_up(order: LaunchOrder, rules: Rules, cluster: str, region: str) -> _Launch:
    pool = rules.pools.get(order.pool)
    if pool is None:
        raise _refuse(order.pool, "", "a pool that is configured", order.pool)
    offering = pool.offering_by_key.get(order.offering) if order.offering else None
    if order.offering and offering is None:
        raise _refuse(order.pool, "offerings", "an offering that is configured", order.offering)
    zone = offering.zone if offering else None
    subnets = subnets_for(pool.ec2.subnets, zone)
    if pool.ec2.subnets and not subnets:
        raise _refuse(order.pool, "ec2.subnets", f"a subnet in {zone}", list(pool.ec2.subnets))
    user_data = None
    if pool.ec2.user_data is not None:
        path = f"config.pools.{order.pool}.ec2.user_data"
        try:
            user_data = render_user_data(pool.ec2.user_data, variables_of(order, pool, cluster, region), path)
        except InvalidInputError as error:
            raise CloudError("misconfigured", "InvalidRules", str(error)) from error
    ours = {TAG_CLUSTER: cluster, TAG_POOL: order.pool, TAG_SLOT: order.slot, TAG_LAUNCH: order.launch_id}
    if order.offering is not None:
        ours[TAG_OFFERING] = order.offering
    if order.cluster_id:
        ours |= {TAG_CLUSTER_ID: order.cluster_id, TAG_HIGHEST: order.highest}
    return _Launch(
        order=order,
        pool=pool,
        offering=offering,
        subnets=subnets,
        user_data=user_data,
        tags={**pool.ec2.tags, **ours},
    )


def _tag_specifications(tags: Mapping[str, str], *kinds: str) -> list[dict[str, Any]]:
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    return [{"ResourceType": kind, "Tags": pairs} for kind in kinds]


def _run_instances(launch: _Launch) -> dict[str, Any]:
    ec2, spot = launch.pool.ec2, launch.market == "spot"
    kinds = ("instance", "volume", "spot-instances-request") if spot else ("instance", "volume")
    parameters: dict[str, Any] = {
        "ClientToken": client_token(launch.order.launch_id, launch.order.generation),
        "ImageId": ec2.image,
        "MinCount": 1,
        "MaxCount": 1,
        "MetadataOptions": METADATA_OPTIONS,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "TagSpecifications": _tag_specifications(launch.tags, *kinds),
        **dict(_common_parameters(launch)),
    }
    if spot:
        parameters["InstanceMarketOptions"] = {
            "MarketType": "spot",
            "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
        }
    if launch.user_data is not None:
        # The text is not encoded here: botocore encodes this parameter of this call in base64.
        parameters["UserData"] = launch.user_data
    if ec2.security_groups:
        parameters["SecurityGroupIds"] = list(ec2.security_groups)
    if launch.subnets:
        parameters["SubnetId"] = launch.subnets[0]
    if launch.zone:
        parameters["Placement"] = {"AvailabilityZone": launch.zone}
    return parameters


def _common_parameters(launch: _Launch) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of a launch that have the same names in RunInstances and in an override of CreateFleet."""
    ec2 = launch.pool.ec2
    if launch.offering:
        yield "InstanceType", launch.offering.instance_type
    if ec2.instance_profile:
        kind = "Arn" if ec2.instance_profile.startswith("arn:") else "Name"
        yield "IamInstanceProfile", {kind: ec2.instance_profile}
    if ec2.key_name:
        yield "KeyName", ec2.key_name
    if ec2.volume_gib:
        volume = {"VolumeSize": ec2.volume_gib, "VolumeType": "gp3", "DeleteOnTermination": True}
        yield "BlockDeviceMappings", [{"DeviceName": ROOT_DEVICE, "Ebs": volume}]


def _create_fleet(launch: _Launch) -> dict[str, Any]:
    ec2 = launch.pool.ec2
    if ec2.security_groups:
        wanted = "none beside a launch_template (a fleet takes the template's)"
        raise _refuse(launch.order.pool, "ec2.security_groups", wanted, list(ec2.security_groups))
    name = str(ec2.launch_template)
    template = {"LaunchTemplateId" if name.startswith("lt-") else "LaunchTemplateName": name}
    template["Version"] = str(ec2.launch_template_version)
    if launch.user_data is not None:
        template["LaunchTemplateSpecificationUserData"] = base64.b64encode(launch.user_data.encode()).decode()
    parameters: dict[str, Any] = {
        "ClientToken": client_token(launch.order.launch_id, launch.order.generation),
        "Type": "instant",
        "LaunchTemplateConfigs": [{"LaunchTemplateSpecification": template, "Overrides": _overrides(launch)}],
        "TargetCapacitySpecification": {
            "TotalTargetCapacity": 1,
            "DefaultTargetCapacityType": launch.market,
        },
        # A fleet cannot tag spot requests. The sweep finds machines by their own tags.
        "TagSpecifications": _tag_specifications(launch.tags, "instance", "volume", "fleet"),
    }
    if launch.market == "spot":
        parameters["SpotOptions"] = {
            "AllocationStrategy": ec2.spot_allocation,
            "InstanceInterruptionBehavior": "terminate",
        }
    return parameters


def _overrides(launch: _Launch) -> list[dict[str, Any]]:
    """Return the overrides of CreateFleet: one for each subnet that the machine may get, or without subnets one for the
    zone. EC2 chooses among them.
    """
    common: dict[str, Any] = {"MetadataOptions": METADATA_OPTIONS, **dict(_common_parameters(launch))}
    if launch.pool.ec2.image:
        common["ImageId"] = launch.pool.ec2.image
    if launch.subnets:
        return [{**common, "SubnetId": subnet} for subnet in launch.subnets]
    return [{**common, "AvailabilityZone": launch.zone} if launch.zone else common]


def _refuse(pool: str, key: str, wanted: str, got: object) -> CloudError:
    path = f"config.pools.{pool}.{key}".removesuffix(".")
    line = str(Fault(path, wanted, "nothing" if got is None else show(got)))
    return CloudError("misconfigured", "InvalidRules", line)
