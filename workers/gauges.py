"""The gauges of the metrics: slots, reservations, accounts, clocks and queues. Sources: Orchard's and Arvados' metrics.

Every scrape computes each gauge from the present state. A gauge has a sample for each possible value of its labels,
also if the sample is 0. A gauge that only grows, or that is missing until a problem occurs, could not be used for
alerts.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family

from scheduler.model.accounts import FREE, PAID, Account, find_account
from scheduler.model.budgets import begin_of_day
from scheduler.model.costs import COST_KINDS, find_present_price
from scheduler.model.forecasts import Foreseen
from scheduler.model.reservations import Reservation
from scheduler.model.resources import Resources, add, subtract
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import HOLDING, PHASES, SLOT_STATES, WITH_MACHINE
from scheduler.model.waiting_codes import LACKING_SLOT, WAITING_CODES
from scheduler.policy.capacity.fits import capacity_of
from scheduler.policy.lifecycle.timers import is_silent
from scheduler.ports import Store
from scheduler.protocol.clock import ProcessOffset
from scheduler.view.redis_meter import Tally
from workers.queue_watch import WaitingMessages

MOST_LEASED: Final = 2**31 - 1
LEVELS: Final = range(FREE + 1)
SPENT: Final = "leasehold_account_spent_total"
PREEMPTIONS: Final = "leasehold_preemptions_total"
PREEMPTED: Final = "leasehold_preempted_total"


Labels = TypeVar("Labels", bound=tuple[str, ...])


def make_gauge(name: str, about: str, labels: Sequence[str], values: Mapping[Labels, float]) -> Family:
    """Return a gauge with one sample for each entry of `values`. The key of an entry is the tuple of the values of
    `labels`, in their order. `about`: the description of the gauge.
    """
    family = GaugeMetricFamily(name, about, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def measure_store(
    store: Store, rules: Rules, accounts: Sequence[Account], *, per_slot: bool = False
) -> Iterator[Family]:
    """Yield the gauges that are computed from the database alone, without the report of a tick. `per_slot`: also those
    with samples for each slot.
    """
    found = store.count_phases()
    phases = {(phase,): found.get(phase, 0) for phase in PHASES}
    yield make_gauge("leasehold_reservations", "Reservations by phase", ["phase"], phases)
    leader_term = store.load_leader_term()
    yield GaugeMetricFamily("leasehold_term", "Number of the present leadership; it only grows", leader_term.term)
    if leader_term.ticked_at:
        age = max(0.0, store.now() - leader_term.ticked_at)
        yield GaugeMetricFamily("leasehold_tick_age_seconds", "Time since the last tick was committed", age)
    about = (
        "Seconds by which the clock of the database is ahead of cluster time: the sum of the jumps that were corrected"
    )
    ahead = 0.0 - store.read_cluster().reference_offset
    yield GaugeMetricFamily("leasehold_clock_reference_offset_seconds", about, ahead)
    held = store.find_reservations(phases=["leased", "revoking"], limit=MOST_LEASED)
    running = sum(row.run is not None and row.run.state == "running" for row in held)
    yield GaugeMetricFamily("leasehold_commands_running", "Reservations whose command runs on a host", running)
    slots = store.find_slots()
    yield from _measure_fleet(slots, rules, store.now())
    yield from _measure_resources(held, slots, rules, per_slot=per_slot)
    holds = store.find_holds()
    refused = Counter({(name,): 0 for name in rules.pools})
    refused.update((slot.pool,) for slot in slots if slot.state == "terminating" and slot.refusal)
    for hold in holds:
        if hold.kind == "strangers" and hold.code:
            refused[hold.pool,] += hold.active
    yield make_gauge("leasehold_ends_refused", "Machines that EC2 refuses to end", ["pool"], refused)
    yield from measure_accounts(accounts, held)


def _measure_fleet(slots: list[Slot], rules: Rules, now: float) -> Iterator[Family]:
    """Yield the gauges of slots: their number and price by pool and state, and the numbers of slots online and
    offline.
    """
    states: Counter[tuple[str, str]] = Counter()
    prices: defaultdict[tuple[str, str], float] = defaultdict(float)
    serving: dict[tuple[str], int] = {(name,): 0 for name in rules.pools}
    silent = dict(serving)
    for slot in slots:
        states[slot.pool, slot.state] += 1
        prices[slot.pool, slot.state] += find_present_price(slot)
        if slot.pool in rules.pools and slot.state in HOLDING:
            serving[slot.pool,] += 1
            silent[slot.pool,] += is_silent(slot, rules.pools[slot.pool], now)
    pools = sorted({*rules.pools, *(pool for pool, _ in states)})
    labels = ["pool", "state"]
    counted = {(pool, state): states[pool, state] for pool in pools for state in SLOT_STATES}
    yield make_gauge("leasehold_slots", "Slots by pool and state", labels, counted)
    online = {key: count - silent[key] for key, count in serving.items()}
    yield make_gauge("leasehold_slots_online", "Slots in service that are not silent", ["pool"], online)
    yield make_gauge("leasehold_slots_offline", "Hosts with agents without a recent heartbeat", ["pool"], silent)
    about = "Price an hour of the slots of a pool in a state, by their offerings"
    priced = {(pool, state): prices[pool, state] for pool in rules.pools for state in SLOT_STATES}
    yield make_gauge("leasehold_slots_price", about, labels, priced)


def _measure_resources(
    held: Sequence[Reservation], slots: list[Slot], rules: Rules, *, per_slot: bool
) -> Iterator[Family]:
    """Yield the gauges of the used and free resources of slots in service: by pool, and `per_slot` for each slot."""
    leased: dict[tuple[str, int], Resources] = {}
    for row in held:
        for lease in row.leases:
            # A lease of an earlier machine of its slot takes nothing of the present one.
            key = lease.slot, lease.epoch
            leased[key] = add(leased.get(key, {}), lease.resources)
    used: dict[tuple[str, str, str], float] = {}
    available: dict[tuple[str, str, str], float] = {}
    for slot in slots:
        if slot.state not in HOLDING:
            continue
        pool = rules.pools.get(slot.pool)
        capacity = (capacity_of(slot, pool) if pool is not None else None) or {}
        taken = leased.get((slot.id, slot.epoch), {})
        free = subtract(capacity, taken)
        for name in sorted({*capacity, *taken}):
            used[slot.pool, slot.id, name] = taken.get(name, 0.0)
            available[slot.pool, slot.id, name] = free.get(name, 0.0)
    for kind, about, amounts in (
        ("used", "Leased amount of a resource", used),
        ("available", "Free amount of a resource, never below 0,", available),
    ):
        of_pools = _sum_by_pool(amounts, rules)
        yield make_gauge(
            f"leasehold_pool_resources_{kind}", f"{about} of the slots in service", ["pool", "resource"], of_pools
        )
        if per_slot:
            yield make_gauge(
                f"leasehold_slot_resources_{kind}",
                f"{about} of a slot in service",
                ["pool", "slot", "resource"],
                amounts,
            )


def _sum_by_pool(amounts: Mapping[tuple[str, str, str], float], rules: Rules) -> dict[tuple[str, str], float]:
    """Return the sums of amounts of slots by pool and resource. A resource of a pool without slots has the sum 0."""
    sums: defaultdict[tuple[str, str], float] = defaultdict(float)
    for name, pool in rules.pools.items():
        for resources in (pool.resources, *(each.resources for each in pool.offering_by_key.values())):
            sums.update({(name, resource): 0.0 for resource in resources or ()})
    for (pool_name, _, resource), amount in amounts.items():
        sums[pool_name, resource] += amount
    return sums


def measure_waits(report: Mapping[str, Any], rules: Rules | None) -> Iterator[Family]:
    """Yield the gauges of the pending reservations, from the report of the last tick. Before the first tick the gauges
    are 0.
    """
    codes: Mapping[str, int] = report.get("codes", {})
    waiting = {(code,): codes.get(code, 0) for code in WAITING_CODES}
    yield make_gauge("leasehold_reservations_waiting", "Pending reservations by waiting code", ["code"], waiting)
    yield GaugeMetricFamily(
        "leasehold_reservations_allocated_not_started",
        "Reservations that wait for a slot that is in flight",
        codes.get("booting", 0),
    )
    yield GaugeMetricFamily(
        "leasehold_reservations_over_quota",
        "Reservations that wait because of a quota or max_slots",
        sum(codes.get(code, 0) for code in LACKING_SLOT),
    )
    yield GaugeMetricFamily(
        "leasehold_longest_wait_seconds",
        "Age of the oldest pending reservation that is neither on hold nor waits for a slot in flight; 0 = none",
        float(report.get("longest_wait", 0)),
    )
    at_quota = report.get("at_quota", ())
    values = {(name,): float(name in at_quota) for name in (rules.pools if rules is not None else ())}
    yield make_gauge("leasehold_at_quota", "Whether EC2's quota prevents launches of the pool", ["pool"], values)


def measure_forecasts(foreseen: Foreseen | None) -> Iterator[Family]:
    """Yield the gauges of the forecasts of starts, by class of reservations. Without forecasts in the last ten minutes
    the number of plays is 0, and the gauges of the classes have no samples.
    """
    yield GaugeMetricFamily(
        "leasehold_forecast_plays",
        "Plays of the last forecasts; 0 = there are none",
        0 if foreseen is None else foreseen.plays,
    )
    qualities = () if foreseen is None else foreseen.qualities
    started = {(each.name,): float(each.count) for each in qualities}
    yield make_gauge(
        "leasehold_forecast_starts", "Starts after more than a minute since the record began", ["class"], started
    )
    coverage = {(each.name,): each.coverage for each in qualities if each.coverage is not None}
    yield make_gauge(
        "leasehold_forecast_coverage", "Part of the starts within the interval of 80 %", ["class"], coverage
    )
    width = {(each.name,): each.width for each in qualities if each.width is not None}
    yield make_gauge("leasehold_forecast_width_seconds", "Median width of that interval", ["class"], width)
    loss = {(each.name,): each.loss for each in qualities if each.loss is not None}
    yield make_gauge("leasehold_forecast_loss_seconds", "Mean pinball loss at 10 % and at 90 %, added", ["class"], loss)


def measure_probe_age(store: Store, rules: Rules, probed: Mapping[str, float]) -> Family:
    """Return a gauge with the seconds since the last answer to a probe of the machine that has been silent for longest;
    0 if there is no machine.

    If a machine has not answered since its slot changed state, the seconds since that change count.
    """
    now = store.now()
    ages = [
        now - max(slot.since, probed.get(slot.id, 0.0))
        for slot in store.find_slots(states=sorted(WITH_MACHINE))
        if slot.pool in rules.pools and rules.pools[slot.pool].is_elastic
    ]
    return GaugeMetricFamily(
        "leasehold_probe_age_seconds_max",
        "Time since the last answer of the machine that has been silent for longest; 0 = there is none",
        max([0.0, *ages]),
    )


def measure_accounts(accounts: Sequence[Account], held: Sequence[Reservation]) -> Iterator[Family]:
    """Yield the gauges of each account's balance and number of running leases, by level. `held`: the reservations that
    hold leases.
    """
    by_id = {account.id: account for account in accounts}
    running: Counter[tuple[str, int]] = Counter()
    for row in held:
        account = find_account(by_id, row.request.account, row.sequence)
        if account is not None:
            running.update((account.id, lease.level) for lease in row.leases)
    labels = ["account", "level"]
    balances = {(each.id, str(level)): each.balance[level] for each in accounts for level in PAID}
    yield make_gauge("leasehold_account_balance", "Balance of an account after its last charge", labels, balances)
    leases = {(each.id, str(level)): running[each.id, level] for each in accounts for level in LEVELS}
    yield make_gauge("leasehold_account_leases", "Running leases of an account", labels, leases)


def measure_account_waits(report: Mapping[str, Any], accounts: Sequence[Account]) -> Family:
    """Return a gauge with the number of reservations of each account that waited at the last tick, by the best level
    that the account could pay for.
    """
    about = "Waiting reservations of an account, by the best level that it could pay for; 5 = none"
    counted: Mapping[str, list[int]] = report.get("accounts", {})
    waiting = {
        (account.id, str(level)): count
        for account in accounts
        for level, count in zip(LEVELS, counted.get(account.id) or [0] * len(LEVELS), strict=True)
    }
    return make_gauge("leasehold_account_waiting", about, ["account", "level"], waiting)


def add_zeros(tally: Tally, accounts: Sequence[Account]) -> None:
    """Set the counters of each account to 0 in `tally`, at each level at which a counter has no value yet. Prometheus
    sees the first increase of a counter only if it has seen 0 before.
    """
    for name, levels in ((SPENT, PAID), (PREEMPTIONS, PAID), (PREEMPTED, LEVELS[1:])):
        for account in accounts:
            for level in levels:
                tally.counters[name].setdefault((account.id, str(level)), 0.0)


def measure_clocks(offsets: Iterable[ProcessOffset]) -> Iterator[Family]:
    """Yield one gauge: the seconds by which the wall clock of each process is ahead of cluster time."""
    family = GaugeMetricFamily(
        "leasehold_clock_offset_seconds",
        "Seconds by which the wall clock of a process is ahead of cluster time",
        labels=["process", "host"],
    )
    for each in offsets:
        # Several processes may have the same name, so the offsets are no mapping.
        family.add_metric([each.process, each.host], each.seconds)
    yield family


def measure_queues(queues: Mapping[str, WaitingMessages]) -> Iterator[Family]:
    """Yield the gauges of each Celery queue: the number of waiting messages, and the age of the oldest one. An age that
    could not be read has no sample.
    """
    counts = {(queue,): waiting.count for queue, waiting in queues.items()}
    yield make_gauge("leasehold_queue_messages", "Messages that wait in a queue for a worker", ["queue"], counts)
    ages = {(queue,): age for queue, waiting in queues.items() if (age := waiting.oldest_seconds) is not None}
    yield make_gauge(
        "leasehold_queue_oldest_message_seconds",
        "Time since the oldest message that waits in a queue was sent; 0 = there is none",
        ["queue"],
        ages,
    )


_PERIODS: Final = {"hour": ("running", "per_hour"), "day": ("day", "per_day"), "month": ("month", "per_month")}
"""Period of a budget -> the field of its status with the amount, and the field with the limit."""


def measure_costs(store: Store, rules: Rules) -> Iterator[Family]:
    """Yield the gauges of what the machines of each pool have cost since the day began in UTC, by the kind of use
    (COST_KINDS, such as leased or idle).
    """
    dollars = {(pool, kind): 0.0 for pool in rules.pools for kind in COST_KINDS}
    seconds, unpriced = dict(dollars), {(pool,): 0.0 for pool in rules.pools}
    for cost in store.read_costs(begin_of_day(store.now())):
        key = (cost.pool, cost.kind)
        dollars[key] = dollars.get(key, 0.0) + cost.dollars
        seconds[key] = seconds.get(key, 0.0) + cost.seconds
        unpriced[cost.pool,] = unpriced.get((cost.pool,), 0.0) + cost.unpriced
    labels, since = ["pool", "kind"], "since the day began in UTC"
    yield make_gauge("leasehold_cost_today_dollars", f"Cost of machines {since}, in dollars", labels, dollars)
    yield make_gauge("leasehold_cost_today_seconds", f"Time of machines {since}", labels, seconds)
    yield make_gauge(
        "leasehold_cost_today_unpriced_seconds", f"Time of machines without a known price {since}", ["pool"], unpriced
    )


def measure_budgets(report: Mapping[str, Any]) -> Iterator[Family]:
    """Yield the gauges of the budgets, from the report of the last tick: the amounts and the limits of each period."""
    amounts, limits = {}, {}
    for each in report.get("budgets", ()):
        for period, (amount, limit) in _PERIODS.items():
            amounts[each["budget"], period] = float(each[amount])
            if each[limit] is not None:
                limits[each["budget"], period] = float(each[limit])
    labels = ["budget", "period"]
    yield make_gauge(
        "leasehold_budget_dollars",
        "Dollars of a budget: price of its running machines per hour (hour), and what was spent (day, month)",
        labels,
        amounts,
    )
    yield make_gauge("leasehold_budget_limit_dollars", "Limit of a budget in a period", labels, limits)
