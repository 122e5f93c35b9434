"""The settings of the processes: where things are, how often they happen, how long they are kept.

They come from the environment (`LEASEHOLD_BROKER__URL`), then from `leasehold.toml`, then from the defaults,
which stand here once. The line under a key is its documentation: `leasehold config init` and
docs/configuration.md show it. Secrets are SecretText: no repr, log line or error shows them.
"""

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from scheduler.model.validation import (
    Amount,
    Document,
    Fault,
    InvalidInputError,
    Name,
    Port,
    Positive,
    Text,
    conflicts,
    format_path,
    read_document,
    show,
    suggest,
)
from workers.environment import name_origin, read_environment
from workers.setting_types import (
    BasicAuth,
    DatabaseUrl,
    Days,
    EndpointUrl,
    Host,
    Period,
    QueueUrl,
    RedisUrl,
    Secret,
    SecretText,
    reveal,
)


class BrokerSettings(Document):
    """The Redis that carries Celery's messages."""

    url: RedisUrl | None = None
    """URL of the Redis; left out = that of the running stack (`leasehold up`)."""


class ViewSettings(Document):
    """The lagging view of the cluster, the leader lock and kicks, in Redis."""

    url: RedisUrl | None = None
    """URL of the Redis; left out = the broker's."""
    prefix: Text = "leasehold:"
    """What all our keys begin with; another one for each cluster that shares a Redis."""
    tombstones: Period = 600.0
    """Rows that went, and reservations that have ended, are remembered in the view for so long."""


class AccessSettings(Document):
    """Signatures of messages: whether they are required, and the principal of the commands on this host."""

    mode: Literal["open", "warn", "signed"] = "open"
    """Unsigned messages are accepted (`open`), accepted and counted (`warn`), or refused (`signed`)."""
    principal: Name | None = None
    """Principal as which commands on this host sign; left out = the one that the key file names."""
    key_file: Text | None = None
    """File with one line, `NAME:KEY` or `KEY`, that only its owner may read."""
    key: Secret | None = None
    """The key itself; it goes before `key_file`."""


class DatabaseSettings(Document):
    """The database that holds what was promised: reservations, leases, slots, accounts, events."""

    url: DatabaseUrl = SecretText("sqlite:///.leasehold/leasehold.db")
    """URL of the database: SQLite for one host, PostgreSQL for several (`postgresql://user:password@host/name`)."""


class AwsSettings(Document):
    """EC2, or the emulator in its place. Credentials: boto3's own chain, unless keys stand here."""

    region: Name | None = None
    """The region; left out = boto3's own (environment, profile)."""
    endpoint_url: EndpointUrl | None = None
    """Where EC2 answers; left out = AWS itself, or the emulator under `leasehold up`."""
    profile: Name | None = None
    """Profile of boto3's configuration that brings credentials or a role; left out = boto3's own choice."""
    cluster: Name = "leasehold"
    """Value of the cluster tag: only machines that bear it are ours."""
    interruption_queue: QueueUrl | None = None
    """URL of the SQS queue, of this cluster alone, that EventBridge sends spot notices to; left out = none are read."""
    interruption_interval: Period = 5.0
    """That queue is read so often; each time a message is waited for until a second before the next."""
    calls_per_second: Amount | None = None
    """EC2 calls a second that all processes share; left out = 20, or no limit with `endpoint_url`; 0 = no limit."""
    access_key_id: Secret | None = None
    """Access key, for the emulator; elsewhere leave it to boto3's chain."""
    secret_access_key: Secret | None = None
    """Secret key that belongs to it."""


class IntakeSettings(Document):
    """What is done with requests while too many wait."""

    longest_wait: Period = 1.0
    """Questions and registrations that would wait longer are asked to come again; others at 5 and 15 times as much."""


