"""The rules: scheduler, pools and accounts, as in SCENARIOS' `config` and `leasehold.toml`; defaults stand here once."""

from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from scheduler.model.validation import (
    Amount,
    Count,
    Document,
    LabelMap,
    Name,
    Positive,
    ResourceMap,
    Seconds,
    Text,
    expected,
    read_document,
)

Market = Literal["spot", "on-demand"]


def _market(value: object) -> object:
    return "on-demand" if value == "on_demand" else value


class Offering(Document):
    """An instance type in a market (and zone) with what it holds and what it costs per hour."""

    name: Name
    market: Annotated[Market, BeforeValidator(_market)] = "spot"
    price: Amount = 0.0
    resources: ResourceMap | None = None
    labels: LabelMap | None = None
    type: Name | None = None
    """The EC2 instance type; left out = `name`."""
    zone: Name | None = None
    """The availability zone; left out = any that the pool's subnets are in."""

    @property
    def instance_type(self) -> str:
        """The EC2 instance type."""
        return self.type or self.name


class ProbeRules(Document):
    """How a pool's machines are asked whether they serve. `none`: EC2's own status checks."""

    kind: Literal["none", "tcp", "http", "command"] = "none"
    port: Positive | None = None
    path: Text = "/"
    command: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    """Run on the health worker; `{address}` and `{instance_id}` are replaced. Exit status 0 = ready."""
    timeout: Seconds = 5.0

    @model_validator(mode="after")
    def _complete(self) -> "ProbeRules":
        if self.kind in {"tcp", "http"} and self.port is None:
            raise expected(f"a port for a probe of kind {self.kind}", key="port", got=None)
        if self.kind == "command" and not self.command:
            raise expected("a command for a probe of kind command", key="command", got=[])
        return self


class Ec2Rules(Document):
    """What an EC2 launch of this pool is made of: a launch template, or an image and what belongs to it."""

    launch_template: Text | None = None
    """Id (`lt-…`) or name; `launch_template_version` is a number, never `$Latest`."""
    launch_template_version: Positive | None = None
    image: Text | None = None
    subnets: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    security_groups: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    instance_profile: Text | None = None
    key_name: Text | None = None
    volume_gib: Positive | None = None
    user_data_file: Text | None = None
    """Template file of the user data, relative to the leasehold.toml that names it; read by `apply`."""
    user_data: str | None = Field(default=None, max_length=12_000)
    """The template itself; `user_data_file` fills it in."""
    tags: LabelMap = {}
    spot_allocation: Literal["price-capacity-optimized", "capacity-optimized", "lowest-price"] = (
        "price-capacity-optimized"
    )

    @model_validator(mode="after")
    def _one_origin(self) -> "Ec2Rules":
        if self.launch_template and not self.launch_template_version:
            raise expected("the number of a version", key="launch_template_version", got=None)
        return self


