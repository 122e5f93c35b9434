"""What can be steered: times, limits and faults, as documents that a file or the control API gives."""

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from scheduler.model.json_text import parse_json
from scheduler.model.validation import (
    Amount,
    Before,
    Count,
    Document,
    Fault,
    Name,
    Positive,
    Seconds,
    Text,
    conflicts,
    expected,
    fault,
    is_number,
    read_document,
)

STATUS_OF_CODE: Final = {
    "InsufficientInstanceCapacity": 500,
    "InsufficientHostCapacity": 500,
    "InternalError": 500,
    "Unavailable": 503,
    "ServiceUnavailable": 503,
    "RequestLimitExceeded": 503,
    "UnauthorizedOperation": 403,
    "AuthFailure": 401,
    "OptInRequired": 403,
    "DryRunOperation": 412,
}
"""The HTTP status that EC2 sends with a code; 400 with all others."""

_QUEUE: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")

LostWay = Literal["reset", "500", "timeout"]


def _share(value: object) -> float:
    if not is_number(value) or not 0 <= value <= 1:
        raise expected("a number from 0 to 1")
    return float(value)


def _queue_name(value: object) -> str:
    if not isinstance(value, str) or not _QUEUE.fullmatch(value):
        raise expected("the name of an SQS queue (letters, digits, - and _, at most 80)")
    return value


Share = Annotated[float, Before(_share)]
QueueName = Annotated[str, Before(_queue_name)]


class FaultRule(Document):
    """What goes wrong: for which calls, and how often or how long. What is left out matches all."""

    code: Name | None = None
    """EC2's error code; may be left out beside `lost` and `deliver` only."""
    message: Text = "injected by the emulator"
    status: Positive | None = None
    """HTTP status; left out = the one that EC2 sends with this code. boto3 repeats calls that got a 5xx."""
    lost: LostWay | None = None
    """The call is carried out and its answer is lost: the connection is cut, a 5xx comes, or nothing at all."""
    deliver: Count | None = None
    """A launch gets so many instances at most; `code` is then the error of the rest."""
    action: Name | None = None
    """An EC2 action, or `*` as `any`; left out = the launching ones, RunInstances and CreateFleet."""
    type: Name | None = None
    zone: Name | None = None
    market: Literal["spot", "on-demand"] | None = None
    count: Positive | None = None
    """How many calls it meets; boto3's own repeats of one call count once. Left out = any number."""
    seconds: Seconds | None = None
    """How long it lasts from the moment that it is set; left out = until it is taken away."""

    def check_fields(self) -> None:
        """See Document.check_fields."""
        if self.lost is None and self.deliver is None and self.code is None:
            raise conflicts([Fault("code", "a value", "nothing")])
        if self.lost is not None and self.deliver is not None:
            raise conflicts([Fault("deliver", "nothing beside lost", str(self.deliver))])
        if self.lost in {"reset", "timeout"} and self.code is not None:
            raise conflicts([Fault("code", 'nothing, unless lost is "500"', f'"{self.code}"')])

    @property
    def http_status(self) -> int:
        """The status to answer with."""
        return self.status or STATUS_OF_CODE.get(self.code or "InternalError", 400)


class BootFailure(Document):
    """Instances that do not come up as they should. What is left out matches all."""

    kind: Literal["stuck", "terminated", "impaired", "unreachable"]
    """`pending` for ever; terminated instead of running; never past its status checks; an address that is dead."""
    share: Share = 1.0
    """Of the launches that it concerns."""
    count: Positive | None = None
    """How many instances it meets; left out = any number."""
    type: Name | None = None
    zone: Name | None = None
    market: Literal["spot", "on-demand"] | None = None


class Bucket(Document):
    """A token bucket: it holds `size` tokens at most and gains `refill` a second."""

    size: Positive
    refill: Amount


class Throttling(Document):
    """The buckets of one account in one region; the sizes are those that EC2 documents."""

    describe: Bucket = Bucket(size=100, refill=20)
    """Calls that change nothing (`Describe…`, `Get…`)."""
    launch: Bucket = Bucket(size=5, refill=2)
    """RunInstances and CreateFleet."""
    launched_instances: Bucket = Bucket(size=1000, refill=2)
    """The instances that they ask for, one token each."""
    terminate: Bucket = Bucket(size=100, refill=5)
    """TerminateInstances."""
    terminated_instances: Bucket = Bucket(size=1000, refill=20)
    """The instances that it names, one token each."""
    mutate: Bucket = Bucket(size=50, refill=5)
    """Every other call."""


class Quota(Document):
    """How much may be there at once in a region, all that is not terminated; None = no limit."""

    spot_machines: Count | None = None
    spot_vcpus: Count | None = None
    on_demand_machines: Count | None = None
    on_demand_vcpus: Count | None = None


class EmulatorSettings(Document):
    """Everything that can be steered. Times in seconds, or like "2s"."""

    boot_seconds: Seconds = 0.0
    """`pending` lasts so long."""
    status_seconds: Seconds = 0.0
    """The status checks say `initializing` so long after that."""
    terminate_seconds: Seconds = 0.0
    """`shutting-down` lasts so long."""
    forget_seconds: Seconds = 300.0
    """A terminated instance is described so long (EC2: about an hour)."""
    describe_lag_seconds: Seconds = 0.0
    """No Describe call knows an instance so long after its launch."""
    address_lag_seconds: Seconds = 0.0
    """It has no address so long after its launch."""
    terminate_lag_seconds: Seconds = 0.0
    """It is described as it was so long after its end was asked for."""
    address: Text | None = None
    """The private address of every instance, for probes to find something; left out = invented ones."""
    dead_address: Text = "192.0.2.1"
    """The private address of what fails its boot as `unreachable`; the default is nobody's (RFC 5737)."""
    boot_failures: tuple[BootFailure, ...] = ()
    quota: Quota = Quota()
    throttling: Throttling | None = None
    """None = nothing is throttled; an empty table = as EC2 documents it."""
    interruption_queue: QueueName | None = None
    """An SQS queue to make, with a rule that sends interruption and rebalance notices to it."""
    interruption_rate: Amount = 0.0
    """Interruptions of a spot instance per hour, at random."""
    interruption_deadline: Seconds = 120.0
    """From a notice to the end of its instance, unless the order to interrupt says otherwise."""
    dropped_notices: Share = 0.0
    """Share of the notices that never arrive."""
    doubled_notices: Share = 0.0
    """Share of the others that arrive twice."""
    random_seed: Count = 0
    """What random choices start from; they begin anew when this is set."""
    faults: tuple[FaultRule, ...] = ()


def read_settings(document: object, prefix: str = "") -> EmulatorSettings:
    """Settings from a parsed document; raises InvalidInputError naming each key that is wrong."""
    return read_document(EmulatorSettings, document, prefix)


def load_settings(path: Path) -> EmulatorSettings:
    """Settings from a TOML or (`.json`) JSON file.

    Raises OSError when it cannot be read, InvalidInputError when it is not what it should be.
    """
    return read_settings(_parse(path.read_text(encoding="utf-8"), path))


def _parse(text: str, path: Path) -> dict[str, Any]:
    kind = "JSON" if path.suffix == ".json" else "TOML"
    try:
        document: Any = parse_json(text) if kind == "JSON" else tomllib.loads(text)
    except ValueError as error:
        raise fault(path.name, f"valid {kind}", str(error)) from None
    if not isinstance(document, dict):
        raise fault(path.name, "a table", document)
    return document
