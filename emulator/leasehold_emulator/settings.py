"""The settings of the EC2 emulator: delays, limits and injected faults. They come from a file or the control API."""

import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from leasehold_emulator.error_codes import ABOUT_PLACES, find_message, find_status
from scheduler.model.input_texts import parse_json, parse_toml
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
    check_unicode,
    conflicts,
    expected,
    fault,
    is_number,
    read_document,
)
from scheduler.protocol.input_files import read_input_text

_QUEUE: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")

MOST_MESSAGE: Final = 200_000
"""Most characters of an injected message: more than a client should have to keep."""

LostWay = Literal["reset", "500", "timeout"]
Where = Literal["call", "fleet", "machine"]


def _share(value: object) -> float:
    if not is_number(value) or not 0 <= value <= 1:
        raise expected("a number from 0 to 1")
    return float(value)


def _queue_name(value: object) -> str:
    if not isinstance(value, str) or not _QUEUE.fullmatch(value):
        raise expected("the name of an SQS queue (letters, digits, - and _, at most 80)")
    return value


def _message(value: object) -> str:
    if not isinstance(value, str) or len(value) > MOST_MESSAGE:
        raise expected(f"a text of at most {MOST_MESSAGE:,} characters")
    return check_unicode(value)


Share = Annotated[float, Before(_share)]
Message = Annotated[str, Before(_message)]
QueueName = Annotated[str, Before(_queue_name)]


class FaultRule(Document):
    """A rule by which the EC2 emulator injects a fault. It names the calls that fail, and how often or how long they
    fail. A field that is not set matches every call.
    """

    code: Name | None = None
    """EC2's error code of the fault. Required, except with `lost` or `deliver`."""
    message: Message | None = None
    """EC2's message of the fault; default: the one that EC2 sends with this code."""
    where: Where | None = None
    """The place of the error. `call`: the whole call is refused. `fleet`: instance types in zones fail, and a
    CreateFleet is answered with status 200, with an error for each of them beside the instances at other places.
    `machine`: the launch is carried out, and its instances end with the code as state reason. Default: `fleet` for
    codes of capacity and quota, else `call`.
    """
    after: Seconds | None = None
    """Only for `where` = "machine": seconds from the launch to the end of the instance; default: 0."""
    status: Positive | None = None
    """HTTP status of the error; default: the one that EC2 sends with this code. boto3 repeats a call that got a 5xx."""
    body: Literal["html", "empty"] | None = None
    """What the answer has in place of EC2's XML: an HTML page, as a proxy sends it, or nothing. Default: EC2's XML."""
    lost: LostWay | None = None
    """The way in which the answer is lost, although the call is carried out: the connection is cut (`reset`), a 5xx
    comes (`500`), or no answer comes (`timeout`).
    """
    deliver: Count | None = None
    """Most instances that a launch gets. The launch gets the error `code`, if there is one, for the missing instances.
    """
    action: Name | None = None
    """The EC2 action that fails, or `any`; default: the actions that launch, RunInstances and CreateFleet."""
    type: Name | None = None
    zone: Name | None = None
    subnet: Name | None = None
    market: Literal["spot", "on-demand"] | None = None
    share: Share | None = None
    """Share of the matching calls that fail, from 0 to 1, drawn for each attempt of a call; default: all."""
    count: Positive | None = None
    """Number of calls that fail, or of instances that end (`where` = "machine"). boto3's own repeats of one call count
    once. Default: any number.
    """
    seconds: Seconds | None = None
    """Seconds for which the fault is in force after it was set; default: until it is removed."""

    def check_fields(self) -> None:
        """Raise an error for a fault rule whose fields contradict each other, or that lacks a required `code`."""
        if self.lost is None and self.deliver is None and self.code is None:
            raise conflicts([Fault("code", "a value", "nothing")])
        if self.lost is not None and self.deliver is not None:
            raise conflicts([Fault("deliver", "no deliver beside lost", str(self.deliver))])
        if self.lost in {"reset", "timeout"} and self.code is not None:
            raise conflicts([Fault("code", 'no code, unless lost is "500"', f'"{self.code}"')])
        self._check_place()

    def _check_place(self) -> None:
        if self.where is not None and (self.lost is not None or self.deliver is not None):
            raise conflicts([Fault("where", "no where beside lost or deliver", f'"{self.where}"')])
        if self.after is not None and self.where != "machine":
            raise conflicts([Fault("after", 'nothing, unless where is "machine"', f"{self.after:g}")])
        is_answer = self.lost == "500" if self.lost is not None else self.deliver is None and self.place == "call"
        if self.body is not None and not is_answer:
            raise conflicts([Fault("body", "nothing, unless the whole call gets an error", f'"{self.body}"')])

    @property
    def place(self) -> Where:
        """The place of the error: `where` if it is given, else the one in which EC2 reports the code."""
        return self.where or ("fleet" if self.code in ABOUT_PLACES else "call")

    @property
    def text(self) -> str:
        """The message of the injected error: `message` if it is given, else the one that EC2 sends with the code."""
        return find_message(self.code or "InternalError") if self.message is None else self.message

    @property
    def http_status(self) -> int:
        """HTTP status of the injected error: `status` if it is given, else the one that EC2 sends with the code."""
        return self.status or find_status(self.code or "InternalError")


