"""Calls: what of an EC2 request the layer looks at, and the log of all of them."""

import json
import re
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, urlencode

import msgspec

LAUNCHES: Final = frozenset({"RunInstances", "CreateFleet"})
MOST_KEPT: Final = 100_000
"""Records that are kept in memory; the file, if one is asked for, has them all."""

_OVERRIDE: Final = re.compile(r"LaunchTemplateConfigs\.(\d+)\.Overrides\.(\d+)\.(.+)")
_IDENTIFIER: Final = re.compile(r"InstanceId\.\d+")
_FOUND_ID: Final = re.compile(r"\bi-[0-9a-f]{8,17}\b")
_CODE: Final = re.compile(r"<(?:Code|errorCode)>([^<]+)<")
_ATTEMPT: Final = re.compile(r"attempt=(\d+)")


class Place(msgspec.Struct, frozen=True):
    """Where a launch may go: one instance type in one zone or subnet; None = not said."""

    type: str | None
    zone: str | None
    subnet: str | None
    override: tuple[str, str] | None = None
    """The numbers of CreateFleet's configuration and override that say so."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request to EC2, read from its form."""

    action: str
    region: str
    parameters: dict[str, str]
    invocation: str | None
    """The same for all of boto3's repeats of one call."""
    attempt: int = 1
    places: tuple[Place, ...] = ()
    """Where a launch may go, in the order in which it says so; () for other calls."""

    @property
    def token(self) -> str | None:
        """Its client token."""
        return self.parameters.get("ClientToken")

    @property
    def is_launch(self) -> bool:
        """Whether it launches."""
        return self.action in LAUNCHES

    @property
    def market(self) -> Literal["spot", "on-demand"] | None:
        """The market that a launch asks for; None for other calls."""
        if not self.is_launch:
            return None
        kinds = ("InstanceMarketOptions.MarketType", "TargetCapacitySpecification.DefaultTargetCapacityType")
        return "spot" if any(self.parameters.get(kind) == "spot" for kind in kinds) else "on-demand"

    @property
    def instances(self) -> list[str]:
        """The instance ids that it names."""
        return [value for key, value in self.parameters.items() if _IDENTIFIER.fullmatch(key)]

    def without(self, places: Sequence[Place]) -> "Call":
        """The same call of CreateFleet less the overrides of these places; the others are counted anew."""
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
        """Its form, encoded again."""
        return urlencode(self.parameters).encode()


def read_call(environ: Mapping[str, Any], body: bytes) -> Call:
    """The call that a WSGI request with this body makes."""
    parameters = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
    attempt = _ATTEMPT.search(environ.get("HTTP_AMZ_SDK_REQUEST", ""))
    action = parameters.get("Action", "")
    return Call(
        action=action,
        region=credential_scope(environ)[0],
        parameters=parameters,
        invocation=environ.get("HTTP_AMZ_SDK_INVOCATION_ID"),
        attempt=int(attempt[1]) if attempt else 1,
        places=_find_places(action, parameters),
    )


def credential_scope(environ: Mapping[str, Any]) -> tuple[str, str]:
    """(region, service) that a request is signed for; ("", "") when it bears no such signature."""
    scope = environ.get("HTTP_AUTHORIZATION", "").split(",")[0].rpartition("Credential=")[2].split("/")
    return (scope[2], scope[3]) if len(scope) == 5 else ("", "")  # noqa: PLR2004 - id/date/region/service/aws4


def _find_places(action: str, parameters: Mapping[str, str]) -> tuple[Place, ...]:
    match action:
        case "CreateFleet":
            return _fleet_places(parameters)
        case "RunInstances":
            zone = parameters.get("Placement.AvailabilityZone")
            return (Place(parameters.get("InstanceType"), zone, parameters.get("SubnetId")),)
        case _:
            return ()


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


class CallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the call log. `time` in seconds since the epoch."""

    number: int
    time: float
    action: str
    region: str
    token: str | None
    types: list[str]
    zones: list[str]
    market: str | None
    status: int
    code: str | None
    """EC2's error code; None when all went well."""
    instances: list[str]
    """For a launch the ids that it gave, for other calls the ids that they named."""
    replayed: bool
    """Whether the client token was known, so that nothing new was launched."""
    attempt: int
    """1, or more for boto3's own repeats of a call."""


class CallLog:
    """Every EC2 call in order: the newest in memory, all of them in a JSON-lines file if one is asked for.

    Not thread-safe by itself: the layer writes it under its lock.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._records: deque[CallRecord] = deque(maxlen=MOST_KEPT)
        self._last = 0

    def append(self, call: Call, status: int, answer: str, *, replayed: bool) -> CallRecord:
        """Write down a call and what it was answered."""
        self._last += 1
        record = CallRecord(
            number=self._last,
            time=datetime.now(UTC).timestamp(),
            action=call.action,
            region=call.region,
            token=call.token,
            types=[place.type for place in call.places if place.type],
            zones=[place.zone for place in call.places if place.zone],
            market=call.market,
            status=status,
            code=_find_code(answer),
            instances=find_instances(answer) if call.is_launch else call.instances,
            replayed=replayed,
            attempt=call.attempt,
        )
        self._records.append(record)
        self._write(record)
        return record

    def after(self, number: int) -> list[CallRecord]:
        """The records after this number that are still in memory, oldest first."""
        return [record for record in self._records if record.number > number]

    def clear(self) -> None:
        """Forget the records in memory; numbers go on, the file stays."""
        self._records.clear()

    def _write(self, record: CallRecord) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(msgspec.to_builtins(record)) + "\n")


def find_instances(answer: str) -> list[str]:
    """The instance ids in an answer, each once, in their order."""
    return list(dict.fromkeys(_FOUND_ID.findall(answer)))


def _find_code(answer: str) -> str | None:
    if "Code>" not in answer:
        return None
    found = _CODE.search(answer)
    return found[1] if found else None
