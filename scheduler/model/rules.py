"""The rules: scheduler, pools and accounts, as in a scenario's `config` and in `leasehold.toml`.

Defaults stand here once. The line under a key is its documentation: `leasehold config init` and
docs/reference/configuration.md show it.
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
    """A named group of slots of one system. Durations in seconds."""

    system: Name
    """What it offers to reservations, like `x86_64-linux`; several pools may serve one system."""
    provider: Literal["ec2", "static"] = "ec2"
    """`ec2`: launched and let go; `static`: hosts that register themselves."""
    min_slots: Count = 0
    """Slots that are kept whatever the demand."""
    max_slots: Count | None = None
    """Slots at most; an `ec2` pool needs it, a `static` one does not."""
    target_warm_slots: Count = 0
    """Slots that are kept free and ready beyond what is in use."""
    max_leases_per_slot: Positive | None = None
    """Left out = 1 in a pool that counts leases only, otherwise as many as fit."""
    launch_for_elastic: bool = False
    """Whether elastic components alone may cause launches."""
    default_resources: ResourceMap = {}
    """What a component that leaves it out asks for."""
    idle_scale_down: Seconds = 300.0
    """A slot without leases for so long is let go."""
    reservation_ttl: Seconds = 0.0
    """Ttl of reservations that set none, waiting and leased alike; 0 = none."""
    lease_ttl: Seconds = 1200.0
    """Ttl of a lease where nothing else sets one; 0 = none."""
    launch_timeout: Seconds = 300.0
    """A slot may be `launching` so long."""
    boot_timeout: Seconds = 600.0
    """A slot may be `booting` so long."""
    binding_timeout: Seconds = 180.0
    """A slot may be `binding` so long."""
    drain_timeout: Seconds = 0.0
    """An operator's drain waits so long for the slot's leases; 0 = until they end."""
    terminating_timeout: Seconds = 300.0
    """A slot may be `terminating` so long before that is tried again."""
    offline_timeout: Seconds = 180.0
    """A static host that was not heard of for longer is offline."""
    error_cooldown: Seconds = 60.0
    """A slot in `error`, or an offering that is misconfigured, rests so long."""
    capacity_hold: Seconds = 60.0
    """An offering that EC2 has no capacity for is not tried for this time."""
    quota_hold: Seconds = 60.0
    """Launches of a market that is at its EC2 quota wait this long."""
    self_end_after: Seconds = 1800.0
    """A machine whose boot script has the watchdog powers itself off after this time without a touch; 0 = off."""
    max_uses: Count = 0
    """A machine is replaced after this number of leases; 0 = no limit."""
    recycle_unclean: bool = False
    """Whether a slot whose lease ended without its holder's release is let go."""
    on_demand_after: Count = 0
    """Refused or interrupted spot launches after which on-demand offerings may be taken; 0 = off."""
    unhealthy_after: Count = 3
    """Boots failed in a row hold the pool; leases unconfirmed or probes failed in a row drain a slot; 0 = off."""
    rebalance: Literal["drain", "ignore"] = "drain"
    """What EC2's rebalance recommendation does to a slot."""
    resources: ResourceMap | None = None
    """What a slot holds; a pool without this and without offerings counts leases only."""
    labels: LabelMap = {}
    """Labels of its slots, which reservations may require or prefer."""
    offerings: tuple[Offering, ...] = ()
    """The instance types that may be launched; none = the one of the launch template or image."""
    price_factor: Amount = 1.5
    """How many times as dear as the cheapest that fits an offering may be; 1.0 = only the cheapest."""
    ec2: Ec2Rules = Ec2Rules()
    """What a launch is made of."""
    probe: ProbeRules = ProbeRules()
    """How a booted machine is asked whether it is ready."""

    def check_fields(self) -> None:
        """See Document.check_fields."""
        if faults := list(_pool_conflicts(self)):
            raise conflicts(faults)

    @cached_property
    def counts_leases_only(self) -> bool:
        """Whether nothing but the number of leases limits what a slot takes."""
        return self.resources is None and not self.offerings

    @cached_property
    def lease_limit(self) -> float:
        """Leases that a slot may carry at once; infinite where resources alone decide."""
        if self.max_leases_per_slot is not None:
            return self.max_leases_per_slot
        return 1 if self.counts_leases_only else float("inf")

    @cached_property
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


