"""A gang over several hosts preempts as a planner does that tries all slots for each instance: all or nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.decisions import Assign, Preempt
from scheduler.model.reservations import Component, Lease, Reservation
from scheduler.model.resources import has_labels
from scheduler.model.slots import Slot
from scheduler.model.view import View
from scheduler.policy.plan import plan
from tests.builders import NOW, a_component, a_reservation, a_slot, some_rules
from tests.rules.fleets import QUICKLY
from tests.rules.playing import Document, play_out
from tests.rules.quotas import an_account
from tests.scenarios import test_scenarios


@dataclass
class _Naive:
    """Every slot takes one lease. `victims`: the reservations that run, by id."""

    slots: list[Slot]
    victims: dict[str, Reservation]
    balance: float
    ended: dict[str, None] = field(default_factory=dict)
    taken: list[Slot] = field(default_factory=list)

    def run(self, needs: Sequence[Component]) -> tuple[dict[str, list[str]], list[str]] | None:
        """Return the lines (slot -> victims) and the slots of the instances, in order of writing, then by the number
        of slots that could hold an instance.
        """
        counts = [sum(has_labels(slot.labels, need.labels) for slot in self.slots) for need in needs]
        for order in (range(len(needs)), sorted(range(len(needs)), key=lambda index: counts[index])):
            self.ended.clear()
            self.taken.clear()
            if all(self.place(needs[index]) for index in order):
                slots = [self.taken[list(order).index(index)].id for index in range(len(needs))]
                return self.list_lines(), slots
        return None

    def place(self, need: Component) -> bool:
        """Take the first slot that is idle or freed, else end the next victim."""
        for slot in self.slots:
            if slot not in self.taken and has_labels(slot.labels, need.labels) and not self.find_running(slot):
                self.taken.append(slot)
                return True
        able = [each for each in self.slots if each not in self.taken and self.find_running(each)]
        for slot in sorted(able, key=self.rank):
            victim = self.find_running(slot)
            if victim is None or not victim.request.preemptible or not has_labels(slot.labels, need.labels):
                continue
            if self.sum_costs(victim) >= self.balance:
                return False
            self.ended[victim.id] = None
            self.taken.append(slot)
            return True
        return False

    def sum_costs(self, victim: Reservation) -> float:
        return sum(_find_cost(self.victims[name]) for name in (*self.ended, victim.id))

    def find_running(self, slot: Slot) -> Reservation | None:
        for each in self.victims.values():
            if each.id not in self.ended and any(lease.slot == slot.id for lease in each.leases):
                return each
        return None

    def rank(self, slot: Slot) -> tuple[float, int, int]:
        """Return the position of a slot with work: by cost, then by leases that end, then in slot order."""
        victim = self.find_running(slot)
        assert victim is not None
        return _find_cost(victim), len(victim.leases), self.slots.index(slot)

    def list_lines(self) -> dict[str, list[str]]:
        """Return each slot with the victims that are named there."""
        lines: dict[str, list[str]] = {}
        named: set[str] = set()
        for slot in sorted(self.taken, key=self.slots.index):
            there = [name for name in self.ended if any(lease.slot == slot.id for lease in self.victims[name].leases)]
            if fresh := [name for name in there if name not in named]:
                lines[slot.id] = fresh
                named.update(fresh)
        return lines


def _find_cost(victim: Reservation) -> float:
    return sum(lease.cost[0] for lease in victim.leases)


@QUICKLY
@given(st.integers(0, 2**32))
def test_a_gang_preempts_what_a_search_of_all_slots_finds(seed: int) -> None:
    draw = Random(seed)
    slots = [
        a_slot(f"linux-{number}", labels={"zone": draw.choice("ab")}, uses=1) for number in range(1, draw.randint(3, 8))
    ]
    victims: dict[str, Reservation] = {}
    free = [slot for slot in slots if draw.random() < 0.8]
    while free:
        count = min(len(free), draw.choice([1, 1, 2, 3]))
        held = [free.pop(draw.randrange(len(free))) for _ in range(count)]
        name = f"v{len(victims)}"
        leases = tuple(
            Lease(
                component="main" if count == 1 else f"main.{number}",
                slot=slot.id,
                epoch=slot.epoch,
                token=0,
                level=3,
                cost=(float(draw.randint(0, 3)), 0.0, 0.0, 0.0, 0.0),
                charged_at=NOW,
                assigned_at=NOW - 10,
            )
            for number, slot in enumerate(held)
        )
        victims[name] = a_reservation(
            name,
            sequence=len(victims),
            phase="leased",
            leased_at=NOW - 10,
            leases=leases,
            account="B",
            preemptible=draw.random() < 0.9,
            components=(a_component(count=count),),
        )
    parts = [
        a_component(f"c{number}", count=draw.randint(1, 2), labels=draw.choice([{}, {"zone": "a"}]))
        for number in range(draw.randint(1, 3))
    ]
    gang = a_reservation("g", sequence=99, account="A", components=tuple(parts))
    balance = float(draw.randint(1, 12))
    needs = [each for each in parts for _ in range(each.count)]
    rules = some_rules(
        {
            "scheduler": {"queue": "quota", "preemption_grace": 0},
            "limits": {"work_per_tick": 0},
            "pools": {"linux": {"provider": "static", "offline_timeout": 1e9, "max_leases_per_slot": 1}},
        }
    )
    accounts = [an_account("A", balance), an_account("B", 0)]
    decisions = plan(View([*slots, *victims.values(), gang, *accounts]), rules, NOW).decisions
    lines = {each.slot: list(each.victims) for each in decisions if isinstance(each, Preempt)}
    placed = [[lease.slot for lease in each.leases] for each in decisions if isinstance(each, Assign)]
    ended = {name for names in lines.values() for name in names}
    assert sum(_find_cost(victims[name]) for name in ended) < balance
    expected = _Naive(slots, victims, balance).run(needs) if len(needs) > 1 else None
    fits_idle = placed and not lines
    if expected is not None and expected[0] and not fits_idle:
        assert (lines, placed) == (expected[0], [expected[1]])


@pytest.mark.parametrize("name", ["one-for-each-account-and-tick", "a-victim-on-two-slots-once"])
def test_a_gang_preempts_as_its_scenario_file_expects(name: str) -> None:
    folder = Path(test_scenarios.__file__).parent
    test_scenarios.test_a_scenario_decides_what_its_file_expects(folder / f"gang-preempts-{name}.json")


def _play(*between: Document, grace: float = 0) -> Any:
    lab = {"system": "x", "provider": "static", "max_leases_per_slot": 1, "offline_timeout": 1e9, "lease_ttl": 0}
    held = [{"id": f"v{number}", "system": "x", "phase": "leased"} for number in (1, 2)]
    slots = [
        {"id": f"s{number}", "pool": "lab", "state": "ready", "leases": [{"reservation": f"v{number}", "level": 2}]}
        for number in (1, 2)
    ]
    gang = {"id": "g", "system": "x", "account": "A", "components": [{"name": "w", "count": 2}]}
    return play_out(
        {
            "name": "a race",
            "config": {
                "scheduler": {"queue": "quota", "preemption_grace": grace},
                "pools": {"lab": lab},
                "accounts": {"A": {"balance": [10]}},
            },
            "slots": slots,
            "reservations": held,
            "timeline": [{"at": 0, "submit": gang}, {"at": 0, "tick": {"between": list(between)}}],
        }
    )


@pytest.mark.parametrize("grace", [0, 30])
@pytest.mark.parametrize("lost", [{"release": "v1"}, {"release": "v2"}, {"cordon": "s2"}, {"cancel": "g"}])
def test_a_gang_gets_all_of_its_preemptions_or_none(lost: Document, grace: float) -> None:
    """What one of its slots loses between the plan and the commit holds all decisions up."""
    played = _play(lost, grace=grace)
    [decisions] = [line["decisions"] for line in played.lines if "tick" in line]
    assert [each["do"] for each in decisions] == ["preempt", "preempt", *(["assign"] if not grace else [])]
    assert all("skipped" in each for each in decisions)
    left = {name: phase for name, phase in played.phases.items() if name not in lost.values()}
    assert left == {name: "pending" if name == "g" else "leased" for name in left}


@pytest.mark.parametrize("grace", [0, 30])
def test_a_gang_without_a_race_gets_all_of_its_slots(grace: float) -> None:
    played = _play(grace=grace)
    assert played.phases["v1"] == played.phases["v2"] == ("revoking" if grace else "pending")
    assert played.phases["g"] == ("pending" if grace else "leased")
