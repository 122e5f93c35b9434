"""The settings of the processes: addresses, intervals, and how long data is kept.

A setting comes from the environment (`LEASEHOLD_BROKER__URL`), else from `leasehold.toml`, else from the default in
this module. The text under a key documents the key in the file that `leasehold config init` writes and in
docs/reference/configuration.md. Secrets are SecretText, so that no repr, log line or error shows them.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from scheduler.model.validation import (
    Amount,
    Document,
    Fault,
    InvalidInputError,
    Name,
    Port,
    Positive,
    Seconds,
    Text,
    conflicts,
    format_path,
    read_document,
    show,
    suggest,
)
from scheduler.protocol.loopback import is_loopback
from workers.environment import name_origin, read_environment
from workers.setting_types import (
    BasicAuth,
    DatabaseUrl,
    Days,
    EndpointUrl,
    HeaderName,
    Host,
    Networks,
    Period,
    QueueUrl,
    RedisUrl,
    Roles,
    Secret,
    SecretText,
    Share,
    UrlPrefix,
    WebHosts,
    reveal,
)


class ConsoleSettings(Document):
    """The console: web pages and the HTTP API.

    Each request must come from a known person or program: the holder of the token in `token_file`, a principal with its
    key, or a principal that a reverse proxy names.
    """

    host: Host = "127.0.0.1"
    """Address on which the console listens; TLS needs a reverse proxy before it."""
    port: Port = 5580
    """Port on which the console listens."""
    prefix: UrlPrefix = ""
    """Path under which a reverse proxy serves the console, like `/leasehold`; the proxy may remove it or keep it."""
    hosts: WebHosts = ()
    """Names (header `Host`) under which browsers reach the console, in addition to loopback. A name without a port
    counts with every port.
    """
    user_header: HeaderName | None = None
    """Header in which a reverse proxy passes the name of an authenticated principal; default: none. The proxy must
    remove it from the requests of browsers.
    """
    trusted_proxies: Networks | None = None
    """Addresses or networks of the proxies whose `user_header` counts; default: none. Any program there can act as any
    principal.
    """
    token_file: Text | None = None
    """File with a random token that gives the rights of an operator; only its owner may read it. Default: that of
    `leasehold up`, or none.
    """
    read_only: bool = False
    """Whether the console and the HTTP API refuse every change."""
    queues_url: RedisUrl | None = None
    """URL of the broker's Redis for the lengths of queues; default: `broker.url`."""
    flower_url: EndpointUrl | None = None
    """URL of Flower for the console's link; default: that of the local stack, or none."""


LINUX: Final = "Linux/UNIX"


class MarketSettings(Document):
    """Prices and instance types, which are read from EC2 for pools that use them.

    A pool uses them if an offering has `require`, or if its table `market` has `prices`, `max_price` or `spot_below`.
    """

    price_interval: Seconds = 300.0
    """Interval in which spot prices are read; 0: only by `leasehold prices refresh`."""
    catalogue_age: Period = 86400.0
    """Age at which instance types are read again, with the next spot prices."""
    on_demand_interval: Seconds = 0.0
    """Interval in which on-demand prices are read from AWS's Pricing API (policy `prices`); 0: only by `leasehold
    prices import`.
    """
    product: Literal["Linux/UNIX", "Red Hat Enterprise Linux", "SUSE Linux", "Windows"] = LINUX
    """Operating system whose prices are read."""
    stale_after: Period = 3600.0
    """Age at which a spot price is shown as stale. It still counts."""
    stale_list_after: Period = 7776000.0
    """Age at which an on-demand price is shown as stale. It still counts."""


class BrokerSettings(Document):
    """The Redis that carries Celery's messages."""

    url: RedisUrl | None = None
    """URL of the broker's Redis; default: that of the running stack (`leasehold up`)."""


class ViewSettings(Document):
    """The view of the cluster, the leader lock and kicks, in Redis.

    The view is a copy of the cluster's state, which clients read. The process with the leader lock runs the ticks
    (scheduling rounds). A kick requests a tick.
    """

    url: RedisUrl | None = None
    """URL of the Redis that has the view; default: the broker's Redis."""
    prefix: Text = "leasehold:"
    """Prefix of all keys in Redis; clusters that share a Redis need different ones."""
    tombstones: Period = 600.0
    """Time for which removed rows and ended reservations stay in the view."""


