"""List every key of `leasehold.toml` with its default and meaning, which are read from the models in the source.

`leasehold config init` writes the list as a file with comments; docs/reference/configuration.md has it as tables.
"""

import ast
import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from textwrap import dedent, wrap
from types import MappingProxyType
from typing import Any, Final, Literal, TypeGuard, get_args, get_origin

from scheduler.model.budgets import Budget
from scheduler.model.documents import Field
from scheduler.model.lives import ReplacementRules
from scheduler.model.machines import Ec2Rules, Offering, ProbeRules, Requirements
from scheduler.model.pools import MarketRules, Pool
from scheduler.model.rules import AccountRules, LimitRules, Scheduler
from scheduler.model.schedules import Schedule
from scheduler.model.validation import Document, fault
from scheduler.protocol.visible import escape_json
from scheduler.simulation.cloud_documents import (
    CloudDocument,
    MarketDocument,
    PlannedOutage,
    PriceStep,
    TypeDocument,
)
from workers.environment import inner_model
from workers.setting_types import SecretText
from workers.settings import Settings

REQUIRED: Final = "required"
_WIDTH: Final = 100
"""Longest line of the template."""
_HEAD: Final = """\
# Leasehold's configuration: every key with its default. A line that begins with "#key =" shows an
# example for a key that has no default. Durations are seconds, or texts like "30s", "15m", "1h30m".
#
# The tables scheduler, pools, accounts, limits and budgets are the rules: `leasehold apply` checks
# them and writes them to the database. All other tables are settings of the processes, which read
# them when they start. A variable like LEASEHOLD_TICKS__INTERVAL overrides the setting.
"""
_MINIMAL: Final = """\
# A short leasehold.toml: one pool of up to four machines. `leasehold up` starts a stack with it,
# on the emulator of EC2. `leasehold config init` alone writes every key with its default.

[pools.linux]
system = "x86_64-linux"                               # what reservations ask for
max_slots = 4                                         # the most machines at a time
resources = { cpus = 4, memory_mib = 8192 }           # of one machine
default_resources = { cpus = 1, memory_mib = 1024 }   # where a reservation names none
idle_scale_down = "5m"                                # a machine without leases ends then
lease_ttl = "20m"                                     # a lease ends then unless it is renewed

[pools.linux.ec2]
image = "ami-04681a1dbd79675a5"                       # the emulator accepts any image

[[pools.linux.offerings]]                             # what launches buy, in this order
name = "m5.large"
market = "spot"
price = 0.04                                          # dollars an hour

#[aws]                                                # real machines, see docs/how-to/aws.md
#region = "us-east-1"
"""
_EXAMPLE: Final[Mapping[str, tuple[dict[str, Any], ...]]] = MappingProxyType(
    {
        "pools.linux": (
            {
                "system": "x86_64-linux",
                "max_slots": 4,
                "default_resources": {"cpus": 1, "memory_mib": 1024},
                "resources": {"cpus": 2, "memory_mib": 8192},
            },
        ),
        "pools.linux.ec2": ({"image": "ami-04681a1dbd79675a5"},),
        "pools.linux.offerings": (
            {"name": "m5.large", "market": "spot", "price": 0.04},
            {"name": "m5.large", "market": "on-demand", "price": 0.096},
        ),
    }
)
"""Name of a table of `leasehold.toml` -> the values that the template sets in the table, for a pool that works on the
embedded stack. A table that may occur several times has several entries.
"""
_EXAMPLES: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "scheduler.interruption_grace": "30s",
        "pools.linux.max_leases_per_slot": 1,
        "pools.linux.ec2.launch_template": "lt-0123456789abcdef0",
        "pools.linux.ec2.launch_template_version": 1,
        "pools.linux.ec2.instance_profile": "builder",
        "pools.linux.ec2.key_name": "operator",
        "pools.linux.ec2.volume_gib": 40,
        "pools.linux.ec2.root_device": "/dev/sda1",
        "pools.linux.ec2.metadata_hop_limit": 2,
        "pools.linux.ec2.address": "private",
        "pools.linux.ec2.user_data_file": "user-data.sh",
        "pools.linux.ec2.user_data": "#!/bin/sh\necho slot ${slot}\n",
        "pools.linux.probe.port": 22,
        "pools.linux.schedules.cron": "0 8 * * MON-FRI",
        "pools.linux.schedules.duration": "10h",
        "pools.linux.schedules.until": "18:00",
        "pools.linux.schedules.min_slots": 2,
        "pools.linux.schedules.target_warm_slots": 1,
        "pools.linux.schedules.max_slots": 4,
        "pools.linux.schedules.disruption_budget": "50%",
        "pools.linux.market.max_price": 0.5,
        "pools.linux.market.spot_below": 0.8,
        "pools.linux.market.on_demand_share": 0.25,
        "accounts.ci.balance": [100, 50],
        "pools.linux.offerings.resources": {"cpus": 2, "memory_mib": 8192},
        "pools.linux.offerings.labels": {"disk": "ssd"},
        "pools.linux.offerings.type": "m5.large",
        "pools.linux.offerings.zone": "us-east-1a",
        "cloud.quota": 10,
        "cloud.outages.pool": "linux",
        "cloud.outages.offering": "m5.large",
        "cloud.outages.until": "2h",
        "cloud.market.types.name": "m5.large",
        "cloud.market.types.on_demand": 0.096,
        "cloud.market.prices.type": "m5.large",
        "cloud.market.prices.price": 0.05,
        "broker.url": "redis://127.0.0.1:6379/0",
        "view.url": "redis://127.0.0.1:6379/1",
        "access.principal": "operator",
        "access.key_file": "/etc/leasehold/operator.key",
        "access.join_url": "https://leasehold.example.org",
        "access.join_roles": ["123456789012:leasehold-machine"],
        "access.key": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8",
        "aws.region": "us-east-1",
        "aws.endpoint_url": "http://127.0.0.1:5000",
        "aws.profile": "leasehold",
        "aws.interruption_queue": "https://sqs.eu-central-1.amazonaws.com/123456789012/leasehold",
        "aws.calls_per_second": 40,
        "aws.access_key_id": "testing",
        "aws.secret_access_key": "testing",
        "flower.basic_auth": "user:password",
        "console.user_header": "X-Forwarded-User",
        "console.trusted_proxies": ["10.0.0.7"],
        "console.token_file": "/etc/leasehold/console-token",
        "console.queues_url": "redis://10.0.0.7:6379/0",
        "console.flower_url": "http://10.0.0.7:5555",
        "celery.beat_file": "/run/leasehold/beat",
        "celery.alive_file": "/run/leasehold/alive",
        "budgets.all.per_hour": 20,
        "budgets.all.per_day": 300,
        "budgets.all.per_month": 5000,
    }
)
"""Key of `leasehold.toml` that has no default → the example value that the template shows in a comment."""


