"""The rules of a pool: a group of slots that serve one system, and the ids of its slots.

Default values are defined only here. The text below a key is its documentation: `leasehold config init` writes it, and
docs/reference/configuration.md quotes it.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Annotated, Final, Literal

from scheduler.model.lives import ReplacementRules, digest_launch
from scheduler.model.machines import Ec2Rules, Offering, ProbeRules
from scheduler.model.schedules import Schedule
from scheduler.model.validation import (
    Amount,
    Before,
    Count,
    Document,
    Fault,
    LabelMap,
    Name,
    Positive,
    ResourceMap,
    Seconds,
    accept_if,
    conflicts,
    is_number,
    show,
)

MOST_SLOTS: Final = 1_000_000
"""The most slots of all EC2 pools together. Each slot is a row, also while it is empty."""
_MARKETS: Final = 2
"""Number of markets: spot and on-demand."""
HOURS_OF_MONTH: Final = 730
"""Hours of an average month. A price per month divided by them is a price per hour."""


ShareAboveNone = Annotated[
    float, Before(accept_if(lambda value: is_number(value) and 0 < value <= 1, "a number > 0 and at most 1"))
]
Share = Annotated[float, Before(accept_if(lambda value: is_number(value) and 0 <= value <= 1, "a number from 0 to 1"))]
"""A share from 0 to 1; both ends belong to it."""


class MarketRules(Document):
    """Where the prices of a pool's offerings come from, and which prices and markets it buys."""

    prices: bool = False
    """Whether an offering without a `price` gets that of the table `prices`, and is not launched without one; always
    true with `require`.
    """
    max_price: Amount | None = None
    """Most dollars per hour of a machine to launch; default: no limit."""
    spot_below: ShareAboveNone | None = None
    """Share of a known on-demand price of the type up to which spot machines are launched; default: any price."""
    on_demand_base: Count = 0
    """Number of slots that are on-demand in any case."""
    on_demand_share: Share | None = None
    """Share of the slots above `on_demand_base` that are on-demand, rounded up; the others are spot. Default: the price
    decides.
    """
    spot_again_after: Seconds = 0.0
    """Time for which a spot offering rests after `on_demand_after` refusals in a row; 0 = `capacity_hold`."""

    @property
    def has_mix(self) -> bool:
        return self.on_demand_base > 0 or self.on_demand_share is not None


