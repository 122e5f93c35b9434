"""Build the complete launch request to EC2 from the rules, as JSON values, so that it can be stored and sent again
unchanged.

There are two calls. CreateFleet (type instant) chooses the zone with the best chance among all subnets of a pool, but
requires a launch template. RunInstances takes an image and one subnet. So CreateFleet is used for a pool with a launch
template and for batches, and RunInstances for one machine of a pool with only an image. For batches of such a pool a
launch template is made. Both calls have a client token, so that repeating a call launches no second machine.
"""

import base64
import hashlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import msgspec

from scheduler.model.images import is_source
from scheduler.model.machines import Offering
from scheduler.model.pools import Pool, offering_key
from scheduler.model.rules import Rules
from scheduler.model.slots import Market
from scheduler.model.validation import Fault, InvalidInputError, show
from scheduler.ports import BatchOrder, CloudError, LaunchOrder
from workers.ec2.templates import describe_template
from workers.ec2.user_data import render_user_data, variables_of

TAG_CLUSTER: Final = "leasehold:cluster"
TAG_CLUSTER_ID: Final = "leasehold:cluster-id"
TAG_HIGHEST: Final = "leasehold:highest"
TAG_POOL: Final = "leasehold:pool"
TAG_SLOT: Final = "leasehold:slot"
TAG_LAUNCH: Final = "leasehold:launch"
TAG_BATCH: Final = "leasehold:batch"
TAG_OFFERING: Final = "leasehold:offering"

ROOT_DEVICE: Final = "/dev/xvda"
"""Device to which `volume_gib` applies: the root device of Amazon Linux. For an image with another root device, a
launch template must set the size of the volume.
"""

