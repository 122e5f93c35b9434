"""Build the complete launch request to EC2 from the rules, as JSON values, so that it can be stored and sent again
unchanged.

There are two calls. CreateFleet (type instant) chooses the zone with the best chance among all subnets of a pool, but
requires a launch template and an instance type. RunInstances takes an image and one subnet. So RunInstances is used for
one machine of a pool that has only an image and only one place, and for the machines of a pool with an image and
without offerings. CreateFleet is used for every other launch; for a pool with only an image a launch template is made.
Both calls have a client token, so that repeating a call launches no second machine.
"""

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from scheduler.model.machines import Offering, is_source
from scheduler.model.pools import Pool, offering_key
from scheduler.model.rules import Rules
from scheduler.model.slots import Market
from scheduler.model.validation import Fault, InvalidInputError, show
from scheduler.ports import CloudError, LaunchOrder, Place
from scheduler.ports.fleet import JOIN_TOKEN
from scheduler.protocol.join_tokens import TOKEN_PLACE
from workers.ec2.templates import describe_template
from workers.ec2.user_data import find_template, render_user_data, variables_of

TAG_CLUSTER: Final = "leasehold:cluster"
TAG_CLUSTER_ID: Final = "leasehold:cluster-id"
TAG_HIGHEST: Final = "leasehold:highest"
TAG_ALIVE: Final = "leasehold:alive"
TAG_POOL: Final = "leasehold:pool"
TAG_SLOT: Final = "leasehold:slot"
TAG_LAUNCH: Final = "leasehold:launch"
TAG_BATCH: Final = "leasehold:batch"
TAG_OFFERING: Final = "leasehold:offering"

ROOT_DEVICE: Final = "/dev/xvda"
"""Device to which `volume_gib` applies while the root device of the image is not known: that of Amazon Linux."""

MOST_TOKEN: Final = 64
_TEMPLATE_USER_DATA: Final = "LaunchTemplateSpecificationUserData"
"""Parameter of CreateFleet that has user data in base64."""
MOST_OVERRIDES: Final = 300
"""The most combinations of instance type and place among which one request to EC2 may choose."""


class _Launch(msgspec.Struct, frozen=True, kw_only=True):
    """The input of one launch request: its order, and the parts of the rules that the request needs.

    `offerings`: the offerings among which EC2 may choose, best first, all of one market; (None,) in a pool without
    offerings. `subnets`: the subnets of the pool.
    """

    order: LaunchOrder
    token: str
    pool: Pool
    offerings: tuple[Offering | None, ...]
    subnets: tuple[Place, ...]
    user_data: str | None
    tags: Mapping[str, str]

    @property
    def market(self) -> Market:
        return self.offerings[0].market if self.offerings[0] else "spot"

    def list_places(self) -> list[tuple[Offering | None, Place]]:
        """Return each offering with each place where it may be launched: at most MOST_OVERRIDES pairs.

        A place is a subnet; in a pool without subnets the offering's zone, or a place without a zone. Of several pairs
        with the same instance type and zone only the first one is returned, because EC2 refuses a fleet with both: the
        best offering, and the subnet with the most free addresses.
        """
        pairs = [(each, place) for each in self.offerings for place in find_places(self.subnets, each)]
        held = set(self.order.held_places)
        pairs = [pair for pair in pairs if held.isdisjoint({pair[1].subnet, pair[1].zone})] or pairs
        found: list[tuple[Offering | None, Place]] = []
        taken: dict[str | None, set[str | None]] = {}
        for offering, place in pairs:
            where = place.zone or place.subnet
            others = taken.setdefault(offering.instance_type if offering else None, set())
            # A place without zone and subnet stands for all zones.
            if where not in others and not (others and None in {where, *others}):
                others.add(where)
                found.append((offering, place))
        return found[:MOST_OVERRIDES]