class TickSettings(Document):
    """The scheduling passes."""

    interval: Period = 5.0
    """A tick at least so often."""
    lock_seconds: Period = 15.0
    """The leader lock lasts so long; renewed at a third of it."""
    kick_seconds: Period = 2.0
    """Kicks within this time share one tick message."""

    @property
    def expires(self) -> float:
        """A tick message that waited for longer is dropped: two intervals."""
        return 2 * self.interval


class KeepSettings(Document):
    """How long what is over is kept."""

    events_days: Days = 30.0
    """Events, in days."""
    ended_days: Days = 7.0
    """Rows of ended reservations, in days."""
    requests: Period = 3600.0
    """Requests and their answers, so that a repeat changes nothing."""


class LogSettings(Document):
    """What the processes write."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is written."""
    format: Literal["text", "json"] = "text"
    """`text` for people, `json` for a log collector."""


class MetricsSettings(Document):
    """The process that serves Prometheus."""

    host: Host = "127.0.0.1"
    """Address that it listens on."""
    port: Port = 9108
    """Port that it listens on."""


class FlowerSettings(Document):
    """Flower, Celery's web page. It shows arguments: keep it on loopback, or behind a password."""

    host: Host = "127.0.0.1"
    """Address that it listens on."""
    port: Port = 5555
    """Port that it listens on."""
    basic_auth: BasicAuth | None = None
    """`user:password`; required outside the local stack and on any address but loopback."""


class ConcurrencySettings(Document):
    """Tasks that a worker of each queue runs at once."""

    reservations: Positive = 2
    """Of intake: one checks documents while the other one writes."""
    ticks: Positive = 1
    """Of ticks: only one can hold the lock."""
    launch: Positive = 8
    """Threads that launch."""
    health: Positive = 8
    """Threads that look at machines."""
    terminate: Positive = 4
    """Threads that terminate."""


class CelerySettings(Document):
    """The workers."""

    visibility_timeout: Period = 300.0
    """A message that a dead worker held comes back after so long; more than 2 × `hard_time_limit`."""
    hard_time_limit: Period = 120.0
    """A task (in a process pool) is killed after so long."""
    soft_time_limit: Period = 100.0
    """A task (in a process pool) is asked to stop after so long."""
    soft_shutdown: Period = 5.0
    """A worker that stops waits so long for its tasks; 30 in containers."""
    beat_file: Text | None = None
    """Touched by beat with each task, for `leasehold alive beat`; left out = that of `leasehold up`, or none."""
    concurrency: ConcurrencySettings = ConcurrencySettings()
    """Tasks that a worker of each queue runs at once."""


class Settings(Document):
    """Everything that the processes are set up by; made by `read_settings`."""

    recover_interval: Period = 10.0
    """Work that got lost between commit and queue is looked for, and sent again, so often."""
    sweep_interval: Period = 2.0
    """Slots that boot, bind or terminate are looked at so often; at most `recover_interval`."""
    orphan_age: Period = 300.0
    """A machine under the cluster's tag that no slot knows, and none can take, is ended when it is this old."""
    broker: BrokerSettings = BrokerSettings()
    """The Redis that carries Celery's messages."""
    view: ViewSettings = ViewSettings()
    """The lagging view of the cluster, in Redis."""
    database: DatabaseSettings = DatabaseSettings()
    """The database that holds what was promised."""
    access: AccessSettings = AccessSettings()
    """Signatures of messages."""
    aws: AwsSettings = AwsSettings()
    """EC2, or the emulator in its place."""
    intake: IntakeSettings = IntakeSettings()
    """What is done with requests while too many wait."""
    ticks: TickSettings = TickSettings()
    """The scheduling passes."""
    keep: KeepSettings = KeepSettings()
    """How long what is over is kept."""
    log: LogSettings = LogSettings()
    """What the processes write."""
    metrics: MetricsSettings = MetricsSettings()
    """The process that serves Prometheus."""
    flower: FlowerSettings = FlowerSettings()
    """Flower, Celery's web page."""
    celery: CelerySettings = CelerySettings()
    """The workers."""

    @property
    def broker_url(self) -> str | None:
        """The broker's URL with its password, or None where none is set."""
        return reveal(self.broker.url) if self.broker.url else None

    @property
    def view_url(self) -> str | None:
        """The view's URL with its password: its own, else the broker's."""
        return reveal(self.view.url) if self.view.url else self.broker_url

    @property
    def database_url(self) -> str:
        """The database's URL with its password."""
        return reveal(self.database.url)

    def check_fields(self) -> None:
        """See Document.check_fields."""
        if faults := [*_timing_conflicts(self), *_access_conflicts(self)]:
            raise conflicts(faults)