@dataclass(frozen=True)
class Section:
    """One table of `leasehold.toml`. `path`: its name, like "celery.concurrency"; `model`: the class that defines its
    keys; `meaning`: the comment above it; `is_list`: the file may have the table several times, as an array of tables.
    """

    path: str
    model: type[Document]
    meaning: str
    is_list: bool = False
    is_example: bool = False
    """Whether the template has the table in a comment only, because the table itself would create something, like an
    account.
    """


@dataclass(frozen=True)
class Key:
    """One key of a table of `leasehold.toml`. `default`: the key's default as TOML, "" if it has none, or REQUIRED if
    the key must be given. `meaning`: the comment above the key.
    """

    section: Section
    name: str
    default: str
    meaning: str

    @property
    def path(self) -> str:
        """The full name of the key in `leasehold.toml`, like `ticks.interval`."""
        return f"{self.section.path}.{self.name}" if self.section.path else self.name


def list_sections(pool: str = "NAME", account: str = "NAME", budget: str = "NAME") -> list[Section]:
    """Return every table of `leasehold.toml` in the order of the file. `pool`, `account` and `budget` are the
    example names in the paths of the tables.
    """
    rules = [
        Section("scheduler", Scheduler, _meaning(Scheduler)),
        Section(f"pools.{pool}", Pool, _meaning(Pool)),
        Section(f"pools.{pool}.ec2", Ec2Rules, _meaning(Ec2Rules)),
        Section(f"pools.{pool}.market", MarketRules, _meaning(MarketRules)),
        Section(f"pools.{pool}.probe", ProbeRules, _meaning(ProbeRules)),
        Section(f"pools.{pool}.replacement", ReplacementRules, _meaning(ReplacementRules)),
        Section(f"pools.{pool}.schedules", Schedule, _meaning(Schedule), is_list=True),
        Section(f"pools.{pool}.offerings", Offering, _meaning(Offering), is_list=True),
        Section(f"pools.{pool}.offerings.require", Requirements, _meaning(Requirements), is_example=True),
        Section(f"accounts.{account}", AccountRules, _meaning(AccountRules), is_example=True),
        Section("limits", LimitRules, _meaning(LimitRules)),
        Section(f"budgets.{budget}", Budget, _meaning(Budget), is_example=True),
    ]
    cloud = [
        Section("cloud", CloudDocument, _meaning(CloudDocument)),
        Section("cloud.outages", PlannedOutage, _meaning(PlannedOutage), is_list=True),
        Section("cloud.market", MarketDocument, _meaning(MarketDocument)),
        Section("cloud.market.types", TypeDocument, _meaning(TypeDocument), is_list=True),
        Section("cloud.market.prices", PriceStep, _meaning(PriceStep), is_list=True),
    ]
    top = Section("", Settings, "Settings of the processes outside of any table.")
    return [top, *rules, *_settings_sections(Settings, ""), *cloud]


