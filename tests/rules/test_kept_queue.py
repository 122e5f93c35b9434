"""The kept queue of waiting reservations: its blocks contain what a sorted list contains, and stay of a useful size."""

from collections.abc import Iterator, Sequence
from random import Random

import pytest

from scheduler.model.waits import MOST_NAMES, Reason
from scheduler.policy.replan.kept_cycle import FEWEST_NAMES, MOST_STALE, KeptQueue, Key, KeyHeap

REASON: Reason = ("no_capacity", "no slot has room")


def a_key(number: int) -> Key:
    return (0, float(number), number, f"r{number}")


def cut(numbers: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (numbers[start : start + size] for start in range(0, len(numbers), size))


def list_names(queue: KeptQueue) -> list[str]:
    return [name for block in queue.cut() for name in block.names]


@pytest.mark.parametrize("seed", range(3))
def test_the_blocks_contain_the_reservations_in_queue_order_after_any_changes(seed: int) -> None:
    random, queue, keys = Random(seed), KeptQueue([], []), list[Key]()
    for share in (1.0, 0.3, 0.8, 0.0):
        for numbers in cut(random.sample(range(100_000), 3 * MOST_NAMES), random.choice((1, 50, 200))):
            gone = [keys.pop(random.randrange(len(keys))) for _ in numbers if keys and random.random() >= share]
            queue.remove_all(gone)
            came = sorted({key for key in map(a_key, numbers) if random.random() < share and key not in keys})
            keys = sorted(keys + came)
            queue.insert_all(came, [REASON] * len(came))
            assert list_names(queue) == [key[3] for key in keys]
            assert all(block.names for block in queue.cut())


def test_a_block_that_becomes_small_is_joined_with_a_small_one_behind_it() -> None:
    queue = KeptQueue([], [])
    queue.insert_all(list(map(a_key, range(2 * MOST_NAMES))), [REASON] * 2 * MOST_NAMES)
    left = [*range(MOST_NAMES - FEWEST_NAMES, MOST_NAMES + 10)]
    queue.remove_all([a_key(number) for number in range(2 * MOST_NAMES) if number not in left])
    assert [len(block.names) for block in queue.cut()] == [FEWEST_NAMES, 10]
    queue.remove_all([a_key(MOST_NAMES - 1)])
    assert [len(block.names) for block in queue.cut()] == [FEWEST_NAMES + 9]


def test_a_block_of_which_all_reservations_left_is_removed() -> None:
    queue, size = KeptQueue([], []), 2 * MOST_NAMES
    queue.insert_all(list(map(a_key, range(size))), [REASON] * size)
    queue.remove_all(list(map(a_key, range(MOST_NAMES, size))))
    assert [len(block) for block in queue.cut()] == [MOST_NAMES]


def test_a_block_stays_as_it_is_when_reservations_come_and_leave() -> None:
    queue = KeptQueue([], [])
    queue.insert_all(list(map(a_key, range(9))), [REASON] * 9)
    [whole] = queue.cut()
    queue.remove_all([a_key(3)])
    [smaller] = queue.cut()
    queue.insert_all([a_key(3), a_key(9)], [REASON] * 2)
    assert [len(block.names) for block in (whole, smaller, *queue.cut())] == [9, 8, 10]
    assert [len(block.reasons) for block in (whole, smaller, *queue.cut())] == [9, 8, 10]


def test_a_heap_returns_the_first_reservation_that_waits_after_any_number_of_departures() -> None:
    present: dict[str, Key] = {}
    heap = KeyHeap(present)
    for number in (7, 5, *range(100, 100 + 2 * MOST_STALE)):
        present[f"r{number}"] = a_key(number)
        heap.push_all([present[f"r{number}"]])
        if number >= 100:
            del present[f"r{number}"]
    assert heap.first == a_key(5)
    del present["r5"]
    assert heap.first == a_key(7)


def test_the_next_reservation_of_a_heap_is_behind_the_first_one_and_waits() -> None:
    """Also if the first one was added later than larger ones, or the one behind it has left."""
    present = {key[3]: key for key in map(a_key, (5, 7, 8, 9))}
    heap = KeyHeap(present)
    heap.push_all([present["r7"], present["r8"], present["r9"]])
    heap.push_all([present["r5"]])
    assert heap.first == a_key(5)
    assert heap.find_next(present.pop("r5")) == heap.first == a_key(7)
    del present["r8"]
    assert heap.find_next(present.pop("r7")) == heap.first == a_key(9)
    assert heap.find_next(present.pop("r9")) is heap.first is None


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("ages", [((0, 1), (0, 2), (0, 3), (0, 4)), ((0, 1),) * 4, ((0, 5), (1, 1), (1, 2), (1, 3))])
def test_a_reservation_leaves_its_block_whatever_the_ranks_and_ages_of_the_others(
    ages: tuple[tuple[int, float], ...], at: int
) -> None:
    keys: list[Key] = [(rank, age, number, f"r{number}") for number, (rank, age) in enumerate(ages)]
    queue = KeptQueue([], [])
    queue.insert_all(keys, [REASON] * 4)
    for _ in range(2):
        queue.remove_all([keys[at]])
        assert list_names(queue) == [key[3] for key in keys if key is not keys[at]]
        queue.insert_all([keys[at]], [REASON])
