"""The rules by which plans are made: of the scheduler, the pools, the accounts and the limits. They are the `config` of
a scenario and the tables of `leasehold.toml` with these names.

Default values are defined only here. The text below a key is its documentation: `leasehold config init` writes it, and
docs/reference/configuration.md quotes it.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from math import inf
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, Self

from scheduler.model.accounts import NOTHING
from scheduler.model.budgets import NO_SPENDING, Budget, Spent, list_budget_faults
from scheduler.model.machines import ROOT_OF, is_source
from scheduler.model.pools import Pool, list_slot_faults
from scheduler.model.reservations import Request, Reservation
from scheduler.model.schedules import OVERRIDES, list_open
from scheduler.model.validation import (
    Amount,
    Count,
    CountMap,
    Document,
    Levels,
    Name,
    Positive,
    Seconds,
    SignedLevels,
    Text,
    conflicts,
    read_document,
)


class SchedulerKeys(Document):
    """The settings that decide how reservations are scheduled, for all systems or for one. Durations are in seconds."""

    queue: Literal["fifo", "priority", "size", "dynsize", "quota"] = "fifo"
    """Queue order: `fifo`, `priority` (highest first), `size` or `dynsize` (smallest first), `quota` (by accounts)."""
    profile: Literal["pack", "spread"] = "pack"
    """Choice of a slot: `pack` prefers slots that are in use, `spread` the slot with the fewest leases."""
    elastic: Literal["yielding", "flexible", "malleable", "rigid"] = "yielding"
    """Elastic instances: `rigid`: placed with the essential ones; `malleable`: later, and never taken back for another
    reservation; `flexible`: taken back if the use of the pool grows; `yielding`: for any better use.
    """
    backfill: bool = True
    """Whether later reservations may be placed before an earlier one that does not fit."""
    starvation_guard: Seconds = 3600.0
    """Waiting time after which slots that could serve a reservation are kept for it; 0 = off."""
    guard: Literal["strict", "shadow"] = "shadow"
    """From which later work: `strict` all, `shadow` work that is not expected to end before the planned start of the
    protected reservation.
    """
    guard_depth: Positive = 1
    """With `shadow`: for how many such reservations a slot is kept."""
    preemption: bool = True
    """Whether a better reservation may preempt a running one."""
    preemption_grace: Seconds = 30.0
    """Time that the holder of a preempted lease, or of one at its limit, has to stop."""
    min_run_time: Seconds = 0.0
    """Time for which a new lease is not preempted."""
    interruption_grace: Seconds | None = None
    """Time that leases of an interrupted slot last; default: until the notice's deadline, 0 = none."""
    restart_delay: Seconds = 15.0
    """Time between the failure of a reservation and its restart."""
    max_restarts: Count = 0
    """Maximum number of restarts of one reservation; 0 = no limit."""
    max_unconfirmed: Count = 0
    """Unconfirmed assignments in a row after which a reservation fails; 0 = no limit."""
    adoption_timeout: Seconds = 60.0
    """Maximum time for which a silent adopted machine delays `confirm_timeout`."""
    confirm_timeout: Seconds = 0.0
    """Time after which an unconfirmed lease is taken back; 0 = off."""
    charge_by: Literal["lease", "dominant_share", "price"] = "lease"
    """Cost of a second of a lease: `lease` (1), `dominant_share` of the slot, or `price` (dollars)."""
    max_slots: Count = 0
    """Maximum number of slots of all pools together; 0 = no limit."""
    share_cores: bool = True
    """Whether a lease may also use an equal part of the slot's CPUs that no lease has."""
    dynsize_decay: Amount = 256.0
    """Amount by which the size (sum of cpus × sum of memory_mib) of what waits falls each second (`dynsize`)."""


class Scheduler(SchedulerKeys):
    """The scheduler's settings for all pools, with exceptions for single systems. Durations are in seconds."""

    system: dict[Name, SchedulerKeys] = {}
    """Settings for the reservations and pools of one system that differ from the common ones:
    `[scheduler.system.NAME]`.
    """


class AccountKeys(Document):
    """The settings of a quota account. Amounts are in worker-seconds (or in the unit of `charge_by`)."""

    charge_rate: Levels = NOTHING
    """Amount earned per second at each paid level, best first; missing levels are 0."""
    max_charge_seconds: Seconds = 0.0
    """Upper limit of the balance, in seconds of earning."""
    max_fanout: Count = 0
    """Maximum number of paid leases of equal reservations; further ones are free; 0 = no limit."""
    per_label_task_limits: CountMap = {}
    """Label name -> maximum number of leases on slots with the same value of this label."""
    disable_free_tasks: bool = False
    """Whether reservations wait, instead of running at the free level, while there is no balance."""
    description: Text = ""
    """Description of the account for people."""
    enforce_max_runtime: bool = False
    """Whether leases end at the `max_runtime` of their reservation, in each queue."""


