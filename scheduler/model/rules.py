"""The rules by which plans are made: of the scheduler, the pools, the accounts and the limits. They are the `config` of
a scenario and the tables of `leasehold.toml` with these names.

Default values are defined only here. The text below a key is its documentation: `leasehold config init` writes it, and
docs/reference/configuration.md quotes it.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, Literal

from scheduler.model.accounts import NOTHING
from scheduler.model.machines import Ec2Rules, Offering, ProbeRules
from scheduler.model.validation import (
    Amount,
    Count,
    CountMap,
    Document,
    Fault,
    LabelMap,
    Levels,
    Name,
    Positive,
    ResourceMap,
    Seconds,
    SignedLevels,
    Text,
    conflicts,
    read_document,
    show,
)


class Pool(Document):
    """The rules of a pool: a group of slots that serve one system. Durations are in seconds."""

    system: Name
    """System that the slots offer, like `x86_64-linux`. Several pools may serve one system."""
    provider: Literal["ec2", "static"] = "ec2"
    """Origin of the machines. `ec2`: Leasehold launches and terminates them; `static`: hosts register themselves."""
    min_slots: Count = 0
    """Minimum number of slots, which are kept even if no reservation needs them."""
    max_slots: Count | None = None
    """Maximum number of slots; required for an `ec2` pool."""
    target_warm_slots: Count = 0
    """Number of ready slots that are kept without a lease, in addition to the slots in use."""
    max_leases_per_slot: Positive | None = None
    """Maximum number of leases per slot; default: as many as fit, or 1 in a pool without `resources` and
    `offerings`.
    """
    launch_for_elastic: bool = False
    """Whether a machine is launched if only elastic instances need it."""
    default_resources: ResourceMap = {}
    """Resources of a component that requests none."""
    idle_scale_down: Seconds = 300.0
    """Time without leases after which a slot is terminated."""
    reservation_ttl: Seconds = 0.0
    """Ttl of reservations that do not set one, both pending and leased; 0 = none."""
    lease_ttl: Seconds = 1200.0
    """Ttl of a lease if neither the reservation nor `reservation_ttl` sets one; 0 = none."""
    launch_timeout: Seconds = 300.0
    """Maximum time of a slot in the state `launching`."""
    boot_timeout: Seconds = 600.0
    """Maximum time of a slot in the state `booting`."""
    binding_timeout: Seconds = 180.0
    """Maximum time of a slot in the state `binding`."""
    drain_timeout: Seconds = 0.0
    """Maximum time that a drain by an operator waits for the leases of the slot; 0 = until they end."""
    terminating_timeout: Seconds = 300.0
    """Time in the state `terminating` after which the termination is tried again."""
    offline_timeout: Seconds = 180.0
    """Time without a heartbeat after which a static host counts as offline."""
    error_cooldown: Seconds = 60.0
    """Time for which a slot in the state `error`, or an offering that is misconfigured, is not launched."""
    capacity_hold: Seconds = 60.0
    """Time for which an offering is not launched after EC2 had no capacity for it."""
    quota_hold: Seconds = 60.0
    """Time in which nothing is launched in a market (`spot` or `on-demand`) after EC2 refused a launch because of its
    quota.
    """
    self_end_after: Seconds = 1800.0
    """Time after which the boot script's watchdog powers the machine off if its file was not touched; 0 = off."""
    max_uses: Count = 0
    """Number of leases after which a machine is replaced; 0 = no limit."""
    recycle_unclean: bool = False
    """Whether a slot is replaced when a lease on it ended without a release by its holder."""
    on_demand_after: Count = 0
    """Number of refused or interrupted spot launches after which on-demand offerings may be launched; 0 = off."""
    unhealthy_after: Count = 3
    """Failed boots in a row that stop launches; unconfirmed leases or failed probes in a row that drain a slot; 0 =
    off.
    """
    rebalance: Literal["drain", "ignore"] = "drain"
    """Reaction to EC2's rebalance recommendation for a slot: `drain` the slot, or `ignore` it."""
    resources: ResourceMap | None = None
    """Resources of a slot. A pool without this key and without offerings limits only the number of leases per slot."""
    labels: LabelMap = {}
    """Labels of the pool's slots, which reservations may require or prefer."""
    offerings: tuple[Offering, ...] = ()
    """Instance types that may be launched; none = the type of the launch template or image."""
    price_factor: Amount = 1.5
    """An offering may cost at most this many times the cheapest one that fits; 1.0 = only the cheapest."""
    ec2: Ec2Rules = Ec2Rules()
    """How EC2 launches are built."""
    probe: ProbeRules = ProbeRules()
    """How a booted machine is probed for readiness."""

    def check_fields(self) -> None:
        """Refuse a pool whose keys contradict each other: its limits on slots, or two equal offerings. Raises
        ExpectedError.
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
    def offering_by_key(self) -> dict[str, Offering]:
        """Offering key -> offering, in the configured order. `offering_key` makes the keys."""
        return {offering_key(self, offering): offering for offering in self.offerings}


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
    if pool.provider == "ec2" and pool.max_slots is None:
        yield Fault("max_slots", "a whole number >= 0 (an ec2 pool needs it)", show(None))
    if pool.max_slots is not None and pool.min_slots > pool.max_slots:
        yield Fault("min_slots", f"at most max_slots ({pool.max_slots})", show(pool.min_slots))
    keys = [offering_key(pool, offering) for offering in pool.offerings]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        yield Fault("offerings", "offerings that differ in name, market or zone", show(twice))


class SchedulerKeys(Document):
    """The settings that decide how reservations are scheduled, for all systems or for one. Durations are in seconds."""

    queue: Literal["fifo", "priority", "size", "dynsize", "quota"] = "fifo"
    """Queue order: `fifo`, `priority` (highest first), `size` or `dynsize` (smallest first), or `quota` (by
    accounts).
    """
    profile: Literal["pack", "spread"] = "pack"
    """Choice of a slot for a component: `pack` prefers slots that are in use, `spread` the slot with the
    fewest leases.
    """
    elastic: Literal["yielding", "flexible", "malleable", "rigid"] = "yielding"
    """How instances of elastic components are granted and taken back; without effect on other reservations."""
    backfill: bool = True
    """Whether later reservations may be placed although an earlier one does not fit."""
    starvation_guard: Seconds = 3600.0
    """Waiting time after which slots that could serve a reservation are kept from later reservations; 0 = off."""
    preemption: bool = True
    """Whether a better reservation may preempt a running one, in queues and elastic settings with preemption."""
    preemption_grace: Seconds = 30.0
    """Time that the holder of a preempted lease has to stop; 0 = the lease ends at once."""
    min_run_time: Seconds = 0.0
    """Time for which a new lease is not preempted."""
    interruption_grace: Seconds | None = None
    """Time that leases of an interrupted slot last; default: until the notice's deadline, 0 = end at once."""
    restart_delay: Seconds = 15.0
    """Time between the failure of a reservation and its restart."""
    max_restarts: Count = 0
    """Maximum number of restarts of one reservation; 0 = no limit."""
    max_unconfirmed: Count = 0
    """Number of unconfirmed assignments in a row after which a reservation fails; 0 = no limit."""
    adoption_timeout: Seconds = 60.0
    """Maximum time after a restart for which no unconfirmed lease is taken back while an adopted machine is silent."""
    confirm_timeout: Seconds = 0.0
    """Time after which a lease that its holder has not confirmed is taken back; 0 = off."""
    charge_by: Literal["lease", "dominant_share", "price"] = "lease"
    """Cost of one second of a lease: `lease` (1 for each), `dominant_share` of the slot, or `price` (dollars)."""
    max_slots: Count = 0
    """Maximum number of slots of all pools together; 0 = no limit."""
    share_cores: bool = True
    """Whether each lease may also use an equal part of the slot's CPUs that no lease has; false = only its own CPUs."""
    dynsize_decay: Amount = 256.0
    """Amount by which a waiting reservation's size (sum of cpus × sum of memory_mib) falls each second (`dynsize`)."""


