"""Gangs on idle slots under quota: placed as by a planner that examines each slot for each instance, at less cost."""

from collections import Counter
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


def _place_naively(
    slots: list[Slot], waiting: list[Reservation], most: int, limit: float = inf
) -> dict[str, list[str]]:
    """Return the slots of each gang: in slot order, each slot is tried as the place of the first instance. `limit`: the
    most leases of all gangs on slots of one zone.
    """
    in_zone = Counter[str]()
    free = {slot.id: dict(CAPACITY) for slot in slots}
    count = dict.fromkeys(free, 0)
    placed: dict[str, list[str]] = {}

    def find(needs: list[Component], first: Slot, declined: tuple[str, ...]) -> list[Slot] | None:
        left, taken, found, here = dict(free), dict(count), list[Slot](), Counter(in_zone)
        for number, need in enumerate(needs):
            for slot in [first] if number == 0 else slots:
                is_able = taken[slot.id] < most and fits(need.resources, left[slot.id])
                is_able = is_able and here[slot.labels["zone"]] < limit
                if is_able and slot.id not in declined and has_labels(slot.labels, need.labels):
                    left[slot.id] = subtract(left[slot.id], need.resources)
                    taken[slot.id] += 1
                    here[slot.labels["zone"]] += 1
                    found.append(slot)
                    break
            else:
                return None
        return found

    for slot in slots:
        for row in waiting:
            needs = [each for each in row.request.components for _ in range(each.count)]
            if row.id not in placed and (found := find(needs, slot, row.declined)) is not None:
                placed[row.id] = [each.id for each in found]
                for each, need in zip(found, needs, strict=True):
                    free[each.id] = subtract(free[each.id], need.resources)
                    count[each.id] += 1
                    in_zone[each.labels["zone"]] += 1
    return placed


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
    assert found == _place_naively(slots, queue, most, limit)


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
