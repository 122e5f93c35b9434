"""Gangs on idle slots under quota: placed as by a planner that examines each slot for each instance, at less cost."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from random import Random
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.decisions import Assign
from scheduler.model.reservations import Component, Reservation
from scheduler.model.resources import has_labels, subtract
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.view import View
from scheduler.policy.capacity.fits import fits
from scheduler.policy.plan import plan
from scheduler.policy.quota import match_idle
from tests.builders import NOW, a_component, a_reservation, a_slot, some_rules
from tests.rules.fleets import QUICKLY
from tests.rules.quotas import an_account

CAPACITY = {"memory_mib": 4.0}


def _make_rules(leases: int = 9) -> Rules:
    pool = {"provider": "static", "offline_timeout": 1e9, "max_leases_per_slot": leases, "resources": CAPACITY}
    return some_rules({"scheduler": {"queue": "quota"}, "limits": {"work_per_tick": 0}, "pools": {"linux": pool}})


@dataclass
class _Naive:
    """Places gangs slot by slot. `limit`: the most leases of all gangs on slots of one zone."""

    slots: list[Slot]
    most: int
    limit: float
    in_zone: Counter[str] = field(default_factory=Counter)
    taken: dict[str, list[Mapping[str, float]]] = field(default_factory=lambda: defaultdict(list))

    def run(self, waiting: list[Reservation]) -> dict[str, list[str]]:
        """Return the slots of each gang: in slot order, each slot is tried as the place of the first instance. If the
        parts differ and no later slot would do, they are tried in other orders.
        """
        placed: dict[str, list[str]] = {}
        for slot in self.slots:
            for row in waiting:
                needs = [each for each in row.request.components for _ in range(each.count)]
                if row.id not in placed and (found := self.find_for(needs, slot, row.declined)) is not None:
                    placed[row.id] = [each.id for each in found]
                    for each, need in zip(found, needs, strict=True):
                        self.taken[each.id].append(need.resources)
                        self.in_zone[each.labels["zone"]] += 1
        return placed

    def find_for(self, needs: list[Component], slot: Slot, declined: tuple[str, ...]) -> list[Slot] | None:
        """Return slots for all instances, if the first instance fits on this slot."""
        found = self.find(needs, [slot], declined)
        differ = len({(str(each.labels), str(each.resources)) for each in needs}) > 1
        if found or not differ or self.find(needs[:1], [slot], declined) is None:
            return found
        later = self.slots[self.slots.index(slot) :]
        if any(self.find(needs, [each], declined) for each in later):
            return None
        return self.find_otherwise(needs, declined)

    def find_otherwise(self, needs: list[Component], declined: tuple[str, ...]) -> list[Slot] | None:
        """Place the instances by their shares, those with the largest first, and then in any way."""

        def rank(index: int) -> tuple[float, int]:
            need = needs[index]
            able = [each for each in self.slots if each.id not in declined and has_labels(each.labels, need.labels)]
            return -need.resources["memory_mib"], len(able)

        order = sorted(range(len(needs)), key=rank)
        by_share = [needs[index] for index in order]
        found = self.find(by_share, self.slots, declined) or self.find(by_share, self.slots, declined, goes_back=True)
        return None if found is None else [found[order.index(index)] for index in range(len(needs))]

    def find(
        self, needs: list[Component], first: list[Slot], declined: tuple[str, ...], *, goes_back: bool = False
    ) -> list[Slot] | None:
        """Return the first slots in order that fit, one of `first` for the first instance. `goes_back`: all ways are
        tried.
        """

        def place(found: list[Slot]) -> list[Slot] | None:
            if len(found) == len(needs):
                return found
            for slot in self.slots if found else first:
                if slot.id not in declined and self.fits(needs[len(found)], slot, needs, found):
                    placed = place([*found, slot])
                    if placed or not goes_back:
                        return placed
            return None

        return place([])

    def fits(self, need: Component, slot: Slot, needs: list[Component], found: list[Slot]) -> bool:
        """Return whether one more instance fits beside the leases on the slot and the instances in `found`."""
        there = [*self.taken[slot.id], *(each.resources for each, at in zip(needs, found, strict=False) if at is slot)]
        left: Mapping[str, float] = CAPACITY
        for amounts in there:
            left = subtract(left, amounts)
        zone = slot.labels["zone"]
        in_zone = self.in_zone[zone] + sum(each.labels["zone"] == zone for each in found)
        is_able = len(there) < self.most and fits(need.resources, left) and in_zone < self.limit
        return is_able and has_labels(slot.labels, need.labels)


@QUICKLY
@given(st.integers(0, 2**32))
def test_gangs_get_the_slots_that_a_search_of_all_slots_finds(seed: int) -> None:
    draw = Random(seed)
    most, limit = draw.randint(1, 4), draw.choice([inf, 1, 2, 4])
    slots = [
        a_slot(f"linux-{number}", labels={"zone": draw.choice("abc")}, uses=1)
        for number in range(1, draw.randint(2, 9))
    ]
    waiting = [
        a_reservation(
            f"r{number}",
            sequence=number,
            account="A",
            declined=draw.choice([(), (), ("linux-1",)]),
            components=tuple(
                a_component(
                    f"c{index}",
                    count=draw.randint(1, 4),
                    labels=draw.choice([{}, {"zone": "a"}]),
                    resources={"memory_mib": draw.choice([0, 1, 3])},
                )
                for index in range(draw.randint(1, 2))
            ),
        )
        for number in range(1, draw.randint(2, 8))
    ]
    queue = sorted(
        waiting, key=lambda each: (-len({n for c in each.request.components for n in c.labels}), each.sequence)
    )
    account = an_account("A", 100, per_label_task_limits={} if limit == inf else {"zone": limit})
    outcome = plan(View([*slots, *waiting, account]), _make_rules(most), NOW)
    found = {
        each.reservation: [lease.slot for lease in each.leases]
        for each in outcome.decisions
        if isinstance(each, Assign)
    }
    assert found == _Naive(slots, most, limit).run(queue)


def test_a_gang_examines_the_slots_that_can_take_it_and_each_full_slot_once() -> None:
    slots = [a_slot(f"linux-{number}") for number in range(1, 201)]
    gang = (a_component(count=10, resources={"memory_mib": 3}),)
    waiting = [a_reservation(f"r{number}", sequence=number, components=gang) for number in range(1, 41)]
    examine, count = match_idle._has_room, 0

    def counted(*values: object) -> bool:
        nonlocal count
        count += 1
        return examine(*values)  # type: ignore[arg-type]

    with patch.object(match_idle, "_has_room", counted):
        outcome = plan(View([*slots, *waiting]), _make_rules(), NOW)
    assert len(outcome.waiting) == 20
    assert count < 10 * len(slots)


def test_a_gang_takes_the_first_slots_in_order_that_no_limit_of_its_account_refuses() -> None:
    slots = [a_slot(f"linux-{number}", labels={"rack": rack}) for number, rack in enumerate("aabc", 1)]
    account = an_account("A", 100, per_label_task_limits={"rack": 1})
    gang = a_reservation("g", sequence=1, account="A", components=(a_component(count=3),))
    [decision] = plan(View([*slots, gang, account]), _make_rules(), NOW).decisions
    assert [lease.slot for lease in decision.leases] == ["linux-1", "linux-3", "linux-4"]  # type: ignore[union-attr]