class AccountRules(AccountKeys):
    """A quota account as the rules define it: its settings and its initial balance."""

    balance: SignedLevels | None = None
    """Initial balance for each paid level, set again by a change of this list; default: 0."""


class LimitRules(Document):
    """Limits on requests and pending reservations. `leasehold simulate` does not apply them. 0 = no limit."""

    instances_per_reservation: Count = 10_000
    """Maximum number of instances of one reservation."""
    components_per_reservation: Count = 100
    """Maximum number of components of one reservation."""
    labels_per_reservation: Count = 256
    """Maximum number of labels, preferences and tags of one reservation and its components."""
    pending_per_principal: Count = 1_000_000
    """Maximum number of pending reservations of one principal; unsigned ones count by their host."""
    instances_per_principal: Count = 2_000_000
    """Maximum number of instances of all pending reservations of one principal."""
    pending_per_account: Count = 1_000_000
    """Maximum number of pending reservations of one account."""
    instances_per_account: Count = 2_000_000
    """Maximum number of instances of all pending reservations of one account."""
    work_per_tick: Count = 20_000
    """Steps of a tick for gangs and elastic components of one principal."""


READ_BY: Final[Mapping[str, str]] = MappingProxyType({"priority": "priority", "account": "quota"})
"""Field of a request -> the only queue type that uses the field.

A request that sets the field for another type of queue is answered with a warning. A priority of 0 causes no warning:
it puts a reservation on hold in each queue.
"""
DEFAULT_PRIORITY: Final = 1.0


def find_ignored(queue: str, *, priority: float, account: str | None) -> dict[str, str]:
    """Return a table (field -> warning) of the fields `priority` and `account` of a request whose values are not the
    default and that a queue of the type `queue` does not use.
    """
    given = {"priority": priority not in {0.0, DEFAULT_PRIORITY}, "account": account is not None}
    return {
        field: f"the queue `{queue}` does not read it; only the queue `{reader}` does"
        for field, reader in READ_BY.items()
        if given[field] and queue != reader
    }