def _timing_conflicts(settings: Settings) -> Iterator[Fault]:
    """Times that do not go together (docs/configuration.md, "What must go together")."""
    ticks, celery = settings.ticks, settings.celery
    at_least = (
        ("ticks.lock_seconds", ticks.lock_seconds, "2 × ticks.interval", 2 * ticks.interval),
        ("recover_interval", settings.recover_interval, "sweep_interval", settings.sweep_interval),
        ("keep.requests", settings.keep.requests, "an answer's minute", 60.0),
        ("celery.hard_time_limit", celery.hard_time_limit, "celery.soft_time_limit", celery.soft_time_limit),
    )
    above = (
        (
            "celery.visibility_timeout",
            celery.visibility_timeout,
            "2 × celery.hard_time_limit",
            2 * celery.hard_time_limit,
        ),
    )
    for path, value, name, least in at_least:
        if value < least:
            yield Fault(path, f"at least {name} ({least:g})", f"{value:g}")
    for path, value, name, least in above:
        if value <= least:
            yield Fault(path, f"more than {name} ({least:g})", f"{value:g}")


def _access_conflicts(settings: Settings) -> Iterator[Fault]:
    """Half a pair of keys, a principal without its key, and a Flower that anybody could open."""
    aws, flower, access = settings.aws, settings.flower, settings.access
    if access.principal is not None and access.key is None and access.key_file is None:
        yield Fault("access.key_file", "the key of access.principal, or access.key", "nothing")
    if (aws.access_key_id is None) != (aws.secret_access_key is None):
        missing = "access_key_id" if aws.access_key_id is None else "secret_access_key"
        yield Fault(f"aws.{missing}", "both keys or neither", "nothing")
    if flower.basic_auth is None and not is_loopback(flower.host):
        yield Fault("flower.basic_auth", f'"user:password" (flower.host is {show(flower.host)})', "nothing")


def is_loopback(host: str) -> bool:
    """Whether only this host can reach what listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_settings(document: Mapping[str, Any] | None = None) -> Settings:
    """Settings from the environment, laid over the process sections of a parsed `leasehold.toml`.

    Raises InvalidInputError with a fault for each thing that is wrong; one that the environment brought is
    named by its variable.
    """
    given = document or {}
    known = {key: value for key, value in given.items() if key in Settings.model_fields}
    faults = [_unknown(key) for key in given if key not in known]
    try:
        settings = read_document(Settings, _lay_over(known, read_environment(Settings)))
    except InvalidInputError as error:
        faults += [_hide_table(name_origin(one, Settings)) for one in error.faults]
    else:
        if not faults:
            return settings
    raise InvalidInputError(faults)


def _lay_over(lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    """Return the tables merged key by key, where both have one; elsewhere the upper value counts."""
    merged = {**lower, **upper}
    for key in lower.keys() & upper.keys():
        if isinstance(lower[key], dict) and isinstance(upper[key], dict):
            merged[key] = _lay_over(lower[key], upper[key])
    return merged


def _unknown(key: str) -> Fault:
    return Fault(format_path([key]), f"a known key{suggest(key, Settings.model_fields)}", show(key))


def _hide_table(found: Fault) -> Fault:
    """What stood in place of a section is not shown: it may be a secret without its key."""
    return Fault(found.path, found.expected, "something else") if found.expected == "a table" else found
