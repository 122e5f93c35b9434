"""Ticks with elastic reservations plan as on a new view of the same rows, and as a cascade that remembers nothing."""

from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from scheduler.model.accounts import Account
from scheduler.model.decisions import Assign, Claim, Decision, Grant, Launch, Placement, Preempt, Requeue, Revoke
from scheduler.model.reservations import ComponentKind, Lease, LeaseState, Reservation
from scheduler.model.rules import Rules
from scheduler.model.view import ROW_TYPES, View
from scheduler.policy.capacity.requests import Demand
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.elastic import step
from scheduler.policy.elastic.cascade import Cascade
from scheduler.policy.elastic.instances import Rank
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache
from tests.builders import NOW, a_component, a_lease, a_reservation, a_slot, some_rules
from tests.generated import TIMES
from tests.rules.fleets import QUICKLY

pytestmark = pytest.mark.no_cover
SIZES: list[dict[str, float]] = [{"cpus": 1}, {"cpus": 2}, {"cpus": 1, "gpus": 1}, {"cpus": 0.3}, {}]
POOLS = ("linux", "arm")


def draw_rules(random: Random) -> Rules:
    """All settings of `elastic`, with and without graces and quota; some pools count leases."""
    scheduler = {
        "elastic": random.choice(["yielding", "flexible", "malleable", "rigid"]),
        "queue": random.choice(["fifo", "priority", "dynsize", "quota"]),
        "profile": random.choice(["pack", "spread"]),
        "preemption": random.random() < 0.5,
        "preemption_grace": random.choice([0, 10]),
        "starvation_guard": random.choice([0, 30]),
    }
    pools: dict[str, Any] = {
        "linux": {"resources": {"cpus": 4, "gpus": 1}, "max_uses": random.choice([0, 0, 5])},
        "arm": {"system": random.choice(["x86_64-linux", "aarch64-linux"]), "max_leases_per_slot": 3, "max_slots": 9},
    }
    return some_rules({"scheduler": scheduler, "pools": pools, "limits": {"work_per_tick": 0}})


class PlainCascade(Cascade):
    """A cascade that serves all groups in turn, and repeats each search that was refused before."""

    def make_room(self, reservation: Reservation, demand: Demand) -> list[SlotInfo] | None:
        self._refused.clear()
        return super().make_room(reservation, demand)

    def _serve(self, start: Rank) -> None:
        for group in [group for group in self.groups if group.rank >= start]:
            self._without_slot.clear()
            if group.missing:
                self._serve_group(group)
        self._lifted.clear()
        self._assignment.update_index()


DECLINED = [(), ("more.0",), ("more=1",), ("more.2", "more=4"), ("extra=0", "more.1")]