class Pool(Document):
    """The rules of a pool: a group of slots that serve one system. Durations are in seconds."""

    system: Name
    """System that the slots offer, like `x86_64-linux`."""
    provider: Literal["ec2", "static"] = "ec2"
    """Origin of the machines: `ec2`: launched; `static`: hosts that register themselves."""
    min_slots: Count = 0
    """Minimum number of slots, which are kept without demand."""
    max_slots: Count | None = None
    """Maximum number of slots; required for an `ec2` pool; at most 1,000,000 in all of these."""
    target_warm_slots: Count = 0
    """Number of ready slots that are kept without a lease."""
    stopped_slots: Count = 0
    """Number of slots (within `max_slots`) whose on-demand machines booted once, were stopped, and are started for
    demand.
    """
    resize_stopped: bool = False
    """Whether a stopped machine may be started as another on-demand offering while EC2 has no capacity for its own."""
    storage_price: Amount = 0.0
    """Dollars per GiB and month of storage. A stopped machine costs this × `ec2.volume_gib`; 0 = unknown."""
    max_leases_per_slot: Positive | None = None
    """Maximum number of leases per slot; default: as many as fit, or 1 without `resources` and `offerings`."""
    launch_for_elastic: bool = False
    """Whether machines are launched for elastic instances alone."""
    default_resources: ResourceMap = {}
    """Amount of each resource that a component does not request itself."""
    idle_scale_down: Seconds = 300.0
    """Time without leases after which a slot is terminated."""
    reservation_ttl: Seconds = 0.0
    """Ttl of reservations that do not set one; 0 = none."""
    lease_ttl: Seconds = 1200.0
    """Ttl of a lease if neither the reservation nor `reservation_ttl` sets one; 0 = none."""
    launch_timeout: Seconds = 300.0
    """Maximum time of a slot in the state `launching`."""
    boot_timeout: Seconds = 600.0
    """Maximum time of a slot in the state `booting`."""
    binding_timeout: Seconds = 180.0
    """Maximum time of a slot in the state `binding`."""
    drain_timeout: Seconds = 0.0
    """Maximum time of a drain by an operator while the slot has leases; 0 = no limit."""
    terminating_timeout: Seconds = 300.0
    """Time in the state `terminating` after which the termination is tried again."""
    offline_timeout: Seconds = 180.0
    """Time without a heartbeat after which a static host or an agent is offline."""
    error_cooldown: Seconds = 60.0
    """Time for which a slot in the state `error`, and a misconfigured offering, is not launched. That of an offering
    doubles after each refusal in a row from the third on, up to 15 minutes.
    """
    capacity_hold: Seconds = 60.0
    """Time for which an offering rests after EC2 had no capacity for it."""
    quota_hold: Seconds = 60.0
    """Time for which a quota class and market rest after EC2 refused a launch because of its quota."""
    self_end_after: Seconds = 1800.0
    """Time after which the boot script powers a machine off unless `/run/leasehold/alive` is touched; 0 = off."""
    max_uses: Count = 0
    """Leases after which a machine is replaced (a static host drains until it registers again); 0 = no limit."""
    recycle_unclean: bool = False
    """Whether a slot is replaced after a lease that its holder did not release."""
    on_demand_after: Count = 0
    """Refused or interrupted spot launches after which on-demand offerings may be launched; 0 = off."""
    unhealthy_after: Count = 3
    """Failed boots in a row that stop launches; unconfirmed leases or failed probes that drain a slot; 0 = off."""
    rebalance: Literal["drain", "ignore"] = "drain"
    """Reaction to EC2's rebalance recommendation for a slot: `drain` or `ignore`."""
    maintenance: Literal["drain", "ignore"] = "drain"
    """Reaction if EC2 will stop, restart or retire the machine of a slot: `drain` or `ignore`."""
    resources: ResourceMap | None = None
    """Resources of a slot; without this key and offerings only leases are counted."""
    labels: LabelMap = {}
    """Labels of the pool's slots, which reservations may require or prefer."""
    offerings: tuple[Offering, ...] = ()
    """Instance types that may be launched; none = the type of the launch template or image."""
    price_factor: Amount = 1.5
    """Maximum price of an offering as a multiple of the cheapest one that fits."""
    market: MarketRules = MarketRules()
    """Where prices come from, which prices the pool pays at most, and which share of its slots is on-demand."""
    ec2: Ec2Rules = Ec2Rules()
    """How EC2 launches are built."""
    agent: bool = False
    """Whether the machines of an `ec2` pool run `leasehold host run`: ready when the agent has registered, replaced
    when it is offline.
    """
    probe: ProbeRules = ProbeRules()
    """How a booted machine is probed for readiness."""
    replacement: ReplacementRules = ReplacementRules()
    """When machines are replaced, and how many at a time."""
    schedules: tuple[Schedule, ...] = ()
    """Limits that hold at certain times. If several windows set a key at one time, the last one listed counts."""

    def check_fields(self) -> None:
        """Raise ExpectedError if keys of the pool contradict each other: limits on slots, keys that a static pool
        cannot have, the mix of markets, or two equal offerings.
        """
        if faults := list(_pool_conflicts(self)):
            raise conflicts(faults)

    @cached_property
    def counts_leases_only(self) -> bool:
        """Whether slots of this pool have no resources, so that only the number of leases on a slot is limited."""
        return self.resources is None and not self.offerings

    @cached_property
    def lease_limit(self) -> float:
        """The maximum number of leases on one slot of the pool; infinity if only the resources limit it."""
        if self.max_leases_per_slot is not None:
            return self.max_leases_per_slot
        return 1 if self.counts_leases_only else float("inf")

    @cached_property
    def is_elastic(self) -> bool:
        """Whether Leasehold launches and terminates the machines of this pool; False for pools of static hosts."""
        return self.provider == "ec2"

    @cached_property
    def has_agents(self) -> bool:
        """Whether agents on the hosts of this pool register, send heartbeats and read the leases of their slots."""
        return self.agent or not self.is_elastic

    @cached_property
    def joins_by_token(self) -> bool:
        """Whether the agents on launched machines of this pool may join by the token of their launch: the machines have
        no instance profile by which they could prove their identity.
        """
        return self.agent and self.ec2.instance_profile is None

    @cached_property
    def most_slots(self) -> int:
        """The greatest `max_slots` that the pool has at any time: its own, or that of a schedule."""
        return max(self.max_slots or 0, *(each.max_slots or 0 for each in self.schedules), 0)

    @cached_property
    def stopped_price(self) -> float | None:
        """The price of the storage of a stopped machine in dollars per hour; None: it is unknown."""
        return (self.ec2.volume_gib or 0) * self.storage_price / HOURS_OF_MONTH or None

    @cached_property
    def launch_digest(self) -> str:
        """The hashes of the template, image, user data, network, machine settings and tags from which machines are
        launched now, as `digest_launch` writes them.
        """
        return digest_launch(self.ec2)

    @cached_property
    def takes_prices(self) -> bool:
        """Whether an offering without a configured price gets its price from the table of prices, and is not launched
        if the table has none.
        """
        return self.market.prices or any(each.require is not None for each in self.offerings)

    @cached_property
    def uses_market(self) -> bool:
        """Whether the offerings that may be launched depend on the catalogue or on the table of prices."""
        has_limit = self.market.max_price is not None or self.market.spot_below is not None
        return bool(self.offerings) and (self.takes_prices or has_limit)

    @cached_property
    def zones(self) -> tuple[str, ...]:
        """The zones of the pool's subnets, sorted; () if a subnet is configured without a zone, or if no subnet is
        configured.
        """
        named = [entry.rpartition(":")[0] for entry in self.ec2.subnets]
        return tuple(sorted(set(named))) if all(named) else ()

    @cached_property
    def offering_by_key(self) -> dict[str, Offering]:
        """Offering key -> offering, in the configured order. `offering_key` makes the keys."""
        return {offering_key(self, offering): offering for offering in self.offerings}