class Scheduler(SchedulerKeys):
    """The scheduler's settings for all pools, with exceptions for single systems. Durations are in seconds."""

    system: dict[Name, SchedulerKeys] = {}
    """Settings for the reservations and pools of one system that differ from the common ones:
    `[scheduler.system.NAME]`.
    """


class AccountKeys(Document):
    """The settings of a quota account. Amounts are in worker-seconds (or in the unit of `charge_by`)."""

    charge_rate: Levels = NOTHING
    """Amount that the account earns per second at each paid level, best first; missing levels are 0."""
    max_charge_seconds: Seconds = 0.0
    """Upper limit of the balance: what the account earns in this number of seconds."""
    max_fanout: Count = 0
    """Maximum number of paid leases of equal reservations; further ones run at the free level; 0 = no limit."""
    per_label_task_limits: CountMap = {}
    """Label name -> maximum number of leases of the account on slots that have the same value of this label."""
    disable_free_tasks: bool = False
    """Whether the account's reservations wait, instead of running at the free level, while it has no balance."""
    description: Text = ""
    """Description of the account for people."""


class AccountRules(AccountKeys):
    """A quota account as the rules define it: its settings and its initial balance."""

    balance: SignedLevels | None = None
    """Initial balance for each paid level; a change of this list sets the balance again; default: 0."""