def read_written(subnets: Iterable[str]) -> tuple[Place, ...]:
    """Return the places of subnets as the rules write them: `subnet-…`, or `ZONE:subnet-…` with the zone of the
    subnet.
    """
    pairs = [entry.rpartition(":") for entry in subnets]
    return tuple(Place(subnet=subnet, zone=zone or None) for zone, _, subnet in pairs)


def find_places(subnets: Sequence[Place], offering: Offering | None) -> list[Place]:
    """Return the places where an offering may be launched in a pool with these subnets: first those with the most free
    addresses, then in the given order.

    A subnet whose zone is unknown is always a place, and EC2 refuses the launch if it is in another zone than the
    offering.
    """
    zone = offering.zone if offering else None
    if not subnets:
        return [Place(zone=zone)]
    found = [msgspec.structs.replace(each, zone=each.zone or zone) for each in subnets]
    return sorted((each for each in found if zone in {None, each.zone}), key=lambda each: -(each.free or 0))


def freeze_request(
    order: LaunchOrder, rules: Rules, cluster: str, region: str, join_url: str | None = None
) -> dict[str, Any]:
    """Return the EC2 request for `order`, with these keys: `api` ("RunInstances" or "CreateFleet"), `parameters`,
    `offerings` and `template`.

    `offerings`: the key of each offering → the places in which EC2 may launch it. `template`: the launch template that
    Leasehold makes for the request, as the parameters of CreateLaunchTemplate; None if the request needs no template or
    the pool names one. `join_url`: the address at which machines with agents join; None: there is none. Equal input
    gives equal output. Raises CloudError (misconfigured) that names the wrong or missing key of the rules.
    """
    keys: tuple[str | None, ...] = order.offerings or (None,)
    pool, first = _look_up(order.pool, keys[0], rules)
    if pool.ec2.names_offering:
        keys = keys[:1]
    target = {TAG_BATCH: order.batch} if order.batch else {TAG_SLOT: order.slot, TAG_LAUNCH: order.launch_id}
    launch = _Launch(
        order=order,
        token=client_token(f"batch-{order.batch}", 1)
        if order.batch
        else client_token(order.launch_id, order.generation),
        pool=pool,
        offerings=(first, *(_look_up(order.pool, key, rules)[1] for key in keys[1:])),
        subnets=order.places or read_written(pool.ec2.subnets),
        user_data=_render(order, pool, cluster, region, join_url),
        tags={
            **pool.ec2.tags,
            TAG_CLUSTER: cluster,
            TAG_POOL: order.pool,
            **target,
            **_describe(keys[0] if len(keys) == 1 else None, order.cluster_id, order.highest),
        },
    )
    return _freeze(launch, cluster)


def _freeze(launch: _Launch, cluster: str) -> dict[str, Any]:
    ec2, pairs = launch.pool.ec2, launch.list_places()
    if not ec2.launch_template and not ec2.image:
        raise _refuse(launch.order.pool, "ec2.image", "an image, or else a launch_template", None)
    if not pairs:
        zones = sorted({each.zone for each in launch.offerings if each and each.zone})
        raise _refuse(launch.order.pool, "ec2.subnets", f"a subnet in {' or '.join(zones)}", list(ec2.subnets))
    offerings: dict[str, list[dict[str, str]]] = {}
    for offering, place in pairs:
        key = offering_key(launch.pool, offering) if offering else ""
        kind = {"InstanceType": offering.instance_type} if offering else {}
        offerings.setdefault(key, []).append(kind | _name_place(place))
    frozen: dict[str, Any] = {"offerings": offerings, "template": None}
    # A fleet needs an instance type, and a pool without offerings leaves it to EC2.
    has_choice = launch.pool.offerings and (launch.order.batch is not None or len(pairs) > 1)
    if not ec2.launch_template and not has_choice:
        return {"api": "RunInstances", "parameters": _run_instances(launch, pairs[0][1]), **frozen}
    if not ec2.launch_template:
        common = dict(_common_parameters(launch.pool, None))
        frozen["template"] = describe_template(launch.pool, cluster, common, {**ec2.tags, TAG_CLUSTER: cluster})
    made = frozen["template"]["LaunchTemplateName"] if frozen["template"] else None
    return {"api": "CreateFleet", "parameters": _create_fleet(launch, pairs, made), **frozen}


