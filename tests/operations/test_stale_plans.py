"""Two schedulers at once, each with its own connections, plan on views that lag: the rules are kept.

In the first test both schedulers have the same term, so only the check of each decision on fresh rows prevents two
leases on one slot. In the second test each has its own lock, and the term keeps them apart.
"""

from functools import partial
from random import Random

import pytest

from scheduler.model.decisions import Assign, Cores
from scheduler.model.slots import Slot
from scheduler.operations.tick.leader import take_leader_term
from scheduler.operations.tick.tick import Ticked, carry_out, decide, tick
from scheduler.ports import DeposedError, Store
from scheduler.view.memory import InMemoryRedis
from tests.operations.harness import CountingFleet, Harness
from tests.operations.test_races import Open, open_one, race

__all__ = ["open_one"]
CPUS, MEMORY = 4, 8
SLOTS = 12
CONFIG = {
    "scheduler": {"starvation_guard": 0},
    "pools": {
        "linux": {
            "system": "x86_64-linux",
            "max_slots": SLOTS,
            "lease_ttl": 0,
            "idle_scale_down": 300,
            "resources": {"cpus": CPUS, "memory_mib": MEMORY},
        }
    },
}
LONG = 1e9
"""Seconds; so long that only kicks cause ticks, and no periodic tick or audit is due."""


class TwoLeaders:
    """Two processes with the same term; they share one view, or each has its own view that lags."""

    def __init__(self, open_one: Open, *, shared: bool) -> None:
        store = open_one()
        fleet, redis = CountingFleet(), InMemoryRedis(store.now)
        self.harnesses = [
            Harness(CONFIG, store=store, fleet=fleet, redis=redis),
            Harness(CONFIG, store=open_one(), fleet=fleet, redis=redis if shared else InMemoryRedis(store.now)),
        ]
        for harness in self.harnesses:
            harness.leader.interval = harness.leader.audit_seconds = LONG
            harness.leader.looked_at = harness.leader.audited_at = store.now()
        self.store: Store = store
        rows = self._make_ready()
        for harness in self.harnesses:
            harness.ports.view_cache.rebuild(rows)

    def _make_ready(self) -> list[Slot]:
        with self.store.transaction() as transaction:
            empty = transaction.load_slots(f"linux-{number}" for number in range(1, SLOTS + 1))
            return [
                row
                for slot in empty.values()
                for row in transaction.save(
                    [
                        Slot(
                            id=slot.id,
                            version=slot.version,
                            pool="linux",
                            state="ready",
                            epoch=1,
                            since=transaction.now(),
                            instance_id=f"i-{slot.id}",
                        )
                    ]
                )
                if isinstance(row, Slot)
            ]

    def plan_all(self) -> list[Ticked]:
        """Let each process plan on its view before any of them commits."""
        leader_term = take_leader_term(self.harnesses[0].ports, self.harnesses[0].leader)
        self.leader_term = self.harnesses[1].leader.leader_term = leader_term
        return [decide(harness.ports, harness.leader, leader_term) for harness in self.harnesses]

    def carry_out_at_once(self, plans: list[Ticked]) -> None:
        """Let both processes commit at the same time; no error may occur."""
        acts = [
            partial(carry_out, harness.ports, harness.leader, self.leader_term, ticked)
            for harness, ticked in zip(self.harnesses, plans, strict=True)
        ]
        assert race(*acts) == [None, None]

    def run_requested_ticks(self) -> None:
        """Run the requested ticks and no others; each skipped decision requests one."""
        for _ in range(SLOTS):
            for harness in self.harnesses:
                if harness.notifier.is_rung:
                    tick(harness.ports, harness.leader)
        assert not [harness for harness in self.harnesses if harness.notifier.is_rung]

    def assert_no_slot_is_overfull(self) -> None:
        """Check that the leases of each slot fit on it."""
        for used in self._used().values():
            assert used["cpus"] <= CPUS
            assert used["memory_mib"] <= MEMORY

    def _used(self) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for row in self.store.find_reservations(limit=10_000):
            for lease in row.leases:
                used = found.setdefault(lease.slot, {})
                for name, amount in lease.resources.items():
                    used[name] = used.get(name, 0) + amount
        return found