def _pool_conflicts(pool: Pool) -> Iterator[Fault]:
    if pool.provider == "ec2" and pool.max_slots is None:
        yield Fault("max_slots", "a whole number >= 0 (an ec2 pool needs it)", show(None))
    if pool.max_slots is not None and pool.min_slots > pool.max_slots:
        yield Fault("min_slots", f"at most max_slots ({pool.max_slots})", show(pool.min_slots))
    keys = [offering_key(pool, offering) for offering in pool.offerings]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        yield Fault("offerings", "offerings that differ in name, market or zone", show(twice))


class SchedulerKeys(Document):
    """How reservations are scheduled. Durations in seconds."""

    queue: Literal["fifo", "priority", "size", "dynsize", "quota"] = "fifo"
    """The order: `fifo`, `priority` (higher first), `size` or `dynsize` (smaller first), or `quota` (by accounts)."""
    profile: Literal["pack", "spread"] = "pack"
    """Where a component goes: `pack` fills slots that are in use first, `spread` takes the one with fewest leases."""
    elastic: Literal["yielding", "flexible", "malleable", "rigid"] = "yielding"
    """How elastic components are granted and taken back; no effect on reservations without any."""
    backfill: bool = True
    """Whether reservations may overtake one that does not fit."""
    starvation_guard: Seconds = 3600.0
    """A reservation that has waited for longer is not overtaken on slots that could serve it; 0 = off."""
    preemption: bool = True
    """Whether better work may preempt running work, under queues and settings with preemption."""
    preemption_grace: Seconds = 30.0
    """Seconds that a preempted lease still lasts; 0 = end at once."""
    min_run_time: Seconds = 0.0
    """A lease is not preempted before this time has passed."""
    interruption_grace: Seconds | None = None
    """Leases of an interrupted slot last this long; default: until the notice's deadline, 0 = end at once."""
    restart_delay: Seconds = 15.0
    """Seconds that a failed reservation waits before it restarts."""
    max_restarts: Count = 0
    """Restarts of one reservation at most; 0 = no limit."""
    max_unconfirmed: Count = 0
    """Unconfirmed assignments in a row, then it fails; 0 = no limit."""
    adoption_timeout: Seconds = 60.0
    """After a restart, unconfirmed leases wait so long for machines that have not answered yet."""
    confirm_timeout: Seconds = 0.0
    """A lease that its holder did not confirm for so long is taken back; 0 = off."""
    charge_by: Literal["lease", "dominant_share", "price"] = "lease"
    """What accounts pay for: `lease` (one for each), `dominant_share` of the slot, or `price` (dollars of the slot)."""
    max_slots: Count = 0
    """Slots over all pools; 0 = no limit."""
    share_cores: bool = True
    """Whether each lease may use an equal part of the cpus of its slot that no lease has; if not, its own alone."""
    dynsize_decay: Amount = 256.0
    """Under `dynsize`, what the size (sum of cpus × sum of memory_mib) of one that waits falls by each second."""


class Scheduler(SchedulerKeys):
    """What holds for all pools. Durations in seconds."""

    system: dict[Name, SchedulerKeys] = {}
    """The same keys for the reservations and pools of one system, where they differ: `[scheduler.system.NAME]`."""


class AccountKeys(Document):
    """The rules of a quota account. Amounts in worker-seconds (or what `charge_by` counts)."""

    charge_rate: Levels = NOTHING
    """What it earns a second, a number for each paid level, best first; shorter lists are padded with 0."""
    max_charge_seconds: Seconds = 0.0
    """The most that it keeps: what it earns in this number of seconds."""
    max_fanout: Count = 0
    """Paid leases of reservations that are alike, at most; more of them run at the free level; 0 = no limit."""
    per_label_task_limits: CountMap = {}
    """Label name -> leases of the account, at most, on slots that share a value of that label."""
    disable_free_tasks: bool = False
    """Whether its reservations wait when nothing is left to pay with, instead of running at the free level."""
    description: Text = ""
    """What people should know of it."""


