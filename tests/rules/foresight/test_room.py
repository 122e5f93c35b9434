"""What slots have free, counted: what fits, what is taken first, and what comes back."""

from math import inf

import pytest

from scheduler.foresight.present import MOST_ON_A_SLOT, Held, Offers, Room, Vector, find_gain, find_use

FOUR: Vector = (4.0, 0.0)
"""4 cpus; the number of leases is not limited."""


def a_room(*free: dict[Vector, int]) -> Room:
    return Room([FOUR] * len(free), free)


def one(cpus: float, *groups: int) -> Offers:
    return tuple((each, (cpus, 0.0)) for each in groups or (0,))


def free(room: Room, group: int = 0) -> dict[Vector, int]:
    """What the slots of a group have free: found by what fits."""
    return room._free[group]


@pytest.mark.parametrize(
    ("left", "amounts", "count"),
    [
        ((4.0, 2.0), (1.0, 1.0), 2),  # two leases are left
        ((4.0, 2.0), (3.0, 1.0), 1),
        ((0.3, 9.0), (0.1, 1.0), 3),  # 0.3 / 0.1 is rounded down below 3
        ((inf, 9.0), (1.0, 0.0), MOST_ON_A_SLOT),
        ((4.0, 2.0), (0.0, 0.0), MOST_ON_A_SLOT),
        ((0.5, 2.0), (1.0, 1.0), 0),
    ],
)
def test_as_many_instances_fit_as_the_scarcest_resource_allows(left: Vector, amounts: Vector, count: int) -> None:
    assert Room([left], [{left: 3}]).count(((0, amounts),)) == 3 * count
    assert Room([left], [{}]).count_empty(0, amounts) == count


def test_slots_with_the_least_room_are_taken_first_and_groups_in_the_order_of_the_offers() -> None:
    room = a_room({FOUR: 2, (1.0, 0.0): 1, (3.0, 0.0): 1}, {FOUR: 1})
    before = room.changes
    held = room.take(one(2.0, 1, 0), 4)
    assert room.changes > before
    assert held == [
        Held(1, (4.0, 0.0), (0.0, 0.0), 1),
        Held(0, (2.0, 0.0), (1.0, 0.0), 1),
        Held(0, (2.0, 0.0), (2.0, 0.0), 1),
    ]
    assert free(room) == {FOUR: 1, (1.0, 0.0): 2, (2.0, 0.0): 1}
    assert free(room, 1) == {(0.0, 0.0): 1}


def test_many_instances_fill_many_slots_and_the_rest_shares_one() -> None:
    room = a_room({FOUR: 5})
    assert room.take(one(1.0), 10) == [Held(0, FOUR, (0.0, 0.0), 2), Held(0, (2.0, 0.0), (2.0, 0.0), 1)]
    assert free(room) == {FOUR: 2, (0.0, 0.0): 2, (2.0, 0.0): 1}
    # The next ones go where something runs.
    assert room.take(one(1.0), 1) == [Held(0, (1.0, 0.0), (1.0, 0.0), 1)]
    assert free(room) == {FOUR: 2, (0.0, 0.0): 2, (1.0, 0.0): 1}


def test_what_was_taken_comes_back() -> None:
    room = a_room({FOUR: 5})
    copy = room.copy()
    held = room.take(one(1.0), 10)
    before = room.changes
    room.give_back(held)
    assert (free(room), room.changes) == ({FOUR: 5}, before + 1)
    copy.take(one(4.0), 5)
    assert (copy.count(one(1.0)), room.count(one(1.0))) == (0, 20)


def test_amounts_come_back_to_another_slot_if_none_is_as_it_was() -> None:
    # The slot with 1 free was used further, and has nothing free now.
    room = a_room({(0.0, 0.0): 1, (3.0, 0.0): 1})
    room.give_back([Held(0, (3.0, 0.0), (1.0, 0.0), 1)])
    assert free(room) == {(3.0, 0.0): 2}
    # The amounts of two slots come back: one as it was, one elsewhere.
    room = a_room({(0.0, 0.0): 1, (1.0, 0.0): 1})
    room.give_back([Held(0, (3.0, 0.0), (1.0, 0.0), 2)])
    assert free(room) == {FOUR: 1, (3.0, 0.0): 1}


def test_no_slot_has_more_free_than_its_capacity() -> None:
    room = a_room({(2.0, 0.0): 2})
    room.give_back([Held(0, (3.0, 0.0), (1.0, 0.0), 1)])
    assert free(room) == {(2.0, 0.0): 1, FOUR: 1}


def test_new_slots_are_empty() -> None:
    room = a_room({FOUR: 1})
    before = room.changes
    room.add_slots(0, 2)
    assert (free(room), room.changes) == ({FOUR: 3}, before + 1)


def test_the_use_is_that_of_the_scarcest_resource_and_the_gain_that_of_the_least() -> None:
    assert find_use((2.0, 3.0), (4.0, 4.0)) == 0.75
    assert find_gain((2.0, 3.0), (4.0, 4.0)) == 0.5
    assert (find_use((2.0, 3.0), (0.0, 0.0)), find_gain((2.0, 3.0), (0.0, 0.0))) == (0.0, 0.0)
    assert find_gain((2.0, 3.0), (0.0, 1.0)) == 3.0
