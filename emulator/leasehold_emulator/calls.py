"""Read the parts of requests to EC2 that the EC2 emulator needs."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, urlencode

import msgspec

from workers.ec2.signing_time import read_timestamp

LAUNCHES: Final = frozenset({"RunInstances", "CreateFleet"})

Strategy = Literal["lowest-price", "price-capacity-optimized", "capacity-optimized", "diversified", "prioritized"]
STRATEGIES: Final[Mapping[str, Strategy]] = {
    "lowest-price": "lowest-price",
    "lowestPrice": "lowest-price",
    "price-capacity-optimized": "price-capacity-optimized",
    "priceCapacityOptimized": "price-capacity-optimized",
    "capacity-optimized": "capacity-optimized",
    "capacityOptimized": "capacity-optimized",
    "capacity-optimized-prioritized": "capacity-optimized",
    "capacityOptimizedPrioritized": "capacity-optimized",
    "diversified": "diversified",
    "prioritized": "prioritized",
}
"""Allocation strategy in a CreateFleet -> the strategy by which the emulator divides its instances."""

_CONFIG: Final = re.compile(r"LaunchTemplateConfigs\.(\d+)\.(.+)")
_OVERRIDE: Final = re.compile(r"LaunchTemplateConfigs\.(\d+)\.Overrides\.(\d+)\.(.+)")
_IDENTIFIER: Final = re.compile(r"InstanceId\.\d+")
_ONLY: Final = "LaunchTemplateConfigs.1.Overrides.1."
_TARGET: Final = "TargetCapacitySpecification.TotalTargetCapacity"
_TARGETS_OF_MARKETS: Final = frozenset(
    f"TargetCapacitySpecification.{name}" for name in ("SpotTargetCapacity", "OnDemandTargetCapacity")
)
_ATTEMPT: Final = re.compile(r"attempt=(\d+)")


class Place(msgspec.Struct, frozen=True):
    """A place where a launch may put an instance: an instance type in a zone or subnet. A part that the request does
    not name is None.
    """

    type: str | None
    zone: str | None
    subnet: str | None
    override: tuple[str, str] | None = None
    """For CreateFleet: the numbers of the template configuration and of the override in the request that name this
    place. For RunInstances: None.
    """


class FleetOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a CreateFleet of type `instant` that decide how its instances are chosen. A RunInstances has the
    default values, which have no effect.
    """

    strategy: Strategy = "lowest-price"
    single_type: bool = False
    """Whether all instances must have the same instance type."""
    single_zone: bool = False
    """Whether all instances must be in the same zone."""
    least: int = 0
    """The smallest number of instances that is launched. If EC2 has fewer, it launches none."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request to EC2. `parameters`: the fields of the request's form. `action`: the name of the EC2 call, like
    "RunInstances". `attempt`: the number of this attempt among boto3's attempts of the call, from 1.
    """

    action: str
    region: str
    parameters: dict[str, str]
    invocation: str | None
    """An id that all of boto3's attempts of one call share; None if the request has none."""
    attempt: int = 1
    signed_at: float | None = None
    """The signing time of the request in seconds since the epoch; None if the request has no signature or no readable
    time.
    """
    places: tuple[Place, ...] = ()
    """The places (instance type with zone or subnet) where a launch may put instances, in their order; () for any other
    call.
    """

    @property
    def token(self) -> str | None:
        """The client token of the call, by which EC2 recognises a repeated request; None if the call has no token."""
        return self.parameters.get("ClientToken")

    @property
    def is_launch(self) -> bool:
        """Whether the call launches instances."""
        return self.action in LAUNCHES

    @property
    def market(self) -> Literal["spot", "on-demand"] | None:
        """The market of a launch, spot or on-demand; None for calls that launch nothing."""
        if not self.is_launch:
            return None
        kinds = ("InstanceMarketOptions.MarketType", "TargetCapacitySpecification.DefaultTargetCapacityType")
        return "spot" if any(self.parameters.get(kind) == "spot" for kind in kinds) else "on-demand"

    @property
    def is_dry_run(self) -> bool:
        """Whether the call has DryRun: EC2 then only checks whether the call is permitted."""
        return self.parameters.get("DryRun") == "true"

    @property
    def fleet_options(self) -> FleetOptions:
        """The options of a CreateFleet: those of its spot instances if its default market is spot, else those of its
        on-demand instances.
        """
        prefix = "SpotOptions." if self.market == "spot" else "OnDemandOptions."
        given = {key.removeprefix(prefix): value for key, value in self.parameters.items() if key.startswith(prefix)}
        return FleetOptions(
            strategy=STRATEGIES.get(given.get("AllocationStrategy", ""), "lowest-price"),
            single_type=given.get("SingleInstanceType") == "true",
            single_zone=given.get("SingleAvailabilityZone") == "true",
            least=_number(given["MinTargetCapacity"]) if "MinTargetCapacity" in given else 0,
        )

    @property
    def wanted(self) -> tuple[int, int]:
        """The least and the greatest number of instances that a launch call requests. If fewer than the least number
        are available, the call launches none.
        """
        if self.action == "CreateFleet":
            return self.fleet_options.least, _number(self.parameters.get(_TARGET))
        return _number(self.parameters.get("MinCount")), _number(self.parameters.get("MaxCount"))

    def asking_for(self, count: int) -> "Call":
        """Return a copy of this launch call that requests exactly `count` instances, all of the default market of the
        call.
        """
        if self.action == "RunInstances":
            changes = {"MinCount": str(count), "MaxCount": str(count)}
        else:
            changes = {_TARGET: str(count)}
        kept = {key: value for key, value in self.parameters.items() if key not in _TARGETS_OF_MARKETS}
        return msgspec.structs.replace(self, parameters={**kept, **changes})

    @property
    def instances(self) -> list[str]:
        """The instance ids that the call names."""
        return [value for key, value in self.parameters.items() if _IDENTIFIER.fullmatch(key)]

    def naming(self, instances: Iterable[str]) -> "Call":
        """Return a copy of this call that names these instance ids in place of its own."""
        kept = {key: value for key, value in self.parameters.items() if not _IDENTIFIER.fullmatch(key)}
        named = {f"InstanceId.{number}": name for number, name in enumerate(instances, start=1)}
        return msgspec.structs.replace(self, parameters={**kept, **named})

    def only(self, place: Place, subnet: str | None) -> "Call":
        """Return a copy of this CreateFleet call that has only the override of `place`. `subnet`: the subnet that this
        override gets if it names a zone and no subnet; None: it gets none.
        """
        if place.override is None:
            return self
        kept: dict[str, str] = {}
        for key, value in self.parameters.items():
            override, config = _OVERRIDE.fullmatch(key), _CONFIG.fullmatch(key)
            if config is None:
                kept[key] = value
            elif override is None and config[1] == place.override[0]:
                kept[f"LaunchTemplateConfigs.1.{config[2]}"] = value
            elif override is not None and (override[1], override[2]) == place.override:
                kept[f"{_ONLY}{override[3]}"] = value
        if subnet is not None and f"{_ONLY}AvailabilityZone" in kept:
            kept.setdefault(f"{_ONLY}SubnetId", subnet)
        return msgspec.structs.replace(self, parameters=kept)

    def body(self) -> bytes:
        """Return the parameters of the call as the body of an HTTP request."""
        return urlencode(self.parameters).encode()


