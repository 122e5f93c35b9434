"""Gauges of the fleet and of pending reservations. Sources: Orchard's and Arvados' metrics.

Every scrape computes each gauge from the present state and includes all values of its labels. A gauge that only grows,
or that is missing until a problem occurs, could not be used for alerts.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family

from scheduler.model.decisions import WAITING_CODES
from scheduler.model.reservations import Reservation
from scheduler.model.resources import Resources, add, subtract
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import HOLDING, SLOT_STATES, WITH_MACHINE
from scheduler.policy.capacity.slot_info import capacity_of
from scheduler.policy.lifecycle.timeouts import is_silent
from scheduler.ports import Store

OVER_QUOTA: Final = ("at_quota", "at_max_slots")
MOST_LEASED: Final = 2**31 - 1


def measure_fleet(store: Store, rules: Rules, held: Sequence[Reservation]) -> Iterator[Family]:
    """Yield slots online and offline, prices by state, and used and available resources. `held`: the reservations that
    hold leases.
    """
    slots, now = store.find_slots(), store.now()
    yield from _count_online(slots, rules, now)
    yield _sum_prices(slots, rules)
    yield from _measure_resources(held, slots, rules)


def _count_online(slots: list[Slot], rules: Rules, now: float) -> Iterator[Family]:
    online = GaugeMetricFamily("leasehold_slots_online", "Slots in service that are not silent", labels=["pool"])
    offline = GaugeMetricFamily("leasehold_slots_offline", "Static hosts without a recent heartbeat", labels=["pool"])
    for name, pool in rules.pools.items():
        serving = [slot for slot in slots if slot.pool == name and slot.state in HOLDING]
        silent = sum(is_silent(slot, pool, now) for slot in serving)
        online.add_metric([name], len(serving) - silent)
        offline.add_metric([name], silent)
    yield from (online, offline)


def _sum_prices(slots: list[Slot], rules: Rules) -> Family:
    about = "Price an hour of the slots of a pool in a state, by their offerings"
    family = GaugeMetricFamily("leasehold_slots_price", about, labels=["pool", "state"])
    prices: defaultdict[tuple[str, str], float] = defaultdict(float)
    for slot in slots:
        prices[slot.pool, slot.state] += slot.price or 0.0
    for name in rules.pools:
        for state in SLOT_STATES:
            family.add_metric([name, state], prices[name, state])
    return family


def _measure_resources(held: Sequence[Reservation], slots: list[Slot], rules: Rules) -> Iterator[Family]:
    labels = ["pool", "slot", "resource"]
    about = "Leased amount of a resource of a slot in service"
    used = GaugeMetricFamily("leasehold_slot_resources_used", about, labels=labels)
    about = "Free amount of a resource of a slot in service, never below 0"
    available = GaugeMetricFamily("leasehold_slot_resources_available", about, labels=labels)
    leased = _sum_leases(held)
    for slot in slots:
        pool = rules.pools.get(slot.pool)
        capacity = capacity_of(slot, pool) if pool is not None and slot.state in HOLDING else None
        taken = leased.get((slot.id, slot.epoch), {})
        free = subtract(capacity or {}, taken)
        for name in sorted({*(capacity or {}), *(taken if slot.state in HOLDING else ())}):
            used.add_metric([slot.pool, slot.id, name], taken.get(name, 0.0))
            available.add_metric([slot.pool, slot.id, name], free.get(name, 0.0))
    yield from (used, available)


def list_holders(store: Store) -> list[Reservation]:
    """Return the reservations that hold leases."""
    return store.find_reservations(phases=["leased", "revoking"], limit=MOST_LEASED)


def _sum_leases(held: Sequence[Reservation]) -> dict[tuple[str, int], Resources]:
    """Return the leased amounts by slot and epoch."""
    found: dict[tuple[str, int], Resources] = {}
    for row in held:
        for lease in row.leases:
            key = lease.slot, lease.epoch
            found[key] = add(found.get(key, {}), lease.resources)
    return found


def measure_waits(report: Mapping[str, Any], rules: Rules | None) -> Iterator[Family]:
    """Yield the last tick's report about pending reservations; zeros before the first tick."""
    codes: Mapping[str, int] = report.get("codes", {})
    about = "Pending reservations by waiting code"
    waiting = GaugeMetricFamily("leasehold_reservations_waiting", about, labels=["code"])
    for code in WAITING_CODES:
        waiting.add_metric([code], codes.get(code, 0))
    yield waiting
    about = "Reservations that wait for a slot that is in flight"
    yield GaugeMetricFamily("leasehold_reservations_allocated_not_started", about, codes.get("booting", 0))
    about = "Reservations that wait because of a quota or max_slots"
    yield GaugeMetricFamily("leasehold_reservations_over_quota", about, sum(codes.get(code, 0) for code in OVER_QUOTA))
    about = "Age of the oldest pending reservation that is neither on hold nor waits for a slot in flight; 0 = none"
    yield GaugeMetricFamily("leasehold_longest_wait_seconds", about, float(report.get("longest_wait", 0)))
    quota = GaugeMetricFamily(
        "leasehold_at_quota", "Whether EC2's quota prevents launches of the pool", labels=["pool"]
    )
    for name in rules.pools if rules is not None else ():
        quota.add_metric([name], float(name in report.get("at_quota", ())))
    yield quota


def measure_probe_age(store: Store, rules: Rules, probed: Mapping[str, float]) -> Family:
    """Return the time since the last answer of the machine that is silent for longest; 0 without a machine.

    A machine that has not answered yet counts from the start of its state.
    """
    now = store.now()
    machines = [
        slot
        for slot in store.find_slots(states=sorted(WITH_MACHINE))
        if slot.pool in rules.pools and rules.pools[slot.pool].is_elastic
    ]
    ages = (now - max(slot.since, probed.get(slot.id, 0.0)) for slot in machines)
    about = "Time since the last answer of the machine that has been silent for longest; 0 = there is none"
    return GaugeMetricFamily("leasehold_probe_age_seconds_max", about, max(0.0, max(ages, default=0.0)))