def fill_join_token(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a launch request with its join token in the user data, in place of TOKEN_PLACE. A request without a token
    is returned as it is.
    """
    token = request.get(JOIN_TOKEN)
    if token is None:
        return request
    parameters = dict(request["parameters"])
    if "UserData" in parameters:
        parameters["UserData"] = parameters["UserData"].replace(TOKEN_PLACE, token)
    configs = []
    for config in parameters.get("LaunchTemplateConfigs", ()):
        template = dict(config["LaunchTemplateSpecification"])
        if _TEMPLATE_USER_DATA in template:
            text = base64.b64decode(template[_TEMPLATE_USER_DATA]).decode().replace(TOKEN_PLACE, token)
            template[_TEMPLATE_USER_DATA] = base64.b64encode(text.encode()).decode()
        configs.append({**config, "LaunchTemplateSpecification": template})
    if configs:
        parameters["LaunchTemplateConfigs"] = configs
    return {**request, "parameters": parameters}


def _name_place(place: Place) -> dict[str, str]:
    named = {"SubnetId": place.subnet, "AvailabilityZone": place.zone}
    return {key: value for key, value in named.items() if value is not None}


def client_token(launch_id: str, generation: int) -> str:
    """Return EC2's idempotency token for the request number `generation` of a launch: at most 64 ASCII characters.

    A launch gets a new `generation` only after EC2 has definitely refused its last request. So two requests of one
    launch with different tokens cannot both launch a machine.
    """
    token = f"{launch_id}.{generation}"  # promise: one-machine-per-launch
    if len(token) <= MOST_TOKEN and token.isascii():
        return token
    return hashlib.sha256(token.encode()).hexdigest()


def _look_up(name: str, key: str | None, rules: Rules) -> tuple[Pool, Offering | None]:
    """Return the pool with this name, and its offering with this key (None: no offering). Raises CloudError
    (misconfigured) if the rules do not have the pool or the offering, or if the pool's image was not found yet.
    """
    pool = rules.pools.get(name)
    if pool is None:
        raise _refuse(name, "", "the name of a pool in the configuration", name)
    offering = pool.offering_by_key.get(key) if key else None
    if key and offering is None:
        raise _refuse(name, "offerings", "the key of an offering of the pool", key)
    if is_source(pool.ec2.image):
        raise _refuse(
            name,
            "ec2.image",
            "an image that was found (the next look-up is due within `recover_interval`)",
            pool.ec2.image,
        )
    return pool, offering


def _render(order: LaunchOrder, pool: Pool, cluster: str, region: str, join_url: str | None) -> str | None:
    template = find_template(pool)
    if template is None:
        return None
    path = f"config.pools.{order.pool}.ec2.user_data"
    try:
        return render_user_data(template, variables_of(order, pool, cluster, region, join_url), path)
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


def _run_instances(launch: _Launch, place: Place) -> dict[str, Any]:
    ec2, spot = launch.pool.ec2, launch.market == "spot"
    kinds = ("instance", "volume", "spot-instances-request") if spot else ("instance", "volume")
    parameters: dict[str, Any] = {
        "ClientToken": launch.token,
        "ImageId": ec2.image,
        "MinCount": launch.order.count if launch.order.is_gang else 1,
        "MaxCount": launch.order.count,
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
    if place.subnet:
        parameters["SubnetId"] = place.subnet
    if place.zone:
        parameters["Placement"] = {"AvailabilityZone": place.zone}
    return parameters


def _common_parameters(pool: Pool, offering: Offering | None) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of a launch that have the same names in RunInstances and in an override of CreateFleet."""
    ec2 = pool.ec2
    if not ec2.launch_template or ec2.metadata_hop_limit:
        # Without these options, those of the user's own launch template hold.
        hops = ec2.metadata_hop_limit or 1
        yield "MetadataOptions", {"HttpTokens": "required", "HttpPutResponseHopLimit": hops, "HttpEndpoint": "enabled"}
    if offering:
        yield "InstanceType", offering.instance_type
    if ec2.instance_profile:
        kind = "Arn" if ec2.instance_profile.startswith("arn:") else "Name"
        yield "IamInstanceProfile", {kind: ec2.instance_profile}
    if ec2.key_name:
        yield "KeyName", ec2.key_name
    if ec2.volume_gib:
        volume = {"VolumeSize": ec2.volume_gib, "VolumeType": "gp3", "DeleteOnTermination": True}
        yield "BlockDeviceMappings", [{"DeviceName": ec2.root_device or ROOT_DEVICE, "Ebs": volume}]


def _create_fleet(launch: _Launch, pairs: Sequence[tuple[Offering | None, Place]], made: str | None) -> dict[str, Any]:
    """Return the parameters of CreateFleet. `pairs`: as `list_places` returns them. `made`: the name of the launch
    template that Leasehold makes for the pool; None: the pool names a launch template.
    """
    ec2 = launch.pool.ec2
    if ec2.security_groups and made is None:
        raise _refuse(
            launch.order.pool,
            "ec2.security_groups",
            "none together with a launch_template (a fleet takes the template's security groups)",
            list(ec2.security_groups),
        )
    name = made or str(ec2.launch_template)
    template = {"LaunchTemplateId" if name.startswith("lt-") else "LaunchTemplateName": name}
    template["Version"] = "1" if made else str(ec2.launch_template_version)
    if launch.user_data is not None:
        template[_TEMPLATE_USER_DATA] = base64.b64encode(launch.user_data.encode()).decode()
    # EC2 chooses among these overrides: one for each offering in each of its places.
    image = {"ImageId": ec2.image} if ec2.image else {}
    parameters: dict[str, Any] = {
        "ClientToken": launch.token,
        "Type": "instant",
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": template,
                "Overrides": [
                    {**dict(_common_parameters(launch.pool, offering)), **image, **_name_place(place)}
                    for offering, place in pairs
                ],
            }
        ],
        "TargetCapacitySpecification": {
            "TotalTargetCapacity": launch.order.count,
            "DefaultTargetCapacityType": launch.market,
        },
        # A fleet cannot tag spot requests. The sweep finds machines by their own tags.
        "TagSpecifications": _tag_specifications(launch.tags, "instance", "volume", "fleet"),
    }
    together = _keep_together(launch, pairs) if launch.order.is_gang else {}
    if launch.market == "spot":
        parameters["SpotOptions"] = {
            "AllocationStrategy": ec2.spot_allocation,
            "InstanceInterruptionBehavior": "terminate",
            **together,
        }
    elif together:
        parameters["OnDemandOptions"] = together
    return parameters


def _keep_together(launch: _Launch, pairs: Sequence[tuple[Offering | None, Place]]) -> dict[str, Any]:
    """Return the options by which CreateFleet launches all machines of a gang or none. EC2 can do that only with a
    single instance type or in a single zone. Otherwise return {}; then the machines are ended afterwards if EC2
    launched only some of them. Source: `MinTargetCapacity` of CreateFleet.
    """
    zones = {place.zone or place.subnet for _, place in pairs}
    options: dict[str, Any] = {}
    if len({offering and offering.instance_type for offering in launch.offerings}) == 1:
        options["SingleInstanceType"] = True
    if launch.pool.ec2.single_zone or (len(zones) == 1 and None not in zones):
        options["SingleAvailabilityZone"] = True
    return {**options, "MinTargetCapacity": launch.order.count} if options else {}


def _refuse(pool: str, key: str, wanted: str, got: object) -> CloudError:
    line = str(Fault(f"config.pools.{pool}.{key}".removesuffix("."), wanted, "nothing" if got is None else show(got)))
    return CloudError("misconfigured", "InvalidRules", line)
