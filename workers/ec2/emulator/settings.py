"""The emulator's settings: delays, limits and faults, from a file or the control API."""

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
"""HTTP status of EC2 for a code; 400 for all others."""

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
    """An injected fault: for which calls, and how often or how long. A field without a value matches all calls."""

    code: Name | None = None
    """EC2's error code; it may be missing only with `lost` or `deliver`."""
    message: Text = "injected by the emulator"
    status: Positive | None = None
    """HTTP status; default: the one that EC2 sends with this code. boto3 repeats calls that got a 5xx."""
    lost: LostWay | None = None
    """The call is carried out and its answer is lost: the connection is cut, a 5xx comes, or nothing at all."""
    deliver: Count | None = None
    """A launch gets at most this number of instances; `code` is then the error for the rest."""
    action: Name | None = None
    """An EC2 action, or `any`; default: the launching ones, RunInstances and CreateFleet."""
    type: Name | None = None
    zone: Name | None = None
    market: Literal["spot", "on-demand"] | None = None
    count: Positive | None = None
    """Number of calls that fail; boto3's own repeats of one call count once. Default: any number."""
    seconds: Seconds | None = None
    """How long it lasts after it was set; default: until it is removed."""

    def check_fields(self) -> None:
        """Refuse a document whose fields contradict each other: raise the error that `expected` or `conflicts` makes.
        See Document.
        """
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
    """Instances whose boot fails. A field without a value matches all launches."""

    kind: Literal["stuck", "terminated", "impaired", "unreachable"]
    """`stuck`: always pending; `terminated`: never running; `impaired`: failed checks; `unreachable`: no answer."""
    share: Share = 1.0
    """Share of the matching launches that fail."""
    count: Positive | None = None
    """Number of instances that fail; default: any number."""
    type: Name | None = None
    zone: Name | None = None
    market: Literal["spot", "on-demand"] | None = None


class Bucket(Document):
    """A token bucket: it holds at most `size` tokens and gains `refill` tokens a second."""

    size: Positive
    refill: Amount


class Throttling(Document):
    """The buckets of an account in a region; the defaults are EC2's documented sizes."""

    describe: Bucket = Bucket(size=100, refill=20)
    """Calls that change nothing (`Describe…`, `Get…`)."""
    launch: Bucket = Bucket(size=5, refill=2)
    """RunInstances and CreateFleet."""
    launched_instances: Bucket = Bucket(size=1000, refill=2)
    """A token for each instance that they request."""
    terminate: Bucket = Bucket(size=100, refill=5)
    """TerminateInstances."""
    terminated_instances: Bucket = Bucket(size=1000, refill=20)
    """A token for each instance that it names."""
    mutate: Bucket = Bucket(size=50, refill=5)
    """Every other call."""


class Quota(Document):
    """Most instances that are not terminated in a region at the same time; None: no limit."""

    spot_machines: Count | None = None
    spot_vcpus: Count | None = None
    on_demand_machines: Count | None = None
    on_demand_vcpus: Count | None = None


class EmulatorSettings(Document):
    """All settings of the emulator. Times in seconds, or like "2s"."""

    boot_seconds: Seconds = 0.0
    """Duration of `pending`."""
    status_seconds: Seconds = 0.0
    """How long the status checks are `initializing` after that."""
    terminate_seconds: Seconds = 0.0
    """Duration of `shutting-down`."""
    forget_seconds: Seconds = 300.0
    """How long a terminated instance is described (EC2: about an hour)."""
    describe_lag_seconds: Seconds = 0.0
    """How long after its launch an instance is missing in Describe calls."""
    address_lag_seconds: Seconds = 0.0
    """How long after its launch an instance has no address."""
    terminate_lag_seconds: Seconds = 0.0
    """How long after the order to end an instance is described in its state before."""
    address: Text | None = None
    """The private address of every instance, so that probes get an answer; default: invented addresses."""
    dead_address: Text = "192.0.2.1"
    """The private address after an `unreachable` boot; the default is reserved for documentation (RFC 5737)."""
    boot_failures: tuple[BootFailure, ...] = ()
    quota: Quota = Quota()
    throttling: Throttling | None = None
    """None: no throttling; an empty table: as EC2 documents it."""
    interruption_queue: QueueName | None = None
    """An SQS queue to make, with a rule that sends interruption and rebalance notices to it."""
    interruption_rate: Amount = 0.0
    """Random interruptions of a spot instance per hour."""
    interruption_deadline: Seconds = 120.0
    """Time from a notice to the end of its instance, unless the order to interrupt has another one."""
    dropped_notices: Share = 0.0
    """Share of the notices that are lost."""
    doubled_notices: Share = 0.0
    """Share of the other notices that are sent twice."""
    random_seed: Count = 0
    """Seed of the random choices, which start again when it is set."""
    faults: tuple[FaultRule, ...] = ()


def read_settings(document: object, prefix: str = "") -> EmulatorSettings:
    """Return settings from a parsed document. Raises InvalidInputError with each wrong key."""
    return read_document(EmulatorSettings, document, prefix)


def load_settings(path: Path) -> EmulatorSettings:
    """Return settings from a TOML or (`.json`) JSON file.

    Raises OSError if it cannot be read, InvalidInputError if its content is wrong.
    """
    text = path.read_text(encoding="utf-8")
    kind = "JSON" if path.suffix == ".json" else "TOML"
    try:
        document: Any = parse_json(text) if kind == "JSON" else tomllib.loads(text)
    except ValueError as error:
        raise fault(path.name, f"valid {kind}", str(error)) from None
    if not isinstance(document, dict):
        raise fault(path.name, "a table", document)
    return read_settings(document)