def submit_some(harness: Harness, prefix: str, random: Random, count: int) -> list[str]:
    names = [f"{prefix}{number}" for number in range(count)]
    items = [
        {
            "id": name,
            "system": "x86_64-linux",
            "resources": {"cpus": random.choice([1, 2, 3]), "memory_mib": random.choice([1, 2, 4])},
        }
        for name in names
    ]
    assert harness.ask("submit", items=items)["ok"]
    return names


@pytest.mark.parametrize("shared", [True, False], ids=["on one view", "on a view each"])
@pytest.mark.parametrize("seed", range(3))
def test_no_slot_is_leased_twice_and_a_skipped_decision_is_planned_again_at_once(
    open_one: Open, seed: int, *, shared: bool
) -> None:
    leaders, random = TwoLeaders(open_one, shared=shared), Random(seed)
    names = [
        name
        for harness, side in zip(leaders.harnesses, "ab", strict=True)
        for name in submit_some(harness, side, random, 7)
    ]
    for harness in leaders.harnesses:
        harness.notifier.hear()
    plans = leaders.plan_all()
    leaders.carry_out_at_once(plans)

    decided = [decision for ticked in plans for decision in ticked.plan.decisions]
    planned = [decision for decision in decided if isinstance(decision, Assign)]
    assert len(planned) == sum(not isinstance(decision, Cores) for decision in decided)
    assert {decision.reservation for decision in planned} == set(names)
    skipped = [each for ticked in plans for each in ticked.skipped if isinstance(each.decision, Assign)]
    lost = [decision.reservation for each in skipped if isinstance(decision := each.decision, Assign)]
    leased = [row.id for row in leaders.store.find_reservations(phases=["leased"])]
    assert lost
    assert sorted([*leased, *lost]) == sorted(decision.reservation for decision in planned)
    assert all(
        " is leased" in each.reason
        or each.reason.endswith(("too few resources left", "has its maximum number of leases"))
        for each in skipped
    )
    leaders.assert_no_slot_is_overfull()

    # A process with skipped decisions has requested a tick, which plans on the fresh rows.
    for harness, ticked in zip(leaders.harnesses, plans, strict=True):
        assert harness.notifier.is_rung is bool(ticked.skipped)
    leaders.run_requested_ticks()
    assert {row.phase for row in leaders.store.find_reservations(ids=names)} == {"leased"}
    leaders.assert_no_slot_is_overfull()


@pytest.mark.parametrize("shared", [True, False], ids=["on one view", "on a view each"])
def test_without_a_lock_the_term_keeps_them_apart(open_one: Open, *, shared: bool) -> None:
    leaders, random = TwoLeaders(open_one, shared=shared), Random(0)
    for harness in leaders.harnesses:
        harness.leader.interval = 0.0
    names: list[str] = []
    for number in range(4):
        for harness, side in zip(leaders.harnesses, "ab", strict=True):
            names += submit_some(harness, f"{side}{number}-", random, 2)
        results = race(*(partial(tick, harness.ports, harness.leader) for harness in leaders.harnesses))
        assert all(isinstance(each, list | DeposedError) for each in results)
        leaders.assert_no_slot_is_overfull()
    for harness in leaders.harnesses:
        tick(harness.ports, harness.leader)
    leaders.assert_no_slot_is_overfull()
    assert {row.phase for row in leaders.store.find_reservations(ids=names)} == {"leased"}
    terms = [str(event.detail["term"]) for event in leaders.harnesses[0].events if event.name == "reservation_leased"]
    assert terms == sorted(terms)
