"""The slot index: taking n leases at once equals taking one lease n times, and putting them back restores it."""

from itertools import islice
from random import Random
from typing import Any

import pytest
from msgspec import structs

from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from scheduler.model.view import View
from scheduler.policy.capacity.gang import Shortage, fill, has_room
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_index import CHANGES_A_STEP, SLOTS_A_STEP, RemainingCapacity, SlotIndex
from scheduler.policy.capacity.slot_info import SlotInfo, make_slot_info
from scheduler.policy.cycle.state import CycleState
from tests.builders import NOW, SYSTEM, a_component, a_lease, a_reservation, a_slot, some_rules


def a_draft(seed: int) -> tuple[CycleState, Reservation]:
    """Slots of different sizes and labels, some in use, and one pending reservation."""
    random = Random(seed)
    pool = {"resources": {"cpus": 4}} | random.choice([{}, {"max_leases_per_slot": 3}, {"max_uses": 2}])
    slots = [_slot(random, number) for number in range(1, random.randint(2, 9))]
    waiting = a_reservation("r1", resources={"cpus": random.choice([0, 1, 2])}, prefers={"zone": "b"})
    cycle = CycleState(View([*slots, waiting]), some_rules({"pools": {"linux": pool}}), NOW)
    cycle.open_indexes()
    return cycle, waiting


def _slot(random: Random, number: int) -> Slot:
    size = {"cpus": random.choice([1, 4, 8])}
    labels = {"zone": random.choice(["a", "b"])}
    return a_slot(f"linux-{number}", uses=random.randint(0, 1), resources=size, labels=labels)


def take_one_by_one(seed: int, most: int) -> list[str]:
    cycle, waiting = a_draft(seed)
    [need] = cycle.demand_of(waiting).needs
    found: list[str] = []
    while len(found) < most and (slot_info := cycle.ready.find(need)) is not None:
        cycle.ready.take(slot_info, need)
        found.append(slot_info.slot.id)
    return found


def list_names(runs: list[tuple[SlotInfo, int]]) -> list[str]:
    return [slot_info.slot.id for slot_info, given in runs for _ in range(given)]


@pytest.mark.parametrize("most", [1, 3, 40])
@pytest.mark.parametrize("seed", range(20))
def test_taking_several_leases_equals_taking_one_after_the_other(seed: int, most: int) -> None:
    cycle, waiting = a_draft(seed)
    [need] = cycle.demand_of(waiting).needs
    runs = cycle.ready.take_run(need, most) + cycle.ready.take_run(need, most)
    assert list_names(runs) == take_one_by_one(seed, 2 * most)
    assert all(slot_info.given == sum(given for other, given in runs if other is slot_info) for slot_info, _ in runs)


@pytest.mark.parametrize("seed", range(20))
def test_taking_one_lease_after_the_other_until_nothing_is_left_equals_searching_for_each(seed: int) -> None:
    cycle, waiting = a_draft(seed)
    [need] = cycle.demand_of(waiting).needs
    found = list(islice(cycle.ready.take_each(need, lambda slot_info: slot_info.slot.id), 40))
    assert found == take_one_by_one(seed, 40)


@pytest.mark.parametrize("seed", range(20))
def test_capacity_that_is_put_back_is_found_as_if_it_had_not_been_taken(seed: int) -> None:
    cycle, waiting = a_draft(seed)
    [need] = cycle.demand_of(waiting).needs
    taken: list[tuple[SlotInfo, RemainingCapacity, int]] = []
    while len(taken) < 5 and (slot_info := cycle.ready.find(need)) is not None:
        remaining = slot_info.remaining
        taken.append((slot_info, remaining, cycle.ready.take_often(slot_info, need, 1 + len(taken))))
    for slot_info, remaining, count in reversed(taken):
        cycle.ready.put_back(slot_info, remaining, count)
    assert list_names(cycle.ready.take_run(need, 40)) == take_one_by_one(seed, 40)


@pytest.mark.parametrize("most", [1, 3, 40])
@pytest.mark.parametrize("seed", range(20))
def test_as_many_instances_fit_as_can_be_taken_from_the_slots_that_were_not_removed(seed: int, most: int) -> None:
    cycle, waiting = a_draft(seed)
    [need] = cycle.demand_of(waiting).needs
    cycle.ready.remove(next(cycle.ready.list_slot_infos()))
    count = cycle.ready.count_fits(need, most)
    assert count == sum(given for _, given in cycle.ready.take_run(need, most))