class BootFailure(Document):
    """A rule by which the boots of some emulated instances fail. A field that is not set matches every launch."""

    kind: Literal["stuck", "terminated", "impaired", "unreachable"]
    """How the boot fails. `stuck`: the instance stays pending; `terminated`: it never runs; `impaired`: its status
    checks fail; `unreachable`: its address gives no answer.
    """
    share: Share = 1.0
    """Share of the matching launches whose boot fails, from 0 to 1."""
    count: Positive | None = None
    """Most instances whose boot fails; default: any number."""
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


QuotaClass = Literal["standard", "g", "p", "inf", "trn", "x", "f", "hpc", "high-memory", "dl", "other"]
"""One of EC2's quota classes, see `scheduler.model.quota_classes`."""


class ClassQuota(Document):
    """The largest number of vCPUs that the instances of one quota class and market may have in a region."""

    name: QuotaClass
    """The quota class: `g` is that of all G and VT types."""
    market: Literal["spot", "on-demand"]
    vcpus: Count


class Quota(Document):
    """The largest number of instances, and of vCPUs, that may exist in a region at the same time. None: no limit.
    Terminated instances and stopped instances do not count.
    """

    spot_machines: Count | None = None
    spot_vcpus: Count | None = None
    on_demand_machines: Count | None = None
    on_demand_vcpus: Count | None = None
    classes: tuple[ClassQuota, ...] = ()
    """Quotas of vCPUs for one quota class and market each, like those of an AWS account; 0 permits no instance."""


class Capacity(Document):
    """One limit of the emulator: how many machines of this type, zone and market may exist in a region at the same
    time. A field that is not set matches every machine. A launch must respect every limit that its machines match.
    """

    machines: Count
    """Most matching machines that may exist at the same time. Terminated and stopped machines do not count."""
    type: Name | None = None
    """EC2 instance type."""
    zone: Name | None = None
    """Availability zone."""
    market: Literal["spot", "on-demand"] | None = None


class FixedPrice(Document):
    """A spot price that does not move."""

    type: Name
    """EC2 instance type."""
    zone: Name | None = None
    """Availability zone; default: every zone."""
    price: Amount
    """Dollars per hour."""


class SpotMarket(Document):
    """How the emulator's spot prices move: as a random walk. A price is a share of an invented on-demand price."""

    low: Share = 0.3
    """Lowest share of the on-demand price."""
    high: Share = 0.7
    """Highest share of the on-demand price."""
    volatility: Amount = 0.05
    """Standard deviation of the relative change in an hour."""
    step_seconds: Positive = 300
    """Seconds between two changes of a price."""
    speed: Amount = 1.0
    """Seconds of the random walk that pass in one second."""
    fixed: tuple[FixedPrice, ...] = ()
    """Spot prices that do not move. If several of them name the type and zone, the first one counts."""

    def check_fields(self) -> None:
        """Raise an error if `high` is less than `low`."""
        if self.high < self.low:
            raise conflicts([Fault("high", f"at least low ({self.low:g})", f"{self.high:g}")])


