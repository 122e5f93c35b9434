"""The fleet on which a workload trace runs: the rules of a `leasehold.toml` for one system, with a number of slots for
each pool.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from scheduler.model.market import StoredMarket
from scheduler.model.pools import MOST_SLOTS, Pool
from scheduler.model.resources import Resources
from scheduler.model.rules import Rules, merge_rules, read_rules
from scheduler.model.validation import fault, suggest
from scheduler.operations.market import resolve_rules
from scheduler.simulation.cloud_documents import CloudDocument
from scheduler.simulation.market import SimulatedMarket
from scheduler.simulation.scenario import SlotRecord
from scheduler.simulation.workload import PROCESSOR

FOREVER = 1e12
"""A number of seconds that no trace reaches. As `offline_timeout` it keeps hosts in service, although no host sends
heartbeats in a trace.
"""


@dataclass(frozen=True)
class Fleet:
    """The rules for a workload trace. `document`: the rules as they were read; `rules`: these rules, checked. `system`:
    the system that the jobs request. `cloud`: the settings of the simulated cloud.
    """

    document: dict[str, Any]
    rules: Rules
    cloud: CloudDocument
    system: str
    slots: Mapping[str, int]
    """Pool -> the most slots that it may have, for each pool that serves `system`."""

    @property
    def most_processors(self) -> int:
        """Return the most processors that jobs can use at one time on this fleet, within each `max_slots` and the
        cloud's quota.
        """
        system = self.rules.settings_of(None, self.system)
        sizes = {name: count_processors_at_most(self.rules.pools[name]) for name in self.slots}
        both = [limit for limit in (self.rules.scheduler.max_slots, system.max_slots) if limit]
        left, quota = min(both, default=inf), self.cloud.quota if self.cloud.quota is not None else inf
        total = 0
        for name in sorted(sizes, key=lambda name: -sizes[name]):
            count = min(self.slots[name], left, quota if self.rules.pools[name].is_elastic else inf)
            left -= count
            quota -= count if self.rules.pools[name].is_elastic else 0
            total += int(count) * sizes[name]
        return total

    def list_hosts(self) -> list[SlotRecord]:
        """Return slot records of all slots of the fleet's static pools. They exist from the start of the trace."""
        static = ((name, count) for name, count in self.slots.items() if not self.rules.pools[name].is_elastic)
        return [
            SlotRecord(id=f"{name}-{number}", pool=name) for name, count in static for number in range(1, count + 1)
        ]


def make_fleet(
    document: Mapping[str, Any], cloud: CloudDocument, *, slots: int | None = None, system: str | None = None
) -> Fleet:
    """Return the fleet that these rules give the jobs of a trace. `slots`: replaces `max_slots` of the pool that serves
    `system`, which must be the only one. `system`: the system that the jobs request (default: the only system of the
    rules).

    Raises InvalidInputError for rules that cannot run a trace.
    """
    rules = read_rules(dict(document), "")
    system = _choose_system(rules, system)
    names = rules.serving_pools(None, system)
    if slots is not None and len(names) > 1:
        raise fault("--slots", f"exactly one pool that serves {system}", ", ".join(names))
    if slots is not None and slots > MOST_SLOTS:
        raise fault("--slots", f"at most {MOST_SLOTS}", slots)
    changes: dict[str, dict[str, Any]] = {}
    for name in names:
        changes[name] = {} if slots is None else {"max_slots": slots}
        if not rules.pools[name].is_elastic:
            changes[name]["offline_timeout"] = FOREVER
    # CPU bursting changes nothing when a job of a trace ends, but it costs a decision for each lease on a slot
    # whenever one of them comes or goes.
    scheduler: dict[str, Any] = {"share_cores": False}
    if system in rules.scheduler.system:
        scheduler["system"] = {system: {"share_cores": False}}
    document = merge_rules(dict(document), {"pools": changes, "scheduler": scheduler})
    rules = read_rules(document, "")
    if cloud.market.is_on:
        rules = resolve_rules(rules, StoredMarket(types=tuple(SimulatedMarket(cloud.market, rules).read_types(0.0))))
    counts = {name: _find_most_slots(name, rules.pools[name]) for name in names}
    for name in names:
        if not count_processors_at_most(rules.pools[name]):
            got = rules.pools[name].resources
            raise fault(f"pools.{name}.resources", "slot resources that hold one processor of a job (1 cpu)", got)
    return Fleet(document, rules, cloud, system, counts)


def _find_most_slots(name: str, pool: Pool) -> int:
    if pool.max_slots is None:
        raise fault(f"pools.{name}.max_slots", "the number of hosts (or --slots)", None)
    if pool.max_slots > MOST_SLOTS:
        raise fault(f"pools.{name}.max_slots", f"at most {MOST_SLOTS} hosts (or --slots)", pool.max_slots)
    return pool.max_slots


def _choose_system(rules: Rules, wanted: str | None) -> str:
    systems = list(rules.pools_of_system)
    if wanted is not None and wanted not in systems:
        raise fault("--system", f"one of: {', '.join(systems)}{suggest(wanted, systems)}", wanted)
    if not systems:
        raise fault("pools", "a pool that serves the jobs of the trace", "none")
    if wanted is None and len(systems) > 1:
        raise fault(
            "--system", "the system that all jobs of the trace are to request", f"{len(systems)}: {', '.join(systems)}"
        )
    return wanted or systems[0]


def count_processors_at_most(pool: Pool) -> int:
    """Return how many processors that the jobs of a trace request fit on a slot of this pool with its largest offering.
    Each requested processor takes one instance (1 cpu).
    """
    offered = [each.resources if each.resources is not None else pool.resources for each in pool.offerings]
    return max(count_processors(pool, each) for each in (offered or [pool.resources]))


def count_processors(pool: Pool, resources: Resources | None) -> int:
    """Return how many processors that the jobs of a trace request fit on a slot with these resources. None: the slot
    has no resources, and only its number of leases is limited.
    """
    most: float = pool.lease_limit
    if resources is not None:
        asked = {**pool.default_resources, **PROCESSOR}
        most = min(most, *(resources.get(name, 0.0) // amount for name, amount in asked.items() if amount))
    return int(min(most, FOREVER))
