"""Rooms: a run of leases is what one lease after the other would be; so is what was given and put back."""

from random import Random

import pytest

from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from scheduler.model.view import View
from scheduler.policy.draft import Draft
from scheduler.policy.filling import Shortage, fill, has_room
from scheduler.policy.lines import Stock
from scheduler.policy.needs import Demand, Need
from scheduler.policy.places import Place
from tests.builders import NOW, a_component, a_reservation, a_slot, some_rules


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
    taken: list[tuple[Place, Stock, int]] = []
    while len(taken) < 5 and (place := draft.ready.find(need)) is not None:
        stock = place.stock
        taken.append((place, stock, draft.ready.take_often(place, need, 1 + len(taken))))
    for place, stock, count in reversed(taken):
        draft.ready.put_back(place, stock, count)
    assert list_names(draft.ready.take_run(need, 40)) == take_one_by_one(seed, 40)


def find_by_looking_at_all(places: list[Place], need: Need, declined: tuple[str, ...]) -> Place | None:
    """Most preferred labels, fewest surplus ones, most leases (fewest where it spreads), slot order."""

    def rank(place: Place) -> tuple[object, ...]:
        return need.rank_labels(place.labels), place.load if need.spreads else -place.load, place.order

    able = [
        place
        for place in places
        if place.has_place
        and place.slot.id not in declined
        and need.could_hold(place.slot.pool, place.free, place.labels)
    ]
    return min(able, key=rank, default=None)


def a_mixed_draft(random: Random) -> tuple[Draft, list[Need]]:
    """Slots with up to a dozen kinds of labels, and needs that differ in amounts, labels and what they prefer."""
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
    draft = Draft(View([*slots, *waiting]), rules, NOW)
    draft.open_rooms()
    return draft, [draft.demand_of(each).needs[0] for each in waiting]


@pytest.mark.parametrize("seed", range(150))
def test_rooms_find_what_looking_at_all_places_finds_whatever_came_before(seed: int) -> None:
    """Takes, takes that are undone, places that leave and come back, and needs that are asked for late."""
    random = Random(seed)
    draft, needs = a_mixed_draft(random)
    rooms, away = draft.ready, list[Place]()
    taken: list[tuple[Place, Stock, int]] = []
    for _ in range(60):
        need, declined = random.choice(needs), random.choice([(), (), ("linux-1", "linux-2")])
        place = rooms.find(need, declined)
        assert place is find_by_looking_at_all(list(rooms.list_places()), need, declined)
        match random.choice(["take", "take", "take", "undo", "leave", "return"]):
            case "take" if place is not None:
                stock = place.stock
                taken.append((place, stock, rooms.take_often(place, need, random.choice([1, 1, 3]))))
            case "undo" if taken:
                rooms.put_back(*taken.pop())
            case "leave" if place is not None and place.given == 0:
                rooms.remove(place)
                away.append(place)
            case "return" if away:
                rooms.add(away.pop())


def some_gangs(random: Random) -> tuple[Draft, list[Demand]]:
    """Slots of two sizes in two zones, and gangs of one or two components; some are alike but for how many they are."""
    slots = [
        a_slot(
            f"linux-{number}",
            resources={"cpus": random.choice([1, 3])},
            labels={"zone": random.choice("ab")},
            uses=1,
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
    draft = Draft(View([*slots, *waiting]), some_rules({"pools": {"linux": {"resources": {"cpus": 3}}}}), NOW)
    draft.open_rooms()
    return draft, [draft.demand_of(each) for each in waiting]


@pytest.mark.parametrize("seed", range(100))
def test_what_is_known_of_a_shortage_refuses_only_those_who_would_find_no_room(seed: int) -> None:
    draft, demands = some_gangs(Random(seed))
    shortage = Shortage()
    for demand in demands:
        is_known = shortage.holds_for(demand)
        had_room = has_room(demand, (draft.ready,))
        assert not (is_known and had_room)
        assert (fill(demand, (draft.ready,), shortage=shortage) is not None) == had_room


def test_of_gangs_that_are_alike_the_larger_one_is_not_tried_where_the_smaller_one_had_no_room() -> None:
    slots = [a_slot(f"linux-{number}", resources={"cpus": 1}) for number in (1, 2)]
    gangs = [
        a_reservation(f"r{count}", components=(a_component("rank", count=count, resources={"cpus": 1}),))
        for count in (2, 3, 4)
    ]
    draft = Draft(View([*slots, *gangs]), some_rules({"pools": {"linux": {"resources": {"cpus": 1}}}}), NOW)
    draft.open_rooms()
    shortage = Shortage()
    two, three, four = (draft.demand_of(each) for each in gangs)
    assert fill(three, (draft.ready,), shortage=shortage) is None
    assert [shortage.holds_for(each) for each in (two, three, four)] == [False, True, True]