class EmulatorSettings(Document):
    """All settings of the EC2 emulator. A time is a number of seconds, or a text like "2s"."""

    boot_seconds: Seconds = 0.0
    """Seconds for which a new instance is `pending`."""
    stop_seconds: Seconds = 0.0
    """Seconds for which an instance is `stopping` before it is `stopped`."""
    start_seconds: Seconds = 0.0
    """Seconds for which a stopped instance is `pending` after its start."""
    status_seconds: Seconds = 0.0
    """Seconds for which the status checks of an instance are `initializing` after it became `running`."""
    terminate_seconds: Seconds = 0.0
    """Seconds for which an ending instance is `shutting-down`."""
    forget_seconds: Seconds = 300.0
    """Seconds for which Describe calls include an instance after it was terminated (EC2: about an hour)."""
    describe_lag_seconds: Seconds = 0.0
    """Seconds after its launch for which an instance is missing in Describe calls."""
    address_lag_seconds: Seconds = 0.0
    """Seconds after its launch for which an instance has no address."""
    terminate_lag_seconds: Seconds = 0.0
    """Seconds after TerminateInstances for which an instance is still described in its earlier state."""
    template_lag_seconds: Seconds = 0.0
    """Seconds after its creation for which a launch template is not found."""
    fleet_replays: Literal["full", "empty"] = "full"
    """What a repeated CreateFleet with a known client token is answered: the instances that it launched, or none."""
    address: Text | None = None
    """Private address of every instance, at which probes get an answer; default: addresses that moto invents."""
    dead_address: Text = "192.0.2.1"
    """Private address of an instance whose boot ends as `unreachable`. The default is reserved for documentation (RFC
    5737).
    """
    boot_failures: tuple[BootFailure, ...] = ()
    quota: Quota = Quota()
    capacity: tuple[Capacity, ...] = ()
    """Limits on the number of machines; an empty list: no limit. A launch that exceeds a limit gets only as many
    machines as the limit permits.
    """
    throttling: Throttling | None = None
    """Token buckets that limit the rate of calls. None: no limit; an empty table: the limits that EC2 documents."""
    interruption_queue: QueueName | None = None
    """Name of an SQS queue to make, with an EventBridge rule that sends interruption and rebalance notices to it."""
    interruption_rate: Amount = 0.0
    """Average number of random interruptions of a spot instance per hour."""
    interruption_deadline: Seconds = 120.0
    """Seconds from an interruption notice to the end of the instance. A request to interrupt instances by the control
    API may name another number.
    """
    dropped_notices: Share = 0.0
    """Share of the interruption and rebalance notices that are lost, from 0 to 1."""
    doubled_notices: Share = 0.0
    """Share of the interruption and rebalance notices that are sent twice, from 0 to 1, among those that
    are not lost.
    """
    random_seed: Count = 0
    """Seed of the emulator's random choices. When the seed is set, the random numbers start again."""
    spot_prices: SpotMarket = SpotMarket()
    """How spot prices move. The prices start again when `random_seed`, or a key of this table except `fixed`, is set.
    """
    instance_types: tuple[Text, ...] = ()
    """Patterns of the names of the instance types in the catalogue, like `m5.*`; an empty list: all types that moto
    knows. Launches of other types are possible, too.
    """
    faults: tuple[FaultRule, ...] = ()
    run_user_data: bool = False
    """Whether each running instance whose user data begins with `#!` is played by processes of this machine."""


def read_settings(document: object, prefix: str = "") -> EmulatorSettings:
    """Return the EC2 emulator's settings from a parsed document. Raises InvalidInputError if a key is wrong."""
    return read_document(EmulatorSettings, document, prefix)


def load_settings(path: Path) -> EmulatorSettings:
    """Return the EC2 emulator's settings from a TOML or (`.json`) JSON file.

    Raises OSError if the file cannot be read, InvalidInputError if its content is wrong.
    """
    text = read_input_text(path)
    kind = "JSON" if path.suffix == ".json" else "TOML"
    try:
        document: Any = parse_json(text) if kind == "JSON" else parse_toml(text)
    except ValueError as error:
        raise fault(path.name, f"valid {kind}", str(error)) from None
    if not isinstance(document, dict):
        raise fault(path.name, "a table", document)
    return read_settings(document)