class LimitRules(Document):
    """Limits on requests and pending reservations. `leasehold simulate` does not apply them. 0 = no limit."""

    instances_per_reservation: Count = 10_000
    """Maximum number of instances of all components of one reservation together."""
    components_per_reservation: Count = 100
    """Maximum number of components of one reservation."""
    labels_per_reservation: Count = 256
    """Maximum number of labels, preferences and tags of one reservation, including those of its components."""
    pending_per_principal: Count = 1_000_000
    """Maximum number of pending reservations of one principal; all unsigned ones count as one principal's."""
    instances_per_principal: Count = 2_000_000
    """Maximum number of instances of all pending reservations of one principal together."""
    pending_per_account: Count = 1_000_000
    """Maximum number of pending reservations of one account."""
    instances_per_account: Count = 2_000_000
    """Maximum number of instances of all pending reservations of one account together."""
    work_per_tick: Count = 20_000
    """Steps that a tick spends on gangs and elastic components of one principal; the rest waits for later ticks."""


class Rules(Document):
    """All rules by which plans are made: those of the scheduler, the pools, the accounts and the limits."""

    scheduler: Scheduler = Scheduler()
    """The scheduler's settings for all pools."""
    pools: dict[Name, Pool] = {}
    """The pools by name. The first pool that serves a system provides the default ttl of its reservations."""
    accounts: dict[Name, AccountRules] = {}
    """The quota accounts by id."""
    limits: LimitRules = LimitRules()
    """Limits on requests and pending reservations."""

    @cached_property
    def pools_of_system(self) -> dict[str, tuple[str, ...]]:
        """The names of the pools that serve each system, in the configured order."""
        found: dict[str, tuple[str, ...]] = {}
        for name, pool in self.pools.items():
            found[pool.system] = (*found.get(pool.system, ()), name)
        return found

    @cached_property
    def _settings_of_system(self) -> dict[str, SchedulerKeys]:
        """System -> its settings, for systems that have settings of their own: the common settings, overridden by those
        of the system.
        """
        return {
            name: self.scheduler.model_copy(update={key: getattr(own, key) for key in own.model_fields_set})
            for name, own in self.scheduler.system.items()
        }

    @cached_property
    def has_quota(self) -> bool:
        """Whether the queue of any system is `quota`. Only then do accounts earn and pay."""
        return any(keys.queue == "quota" for keys in (self.scheduler, *self._settings_of_system.values()))

    @cached_property
    def has_shared_cores(self) -> bool:
        """Whether `share_cores` is set for any system: then leases share the spare CPUs of their slot."""
        return any(keys.share_cores for keys in (self.scheduler, *self._settings_of_system.values()))

    def queue_of(self, pool: str | None, system: str | None) -> str:
        """Return the name of the queue in which a reservation for this pool or system waits. The name is the system if
        the system has settings of its own, else "".
        """
        named = self.pools.get(pool) if pool is not None else None
        name = (named.system if named else system) or ""
        return name if name in self.scheduler.system else ""

    def settings_of(self, pool: str | None, system: str | None) -> SchedulerKeys:
        """Return the scheduler settings for reservations of this pool, or of this system if `pool` is None."""
        if not self.scheduler.system:
            return self.scheduler
        return self._settings_of_system.get(self.queue_of(pool, system), self.scheduler)

    def settings_of_queue(self, queue: str) -> SchedulerKeys:
        """Return the scheduler settings of the queue with this name, as `queue_of` returns it."""
        return self._settings_of_system.get(queue, self.scheduler)

    def serving_pools(self, pool: str | None, system: str | None) -> tuple[str, ...]:
        """Return the names of the pools that may serve a reservation for this pool, or for this system if `pool` is
        None.
        """
        if pool is not None:
            return (pool,) if pool in self.pools else ()
        return self.pools_of_system.get(system or "", ())


def read_rules(document: object, prefix: str = "config") -> Rules:
    """Return the rules in `document`, a parsed file or database row. Raises InvalidInputError that lists every wrong
    key. `prefix`: the path of the document, for the faults.
    """
    return read_document(Rules, document, prefix)


def merge_rules(rules: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the document `rules` with the values of `changes`. Nested tables are merged key by key; lists
    are replaced.
    """
    merged = dict(rules)
    for key, value in changes.items():
        known = merged.get(key)
        merged[key] = merge_rules(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return merged


def slot_ids(name: str, pool: Pool) -> Iterable[str]:
    """Return the ids of the slots of an EC2 pool: `POOL-1` to `POOL-max_slots`. Return none for a static pool, whose
    slots are created when hosts register.
    """
    return list_slot_ids(name, pool) if pool.is_elastic else ()


def list_slot_ids(name: str, pool: Pool) -> list[str]:
    """Return the ids `POOL-1` to `POOL-max_slots` for a pool of any kind. Hosts of a static pool may register under
    these ids.
    """
    return [f"{name}-{number}" for number in range(1, (pool.max_slots or 0) + 1)]