def list_keys(section: Section) -> list[Key]:
    """Return the keys of one table of `leasehold.toml` in the order of the model, without the keys of its subtables."""
    # Return the text under each key in the source of a model and of its base classes, by the name of the
    # key. Only this function reads the sources, so that no other process reads them at its start.
    found: dict[str, str] = {}
    for each in reversed(
        [base for base in section.model.__mro__ if issubclass(base, Document) and base is not Document]
    ):
        (defined,) = ast.parse(dedent(inspect.getsource(each))).body
        for field, below in pairwise(getattr(defined, "body", ())):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = inspect.cleandoc(text)
    return [
        Key(
            section,
            name,
            REQUIRED if field.is_required() else "" if field.default is None else format_value(field.default),
            _describe(field, found.get(name, "")),
        )
        for name, field in section.model.model_fields.items()
        if not _is_model(inner_model(field.annotation))
    ]


def write_template(path: Path | None = None, *, is_minimal: bool = False) -> str:
    """Return the text of a complete `leasehold.toml` with comments. The text is valid: it sets every key to its
    default, and has one example pool. `is_minimal`: return a short text with the pool alone.

    If `path` is given, write the text to this new file too. Raises InvalidInputError if the file exists or cannot be
    written.
    """
    blocks = [_HEAD]
    for section in list_sections("linux", "ci", "all"):
        blocks += [_format_block(section, values) for values in _EXAMPLE.get(section.path, ({},))]
    text = _MINIMAL if is_minimal else "\n".join(blocks)
    if path is not None:
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise fault(str(path), "no file there yet", "a file") from None
        except OSError as error:
            raise fault(str(path), "a file that can be written", error.strerror) from None
    return text


def format_tables() -> str:
    """Return Markdown that describes `leasehold.toml`. For each table of the file it has a Markdown table with every
    key, its default and its meaning.
    """
    return "\n".join(_format_table(section) for section in list_sections())


def _format_table(section: Section) -> str:
    header = f"`[[{section.path}]]`" if section.is_list else f"`[{section.path}]`"
    keys = list_keys(section)
    defaults = [key.default if key.default in {"", REQUIRED} else f"`{key.default}`" for key in keys]
    rows = [f"| `{key.name}` | {default} | {key.meaning} |" for key, default in zip(keys, defaults, strict=True)]
    title = f"### {header if section.path else 'At the top'}"
    return "\n".join([title, "", section.meaning, "", "| key | default | meaning |", "|---|---|---|", *rows, ""])


def _format_block(section: Section, values: dict[str, Any]) -> str:
    header = f"[[{section.path}]]" if section.is_list else f"[{section.path}]"
    lines = [*_comment(section.meaning), *([header] if section.path else [])]
    for key in list_keys(section):
        lines += _comment(key.meaning)
        if key.name in values:
            lines.append(f"{key.name} = {format_value(values[key.name])}")
        elif key.default in {"", REQUIRED}:
            lines.append(f"#{key.name} = {format_value(_EXAMPLES[key.path])}")
        else:
            lines.append(f"{key.name} = {key.default}")
    if section.is_example or (section.is_list and not values):
        # A table that would create something is commented out.
        lines = [line if line.startswith("#") else f"#{line}" for line in lines]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    kept = text.replace(" = ", "\0=\0")  # No line ends within "0 = off".
    lines = wrap(kept, _WIDTH - 2, break_long_words=False, break_on_hyphens=False)
    return [f"# {line}".replace("\0", " ") for line in lines]


def format_value(value: object) -> str:
    """Return a Python value as TOML text. Texts, true and false are written as in JSON."""
    if isinstance(value, SecretText):
        value = value.get_secret_value()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_quote(str(name))} = {format_value(each)}" for name, each in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(format_value, value))}]"
    return escape_json(json.dumps(value, ensure_ascii=False))


def _quote(name: str) -> str:
    return name if name.isascii() and name.replace("_", "").replace("-", "").isalnum() else format_value(name)


def _settings_sections(model: type[Document], path: str) -> Iterator[Section]:
    for name, field in model.model_fields.items():
        inner = inner_model(field.annotation)
        if _is_model(inner):
            full = f"{path}.{name}" if path else name
            yield Section(full, inner, _meaning(inner))
            yield from _settings_sections(inner, full)


def _is_model(annotation: object) -> TypeGuard[type[Document]]:
    return isinstance(annotation, type) and issubclass(annotation, Document)


def _meaning(model: type[Document]) -> str:
    return (model.__doc__ or "").partition("\n")[0]


def _describe(field: Field, docstring: str) -> str:
    """Return the meaning of a key of `leasehold.toml`: its docstring, followed by its possible values unless the
    docstring names them.
    """
    meaning = docstring.replace("\n", " ")
    literal = field.annotation if get_origin(field.annotation) is Literal else None
    choices = [f"`{choice}`" for choice in get_args(literal)]
    if all(choice in meaning for choice in choices):
        return meaning
    return f"{meaning} One of {', '.join(choices)}.".strip()