class Pool(Document):
    """A named group of slots of one system. Durations in seconds."""

    system: Name
    provider: Literal["ec2", "static"] = "ec2"
    min_slots: Count = 0
    max_slots: Count | None = None
    target_warm_slots: Count = 0
    max_leases_per_slot: Positive | None = None
    launch_for_elastic: bool = False
    default_resources: ResourceMap = {}
    idle_scale_down: Seconds = 300.0
    reservation_ttl: Seconds = 0.0
    lease_ttl: Seconds = 1200.0
    launch_timeout: Seconds = 300.0
    boot_timeout: Seconds = 600.0
    binding_timeout: Seconds = 180.0
    drain_timeout: Seconds = 0.0
    terminating_timeout: Seconds = 300.0
    offline_timeout: Seconds = 180.0
    error_cooldown: Seconds = 60.0
    capacity_hold: Seconds = 60.0
    quota_hold: Seconds = 60.0
    max_uses: Count = 0
    recycle_unclean: bool = False
    on_demand_after: Count = 0
    unhealthy_after: Count = 3
    rebalance: Literal["drain", "ignore"] = "drain"
    resources: ResourceMap | None = None
    labels: LabelMap = {}
    offerings: Annotated[tuple[Offering, ...], Field(strict=False)] = ()
    price_factor: Amount = 1.5
    ec2: Ec2Rules = Ec2Rules()
    probe: ProbeRules = ProbeRules()

    @model_validator(mode="after")
    def _consistent(self) -> "Pool":
        if self.provider == "ec2" and self.max_slots is None:
            raise expected("a whole number >= 0 (an ec2 pool needs it)", key="max_slots", got=None)
        if self.max_slots is not None and self.min_slots > self.max_slots:
            raise expected(f"at most max_slots ({self.max_slots})", key="min_slots", got=self.min_slots)
        keys = [offering_key(self, offering) for offering in self.offerings]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice:
            raise expected("offerings that differ in name, market or zone", key="offerings", got=twice)
        return self

    @property
    def counts_leases_only(self) -> bool:
        """Whether nothing but the number of leases limits what a slot takes."""
        return self.resources is None and not self.offerings

    @property
    def lease_limit(self) -> float:
        """Leases that a slot may carry at once; infinite where resources alone decide."""
        if self.max_leases_per_slot is not None:
            return self.max_leases_per_slot
        return 1 if self.counts_leases_only else float("inf")

    @property
    def is_elastic(self) -> bool:
        """Whether machines can be launched and let go: not in a pool of static hosts."""
        return self.provider == "ec2"

    @cached_property
    def offering_by_key(self) -> dict[str, Offering]:
        """The pool's offerings under their keys, in the order in which they are configured."""
        return {offering_key(self, offering): offering for offering in self.offerings}


def offering_key(pool: Pool, offering: Offering) -> str:
    """The name where it is unique in its pool, else name/market, else name/market/zone."""
    alike = [other for other in pool.offerings if other.name == offering.name]
    if len(alike) <= 1:
        return offering.name
    key = f"{offering.name}/{offering.market}"
    same_market = [other for other in alike if other.market == offering.market]
    return key if len(same_market) <= 1 else f"{key}/{offering.zone or 'any'}"


class Scheduler(Document):
    """What holds for all pools. Durations in seconds."""

    queue: Literal["fifo", "priority", "size"] = "fifo"
    profile: Literal["pack"] = "pack"
    backfill: bool = True
    interruption_grace: Seconds | None = None
    """None: until the notice's deadline; 0: at once."""
    restart_delay: Seconds = 15.0
    max_restarts: Count = 0
    max_unconfirmed: Count = 0
    adoption_timeout: Seconds = 60.0
    confirm_timeout: Seconds = 0.0
    max_slots: Count = 0
    """Over all pools; 0 = no limit."""


class Rules(Document):
    """Everything that a plan is made by; `version` is that of the row they came from."""

    scheduler: Scheduler = Scheduler()
    pools: dict[Name, Pool] = {}
    accounts: dict[Name, dict[str, Any]] = {}

    @cached_property
    def pools_of_system(self) -> dict[str, tuple[str, ...]]:
        """The names of the pools that serve each system, in the order in which they are configured."""
        found: dict[str, tuple[str, ...]] = {}
        for name, pool in self.pools.items():
            found[pool.system] = (*found.get(pool.system, ()), name)
        return found

    def serving_pools(self, pool: str | None, system: str | None) -> tuple[str, ...]:
        """The pools that may serve a reservation for this pool or else this system."""
        if pool is not None:
            return (pool,) if pool in self.pools else ()
        return self.pools_of_system.get(system or "", ())


def read_rules(document: object, prefix: str = "config") -> Rules:
    """Rules from a parsed file or row; raises InvalidInputError naming each key that is wrong."""
    return read_document(Rules, document, prefix)


def merge_rules(rules: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The document of `rules` with a partial one laid over it, table by table; lists are replaced whole."""
    merged = dict(rules)
    for key, value in changes.items():
        known = merged.get(key)
        merged[key] = merge_rules(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return merged


def slot_ids(name: str, pool: Pool) -> Iterable[str]:
    """The slots that an ec2 pool has: `POOL-1` … `POOL-max_slots`; a static pool's register themselves."""
    return (f"{name}-{number}" for number in range(1, (pool.max_slots or 0) + 1)) if pool.is_elastic else ()
