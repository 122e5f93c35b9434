"""A preemption ends the same wherever the leader is killed."""

import msgspec
import pytest

from scheduler.model.accounts import add
from scheduler.operations.tick.tick import tick
from tests.operations.quota import QuotaHarness
from tests.operations.saboteur import Killed, Saboteur


class PreemptionWithCrashes:
    """Two full hosts of account B; account A preempts one of them while the leader is killed at one call of a port."""

    def __init__(self, saboteur: Saboteur, grace: float) -> None:
        self.harness, self.saboteur = (
            QuotaHarness(2, grace=grace).with_leased("b1", account="B").with_leased("b2", account="B"),
            saboteur,
        )
        self.harness.ask("account", account="B", balance=[0, 5])
        for name in ("b1", "b2"):
            row = self.harness.row(name)
            self.harness.put(msgspec.structs.replace(row, leases=(msgspec.structs.replace(row.leases[0], level=1),)))
        self.harness.submit("a1", account="A")
        self.sum = add(self.harness.balance("A"), self.harness.balance("B"))
        self.sabotage()

    def sabotage(self) -> None:
        ports, wrap = self.harness.ports, self.saboteur.wrap
        ports.store, ports.view_cache = wrap(ports.store, "store"), wrap(ports.view_cache, "view_cache")

    def step(self, seconds: float) -> None:
        harness = self.harness
        harness.now += seconds
        try:
            tick(harness.ports, harness.leader)
        except Killed:
            harness.restart()
            harness.now += 16  # the lock of the killed leader expires
        self.check()

    def check(self) -> None:
        """Check that each reservation is alive, and that no slot and no token has two leases."""
        rows = self.harness.store.find_reservations(limit=10)
        assert {row.phase for row in rows} <= {"pending", "leased", "revoking"}
        assert all(len(names) == 1 for names in self.harness.holders().values())
        tokens = [row.token for row in rows if row.phase in {"leased", "revoking"}]
        assert len(set(tokens)) == len(tokens)

    def run(self) -> "PreemptionWithCrashes":
        for _ in range(8):
            self.step(5)
        return self

    def check_end(self) -> None:
        """Check that exactly one reservation was preempted, once."""
        harness = self.harness
        assert harness.phase("a1") == "leased"
        assert sorted([harness.phase("b1"), harness.phase("b2")]) == ["leased", "pending"]
        events = [event.name for event in harness.events]
        assert events.count("reservation_leased") == 3
        assert sum("by" in event.detail for event in harness.events) == 1


@pytest.mark.parametrize("grace", [0, 12])
@pytest.mark.parametrize("afterwards", [False, True])
def test_a_preemption_ends_the_same_wherever_the_leader_is_killed(grace: float, afterwards: bool) -> None:
    uninterrupted = Saboteur(0, afterwards=False)
    PreemptionWithCrashes(uninterrupted, grace).run().check_end()
    assert uninterrupted.calls > 60
    for at in range(1, uninterrupted.calls + 1, 2):
        PreemptionWithCrashes(Saboteur(at, afterwards=afterwards), grace).run().check_end()
