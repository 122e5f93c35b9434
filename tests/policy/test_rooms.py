"""Rooms: a run of leases is what one lease after the other would be; so is what was given and put back."""

from random import Random

import pytest

from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from scheduler.model.view import View
from scheduler.policy.draft import Draft
from scheduler.policy.lines import Stock
from scheduler.policy.places import Place
from tests.builders import NOW, a_reservation, a_slot, some_rules


def a_draft(seed: int) -> tuple[Draft, Reservation]:
    """Slots of different sizes and labels, some in use, and one who waits."""
    random = Random(seed)
    pool = {"resources": {"cpus": 4}} | random.choice([{}, {"max_leases_per_slot": 3}, {"max_uses": 2}])
    slots = [_slot(random, number) for number in range(1, random.randint(2, 9))]
    waiting = a_reservation("r1", resources={"cpus": random.choice([0, 1, 2])}, prefers={"zone": "b"})
    draft = Draft(View([*slots, waiting]), some_rules({"pools": {"linux": pool}}), NOW)
    draft.open_rooms()
    return draft, waiting


def _slot(random: Random, number: int) -> Slot:
    size = {"cpus": random.choice([1, 4, 8])}
    labels = {"zone": random.choice(["a", "b"])}
    return a_slot(f"linux-{number}", uses=random.randint(0, 1), resources=size, labels=labels)


def take_one_by_one(seed: int, most: int) -> list[str]:
    draft, waiting = a_draft(seed)
    [need] = draft.demand_of(waiting).needs
    found: list[str] = []
    while len(found) < most and (place := draft.ready.find(need)) is not None:
        draft.ready.take(place, need)
        found.append(place.slot.id)
    return found


def list_names(runs: list[tuple[Place, int]]) -> list[str]:
    return [place.slot.id for place, given in runs for _ in range(given)]


@pytest.mark.parametrize("most", [1, 3, 40])
@pytest.mark.parametrize("seed", range(20))
def test_a_run_gives_what_one_lease_after_the_other_gives(seed: int, most: int) -> None:
    draft, waiting = a_draft(seed)
    [need] = draft.demand_of(waiting).needs
    runs = draft.ready.take_run(need, most) + draft.ready.take_run(need, most)
    assert list_names(runs) == take_one_by_one(seed, 2 * most)
    assert all(place.given == sum(given for other, given in runs if other is place) for place, _ in runs)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_put_back_is_found_again_as_if_it_had_not_been_taken(seed: int) -> None:
    draft, waiting = a_draft(seed)
    [need] = draft.demand_of(waiting).needs
    taken: list[tuple[Place, Stock]] = []
    while len(taken) < 5 and (place := draft.ready.find(need)) is not None:
        taken.append((place, draft.ready.take(place, need)))
    for place, stock in reversed(taken):
        draft.ready.put_back(place, stock)
    assert list_names(draft.ready.take_run(need, 40)) == take_one_by_one(seed, 40)