class AccountRules(AccountKeys):
    """A quota account as rules list it."""

    balance: SignedLevels | None = None
    """What it starts with, a number for each paid level; a changed list here sets it again; default: 0."""


class LimitRules(Document):
    """How much may be asked for: `leasehold simulate` has none of these limits. 0 = no limit."""

    instances_per_reservation: Count = 10_000
    """Instances that all components of one reservation have together."""
    components_per_reservation: Count = 100
    """Components of one reservation."""
    labels_per_reservation: Count = 256
    """Labels, preferences and tags of one reservation and its components together."""
    pending_per_principal: Count = 1_000_000
    """Pending reservations that one principal submitted; all unsigned ones count as one principal's."""
    instances_per_principal: Count = 2_000_000
    """Instances that the pending reservations of one principal have together."""
    pending_per_account: Count = 1_000_000
    """Pending reservations of one account."""
    instances_per_account: Count = 2_000_000
    """Instances that the pending reservations of one account have together."""
    work_per_tick: Count = 20_000
    """Steps that a tick spends on the gangs and elastic components of one principal; the others come in later ticks."""


class Rules(Document):
    """Everything that a plan is made by; `version` is that of the row they came from."""

    scheduler: Scheduler = Scheduler()
    """What holds for all pools."""
    pools: dict[Name, Pool] = {}
    """The pools by name; the first that serves a system gives its ttl."""
    accounts: dict[Name, AccountRules] = {}
    """The quota accounts by id."""
    limits: LimitRules = LimitRules()
    """How much may be asked for."""

    @cached_property
    def pools_of_system(self) -> dict[str, tuple[str, ...]]:
        """The names of the pools that serve each system, in the order in which they are configured."""
        found: dict[str, tuple[str, ...]] = {}
        for name, pool in self.pools.items():
            found[pool.system] = (*found.get(pool.system, ()), name)
        return found

    @cached_property
    def _settings_of_system(self) -> dict[str, SchedulerKeys]:
        """What holds for each system that has settings of its own: those over the common ones."""
        return {
            name: self.scheduler.model_copy(update={key: getattr(own, key) for key in own.model_fields_set})
            for name, own in self.scheduler.system.items()
        }

    @cached_property
    def has_quota(self) -> bool:
        """Whether any queue is `quota`: accounts earn and pay only then."""
        return any(keys.queue == "quota" for keys in (self.scheduler, *self._settings_of_system.values()))

    @cached_property
    def has_shared_cores(self) -> bool:
        """Whether spare cores are shared in any queue."""
        return any(keys.share_cores for keys in (self.scheduler, *self._settings_of_system.values()))

    def queue_of(self, pool: str | None, system: str | None) -> str:
        """The queue in which such a reservation waits: its system's own, or "" for the common one."""
        named = self.pools.get(pool) if pool is not None else None
        name = (named.system if named else system) or ""
        return name if name in self.scheduler.system else ""

    def settings_of(self, pool: str | None, system: str | None) -> SchedulerKeys:
        """The scheduler's settings for reservations of this pool, or else this system."""
        if not self.scheduler.system:
            return self.scheduler
        return self._settings_of_system.get(self.queue_of(pool, system), self.scheduler)

    def settings_of_queue(self, queue: str) -> SchedulerKeys:
        """The scheduler's settings that hold in this queue: see `queue_of`."""
        return self._settings_of_system.get(queue, self.scheduler)

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
    return list_slot_ids(name, pool) if pool.is_elastic else ()


def list_slot_ids(name: str, pool: Pool) -> list[str]:
    """`POOL-1` … `POOL-max_slots`, also of a static pool, where a host may register under each of these."""
    return [f"{name}-{number}" for number in range(1, (pool.max_slots or 0) + 1)]