MOST_TOKEN: Final = 64
METADATA_OPTIONS: Final = {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"}


MOST_OVERRIDES: Final = 300
"""The most combinations of instance type and subnet among which one request to EC2 may choose."""


class _Launch(msgspec.Struct, frozen=True, kw_only=True):
    """The input of one launch request: its client token, how many machines it asks for, and the parts of the rules that
    the request needs.

    `offerings`: the offerings among which EC2 may choose, best first, all of one market; (None,) in a pool without
    offerings.
    """

    token: str
    count: int
    name: str
    pool: Pool
    offerings: tuple[Offering | None, ...]
    user_data: str | None
    tags: Mapping[str, str]
    is_gang: bool = False
    """Whether the machines serve a gang, so that EC2 must launch all of them or none."""

    @property
    def market(self) -> Market:
        return self.offerings[0].market if self.offerings[0] else "spot"

    def list_places(self) -> Iterator[tuple[Offering | None, dict[str, str]]]:
        """Yield each offering with each place where it may be launched. A place is a parameter of the request:
        `SubnetId`, or without subnets `AvailabilityZone`; {} if the offering has no zone either.
        """
        for offering in self.offerings:
            zone = offering.zone if offering else None
            subnets = subnets_for(self.pool.ec2.subnets, zone)
            for subnet in subnets:
                yield offering, {"SubnetId": subnet}
            if not subnets:
                yield offering, {"AvailabilityZone": zone} if zone else {}


def freeze_request(order: LaunchOrder, rules: Rules, cluster: str, region: str) -> dict[str, Any]:
    """Return the EC2 request that launches the machine of `order`: `{"api": "RunInstances" | "CreateFleet",
    "parameters": …}`.

    Equal input gives equal output. Raises CloudError (misconfigured) that names the wrong or missing key of the rules.
    """
    pool, offering = _look_up(order.pool, order.offering, rules)
    user_data = _render(order, pool, cluster, region)
    ours = {TAG_CLUSTER: cluster, TAG_POOL: order.pool, TAG_SLOT: order.slot, TAG_LAUNCH: order.launch_id}
    launch = _Launch(
        token=client_token(order.launch_id, order.generation),
        count=1,
        name=order.pool,
        pool=pool,
        offerings=(offering,),
        user_data=user_data,
        tags={**pool.ec2.tags, **ours, **_describe(order.offering, order.cluster_id, order.highest)},
    )
    if pool.ec2.launch_template:
        return {"api": "CreateFleet", "parameters": _create_fleet(launch)}
    if pool.ec2.image:
        return {"api": "RunInstances", "parameters": _run_instances(launch)}
    raise _refuse(order.pool, "ec2.image", "an image, or else a launch_template", None)


def freeze_batch_request(order: BatchOrder, rules: Rules, cluster: str, region: str) -> dict[str, Any]:
    """Return the EC2 request that launches the machines of a batch, as `freeze_request` does, with two more keys:
    `offerings` and `template`. The call is CreateFleet, except for a pool with an image and without offerings.

    `offerings`: the key of each offering → the places in which EC2 may launch it. `template`: the launch template that
    Leasehold makes for the request, as the parameters of CreateLaunchTemplate; None if the request needs no template or
    the pool names one. Equal input gives equal output. Raises CloudError (misconfigured) that names the wrong or
    missing key of the rules.
    """
    pool, first = _look_up(order.pool, order.offerings[0] if order.offerings else None, rules)
    if not pool.ec2.launch_template and not pool.ec2.image:
        raise _refuse(order.pool, "ec2.image", "an image, or else a launch_template", None)
    keys: tuple[str | None, ...] = order.offerings or (None,)
    if pool.ec2.names_offering:
        keys = keys[:1]
    only = keys[0] if len(keys) == 1 else None
    example = LaunchOrder(
        slot="", pool=order.pool, launch_id="", generation=0, offering=keys[0], cluster_id=order.cluster_id
    )
    launch = _Launch(
        token=client_token(f"batch-{order.batch}", 1),
        count=order.count,
        name=order.pool,
        pool=pool,
        offerings=(first, *(_look_up(order.pool, key, rules)[1] for key in keys[1:])),
        user_data=_render(example, pool, cluster, region),
        tags={
            **pool.ec2.tags,
            TAG_CLUSTER: cluster,
            TAG_POOL: order.pool,
            TAG_BATCH: order.batch,
            **_describe(only, order.cluster_id, order.highest),
        },
        is_gang=order.is_gang,
    )
    places: dict[str, list[dict[str, str]]] = {}
    for offering, place in islice(launch.list_places(), MOST_OVERRIDES):
        key = offering_key(pool, offering) if offering else ""
        places.setdefault(key, []).append(({"InstanceType": offering.instance_type} if offering else {}) | place)
    template = None
    if not pool.ec2.launch_template and not pool.offerings:
        # A fleet needs an instance type, and this pool leaves it to EC2.
        return {"api": "RunInstances", "parameters": _run_instances(launch), "offerings": places, "template": None}
    if not pool.ec2.launch_template:
        common = {"MetadataOptions": METADATA_OPTIONS, **dict(_common_parameters(pool, None))}
        template = describe_template(pool, cluster, common, {**pool.ec2.tags, TAG_CLUSTER: cluster})
    parameters = _create_fleet(launch, template["LaunchTemplateName"] if template else None)
    return {"api": "CreateFleet", "parameters": parameters, "offerings": places, "template": template}


def client_token(launch_id: str, generation: int) -> str:
    """Return EC2's idempotency token for the request number `generation` of a launch: at most 64 ASCII characters.

    A launch gets a new `generation` only after EC2 has definitely refused its last request. So two requests of one
    launch with different tokens cannot both launch a machine.
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


def _look_up(name: str, key: str | None, rules: Rules) -> tuple[Pool, Offering | None]:
    """Return the pool with this name, and its offering with this key (None: no offering). Raises CloudError
    (misconfigured) if the rules do not have the pool or the offering, if the pool's image was not found yet, or if the
    pool has no subnet in the offering's zone.
    """
    pool = rules.pools.get(name)
    if pool is None:
        raise _refuse(name, "", "the name of a pool in the configuration", name)
    offering = pool.offering_by_key.get(key) if key else None
    if key and offering is None:
        raise _refuse(name, "offerings", "the key of an offering of the pool", key)
    if is_source(pool.ec2.image):
        wanted = "an image that was found (the next look-up is due within `image_interval`)"
        raise _refuse(name, "ec2.image", wanted, pool.ec2.image)
    zone = offering.zone if offering else None
    if pool.ec2.subnets and not subnets_for(pool.ec2.subnets, zone):
        raise _refuse(name, "ec2.subnets", f"a subnet in {zone}", list(pool.ec2.subnets))
    return pool, offering


def _render(order: LaunchOrder, pool: Pool, cluster: str, region: str) -> str | None:
    if pool.ec2.user_data is None:
        return None
    path = f"config.pools.{order.pool}.ec2.user_data"
    try:
        return render_user_data(pool.ec2.user_data, variables_of(order, pool, cluster, region), path)
    except InvalidInputError as error:
        raise CloudError("misconfigured", "InvalidRules", str(error)) from error


def _describe(offering: str | None, cluster_id: str, highest: str) -> dict[str, str]:
    """Return the optional tags of a machine. `offering`: the key of its offering; None: no tag. `cluster_id`: the id of
    the cluster, which is tagged together with `highest` (the highest term and fencing token of the cluster); "": no
    tags for both.
    """
    tags = {} if offering is None else {TAG_OFFERING: offering}
    return tags | ({TAG_CLUSTER_ID: cluster_id, TAG_HIGHEST: highest} if cluster_id else {})


def _tag_specifications(tags: Mapping[str, str], *kinds: str) -> list[dict[str, Any]]:
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    return [{"ResourceType": kind, "Tags": pairs} for kind in kinds]


def _run_instances(launch: _Launch) -> dict[str, Any]:
    ec2, spot = launch.pool.ec2, launch.market == "spot"
    kinds = ("instance", "volume", "spot-instances-request") if spot else ("instance", "volume")
    parameters: dict[str, Any] = {
        "ClientToken": launch.token,
        "ImageId": ec2.image,
        "MinCount": launch.count if launch.is_gang else 1,
        "MaxCount": launch.count,
        "MetadataOptions": METADATA_OPTIONS,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "TagSpecifications": _tag_specifications(launch.tags, *kinds),
        **dict(_common_parameters(launch.pool, launch.offerings[0])),
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
    zone = launch.offerings[0].zone if launch.offerings[0] else None
    if subnets := subnets_for(ec2.subnets, zone):
        parameters["SubnetId"] = subnets[0]
    if zone:
        parameters["Placement"] = {"AvailabilityZone": zone}
    return parameters


def _common_parameters(pool: Pool, offering: Offering | None) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of a launch that have the same names in RunInstances and in an override of CreateFleet."""
    ec2 = pool.ec2
    if offering:
        yield "InstanceType", offering.instance_type
    if ec2.instance_profile:
        kind = "Arn" if ec2.instance_profile.startswith("arn:") else "Name"
        yield "IamInstanceProfile", {kind: ec2.instance_profile}
    if ec2.key_name:
        yield "KeyName", ec2.key_name
    if ec2.volume_gib:
        volume = {"VolumeSize": ec2.volume_gib, "VolumeType": "gp3", "DeleteOnTermination": True}
        yield "BlockDeviceMappings", [{"DeviceName": ROOT_DEVICE, "Ebs": volume}]


def _create_fleet(launch: _Launch, made: str | None = None) -> dict[str, Any]:
    """Return the parameters of CreateFleet. `made`: the name of the launch template that Leasehold makes for the pool;
    None: the pool names a launch template.
    """
    ec2 = launch.pool.ec2
    if ec2.security_groups and made is None:
        wanted = "none together with a launch_template (a fleet takes the template's security groups)"
        raise _refuse(launch.name, "ec2.security_groups", wanted, list(ec2.security_groups))
    name = made or str(ec2.launch_template)
    template = {"LaunchTemplateId" if name.startswith("lt-") else "LaunchTemplateName": name}
    template["Version"] = "1" if made else str(ec2.launch_template_version)
    if launch.user_data is not None:
        template["LaunchTemplateSpecificationUserData"] = base64.b64encode(launch.user_data.encode()).decode()
    parameters: dict[str, Any] = {
        "ClientToken": launch.token,
        "Type": "instant",
        "LaunchTemplateConfigs": [{"LaunchTemplateSpecification": template, "Overrides": _overrides(launch)}],
        "TargetCapacitySpecification": {
            "TotalTargetCapacity": launch.count,
            "DefaultTargetCapacityType": launch.market,
        },
        # A fleet cannot tag spot requests. The sweep finds machines by their own tags.
        "TagSpecifications": _tag_specifications(launch.tags, "instance", "volume", "fleet"),
    }
    together = _keep_together(launch) if launch.is_gang else {}
    if launch.market == "spot":
        parameters["SpotOptions"] = {
            "AllocationStrategy": ec2.spot_allocation,
            "InstanceInterruptionBehavior": "terminate",
            **together,
        }
    elif together:
        parameters["OnDemandOptions"] = together
    return parameters


def _keep_together(launch: _Launch) -> dict[str, Any]:
    """Return the options by which CreateFleet launches all machines of a gang or none. EC2 can do that only with a
    single instance type or in a single zone. Otherwise return {}; then the machines are ended afterwards if EC2
    launched only some of them. Source: `MinTargetCapacity` of CreateFleet.
    """
    zones = {place.get("SubnetId", place.get("AvailabilityZone")) for _, place in launch.list_places()}
    options: dict[str, Any] = {}
    if len({offering and offering.instance_type for offering in launch.offerings}) == 1:
        options["SingleInstanceType"] = True
    if launch.pool.ec2.single_zone or (len(zones) == 1 and None not in zones):
        options["SingleAvailabilityZone"] = True
    return {**options, "MinTargetCapacity": launch.count} if options else {}


def _overrides(launch: _Launch) -> list[dict[str, Any]]:
    """Return the overrides of CreateFleet: one for each offering and each of its places (a subnet, or without subnets a
    zone). EC2 chooses among the overrides.
    """
    image = {"ImageId": launch.pool.ec2.image} if launch.pool.ec2.image else {}
    places = islice(launch.list_places(), MOST_OVERRIDES)
    return [
        {"MetadataOptions": METADATA_OPTIONS, **dict(_common_parameters(launch.pool, offering)), **image, **place}
        for offering, place in places
    ]


def _refuse(pool: str, key: str, wanted: str, got: object) -> CloudError:
    path = f"config.pools.{pool}.{key}".removesuffix(".")
    line = str(Fault(path, wanted, "nothing" if got is None else show(got)))
    return CloudError("misconfigured", "InvalidRules", line)
