"""Two schedulers at once, each with connections of its own, plan on views that are behind: the rules are kept.

The term would stop one of them before it wrote anything. In the first test both have it, so that the look at each
decision on fresh rows is all that stands between a stale plan and a slot that is given twice; in the second no lock
keeps them apart (each has its own), but the term does.
"""

from functools import partial
from random import Random

import pytest

from scheduler.model.decisions import Assign, Cores
from scheduler.model.slots import Slot
from scheduler.operations.tick.tick import Ticked, carry_out, decide, take_leader_term, tick
from scheduler.ports import DeposedError, Store
from scheduler.view.in_memory_redis import InMemoryRedis
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
"""Nothing but a kick asks for a tick: neither an interval nor a look at what changed is due."""


class Believers:
    """Two processes that hold one term; they share one view, or each has its own, behind in its own way."""

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
        """Every slot runs and serves."""
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
        """Each makes a plan on its view, before any of them writes."""
        leader_term = take_leader_term(self.harnesses[0].ports, self.harnesses[0].leader)
        self.leader_term = self.harnesses[1].leader.leader_term = leader_term
        return [decide(harness.ports, harness.leader, leader_term) for harness in self.harnesses]

    def carry_out_at_once(self, plans: list[Ticked]) -> None:
        """Both write; a fault of either is the test's."""
        acts = [
            partial(carry_out, harness.ports, harness.leader, self.leader_term, ticked)
            for harness, ticked in zip(self.harnesses, plans, strict=True)
        ]
        assert race(*acts) == [None, None]

    def tick_while_asked(self) -> None:
        """Run every requested tick, and no other. Each skipped decision makes one more slot known."""
        for _ in range(SLOTS):
            for harness in self.harnesses:
                if harness.notifier.is_rung:
                    tick(harness.ports, harness.leader)
        assert not [harness for harness in self.harnesses if harness.notifier.is_rung]

    def assert_no_slot_is_overfull(self) -> None:
        """Whatever is leased on a slot fits there."""
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
    believers, random = Believers(open_one, shared=shared), Random(seed)
    names = [
        name
        for harness, side in zip(believers.harnesses, "ab", strict=True)
        for name in submit_some(harness, side, random, 7)
    ]
    for harness in believers.harnesses:
        harness.notifier.hear()
    plans = believers.plan_all()
    believers.carry_out_at_once(plans)

    decided = [decision for ticked in plans for decision in ticked.plan.decisions]
    planned = [decision for decision in decided if isinstance(decision, Assign)]
    assert len(planned) == sum(not isinstance(decision, Cores) for decision in decided)
    assert {decision.reservation for decision in planned} == set(names)
    skipped = [each for ticked in plans for each in ticked.skipped if isinstance(each.decision, Assign)]
    lost = [decision.reservation for each in skipped if isinstance(decision := each.decision, Assign)]
    leased = [row.id for row in believers.store.find_reservations(phases=["leased"])]
    assert lost
    assert sorted([*leased, *lost]) == sorted(decision.reservation for decision in planned)
    assert all(" is leased" in each.reason or each.reason.endswith(("no room", "is taken")) for each in skipped)
    believers.assert_no_slot_is_overfull()

    # Whoever lost has rung for a tick; its next plans know the rows that it lost against.
    for harness, ticked in zip(believers.harnesses, plans, strict=True):
        assert harness.notifier.is_rung is bool(ticked.skipped)
    believers.tick_while_asked()
    assert {row.phase for row in believers.store.find_reservations(ids=names)} == {"leased"}
    believers.assert_no_slot_is_overfull()


@pytest.mark.parametrize("shared", [True, False], ids=["on one view", "on a view each"])
def test_without_a_lock_the_term_keeps_them_apart(open_one: Open, *, shared: bool) -> None:
    believers, random = Believers(open_one, shared=shared), Random(0)
    for harness in believers.harnesses:
        harness.leader.interval = 0.0
    names: list[str] = []
    for number in range(4):
        for harness, side in zip(believers.harnesses, "ab", strict=True):
            names += submit_some(harness, f"{side}{number}-", random, 2)
        results = race(*(partial(tick, harness.ports, harness.leader) for harness in believers.harnesses))
        assert all(isinstance(each, list | DeposedError) for each in results)
        believers.assert_no_slot_is_overfull()
    for harness in believers.harnesses:
        tick(harness.ports, harness.leader)
    believers.assert_no_slot_is_overfull()
    assert {row.phase for row in believers.store.find_reservations(ids=names)} == {"leased"}
    terms = [str(event.detail["term"]) for event in believers.harnesses[0].events if event.name == "reservation_leased"]
    assert terms == sorted(terms)