class AccessSettings(Document):
    """Signatures of messages: whether they are required, and the principal of the commands on this host.

    A principal is a named sender of messages that has a key.
    """

    mode: Literal["open", "warn", "signed"] = "open"
    """Messages without a signature are accepted (`open`), accepted and counted (`warn`), or refused (`signed`)."""
    principal: Name | None = None
    """Principal as which commands on this host sign; default: that of the key file."""
    key_file: Text | None = None
    """File with the key of the principal on one line, `NAME:KEY` or `KEY`, which only its owner may read."""
    key: Secret | None = None
    """The content of a key file; it overrides `key_file`."""
    join_url: EndpointUrl | None = None
    """Address of the HTTP API (https, except on this host) at which launched machines with agents join; default: that
    of the local stack, or none.
    """
    join_roles: Roles = ()
    """Roles of instance profiles, as `ACCOUNT:ROLE`, by which launched machines join; none: only machines of pools
    without an instance profile join, by a token.
    """


class DatabaseSettings(Document):
    """The database with all durable state: reservations, leases, slots, accounts, events."""

    url: DatabaseUrl = SecretText("sqlite:///.leasehold/leasehold.db")
    """URL of the database: SQLite for one host, PostgreSQL for several (`postgresql://user:password@host/name`; several
    servers: `host1:5432,host2`; a pooler: `?pooling=transaction`).
    """


class AwsSettings(Document):
    """EC2, or the emulator instead. Credentials come from boto3's own chain unless keys are set."""

    region: Name | None = None
    """AWS region; default: boto3's own (environment, profile)."""
    endpoint_url: EndpointUrl | None = None
    """URL of EC2; default: AWS, or the emulator under `leasehold up`."""
    profile: Name | None = None
    """Profile of boto3's configuration with credentials or a role; default: boto3's own choice."""
    cluster: Name = "leasehold"
    """Value of the tag of this cluster's machines. Others are never changed."""
    interruption_queue: QueueUrl | None = None
    """URL of this cluster's own SQS queue to which EventBridge sends spot notices; default: none."""
    interruption_interval: Period = 5.0
    """Interval in which the interruption queue is read."""
    calls_per_second: Amount | None = None
    """Most EC2 calls a second of all processes, 0: no limit. Default: 20, or no limit with `endpoint_url`."""
    access_key_id: Secret | None = None
    """Access key for the emulator. For AWS use boto3's own chain."""
    secret_access_key: Secret | None = None
    """Secret key that belongs to `access_key_id`."""


class IntakeSettings(Document):
    """Overload protection of the intake: requests that would wait too long are refused.

    The intake is the group of processes that check requests and store them in the database.
    """

    longest_wait: Period = 1.0
    """Wait above which questions and registrations are put off; those of producers at 5 times, of holders and operators
    at 15 times this.
    """


class TickSettings(Document):
    """When ticks run, and how long one process leads.

    A tick is a scheduling round. The leader is the only process that may run ticks.
    """

    interval: Period = 5.0
    """Longest time between two ticks."""
    lock_seconds: Period = 15.0
    """Duration of the leader lock, which the leader renews after a third of it."""
    kick_seconds: Period = 2.0
    """Kicks (requests for a tick) within this time share one message."""

    @property
    def expires(self) -> float:
        """Seconds after which a message that requests a tick is dropped if it still waits in its queue: two tick
        intervals.
        """
        return 2 * self.interval


class KeepSettings(Document):
    """How long events, ended reservations and answers are kept."""

    events_days: Days = 30.0
    """Days for which events are kept."""
    ended_days: Days = 7.0
    """Days for which rows of ended reservations are kept."""
    costs_days: Days = 400.0
    """Days for which the cost ledger is kept."""
    prices_days: Days = 30.0
    """Days for which changes of prices are kept. The present prices stay."""
    requests: Period = 3600.0
    """Time for which requests and their answers are kept."""


class LogSettings(Document):
    """The log lines that the processes write."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level of the log lines that are written."""
    format: Literal["text", "json"] = "text"
    """Format of log lines: `text` for people, `json` for a log collector."""