def an_index_of_large_slots(slots: int, count: int) -> tuple[CycleState, Demand]:
    """Slots of 25 cores, and a gang of instances of one core."""
    rows = [a_slot(f"linux-{number}") for number in range(1, slots + 1)]
    gang = a_reservation("r1", components=(a_component(count=count, resources={"cpus": 1}),))
    cycle = CycleState(View([*rows, gang]), some_rules({"pools": {"linux": {"resources": {"cpus": 25}}}}), NOW)
    cycle.open_indexes()
    return cycle, cycle.demand_of(gang)


@pytest.mark.parametrize(("most", "count"), [(1, 1), (3, 3), (40, 25)])
def test_a_slot_takes_as_many_instances_at_once_as_are_wanted_and_fit(most: int, count: int) -> None:
    cycle, demand = an_index_of_large_slots(1, 2)
    [slot_info] = cycle.slot_infos.values()
    assert cycle.ready.take_often(slot_info, demand.needs[0], most) == count
    assert slot_info.load == count


def test_a_slot_that_is_added_for_a_request_has_one_instance() -> None:
    cycle, demand = an_index_of_large_slots(1, 2)
    [slot_info] = cycle.slot_infos.values()
    cycle.launched.add(slot_info, demand.needs[0])
    assert (slot_info.load, slot_info.free) == (1, {"cpus": 24})


def test_a_slot_that_was_removed_and_added_again_is_one_slot() -> None:
    cycle, demand = an_index_of_large_slots(2, 2)
    slot_info = next(iter(cycle.slot_infos.values()))
    cycle.ready.remove(slot_info)
    cycle.ready.add(slot_info)
    cycle.ready.find(demand.needs[0])
    assert [each.slot.id for each in cycle.ready.list_slots_for(demand.needs)] == ["linux-1", "linux-2"]


AMOUNTS, LABELS = {"cpus": 4}, {"zone": "a"}
"""Two objects to which several slots refer, as the slots do that are launched with one offering."""