def read_call(environ: Mapping[str, Any], body: bytes) -> Call:
    """Return the EC2 call that an HTTP request makes. `environ`: the WSGI environment of the request. `body`: the body
    of the request, which is a form with the parameters of the call.
    """
    parameters = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
    attempt = _ATTEMPT.search(environ.get("HTTP_AMZ_SDK_REQUEST", ""))
    action = parameters.get("Action", "")
    places: tuple[Place, ...] = ()
    if action == "CreateFleet":
        places = _fleet_places(parameters)
    elif action == "RunInstances":
        zone = parameters.get("Placement.AvailabilityZone")
        places = (Place(parameters.get("InstanceType"), zone, parameters.get("SubnetId")),)
    return Call(
        action=action,
        region=credential_scope(environ)[0],
        parameters=parameters,
        invocation=environ.get("HTTP_AMZ_SDK_INVOCATION_ID"),
        attempt=int(attempt[1]) if attempt else 1,
        signed_at=read_signing_time(environ),
        places=places,
    )


def credential_scope(environ: Mapping[str, Any]) -> tuple[str, str]:
    """Return the AWS region and service in the signature of an HTTP request; ("", "") without a signature."""
    scope = environ.get("HTTP_AUTHORIZATION", "").split(",")[0].rpartition("Credential=")[2].split("/")
    return (scope[2], scope[3]) if len(scope) == 5 else ("", "")  # noqa: PLR2004 - id/date/region/service/aws4


def read_signing_time(environ: Mapping[str, Any]) -> float | None:
    """Return the signing time of an HTTP request in seconds since the epoch; None without a signature or a readable
    time.
    """
    if "HTTP_AUTHORIZATION" not in environ:
        return None
    try:
        return read_timestamp(environ.get("HTTP_X_AMZ_DATE", ""))
    except ValueError:
        return None


def _number(value: str | None) -> int:
    return int(value) if value and value.isdecimal() else 1


def _fleet_places(parameters: Mapping[str, str]) -> tuple[Place, ...]:
    found: dict[tuple[str, str], dict[str, str]] = {}
    for key, value in parameters.items():
        if match := _OVERRIDE.fullmatch(key):
            found.setdefault((match[1], match[2]), {})[match[3]] = value
    return tuple(
        Place(
            type=override.get("InstanceType"),
            zone=override.get("AvailabilityZone"),
            subnet=override.get("SubnetId"),
            override=number,
        )
        for number, override in found.items()
    ) or (Place(None, None, None),)