class MetricsSettings(Document):
    """The metrics process, which serves Prometheus."""

    host: Host = "127.0.0.1"
    """Address on which the metrics process listens."""
    port: Port = 9108
    """Port on which the metrics process listens."""
    per_slot: bool = False
    """Whether there are metrics of the resources of each slot: two series a resource."""


class ForesightSettings(Document):
    """The process `foresight`, which forecasts when waiting reservations start."""

    interval: Period = 30.0
    """Interval in which it makes new forecasts."""
    share: Share = 0.3
    """The part of one core that it may use on average."""


class FlowerSettings(Document):
    """Flower, Celery's web page. It can stop workers: keep it on loopback or behind a password."""

    host: Host = "127.0.0.1"
    """Address on which Flower listens."""
    port: Port = 5555
    """Port on which Flower listens."""
    basic_auth: BasicAuth | None = None
    """Login for Flower, `user:password`; required except in the local stack and on loopback."""


class ConcurrencySettings(Document):
    """Number of tasks that a worker of each queue runs at once."""

    reservations: Positive = 2
    """Number of intake processes."""
    ticks: Positive = 1
    """Number of tick processes; more than one has no use."""
    launch: Positive = 8
    """Number of threads that launch machines."""
    health: Positive = 8
    """Number of threads that check machines."""
    terminate: Positive = 4
    """Number of threads that terminate machines."""


class CelerySettings(Document):
    """The Celery workers: time limits and number of tasks."""

    visibility_timeout: Period = 300.0
    """Time after which a message that a dead worker had taken is delivered again."""
    hard_time_limit: Period = 120.0
    """Time after which a task in a process pool is killed."""
    soft_time_limit: Period = 100.0
    """Time after which a task in a process pool is stopped by an exception."""
    soft_shutdown: Period = 5.0
    """Time that a stopping worker waits for the end of its tasks; use 30 in containers."""
    beat_file: Text | None = None
    """File that beat writes with each task, for `leasehold alive beat`; default: that of `leasehold up`, or none."""
    alive_file: Text | None = None
    """File that a worker writes while it takes messages, for health checks; default: none. Beat uses `beat_file`."""
    concurrency: ConcurrencySettings = ConcurrencySettings()
    """Number of tasks that a worker of each queue runs at once."""


class Settings(Document):
    """All settings of a process. `read_settings` makes and checks them."""

    recover_interval: Period = 10.0
    """Interval in which decided work that was not done is sent again."""
    sweep_interval: Period = 2.0
    """Interval in which the workers check slots that boot, bind or terminate."""
    image_interval: Period = 900.0
    """Interval in which images with a source (`ssm:…`, `newest:…`) are looked up."""
    orphan_age: Period = 300.0
    """Age at which a machine with the cluster's tag ends that no slot has or can adopt."""
    broker: BrokerSettings = BrokerSettings()
    """The Redis that carries Celery's messages."""
    view: ViewSettings = ViewSettings()
    """The view of the cluster, in Redis."""
    database: DatabaseSettings = DatabaseSettings()
    """The database with all durable state."""
    access: AccessSettings = AccessSettings()
    """Whether messages must be signed, and the principal of the commands on this host."""
    aws: AwsSettings = AwsSettings()
    """EC2, or the emulator instead."""
    market: MarketSettings = MarketSettings()
    """Prices and instance types, which are read from EC2."""
    intake: IntakeSettings = IntakeSettings()
    """Overload protection of the intake."""
    ticks: TickSettings = TickSettings()
    """When ticks run, and how long one process leads."""
    keep: KeepSettings = KeepSettings()
    """How long events, ended reservations and answers are kept."""
    log: LogSettings = LogSettings()
    """The log lines that the processes write."""
    metrics: MetricsSettings = MetricsSettings()
    """The metrics process, which serves Prometheus."""
    foresight: ForesightSettings = ForesightSettings()
    """The process `foresight`: forecasts of starts."""
    flower: FlowerSettings = FlowerSettings()
    """Flower, Celery's web page."""
    console: ConsoleSettings = ConsoleSettings()
    """The console: web pages and the HTTP API."""
    celery: CelerySettings = CelerySettings()
    """The Celery workers."""

    @property
    def broker_url(self) -> str | None:
        """The URL of the broker's Redis with its password, or None if none is configured."""
        return reveal(self.broker.url) if self.broker.url else None

    @property
    def view_url(self) -> str | None:
        """The URL of the view's Redis with its password: that of `view.url`, else that of the broker."""
        return reveal(self.view.url) if self.view.url else self.broker_url

    @property
    def queues_url(self) -> str | None:
        """The URL of the broker's Redis by which the console reads the lengths of queues, with its password."""
        return reveal(self.console.queues_url) if self.console.queues_url else self.broker_url

    @property
    def database_url(self) -> str:
        """The URL of the database with its password."""
        return reveal(self.database.url)

    def check_fields(self) -> None:
        """Refuse settings that contradict each other: time limits, a key without its pair, Flower's address without a
        password. Raises ExpectedError.
        """
        if faults := [*_timing_conflicts(self), *_access_conflicts(self)]:
            raise conflicts(faults)