def a_slot_with_shared_objects(order: int, pool: str = "linux", uses: int = 0, **different: Any) -> SlotInfo:
    keys = {"system": SYSTEM, "max_slots": 2}
    rules = some_rules({"pools": {"other": keys, "limited": keys | {"max_uses": 3}}})
    slot_info = make_slot_info(a_slot(f"{pool}-{order}", pool=pool, uses=uses), rules.pools[pool], order)
    return structs.replace(slot_info, **({"free": AMOUNTS, "labels": LABELS} | different))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {}),
        ({}, {"free": {"cpus": 2}}),
        ({}, {"labels": {"zone": "b"}}),
        ({}, {"pool": "other"}),
        ({}, {"given": 1}),
        ({"given": 1}, {}),
        ({}, {"leases": {("r1", "main"): a_lease("linux-1")}}),
        ({"leases": {("r1", "main"): a_lease("linux-0")}}, {}),
        ({"pool": "limited"}, {"pool": "limited", "uses": 1}),
    ],
)
def test_added_slots_that_refer_to_the_same_objects_share_only_what_is_equal(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    index = SlotIndex()
    slot_infos = [a_slot_with_shared_objects(order, **each) for order, each in enumerate((first, second))]
    expected = [(each.slot.pool, each.labels, each.free, each.load, each.uses_left) for each in slot_infos]
    for each in slot_infos:
        index.add(each)
    found = [(each.slot_class, each.remaining) for each in slot_infos]
    assert [(kind.pool, kind.labels, left.free, left.load, left.uses_left) for kind, left in found] == expected
    assert [list(index.list_slot_infos()), *(kind.slot_infos[-1] for kind, _ in found[1:])] == [
        slot_infos,
        slot_infos[1],
    ]


@pytest.mark.parametrize(("slots", "fits"), [(4, True), (3, False)])
def test_a_gang_of_a_hundred_instances_is_placed_if_all_of_them_fit(slots: int, fits: bool) -> None:
    cycle, demand = an_index_of_large_slots(slots, 100)
    placed = fill(demand, [cycle.ready])
    assert (placed is not None) is fits


def find_by_looking_at_all(
    slot_infos: list[SlotInfo], need: InstanceRequest, declined: tuple[str, ...]
) -> SlotInfo | None:
    """Return the order: most preferred labels, fewest surplus ones, most leases (fewest for `spread`), slot order."""

    def rank(slot_info: SlotInfo) -> tuple[object, ...]:
        return need.rank_labels(slot_info.labels), slot_info.load if need.spreads else -slot_info.load, slot_info.order

    able = [
        slot_info
        for slot_info in slot_infos
        if slot_info.has_place
        and slot_info.slot.id not in declined
        and need.could_hold(slot_info.slot.pool, slot_info.free, slot_info.labels)
    ]
    return min(able, key=rank, default=None)


def a_mixed_draft(random: Random) -> tuple[CycleState, list[InstanceRequest]]:
    """Slots with up to a dozen classes of labels, and requests that differ in amounts, labels and preferences."""
    labels = [{"zone": zone, "rack": rack} for zone in "ab" for rack in "123456"][: random.choice([2, 4, 12])]
    slots = [
        a_slot(f"linux-{number}", resources={"cpus": random.choice([2, 4, 8])}, labels=random.choice(labels))
        for number in range(1, random.randint(2, 20))
    ]
    waiting = [
        a_reservation(
            f"r{number}",
            resources={"cpus": random.choice([0, 1, 2, 3])},
            labels=random.choice([{}, {}, {"zone": "a"}]),
            prefers=random.choice([{}, {"zone": "b"}, {"rack": "1"}]),
        )
        for number in range(6)
    ]
    rules = some_rules(
        {
            "scheduler": {"profile": random.choice(["pack", "spread"])},
            "pools": {"linux": {"resources": {"cpus": 4}, "max_leases_per_slot": random.choice([2, 5])}},
        }
    )
    cycle = CycleState(View([*slots, *waiting]), rules, NOW)
    cycle.open_indexes()
    return cycle, [cycle.demand_of(each).needs[0] for each in waiting]


@pytest.mark.parametrize("seed", range(150))
def test_the_index_finds_the_slot_that_a_search_of_all_slots_finds(seed: int) -> None:
    """Slots are taken, undone, removed and added again, and requests occur late."""
    random = Random(seed)
    cycle, needs = a_mixed_draft(random)
    slot_index, away = cycle.ready, list[SlotInfo]()
    taken: list[tuple[SlotInfo, RemainingCapacity, int]] = []
    for _ in range(60):
        need, declined = random.choice(needs), random.choice([(), (), ("linux-1", "linux-2")])
        slot_info = slot_index.find(need, declined)
        assert slot_info is find_by_looking_at_all(list(slot_index.list_slot_infos()), need, declined)
        match random.choice(["take", "take", "take", "undo", "leave", "return"]):
            case "take" if slot_info is not None:
                remaining = slot_info.remaining
                taken.append((slot_info, remaining, slot_index.take_often(slot_info, need, random.choice([1, 1, 3]))))
            case "undo" if taken:
                slot_index.put_back(*taken.pop())
            case "leave" if slot_info is not None and slot_info.given == 0:
                slot_index.remove(slot_info)
                away.append(slot_info)
            case "return" if away:
                slot_index.add(away.pop())


def some_gangs(random: Random) -> tuple[CycleState, list[Demand]]:
    """Slots of two sizes in two zones, and gangs of one or two components; some differ in their count alone."""
    slots = [
        a_slot(
            f"linux-{number}", resources={"cpus": random.choice([1, 3])}, labels={"zone": random.choice("ab")}, uses=1
        )
        for number in range(1, random.randint(2, 9))
    ]
    waiting = []
    for number in range(12):
        parts = [
            a_component(f"part{part}", count=random.randint(1, 5), resources={"cpus": random.choice([1, 1, 2])})
            for part in range(random.choice([1, 1, 2]))
        ]
        asked = {"labels": random.choice([{}, {"zone": "a"}]), "prefers": random.choice([{}, {"zone": "b"}])}
        declined = random.choice([(), (), ("linux-1",)])
        waiting.append(
            a_reservation(f"r{number}", sequence=number, components=tuple(parts), declined=declined, **asked)
        )
    cycle = CycleState(View([*slots, *waiting]), some_rules({"pools": {"linux": {"resources": {"cpus": 3}}}}), NOW)
    cycle.open_indexes()
    return cycle, [cycle.demand_of(each) for each in waiting]


@pytest.mark.parametrize("seed", range(100))
def test_a_known_shortage_refuses_only_gangs_that_would_find_no_capacity(seed: int) -> None:
    cycle, demands = some_gangs(Random(seed))
    shortage = Shortage()
    for demand in demands:
        is_known = shortage.holds_for(demand)
        had_room = has_room(demand, (cycle.ready,))
        assert not (is_known and had_room)
        assert (fill(demand, (cycle.ready,), shortage=shortage) is not None) == had_room


def test_of_equal_gangs_the_larger_one_is_not_tried_where_the_smaller_one_had_no_capacity() -> None:
    slots = [a_slot(f"linux-{number}", resources={"cpus": 1}) for number in (1, 2)]
    gangs = [
        a_reservation(f"r{count}", components=(a_component("rank", count=count, resources={"cpus": 1}),))
        for count in (2, 3, 4)
    ]
    cycle = CycleState(View([*slots, *gangs]), some_rules({"pools": {"linux": {"resources": {"cpus": 1}}}}), NOW)
    cycle.open_indexes()
    shortage = Shortage()
    two, three, four = (cycle.demand_of(each) for each in gangs)
    assert fill(three, (cycle.ready,), shortage=shortage) is None
    assert [shortage.holds_for(each) for each in (two, three, four)] == [False, True, True]


def test_a_search_counts_a_step_for_every_few_changes_that_it_reads() -> None:
    slots = [a_slot(f"linux-{number}", resources={"cpus": 4}) for number in range(1, 9)]
    waiting = a_reservation("r1", resources={"cpus": 1})
    cycle = CycleState(View([*slots, waiting]), some_rules({"pools": {"linux": {"resources": {"cpus": 4}}}}), NOW)
    cycle.open_indexes()
    [need] = cycle.demand_of(waiting).needs
    cycle.ready.find(need)
    taken = list(cycle.slot_infos.values())
    # The changes that earlier searches have read count no more, even if they were as many as there are slots.
    for count, steps in ((CHANGES_A_STEP - 1, 0), *[(CHANGES_A_STEP, 1)] * 4):
        for slot_info in taken[:count]:
            cycle.ready.put_back(slot_info, slot_info.remaining, 0)
        before = cycle.count_steps()
        cycle.ready.find(need)
        assert cycle.count_steps() - before == steps


def test_equal_slots_that_could_hold_an_instance_are_counted_together() -> None:
    sizes = [4.0, 2.0, 4.0, 4.0, 1.0]
    slots = [a_slot(f"linux-{number}", resources={"cpus": size}) for number, size in enumerate(sizes)]
    waiting = a_reservation("r1", resources={"cpus": 2})
    cycle = CycleState(View([*slots, waiting]), some_rules(), NOW)
    cycle.open_indexes()
    [need] = cycle.demand_of(waiting).needs
    found = [(capacity, count) for _, capacity, count in cycle.ready.list_shareable(need)]
    assert found == [({"cpus": 4.0}, 3), ({"cpus": 2.0}, 1)]
    found = [(capacity, count) for _, capacity, count in cycle.ready.list_shareable(need, ["linux-2", "linux-1"])]
    assert found == [({"cpus": 4.0}, 2)]


def test_a_sum_over_many_slots_counts_as_more_steps() -> None:
    waiting = a_reservation("r1", resources={"cpus": 1})
    slots = [a_slot(f"linux-{number}", resources={"cpus": 1}) for number in range(1, 3 * SLOTS_A_STEP + 1)]
    cycle = CycleState(View([*slots, waiting]), some_rules({"pools": {"linux": {"max_slots": len(slots)}}}), NOW)
    cycle.open_indexes()
    [need] = cycle.demand_of(waiting).needs
    before = cycle.ready.steps
    assert cycle.ready.count_fits(need, 2 * len(slots)) == len(slots)
    assert cycle.ready.steps == before + 1 + 3
