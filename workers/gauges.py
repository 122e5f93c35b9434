"""Gauges of the fleet and of those who wait. Sources: Orchard's and Arvados' metrics.

Each is set anew at every scrape, and every value of a label is there from the start: a gauge that only ever grows, or
that is missing until something goes wrong, tells nothing.
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
    """Slots online and offline, what they cost by state, and what of each resource is used and available. `held`: the
    reservations that hold leases.
    """
    slots, now = store.find_slots(), store.now()
    yield from _count_online(slots, rules, now)
    yield _sum_prices(slots, rules)
    yield from _measure_resources(held, slots, rules)


def _count_online(slots: list[Slot], rules: Rules, now: float) -> Iterator[Family]:
    online = GaugeMetricFamily("leasehold_slots_online", "Slots that are in service and heard of", labels=["pool"])
    offline = GaugeMetricFamily("leasehold_slots_offline", "Static hosts that were not heard of", labels=["pool"])
    for name, pool in rules.pools.items():
        serving = [slot for slot in slots if slot.pool == name and slot.state in HOLDING]
        silent = sum(is_silent(slot, pool, now) for slot in serving)
        online.add_metric([name], len(serving) - silent)
        offline.add_metric([name], silent)
    yield from (online, offline)


def _sum_prices(slots: list[Slot], rules: Rules) -> Family:
    said = "What the slots of a pool in a state cost an hour, by the prices of their offerings"
    family = GaugeMetricFamily("leasehold_slots_price", said, labels=["pool", "state"])
    prices: defaultdict[tuple[str, str], float] = defaultdict(float)
    for slot in slots:
        prices[slot.pool, slot.state] += slot.price or 0.0
    for name in rules.pools:
        for state in SLOT_STATES:
            family.add_metric([name, state], prices[name, state])
    return family


def _measure_resources(held: Sequence[Reservation], slots: list[Slot], rules: Rules) -> Iterator[Family]:
    labels = ["pool", "slot", "resource"]
    used = GaugeMetricFamily("leasehold_slot_resources_used", "What is leased of a slot in service", labels=labels)
    said = "What is free of a slot in service, never below 0"
    available = GaugeMetricFamily("leasehold_slot_resources_available", said, labels=labels)
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
    """The reservations that hold leases."""
    return store.find_reservations(phases=["leased", "revoking"], limit=MOST_LEASED)


def _sum_leases(held: Sequence[Reservation]) -> dict[tuple[str, int], Resources]:
    """What is leased on each slot in each of its epochs."""
    found: dict[tuple[str, int], Resources] = {}
    for row in held:
        for lease in row.leases:
            key = lease.slot, lease.epoch
            found[key] = add(found.get(key, {}), lease.resources)
    return found


def measure_waits(report: Mapping[str, Any], rules: Rules | None) -> Iterator[Family]:
    """What the last tick said of those who wait; zeros before the first."""
    codes: Mapping[str, int] = report.get("codes", {})
    waiting = GaugeMetricFamily(
        "leasehold_reservations_waiting", "Who waits, by the code that says why", labels=["code"]
    )
    for code in WAITING_CODES:
        waiting.add_metric([code], codes.get(code, 0))
    yield waiting
    said = "Reservations that are set against a slot on its way"
    yield GaugeMetricFamily("leasehold_reservations_allocated_not_started", said, codes.get("booting", 0))
    said = "Reservations that wait because of a quota or max_slots"
    yield GaugeMetricFamily("leasehold_reservations_over_quota", said, sum(codes.get(code, 0) for code in OVER_QUOTA))
    said = "Age of the oldest pending reservation that is not on hold nor set against a slot; 0 = there is none"
    yield GaugeMetricFamily("leasehold_longest_wait_seconds", said, float(report.get("longest_wait", 0)))
    quota = GaugeMetricFamily(
        "leasehold_at_quota", "Whether EC2's quota holds back launches of the pool", labels=["pool"]
    )
    for name in rules.pools if rules is not None else ():
        quota.add_metric([name], float(name in report.get("at_quota", ())))
    yield quota


def measure_probe_age(store: Store, rules: Rules, probed: Mapping[str, float]) -> Family:
    """How long ago the machine answered that did not for longest, or came there; 0 without a machine."""
    now = store.now()
    machines = [
        slot
        for slot in store.find_slots(states=sorted(WITH_MACHINE))
        if slot.pool in rules.pools and rules.pools[slot.pool].is_elastic
    ]
    ages = (now - max(slot.since, probed.get(slot.id, 0.0)) for slot in machines)
    said = "Time since the last answer of the machine that has been silent for longest; 0 = there is none"
    return GaugeMetricFamily("leasehold_probe_age_seconds_max", said, max(0.0, max(ages, default=0.0)))