class Route(NamedTuple):
    """The queue, the settings and the pools of a reservation, which follow from the pool or the system that it
    requests.
    """

    queue: str
    """Name of the reservation's queue: its system if the system has settings of its own, else ""."""
    settings: SchedulerKeys
    """The scheduler settings of this queue."""
    pools: tuple[str, ...]
    """Names of the pools that may serve the reservation, in the configured order."""


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
    budgets: dict[Name, Budget] = {}
    """The budgets in dollars by name."""

    def check_fields(self) -> None:
        """Raise ExpectedError if the pools have more slots than MOST_SLOTS together, or if a budget names an unknown
        pool or is below the cost of `min_slots`.
        """
        if faults := [*list_slot_faults(self.pools), *list_budget_faults(self.budgets, self.pools)]:
            raise conflicts(faults)

    @property
    def spending(self) -> Mapping[str, Spent]:
        """Name of a budget -> what its machines have cost, as `with_spending` set it. No field of the document."""
        found: Mapping[str, Spent] = self.__dict__.get("_spending", NO_SPENDING)
        return found

    def with_spending(self, spending: Mapping[str, Spent]) -> Self:
        """Return a copy of the rules with this `spending`: name of a budget -> what its machines have cost."""
        copy = self.model_copy(update={})
        copy.__dict__["_spending"] = spending
        return copy

    @cached_property
    def limited_accounts(self) -> frozenset[str]:
        """The accounts that are named by a budget which prevents launches."""
        return frozenset(name for each in self.budgets.values() if each.is_limit for name in each.accounts)

    @cached_property
    def has_plain_budgets(self) -> bool:
        """Whether no budget drains machines or limits single accounts: then all reservations with equal requests have
        the same launches.
        """
        return not self.limited_accounts and all(each.action != "drain" for each in self.budgets.values())

    @cached_property
    def pools_of_system(self) -> dict[str, tuple[str, ...]]:
        """The names of the pools that serve each system, in the configured order."""
        found: dict[str, tuple[str, ...]] = {}
        for name, pool in self.pools.items():
            found[pool.system] = (*found.get(pool.system, ()), name)
        return found

    @cached_property
    def _settings_of_system(self) -> dict[str, SchedulerKeys]:
        """System -> its settings, for each system that has settings of its own: the common settings, overridden by
        those of the system.
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
        """Return the name of the queue of reservations for this pool, or for this system if `pool` is None. The name is
        the system if the system has settings of its own, else "".
        """
        named = self.pools.get(pool) if pool is not None else None
        name = (named.system if named else system) or ""
        return name if name in self.scheduler.system else ""

    def settings_of(self, pool: str | None, system: str | None) -> SchedulerKeys:
        """Return the scheduler settings for reservations of this pool, or of this system if `pool` is None."""
        if not self.scheduler.system:
            return self.scheduler
        return self._settings_of_system.get(self.queue_of(pool, system), self.scheduler)

    def list_ignored(
        self, pool: str | None, system: str | None, *, priority: float, account: str | None
    ) -> dict[str, str]:
        """Return a table (field -> warning), as `find_ignored` does, with an entry for each of the given values that
        the queue of reservations for this pool or system does not use.
        """
        return find_ignored(self.settings_of(pool, system).queue, priority=priority, account=account)

    def settings_of_queue(self, queue: str) -> SchedulerKeys:
        """Return the scheduler settings of the queue with this name, as `queue_of` returns it."""
        return self._settings_of_system.get(queue, self.scheduler)

    def find_route(self, pool: str | None, system: str | None, *, needs_agent: bool = False) -> Route:
        """Return the queue of reservations for this pool, or for this system if `pool` is None; the settings of this
        queue; and the pools that may serve the reservations.
        """
        queue = self.queue_of(pool, system)
        return Route(queue, self.settings_of_queue(queue), self.serving_pools(pool, system, needs_agent=needs_agent))

    def serving_pools(self, pool: str | None, system: str | None, *, needs_agent: bool = False) -> tuple[str, ...]:
        """Return the names of the pools that may serve a reservation for this pool, or for this system if `pool` is
        None. `needs_agent`: only pools whose hosts have agents, which run the commands of leases.
        """
        named = (pool,) if pool in self.pools else ()
        found = named if pool is not None else self.pools_of_system.get(system or "", ())
        return tuple(name for name in found if self.pools[name].has_agents) if needs_agent else found


class Terms(NamedTuple):
    """The fields of a request that determine when a reservation expires; requests with equal fields expire after
    equally long times.
    """

    ttl: float | None
    pool: str | None
    system: str | None
    limit: float | None = None
    """The `max_runtime` of the request if its account enforces it; else None."""


def expiry_of_pending(request: Request | Terms, rules: Rules, now: float) -> float | None:
    """Return when a pending reservation expires; None: never, also for a ttl of 0.

    Its ttl is that of the request, else `reservation_ttl` of its pool (the first pool that serves its system). `now`:
    the time from which the ttl counts, which is its submission, its renewal or its return to the queue. Source: the
    autoscaler's tick.
    """
    ttl = _own_ttl(request, _first_pool(request, rules))
    return now + ttl if ttl else None


def expiry_of_lease(request: Request | Terms, rules: Rules, now: float) -> float | None:
    """Return when a leased reservation expires; None: never, also for a ttl of 0.

    Its ttl is that of the request or pool as for a pending reservation, else `lease_ttl` of that pool. `now`: the time
    from which the ttl counts, which is its assignment or its renewal.
    """
    pool = _first_pool(request, rules)
    ttl = _own_ttl(request, pool)
    if ttl is None:
        ttl = pool.lease_ttl if pool else 0.0
    return now + ttl if ttl else None


def list_deadlines_of_lease(terms: Terms, rules: Rules, now: float) -> tuple[float | None, ...]:
    """Return three times for a lease that begins at `now`: when it expires (None: never), by when its holder has to
    confirm it (None: no limit), and when it reaches its `max_runtime` (None: never). `terms`: the fields of its request
    that decide this.
    """
    confirm_timeout = rules.settings_of(terms.pool, terms.system).confirm_timeout
    return (
        expiry_of_lease(terms, rules, now),
        now + confirm_timeout if confirm_timeout else None,
        None if terms.limit is None else now + terms.limit,
    )


def expiry_when_renewed(reservation: Reservation, rules: Rules, now: float) -> float | None:
    """Return when a pending or leased reservation expires if it is renewed at `now`; None: never."""
    if reservation.phase == "pending":
        return expiry_of_pending(reservation.request, rules, now)
    return expiry_of_lease(reservation.request, rules, now)


def _own_ttl(request: Request | Terms, pool: Pool | None) -> float | None:
    """Return the ttl in seconds that holds both while a reservation is pending and while it is leased. 0.0: it never
    expires. None: neither the request nor its first pool sets such a ttl.
    """
    if request.ttl is not None:
        return request.ttl
    return (pool.reservation_ttl or None) if pool else None


def _first_pool(request: Request | Terms, rules: Rules) -> Pool | None:
    names = rules.serving_pools(request.pool, request.system)
    return rules.pools[names[0]] if names else None


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


def list_image_sources(rules: Rules) -> dict[str, str]:
    """Return the sources of images in the rules: source -> path of the first key that names it."""
    found: dict[str, str] = {}
    for name, pool in rules.pools.items():
        if pool.ec2.image is not None and is_source(pool.ec2.image):
            found.setdefault(pool.ec2.image, f"pools.{name}.ec2.image")
    return found


def list_unfound(rules: Rules) -> Iterator[tuple[str, str]]:
    """Yield (pool, source) for each pool whose image was not found yet. `rules`: the rules in force, with the ids of
    the images that were found.
    """
    for name, pool in rules.pools.items():
        if pool.is_elastic and pool.ec2.image is not None and is_source(pool.ec2.image):
            yield name, pool.ec2.image


def list_root_sources(rules: Rules) -> list[str]:
    """Return the sources of the names of root devices that pools need: `root:IMAGE`. `rules`: with the ids of the
    images that were found.
    """
    needed = [pool.ec2.image for pool in rules.pools.values() if pool.is_elastic and pool.ec2.lacks_root_device]
    return sorted({f"{ROOT_OF}{image}" for image in needed if not is_source(image)})


def with_images(rules: Rules, images: Mapping[str, str]) -> Rules:
    """Return the rules with the ids of images in place of their sources, and with the names of root devices. `images`:
    source -> what was found. A source that `images` lacks stays.
    """
    changed: dict[str, Any] = {}
    for name, pool in rules.pools.items():
        known = images.get(pool.ec2.image or "")
        ec2 = pool.ec2.model_copy(update={"image": known}) if known else pool.ec2
        if ec2.lacks_root_device and (device := images.get(f"{ROOT_OF}{ec2.image}")):
            ec2 = ec2.model_copy(update={"root_device": device})
        if ec2 is not pool.ec2:
            changed[name] = pool.model_copy(update={"ec2": ec2})
    return rules.model_copy(update={"pools": {**rules.pools, **changed}}) if changed else rules


# The rules in force at a time: the rules as applied, with the limits of the schedules whose windows are open.
#
# `plan()` knows no schedules: its rules contain the values that are in force. The process that plans finds these values
# before each plan, and wakes when they change.


_Open = tuple[tuple[str, tuple[int, ...]], ...]
"""One entry for each pool with schedules: (pool, the indexes of its schedules whose windows are open)."""


class InForce(NamedTuple):
    """Rules with the values in force, and the time (seconds since the epoch) at which other values may come into
    force; infinity: never.
    """

    rules: Rules
    until: float


class RulesInForce:
    """Finds the rules in force, and keeps the result until a window of a schedule opens or closes.

    Rules with equal values are returned as the same object, so that a plan cache stays valid.
    """

    def __init__(self) -> None:
        self._base: Rules | None = None
        self._open: _Open = ()
        self._since = inf
        self._found = InForce(Rules(), -inf)

    def find(self, rules: Rules, now: float) -> InForce:
        """Return the rules in force at `now` (seconds since the epoch). `rules`: the rules as applied. In the rules in
        force, the limits of the schedules whose windows are open replace the limits of their pools.
        """
        if self._base is rules and self._since <= now < self._found.until:
            return self._found
        opened, until = _list_open(rules, now)
        if self._base is not rules or opened != self._open:
            self._found = InForce(_override(rules, opened), until)
        self._base, self._open, self._since = rules, opened, now
        self._found = InForce(self._found.rules, until)
        return self._found


def find_rules_in_force(rules: Rules, now: float) -> Rules:
    """Return the rules in force at `now` (seconds since the epoch), and keep no result for later calls. `rules`: the
    rules as applied, without the limits of open schedules. Use `RulesInForce` for repeated calls.
    """
    return RulesInForce().find(rules, now).rules


def _list_open(rules: Rules, now: float) -> tuple[_Open, float]:
    found, until = [], inf
    for name, pool in rules.pools.items():
        if pool.schedules:
            indexes, change = list_open(pool.schedules, now)
            found.append((name, indexes))
            until = min(until, change)
    return tuple(found), until


def _override(rules: Rules, opened: _Open) -> Rules:
    changed = {name: _override_pool(rules.pools[name], indexes) for name, indexes in opened if indexes}
    return rules.model_copy(update={"pools": {**rules.pools, **changed}}) if changed else rules


def _override_pool(pool: Pool, indexes: tuple[int, ...]) -> Pool:
    """Return a pool with the limits of its open schedules. `indexes`: the indexes of these in `pool.schedules`. If
    several set a key, the last one listed counts. A minimum above the maximum counts as the maximum.
    """
    values: dict[str, Any] = {}
    for index in indexes:
        given = ((key, getattr(pool.schedules[index], key)) for key in OVERRIDES)
        values.update((key, value) for key, value in given if value is not None)
    if (budget := values.pop("disruption_budget", None)) is not None:
        values["replacement"] = pool.replacement.model_copy(update={"disruption_budget": budget})
    least, most = values.get("min_slots", pool.min_slots), values.get("max_slots", pool.max_slots)
    if most is not None and least > most:
        values["min_slots"] = most
    return pool.model_copy(update=values)
