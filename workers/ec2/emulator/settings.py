"""The EC2 emulator's settings: delays, limits and injected faults, from a file or the control API."""

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
"""EC2's error code → HTTP status of the answer; 400 for all other codes."""

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
    """A fault that the EC2 emulator injects: for which calls, and how often or how long. A field without a value
    matches all calls.
    """

    code: Name | None = None
    """EC2's error code of the injected fault; it may be missing only with `lost` or `deliver`."""
    message: Text = "injected by the emulator"
    status: Positive | None = None
    """HTTP status of the injected error; default: the one that EC2 sends with this code. boto3 repeats calls that got a
    5xx.
    """
    lost: LostWay | None = None
    """The call is carried out, but its answer is lost: the connection is cut (`reset`), a 5xx comes (`500`), or nothing
    at all (`timeout`).
    """
    deliver: Count | None = None
    """A launch gets at most this number of instances; `code` is then the error for the rest."""
    action: Name | None = None
    """The EC2 action that the fault concerns, or `any`; default: the launching ones, RunInstances and CreateFleet."""
    type: Name | None = None
    zone: Name | None = None
    market: Literal["spot", "on-demand"] | None = None
    count: Positive | None = None
    """Number of calls that the fault concerns; boto3's own repeats of one call count once. Default: any number."""
    seconds: Seconds | None = None
    """How long the fault stays after it was set; default: until it is removed."""

    def check_fields(self) -> None:
        """Refuse a fault rule whose fields contradict each other, or that has no `code` where one is required."""
        if self.lost is None and self.deliver is None and self.code is None:
            raise conflicts([Fault("code", "a value", "nothing")])
        if self.lost is not None and self.deliver is not None:
            raise conflicts([Fault("deliver", "nothing beside lost", str(self.deliver))])
        if self.lost in {"reset", "timeout"} and self.code is not None:
            raise conflicts([Fault("code", 'nothing, unless lost is "500"', f'"{self.code}"')])

    @property
    def http_status(self) -> int:
        """The HTTP status of the injected error: the given one, else the one that EC2 sends with the code."""
        return self.status or STATUS_OF_CODE.get(self.code or "InternalError", 400)


class BootFailure(Document):
    """A kind of failing boot for some of the emulated instances. A field without a value matches all launches."""

    kind: Literal["stuck", "terminated", "impaired", "unreachable"]
    """What happens instead of a boot. `stuck`: the instance stays pending; `terminated`: it never runs; `impaired`: its
    status checks fail; `unreachable`: its address gives no answer.
    """
    share: Share = 1.0
    """Share of the matching launches whose boot fails, from 0 to 1."""
    count: Positive | None = None
    """Number of instances whose boot fails; default: any number."""
    type: Name | None = None
    zone: Name | None = None
    market: Literal["spot", "on-demand"] | None = None


class Bucket(Document):
    """A token bucket: it holds at most `size` tokens and gains `refill` tokens a second."""

    size: Positive
    refill: Amount


class Throttling(Document):
    """The token buckets by which EC2 throttles the calls of an account in a region; the defaults are EC2's documented
    sizes.
    """

    describe: Bucket = Bucket(size=100, refill=20)
    """Token bucket of the calls that change nothing (`Describe…`, `Get…`)."""
    launch: Bucket = Bucket(size=5, refill=2)
    """Token bucket of RunInstances and CreateFleet, one token for each call."""
    launched_instances: Bucket = Bucket(size=1000, refill=2)
    """Token bucket of RunInstances and CreateFleet, one token for each instance that they request."""
    terminate: Bucket = Bucket(size=100, refill=5)
    """Token bucket of TerminateInstances, one token for each call."""
    terminated_instances: Bucket = Bucket(size=1000, refill=20)
    """Token bucket of TerminateInstances, one token for each instance that the call names."""
    mutate: Bucket = Bucket(size=50, refill=5)
    """Token bucket of all calls that change something, except launches and terminations."""


class Quota(Document):
    """Most instances and vCPUs that may exist in a region at the same time, terminated ones not counted; None: no
    limit.
    """

    spot_machines: Count | None = None
    spot_vcpus: Count | None = None
    on_demand_machines: Count | None = None
    on_demand_vcpus: Count | None = None


class EmulatorSettings(Document):
    """All settings of the EC2 emulator. Times in seconds, or like "2s"."""

    boot_seconds: Seconds = 0.0
    """How long a new instance is `pending`."""
    status_seconds: Seconds = 0.0
    """How long an instance's status checks are `initializing` after it became `running`."""
    terminate_seconds: Seconds = 0.0
    """How long an instance is `shutting-down`."""
    forget_seconds: Seconds = 300.0
    """How long Describe calls include an instance after it was terminated (EC2: about an hour)."""
    describe_lag_seconds: Seconds = 0.0
    """How long after its launch an instance is missing in Describe calls."""
    address_lag_seconds: Seconds = 0.0
    """How long after its launch an instance has no address."""
    terminate_lag_seconds: Seconds = 0.0
    """How long after TerminateInstances an instance is still described in its state before."""
    address: Text | None = None
    """The private address of every instance, so that probes get an answer; default: addresses that moto invents."""
    dead_address: Text = "192.0.2.1"
    """The private address of an instance whose boot ends as `unreachable`; the default is reserved for documentation
    (RFC 5737).
    """
    boot_failures: tuple[BootFailure, ...] = ()
    quota: Quota = Quota()
    throttling: Throttling | None = None
    """EC2's limits for calls by token buckets. None: no throttling; an empty table: as EC2 documents it."""
    interruption_queue: QueueName | None = None
    """Name of an SQS queue to make, with an EventBridge rule that sends interruption and rebalance notices to it."""
    interruption_rate: Amount = 0.0
    """Average number of random interruptions of a spot instance per hour."""
    interruption_deadline: Seconds = 120.0
    """Seconds from an interruption notice to the end of the instance, unless the order to interrupt has another number.
    """
    dropped_notices: Share = 0.0
    """Share of the interruption and rebalance notices that are lost, from 0 to 1."""
    doubled_notices: Share = 0.0
    """Share of the interruption and rebalance notices that are sent twice, among those that are not lost."""
    random_seed: Count = 0
    """Seed of the emulator's random choices, which start again when the seed is set."""
    faults: tuple[FaultRule, ...] = ()


def read_settings(document: object, prefix: str = "") -> EmulatorSettings:
    """Return the EC2 emulator's settings from a parsed document. Raises InvalidInputError if a key is wrong."""
    return read_document(EmulatorSettings, document, prefix)


def load_settings(path: Path) -> EmulatorSettings:
    """Return the EC2 emulator's settings from a TOML or (`.json`) JSON file.

    Raises OSError if the file cannot be read, InvalidInputError if its content is wrong.
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