def has_price(offering: Offering) -> bool:
    return "price" in offering.model_fields_set


def offering_key(pool: Pool, offering: Offering) -> str:
    """Return the key of an offering within its pool: NAME if the name is unique there, else NAME/MARKET, else
    NAME/MARKET/ZONE.
    """
    alike = [other for other in pool.offerings if other.name == offering.name]
    if len(alike) <= 1:
        return offering.name
    key = f"{offering.name}/{offering.market}"
    same_market = [other for other in alike if other.market == offering.market]
    return key if len(same_market) <= 1 else f"{key}/{offering.zone or 'any'}"


def _pool_conflicts(pool: Pool) -> Iterator[Fault]:
    for key, given in (
        ("max_slots", pool.max_slots),
        *((f"schedules[{index}].max_slots", each.max_slots) for index, each in enumerate(pool.schedules)),
    ):
        if pool.is_elastic and given is not None and given > MOST_SLOTS:
            yield Fault(key, f"at most {MOST_SLOTS}", show(given))
    if pool.provider == "ec2" and pool.max_slots is None:
        yield Fault("max_slots", "a whole number >= 0 (an ec2 pool needs it)", show(None))
    if pool.max_slots is not None and pool.min_slots > pool.max_slots:
        yield Fault("min_slots", f"at most max_slots ({pool.max_slots})", show(pool.min_slots))
    yield from _stopped_conflicts(pool)
    yield from _agent_conflicts(pool)
    if pool.provider == "static" and pool.replacement.is_on:
        got = pool.replacement.model_dump(exclude_defaults=True)
        yield Fault("replacement", "nothing in a static pool (its machines are not launched)", show(got))
    if pool.provider == "static" and pool.schedules:
        yield Fault(
            "schedules", "nothing in a static pool (hosts register themselves)", f"{len(pool.schedules)} of them"
        )
    for index, schedule in enumerate(pool.schedules):
        most = pool.max_slots if schedule.max_slots is None else schedule.max_slots
        if most is not None and (schedule.min_slots or 0) > most:
            yield Fault(f"schedules[{index}].min_slots", f"at most max_slots ({most})", show(schedule.min_slots))
    yield from _market_conflicts(pool)
    keys = [offering_key(pool, offering) for offering in pool.offerings]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        yield Fault("offerings", "offerings that differ in name, market or zone", show(twice))