def _timing_conflicts(settings: Settings) -> Iterator[Fault]:
    """Yield a fault for each time setting that contradicts another one (docs/reference/configuration.md, "What must go
    together").
    """
    ticks, celery = settings.ticks, settings.celery
    times = (
        ("ticks.lock_seconds", ticks.lock_seconds, "2 × ticks.interval", 2 * ticks.interval),
        ("recover_interval", settings.recover_interval, "sweep_interval", settings.sweep_interval),
        ("keep.requests", settings.keep.requests, "an answer's minute", 60.0),
        ("celery.hard_time_limit", celery.hard_time_limit, "celery.soft_time_limit", celery.soft_time_limit),
    )
    for path, value, name, least in times:
        if value < least:
            yield Fault(path, f"at least {name} ({least:g})", f"{value:g}")
    limit, timeout = 2 * celery.hard_time_limit, celery.visibility_timeout
    if timeout <= limit:
        yield Fault("celery.visibility_timeout", f"more than 2 × celery.hard_time_limit ({limit:g})", f"{timeout:g}")


def _access_conflicts(settings: Settings) -> Iterator[Fault]:
    """Yield a fault for one of the two AWS keys without the other, for a principal without a key, and for Flower on an
    address other than loopback without a password.
    """
    aws, flower, access = settings.aws, settings.flower, settings.access
    if access.principal is not None and access.key is None and access.key_file is None:
        yield Fault("access.key_file", "a file with the key of access.principal, or the key in access.key", "nothing")
    if (aws.access_key_id is None) != (aws.secret_access_key is None):
        missing = "access_key_id" if aws.access_key_id is None else "secret_access_key"
        yield Fault(f"aws.{missing}", "both keys or neither", "nothing")
    if flower.basic_auth is None and not is_loopback(flower.host):
        yield Fault("flower.basic_auth", f'"user:password" (flower.host is {show(flower.host)})', "nothing")
    console = settings.console
    if (console.user_header is None) != (not console.trusted_proxies):
        missing = "user_header" if console.user_header is None else "trusted_proxies"
        yield Fault(f"console.{missing}", "both user_header and trusted_proxies, or neither", "nothing")


def read_settings(document: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings: the sections of a parsed `leasehold.toml`, overridden by variables of the environment.

    Raises InvalidInputError with all faults. If the value of a variable is wrong, the fault names the variable.
    """
    given = document or {}
    known = {key: value for key, value in given.items() if key in Settings.model_fields}
    faults = [
        Fault(format_path([key]), f"a known key{suggest(key, Settings.model_fields)}", show(key))
        for key in given
        if key not in known
    ]
    try:
        settings = read_document(Settings, _lay_over(known, read_environment(Settings)))
    except InvalidInputError as error:
        # The value that stands in place of a section may be a secret.
        faults += [
            Fault(found.path, found.expected, "something else" if found.expected == "a table" else found.got)
            for found in (name_origin(one, Settings) for one in error.faults)
        ]
    else:
        if not faults:
            return settings
    raise InvalidInputError(faults)


def _lay_over(lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    """Return the tables `lower` and `upper` merged. Where both have a key, the value of `upper` counts; two tables
    under the same key are merged.
    """
    merged = {**lower, **upper}
    for key in lower.keys() & upper.keys():
        if isinstance(lower[key], dict) and isinstance(upper[key], dict):
            merged[key] = _lay_over(lower[key], upper[key])
    return merged
