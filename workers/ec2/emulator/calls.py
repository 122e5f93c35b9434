"""Requests to EC2, parsed as far as the EC2 emulator needs."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, urlencode

import msgspec

from workers.ec2.signing_time import read_timestamp

LAUNCHES: Final = frozenset({"RunInstances", "CreateFleet"})

_OVERRIDE: Final = re.compile(r"LaunchTemplateConfigs\.(\d+)\.Overrides\.(\d+)\.(.+)")
_IDENTIFIER: Final = re.compile(r"InstanceId\.\d+")
_TARGET: Final = "TargetCapacitySpecification.TotalTargetCapacity"
_ATTEMPT: Final = re.compile(r"attempt=(\d+)")


class Place(msgspec.Struct, frozen=True):
    """A possible target of a launch: an instance type in a zone or subnet. A part is None if the request does not give
    it.
    """

    type: str | None
    zone: str | None
    subnet: str | None
    override: tuple[str, str] | None = None
    """For CreateFleet: the numbers of the template configuration and of the override that name this place in the
    request.
    """


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request to EC2, read from its form parameters."""

    action: str
    region: str
    parameters: dict[str, str]
    invocation: str | None
    """An id that all attempts of boto3 for one call have in common; None if the request has none."""
    attempt: int = 1
    signed_at: float | None = None
    """The signing time of the request in seconds since the epoch; None without a signature or a readable time."""
    places: tuple[Place, ...] = ()
    """The instance types and zones or subnets at which a launch may put instances, in their order; () for other calls.
    """

    @property
    def token(self) -> str | None:
        """The client token (EC2's idempotency key) of the call, or None."""
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
        """Whether the call has DryRun, so that EC2 only checks the permission for it."""
        return self.parameters.get("DryRun") == "true"

    @property
    def wanted(self) -> tuple[int, int]:
        """The least and the largest number of instances that a launch call accepts."""
        if self.action == "CreateFleet":
            return 0, _number(self.parameters.get(_TARGET))
        return _number(self.parameters.get("MinCount")), _number(self.parameters.get("MaxCount"))

    def asking_for(self, count: int) -> "Call":
        """Return this launch call, changed to request exactly `count` instances."""
        if self.action == "RunInstances":
            changes = {"MinCount": str(count), "MaxCount": str(count)}
        else:
            # The remaining capacity, without a named market, is launched in the default market.
            changes = {_TARGET: str(count)}
            for name in ("SpotTargetCapacity", "OnDemandTargetCapacity"):
                key = f"TargetCapacitySpecification.{name}"
                if key in self.parameters:
                    changes[key] = str(min(count, _number(self.parameters[key])))
        return msgspec.structs.replace(self, parameters={**self.parameters, **changes})

    @property
    def instances(self) -> list[str]:
        """The instance ids that the call names."""
        return [value for key, value in self.parameters.items() if _IDENTIFIER.fullmatch(key)]

    def without(self, places: Sequence[Place]) -> "Call":
        """Return this CreateFleet call without the overrides of these places; the remaining overrides are numbered
        again from 1.
        """
        gone = {place.override for place in places}
        kept: dict[str, str] = {}
        numbers: dict[str, list[str]] = {}
        for key, value in self.parameters.items():
            found = _OVERRIDE.fullmatch(key)
            if found is None:
                kept[key] = value
            elif (found[1], found[2]) not in gone:
                count = numbers.setdefault(found[1], [])
                if found[2] not in count:
                    count.append(found[2])
                number = count.index(found[2]) + 1
                kept[f"LaunchTemplateConfigs.{found[1]}.Overrides.{number}.{found[3]}"] = value
        return msgspec.structs.replace(self, parameters=kept)

    def body(self) -> bytes:
        """Return the parameters of the call, encoded as the form of a request."""
        return urlencode(self.parameters).encode()


def read_call(environ: Mapping[str, Any], body: bytes) -> Call:
    """Return the EC2 call that a WSGI request with this body makes."""
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
    """Return the AWS region and service that the signature of a WSGI request names; ("", "") without a signature."""
    scope = environ.get("HTTP_AUTHORIZATION", "").split(",")[0].rpartition("Credential=")[2].split("/")
    return (scope[2], scope[3]) if len(scope) == 5 else ("", "")  # noqa: PLR2004 - id/date/region/service/aws4


def read_signing_time(environ: Mapping[str, Any]) -> float | None:
    """Return the signing time of a WSGI request in seconds since the epoch; None without a signature or a readable
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