def _market_conflicts(pool: Pool) -> Iterator[Fault]:
    rules = pool.market
    if rules.on_demand_base > pool.most_slots and pool.max_slots is not None:
        yield Fault("market.on_demand_base", f"at most max_slots ({pool.most_slots})", show(rules.on_demand_base))
    markets = sorted({offering.market for offering in pool.offerings})
    if rules.has_mix and len(markets) < _MARKETS:
        key = "on_demand_share" if not rules.on_demand_base else "on_demand_base"
        got = f"{markets[0]} offerings only" if markets else "no offerings"
        yield Fault(f"market.{key}", "a pool with spot and on-demand offerings", got)
    if rules.spot_again_after and not pool.on_demand_after:
        yield Fault("market.spot_again_after", "0 in a pool without `on_demand_after`", f"{rules.spot_again_after:g}")


def _agent_conflicts(pool: Pool) -> Iterator[Fault]:
    if pool.agent and pool.provider == "static":
        yield Fault("agent", "false in a static pool (its hosts have agents in any case)", show(pool.agent))
    if pool.agent and pool.probe.kind != "none":
        yield Fault(
            "probe.kind",
            "none in a pool with agents (a machine is ready when its agent has registered)",
            pool.probe.kind,
        )


def _stopped_conflicts(pool: Pool) -> Iterator[Fault]:
    if not pool.stopped_slots:
        return
    if pool.provider == "static":
        yield Fault("stopped_slots", "0 in a static pool (its machines are not launched)", show(pool.stopped_slots))
    elif not any(offering.market == "on-demand" for offering in pool.offerings):
        wanted = "0 in a pool without an on-demand offering (a spot machine is never stopped)"
        yield Fault("stopped_slots", wanted, show(pool.stopped_slots))
    elif pool.max_slots is not None and pool.stopped_slots > pool.max_slots:
        yield Fault("stopped_slots", f"at most max_slots ({pool.max_slots})", show(pool.stopped_slots))


def list_slot_faults(pools: Mapping[str, Pool]) -> Iterator[Fault]:
    """Yield a fault if the EC2 pools together have more than MOST_SLOTS slots: each slot is a row."""
    total = sum(pool.most_slots for pool in pools.values() if pool.is_elastic)
    if total > MOST_SLOTS:
        yield Fault("pools", f"at most {MOST_SLOTS} slots in all ec2 pools together (max_slots)", show(total))


def slot_ids(name: str, pool: Pool) -> Iterable[str]:
    """Return the ids `POOL-1` to `POOL-N` of the slots of an EC2 pool, N being the greatest `max_slots` of the pool and
    its schedules. Return none for a static pool, whose slots are created when hosts register.
    """
    return [f"{name}-{number}" for number in range(1, pool.most_slots + 1)] if pool.is_elastic else ()


def find_pool_of_number(slot_id: str, most: Mapping[str, int]) -> str | None:
    """Return the pool of a slot whose id is `POOL-1` to `POOL-N`; None: the slot has another id. `most`: pool -> N, the
    number of its slots. Hosts of a static pool may register under such ids, too.
    """
    name, _, digits = slot_id.rpartition("-")
    is_number = digits.isdecimal() and len(digits) <= len(str(most.get(name, 0)))
    number = int(digits) if is_number else 0
    return name if 1 <= number <= most.get(name, 0) and slot_id == f"{name}-{number}" else None