class Play:
    """A view that plans and commits, with holders that keep revoked leases for a while."""

    def __init__(self, random: Random) -> None:
        self.random, self.rules, self.now, self.submitted = random, draw_rules(random), NOW, 0
        slots = [a_slot(f"{random.choice(POOLS)}-{number}") for number in range(1, random.randint(3, 10))]
        payer = Account(id="A", balance=(50.0, 9.0, 0.0, 0.0, 0.0), charge_rate=(1.0,) * 5, charged_at=NOW)
        self.view, self.cache = View([*slots, payer]), PlanCache()

    def tick(self) -> None:
        """Plan on the view that is kept and on a new one, compare both, and carry the plan out."""
        found = plan(self.view, self.rules, self.now, self.cache)
        rows = [row for kind in ROW_TYPES for row in self.view.rows(kind).values()]
        assert found == plan(View(self.random.sample(rows, len(rows))), self.rules, self.now)
        with patch.object(step, "Cascade", PlainCascade):
            assert found == plan(View(rows), self.rules, self.now)
        for decision in found.decisions:
            self.commit(decision)

    def change(self) -> None:
        """Submit, release, resize, give back, register hosts with other resources; then some time passes."""
        for _ in range(self.random.choice([0, 1, 4])):
            self.view.apply(self.submit())
        for row in list(self.view.reservations.values()):
            choice = self.random.random()
            if choice < 0.05:
                self.put(row, phase="released", leases=())
            elif choice < 0.1:
                self.put(row, leases=tuple(each for each in row.leases if each.state != "revoking"))
            elif choice < 0.15 and row.phase == "leased":
                kept = tuple(each for each in row.leases if each.kind == "essential" or self.random.random() < 0.5)
                self.put(row, leases=kept, declined=self.random.choice(DECLINED))
        for slot in self.random.sample(list(self.view.slots.values()), self.random.choice([0, 0, 1])):
            changed = {"cpus": self.random.choice([1, 2, 8])}
            cordoned = self.random.random() < 0.2
            self.view.apply(replace(slot, version=slot.version + 1, resources=changed, cordoned=cordoned))
        self.now += self.random.choice([0, 1, 7, 40])

    def submit(self) -> Reservation:
        random, self.submitted = self.random, self.submitted + 1
        parts = [a_component("core", count=random.choice([1, 1, 3]), resources=random.choice(SIZES))]
        names = random.choice([(), ("more",), ("more", "extra")])
        parts += [
            a_component(name, count=random.choice([1, 3, 8]), kind="elastic", resources=random.choice(SIZES))
            for name in names
        ]
        return a_reservation(
            f"r{self.submitted}",
            sequence=self.submitted,
            created_at=self.now,
            components=tuple(parts),
            priority=float(random.choice([0, 1, 1, 2])),
            account=random.choice([None, "A"]),
        )

    def commit(self, decision: Decision) -> None:
        match decision:
            case Assign() | Claim():
                row, is_claim = self.view.reservations[decision.reservation], isinstance(decision, Claim)
                state: LeaseState = "claimed" if is_claim else "held"
                leases = tuple(self.lease(each, "essential", decision.level, state) for each in decision.leases)
                self.put(row, phase="pending" if is_claim else "leased", leases=leases)
            case Grant():
                row = self.view.reservations[decision.reservation]
                self.put(row, leases=(*row.leases, self.lease(decision, "elastic", None, "held")))
            case Revoke():
                row = self.view.reservations[decision.reservation]
                stays = decision.revoke_by is not None and self.random.random() < 0.7
                self.put(row, leases=tuple(self.revoke(row, decision, stays=stays)))
            case Preempt():
                for name in (each for each in decision.victims if each not in decision.partial):
                    self.put(self.view.reservations[name], phase="pending", leases=())
            case Requeue():
                self.put(self.view.reservations[decision.reservation], phase="pending", leases=())
            case Launch():
                slot = self.view.slots[decision.slot]
                self.view.apply(replace(slot, version=slot.version + 1, state="ready", epoch=slot.epoch + 1))
            case _:
                pass  # the other decisions change nothing that the next tick of this play needs

    def revoke(self, row: Reservation, decision: Revoke, *, stays: bool) -> list[Lease]:
        found = [each for each in row.leases if stays or each.component != decision.component]
        return [
            replace(each, state="revoking", revoke_by=decision.revoke_by)
            if each.component == decision.component
            else each
            for each in found
        ]

    def lease(self, given: Placement | Grant, kind: ComponentKind, level: int | None, state: LeaseState) -> Lease:
        paid: dict[str, Any] = {} if level is None else {"level": level, "charged_at": self.now}
        fields: dict[str, Any] = {"component": given.component, "kind": kind, "epoch": given.epoch, "state": state}
        return a_lease(given.slot, **fields, resources=given.resources, confirmed_at=self.now, **paid)

    def put(self, row: Reservation, **changes: Any) -> None:
        self.view.apply(replace(row, version=row.version + 1, **changes))


@settings(QUICKLY, max_examples=40 * TIMES)
@given(st.integers(0, 1 << 32))
# An elastic lease ends at once, and a grant takes its capacity, on a slot whose limits of cores are to be computed.
@example(70137)
# Capacity is kept on a slot, without a new lease there, for two ticks whose limits of cores are not carried out.
@example(583)
def test_ticks_plan_as_on_a_new_view_and_as_a_cascade_that_remembers_nothing(seed: int) -> None:
    random = Random(seed)
    game = Play(random)
    for _ in range(random.randint(2, 8)):
        game.change()
        game.tick()
